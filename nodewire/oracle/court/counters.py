"""What an oracle has done since it was started: plain counts, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nodewire.metrics.durations import Durations

if TYPE_CHECKING:
    from nodewire.oracle.committee.state import State
    from nodewire.oracle.court import case as cases
    from nodewire.protocol.verification.verdict import Certificate


class OracleFigures:
    """Of epochs."""

    def __init__(self) -> None:
        self.votes = self.faults = self.refused_observations = 0
        self.certified = self.skipped = self.crowded = 0
        """Rounds that are over; the crowded ones are certified."""
        self.certificate = Durations()
        """From an epoch's close to its certificate's coming here, of those that came in their round."""

    def moved(self, before: State, after: State) -> None:
        """What has changed with one input."""
        if after.certified is not before.certified:
            known = {one.body.epoch for one in before.certified}
            if any(one.body.epoch == after.epoch - 1 for one in after.certified) and after.epoch - 1 not in known:
                late_ms = max(0, after.now_ms - after.committee.close_ms(after.epoch - 1))
                self.certificate.add(late_ms * 1000)
        if after.opened != before.opened and before.opened >= 0:
            # Of epochs that were slept through nothing is known.
            over = next((one.body for one in after.certified if one.body.epoch == before.opened), None)
            if over is not None:
                self.certified += 1
                self.crowded += over.is_crowded
            else:
                self.skipped += 1


class CourtFigures:
    """Of samples."""

    def __init__(self) -> None:
        self.votes = self.faults = self.convictions = self.overloads = 0
        self.verdicts: Counter[str] = Counter()
        """Certified ones on cases that were open here, by outcome."""

    def moved(self, certificate: Certificate, before: cases.State, after: cases.State) -> None:
        """What has changed with a certified verdict, made here or come."""
        key = certificate.verdict.key
        was, now = before.cases.get(key), after.cases.get(key)
        if was is not None and was.done is None and now is not None and now.done is not None:
            self.verdicts[now.done.verdict.outcome] += 1
