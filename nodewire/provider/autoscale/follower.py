"""A provider with `specialize = "auto"`: each epoch it asks what it should hold, and goes there without leaving a hole.

    snapshot -> candidates -> follow() -> load the new window -> its turn to leave? -> new ad -> drain -> unload the old

The new window is loaded beside the old one where both fit into the memory for it; else the old one is left first. In
both cases what was held stays loaded, and serves what was planned on older ads, until no certified snapshot that may be
planned with lists it and its jobs are over. If by then nobody else holds it, the move is taken back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NoQuorum, WorkerFailed
from nodewire.plan.place.follow import (
    FollowState,
    Holder,
    Model,
    Settings,
    Window,
    follow,
    holders,
    may_leave,
    model,
    unheld,
)
from nodewire.protocol.committee.committee import VALID_EPOCHS
from nodewire.provider.autoscale import store
from nodewire.provider.autoscale.estimates import offers, prices, speeds
from nodewire.provider.autoscale.store import FollowedTasks
from nodewire.provider.tasks.dynamic_loader import LoadedWindow, NotLoaded, Windows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from nodewire.market import Market
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.provider.autoscale.candidates import Candidate, Candidates
    from nodewire.provider.tasks.registry import Specializations

log = logging.getLogger("nodewire.provider")

DRAIN_EPOCHS = 1 + VALID_EPOCHS + 1
"""After the epoch in which the new ad came out: the next snapshot has it, the last before it may be planned with for
three more, and a request has one to come."""
_EPOCH_S = 60.0
_AGAIN_EPOCHS, _NEVER_EPOCHS = 30, 360
"""After which a task is tried again that could not be had, or was refused."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """`window_bytes`: of one window; `memory_bytes`: of all that are held at a time; and what is asked for them."""

    window_bytes: int
    memory_bytes: int
    task_bytes: int
    """Of a single task: what one worker process may take."""
    least_msat: int
    price_ppm: int
    pace: Settings


class Follower:
    """`await run()` until cancelled."""

    def __init__(
        self,
        public: str,
        market: Market,
        candidates: Candidates,
        windows: Windows,
        held: Specializations,
        state: Path,
        budget: WindowLimits,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._public, self._market = public, market
        self._candidates, self._windows, self._held = candidates, windows, held
        self._folder, self._budget = state, budget
        self._clock_s = clock_s
        self._state = FollowState()
        self._now: LoadedWindow | None = None
        self._ready: LoadedWindow | None = None
        """Loaded, and offered as soon as the old one may be left."""
        self._refused: dict[tuple[str, str], int] = {}
        """By digest and task, the epoch before which it is not tried again."""
        self._why = ""

    async def run(self) -> None:
        await self._resume()
        async for epoch, snapshot in self._epochs():
            try:
                await self._step(epoch, snapshot)
            except NodewireError as error:
                log.warning("what to hold is not known in epoch %d: %s", epoch, error)

    async def _resume(self) -> None:
        """Hold again what was held, before any epoch says otherwise."""
        known = await asyncio.to_thread(store.read, self._folder)
        if known is None:
            return
        try:
            manifest = await self._market.manifest(known.address, known.digest)
            names = {task.name for task in manifest.tasks}
            if set(known.tasks) <= names:
                self._now = await self._windows.load(known.address, manifest, known.tasks, known.prices_msat)
        except (NodewireError, NotLoaded) as error:
            log.warning("what was held before is not taken up again: %s", error)
        if self._now is not None:
            self._state = FollowState(None, since=known.since, wanted=known.wanted)
            self._why = known.why
            self._held.offer(self._now.served)
            log.info("holds %s again: %s", _said(self._now), known.why)

    async def _epochs(self, after: int = -1) -> AsyncIterator[tuple[int, Snapshot]]:
        """The newest certified epoch that can be read, each once."""
        while True:
            try:
                found = await self._market.epoch(timeout_s=_EPOCH_S, after=after)
                after = found.body.epoch
                snapshot = await self._market.snapshot(found.body.snapshot)
            except NoQuorum:
                continue
            except NodewireError as error:
                log.info("an epoch's snapshot: %s", error)
                continue
            yield after, snapshot

    async def _step(self, epoch: int, snapshot: Snapshot) -> None:
        candidates = await self._candidates.at(epoch, snapshot)
        # Beside the loop: strangers decide how much there is to look at.
        models, before, found, why = await asyncio.to_thread(self._look, candidates, epoch, snapshot)
        if found.held is None or found.held == before.held:
            await self._stay(found)
            return
        self._state = replace(before, epoch=epoch, wanted=before.wanted + 1)
        chosen = next(one for one in models if one.digest == found.held.manifest)
        tasks = chosen.tasks[found.held.first : found.held.end]
        await self._go(candidates, chosen.digest, tasks, snapshot, why)

    def _look(
        self, candidates: Mapping[str, Candidate], epoch: int, snapshot: Snapshot
    ) -> tuple[list[Model], FollowState, FollowState, str]:
        """Models, what is held, what should be, and why."""
        models = [self._model(one, snapshot, epoch) for one in candidates.values()]
        models = [one for one in models if one.tasks]
        others = holders(snapshot, models, self._public)
        before = replace(self._state, held=self._window(models))
        chance = Random(f"{self._public} {epoch}")  # noqa: S311 - others derive the same
        found = follow(models, others, self._budget.window_bytes, before, epoch, chance, self._budget.pace)
        goes = found.held is not None and found.held != before.held
        return (
            models,
            before,
            found,
            _reason(others, found.held, before.held) if found.held is not None and goes else "",
        )

    def _model(self, candidate: Candidate, snapshot: Snapshot, epoch: int) -> Model:
        """With the tasks that may be held here: those that fit a worker and have not been refused, and those held."""
        manifest = candidate.manifest
        digest = manifest.digest()
        self._refused = {one: until for one, until in self._refused.items() if epoch < until}
        us = speeds(manifest, self._windows.measured.get(digest, {}), offers(snapshot, digest, self._public))
        mine = self._now.served.tasks if self._now is not None and self._now.served.digest == digest else ()
        return model(
            manifest,
            {
                task.name: us[task.name]
                for task in manifest.tasks
                if task.name in mine
                or (task.memory_bytes <= self._budget.task_bytes and (digest, task.name) not in self._refused)
            },
        )

    def _window(self, models: Sequence[Model]) -> Window | None:
        """What is held, in these models; None where its manifest counts no more."""
        if self._now is None:
            return None
        served = self._now.served
        found = next((one for one in models if one.digest == served.digest), None)
        if found is None:
            return None
        first = found.tasks.index(served.tasks[0])
        is_there = found.tasks[first : first + len(served.tasks)] == served.tasks
        return Window(served.digest, first, first + len(served.tasks)) if is_there else None

    async def _stay(self, state: FollowState) -> None:
        is_news = (state.since, state.wanted) != (self._state.since, self._state.wanted)
        self._state = state
        if self._ready is not None:
            await self._windows.unload(self._ready)
            self._ready = None
        if is_news and self._now is not None:
            await self._record()

    async def _go(
        self, candidates: Mapping[str, Candidate], digest: str, tasks: Sequence[str], snapshot: Snapshot, why: str
    ) -> None:
        """One more step towards holding these tasks; what is lacking is done in later epochs."""
        if self._ready is not None and not _is(self._ready, digest, tasks):
            await self._windows.unload(self._ready)
            self._ready = None
        manifest = candidates[digest].manifest
        needed = sum(manifest.task(name).memory_bytes for name in tasks)
        old = self._now
        if old is not None and _is(old, digest, tasks):
            return
        leaves = set(old.served.tasks) - (set(tasks) if old.served.digest == digest else set()) if old else set()
        counts = old is not None and old.served.digest in candidates
        may = old is None or not counts or may_leave(snapshot, self._public, old.served.digest, leaves)
        if old is not None and old.memory_bytes + needed > self._budget.memory_bytes:
            if not may:
                return
            self._held.leave(old.served)
            log.info("leaves %s: %s", _said(old), why)
            self._now = None
            if not await self._drained(old, leaves if counts else set()):
                return
            old = None
        if self._ready is None:
            asked = offers(snapshot, digest, self._public)
            for_ = prices(tasks, asked, least_msat=self._budget.least_msat, ppm=self._budget.price_ppm)
            try:
                self._ready = await self._windows.load(candidates[digest].address, manifest, tasks, for_)
            except NotLoaded as refused:
                kills = isinstance(refused.error, WorkerFailed)
                wait = _AGAIN_EPOCHS if refused.error.retryable and not kills else _NEVER_EPOCHS
                self._refused[digest, refused.task] = self._epoch() + wait
                log.warning("%s is not held: %s", refused.task, refused.error)
                return
            if old is not None:
                return  # that took time: a newer snapshot says whether it may be left
        if may:
            await self._commit(old, leaves if counts else set(), why)

    async def _commit(self, old: LoadedWindow | None, leaves: set[str], why: str) -> None:
        """Offer what is ready in place of the old, and let go of that."""
        new, self._ready = self._ready, None
        assert new is not None
        self._now, self._why = new, why
        self._state = FollowState(None, since=self._epoch(), epoch=self._state.epoch)
        self._held.offer(new.served)
        if old is not None:
            self._held.leave(old.served)
        await self._record()
        log.info("holds %s%s: %s", _said(new), f", leaves {_said(old)}" if old is not None else "", why)
        if old is not None:
            await self._drained(old, leaves)

    async def _drained(self, old: LoadedWindow, leaves: set[str]) -> bool:
        """Unload what was left once nobody needs it; or go back to it if nobody else holds it: then False."""
        await self._held.announced()
        since = self._epoch()
        until = since + DRAIN_EPOCHS
        async for epoch, snapshot in self._epochs(since):
            lost = unheld(snapshot, self._public, old.served.digest, leaves)
            if lost and not self._is_alone_with_new(snapshot, old, leaves):
                await self._go_back(old, f"nobody else holds {', '.join(sorted(lost))[:120]} now")
                return False
            if self._epoch() > until or epoch >= until:
                break
        await self._held.drop(old.served)
        await self._windows.unload(old)
        log.info("let go of %s", _said(old))
        return True

    def _is_alone_with_new(self, snapshot: Snapshot, old: LoadedWindow, leaves: set[str]) -> bool:
        """Whether to go back would only make another hole."""
        if self._now is None:
            return False
        served = self._now.served
        fresh = set(served.tasks) - (set(old.served.tasks) - leaves if served.digest == old.served.digest else set())
        return bool(unheld(snapshot, self._public, served.digest, fresh))

    async def _go_back(self, old: LoadedWindow, why: str) -> None:
        new, self._now, self._why = self._now, old, why
        self._state = FollowState(None, since=self._epoch(), epoch=self._state.epoch)
        self._held.offer(old.served)
        if new is not None:
            self._held.leave(new.served)
        await self._record()
        log.info("holds %s again: %s", _said(old), why)
        if new is not None:
            await self._drained(new, set())

    async def _record(self) -> None:
        now = self._now
        assert now is not None
        known = FollowedTasks(
            now.address,
            now.served.digest,
            dict(now.served.prices_msat),
            self._state.since,
            self._state.wanted,
            self._why,
        )
        try:
            await asyncio.to_thread(store.write, self._folder, known)
        except OSError as error:
            log.warning("a restart will not know what is held: %s", error)

    def _epoch(self) -> int:
        return self._market.committee.epoch_at(int(self._clock_s() * 1000))


def _is(loaded: LoadedWindow, digest: str, tasks: Sequence[str]) -> bool:
    return loaded.served.digest == digest and loaded.served.tasks == tuple(tasks)


def _said(loaded: LoadedWindow) -> str:
    return f"{', '.join(loaded.served.tasks)} of {loaded.served.manifest.name}"


def _reason(others: Sequence[Holder], new: Window, old: Window | None) -> str:
    """By what others make in a second, of the task that is served worst."""

    def least(window: Window) -> float:
        numbers = range(window.first, window.end)
        return min(sum(one.served.get((window.manifest, number), 0.0) for one in others) for number in numbers)

    there = f"others serve its worst served task with {least(new):.3g} positions a second"
    return there + (f", and with {least(old):.3g} that of what is left" if old is not None else "")
