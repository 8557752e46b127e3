"""Which certified epochs an oracle reads, and when: each in its turn, and one that is certified late when it comes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import NodewireError
from nodewire.oracle.court.case import OPEN_EPOCHS, EpochDraw
from nodewire.plan.epoch import KEPT, Epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodewire.kind import Clock
    from nodewire.protocol.committee.committee import Committee

GIVE_UP_EPOCHS = 3
"""An epoch that cannot be read so long after it closed keeps those after it waiting no more."""

_log = logging.getLogger("nodewire.oracle.reading")


class CertifiedEpochs(Protocol):
    """The epochs that are known to be certified (`plan.epoch.Epochs`)."""

    def after(self, epoch: int, now_ms: int) -> Sequence[Epoch]: ...


class Docket(Protocol):
    """What reads one (`oracle.court.docket`). It may be asked for an epoch again, and after later ones."""

    async def read(self, epoch: Epoch) -> EpochDraw: ...


class EpochReader:
    """`feed` is told of what each epoch drew. `await run()` until cancelled.

    An epoch without a certificate, or without its commitments, is waited for no longer than its turn, and is read all
    the same when it can be, up to OPEN_EPOCHS after it: by then nobody shows anything of it any more. Those after it
    are read again then, in order: roots in them may be of its samples' verifiers, and what they seemed to hold for the
    first time it may hold before them.
    """

    def __init__(
        self,
        committee: Committee,
        certified: CertifiedEpochs,
        docket: Docket,
        clock: Clock,
        feed: Callable[[EpochDraw], None],
    ) -> None:
        self._committee, self._certified, self._docket = committee, certified, docket
        self._clock, self._feed = clock, feed
        self._following = 0
        self._left: dict[int, int] = {}
        """By epoch that is left unread, when it is tried again (unix ms)."""

    async def run(self) -> None:
        """Read every certified epoch; after a restart also those whose samples are still open."""
        self.begin(max(0, self._epoch() - KEPT + 2))
        while True:
            await asyncio.sleep(self._committee.skew_ms / 2000)
            await self.step()

    def begin(self, epoch: int) -> None:
        """Read from number `epoch` on."""
        self._following = epoch

    async def step(self) -> None:
        """Read what can be read now."""
        while self._following < self._epoch() and await self._in_turn(self._following):
            self._following += 1
        for number in sorted(self._left):
            await self._late(number)

    async def _in_turn(self, number: int) -> bool:
        """Whether those after it need not wait for it."""
        found = self._find(number)
        if found is not None:
            if await self._read(found):
                return True
            is_over = self._epoch() > number + GIVE_UP_EPOCHS
        else:  # its round is over when the next epoch closes
            is_over = self._now_ms() >= self._committee.close_ms(number + 1) + 2 * self._committee.skew_ms
        if is_over:
            self._left[number] = self._now_ms()
        return is_over

    async def _late(self, number: int) -> None:
        if self._epoch() > number + OPEN_EPOCHS:
            del self._left[number]
            return
        found = self._find(number)
        if found is None or self._now_ms() < self._left[number]:
            return
        if not await self._read(found):
            self._left[number] = self._now_ms() + self._committee.epoch_ms // 2
            return
        del self._left[number]
        _log.info("epoch %d is read late", number)
        for later in range(number + 1, self._following):
            if later not in self._left and (again := self._find(later)) is not None:
                await self._read(again)

    async def _read(self, found: Epoch) -> bool:
        try:
            drawn = await self._docket.read(found)
        except (NodewireError, OSError) as error:
            _log.warning("epoch %d: %s", found.body.epoch, error)
            return False
        if drawn.samples:
            _log.info("epoch %d drew %d samples", found.body.epoch, len(drawn.samples))
        self._feed(drawn)
        return True

    def _find(self, number: int) -> Epoch | None:
        """The epoch, if its certificate and its beacon have come."""
        found = [one for one in self._certified.after(number - 1, self._now_ms()) if one.body.epoch == number]
        return found[-1] if found else None

    def _epoch(self) -> int:
        return self._committee.epoch_at(self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.time_s() * 1000)
