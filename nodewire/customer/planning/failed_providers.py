"""Who was gone a moment ago: a session's next jobs are planned without them, until a certified beat says they are back.

A dead provider stands in snapshots for some epochs more. One job finds that out; those after it need not. Nobody is
believed to be gone for long on this customer's word alone: who beats in a later epoch than that of the failure is
planned with again, and only who fails then anew is passed over for twice as many epochs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.protocol.job.plan import MAX_EXCLUDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.market.snapshot import Snapshot

MOST_DOUBLED = 5
KEPT_EPOCHS = 64
"""After which a failure is forgotten, and counts no more when the next one comes."""


@dataclass(slots=True)
class _Absence:
    """Since `epoch`, for the `times`-th time; `back`: seen since."""

    epoch: int
    times: int = 1
    back: bool = False

    @property
    def until(self) -> int:
        """A beat of this epoch, or of a later one, says that it is back."""
        return self.epoch + (1 << min(self.times - 1, MOST_DOUBLED))


class FailedProviders:
    """Public keys, at most as many as a plan may leave out; the oldest go."""

    def __init__(self, committee: Committee, clock_s: Callable[[], float] = time.time) -> None:
        self._committee = committee
        self._clock_s = clock_s
        self._absences: dict[str, _Absence] = {}

    def note(self, providers: Iterable[str]) -> None:
        """These have just failed. Of jobs that break off together by one death it is one failure."""
        epoch = self._epoch()
        for provider in sorted(providers):
            known = self._absences.pop(provider, None)
            if known is None:
                self._absences[provider] = _Absence(epoch)
            elif known.back:
                self._absences[provider] = _Absence(epoch, known.times + 1)
            else:
                self._absences[provider] = known
        while len(self._absences) > MAX_EXCLUDED:
            del self._absences[next(iter(self._absences))]

    def now(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Whom this snapshot still lists on the strength of beats from before they failed, sorted."""
        epoch = self._epoch()
        self._absences = {one: at for one, at in self._absences.items() if epoch <= at.until + KEPT_EPOCHS}
        waiting = {one for one, at in self._absences.items() if not at.back}
        beats = snapshot.beats(waiting) if waiting else {}
        for provider, beat in beats.items():
            self._absences[provider].back = beat.epoch >= self._absences[provider].until
        return tuple(sorted(one for one in beats if not self._absences[one].back))

    def _epoch(self) -> int:
        return self._committee.epoch_at(int(self._clock_s() * 1000))
