"""What this provider holds, as all of its parts see it while it changes: what its ad offers, and what is leaving it.

A plan stands on a snapshot, which stands on the ad of its time. So what an ad no longer offers serves on as long as a
plan may be made or checked by an older snapshot, and until its jobs are over.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodewire.errors import NotAllowed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nodewire.protocol.model.manifest import Manifest
    from nodewire.provider.tasks.loader import ServedManifest


class Specializations:
    """`offered` is what the next ad has, one of a manifest at most; `changed` is set when that is news."""

    def __init__(self, offered: Iterable[ServedManifest] = ()) -> None:
        self.offered = tuple(offered)
        self.changed = asyncio.Event()
        self.is_paused = False
        """Whether this node takes no job now, whatever it offers."""
        self._leaving: tuple[ServedManifest, ...] = ()
        self._announced = asyncio.Condition()
        self._published: tuple[ServedManifest, ...] | None = None

    def manifest(self, digest: str) -> Manifest | None:
        """Of a manifest that something is held of."""
        return next((one.manifest for one in self._all() if one.digest == digest), None)

    def find(self, digest: str, tasks: Collection[str]) -> ServedManifest:
        """What holds all of these tasks: what is offered before what is leaving. Raises NotAllowed: nothing does."""
        for one in self._all():
            if one.digest == digest and set(tasks) <= set(one.tasks):
                return one
        raise NotAllowed("tasks", f"{', '.join(sorted(tasks))[:120]} not held here")

    @property
    def blobs(self) -> frozenset[str]:
        """The hashes of all that workers read again if they are started anew."""
        tasks = [one.manifest.task(task) for one in self._all() for task in one.tasks]
        return frozenset(ref.sha256 for task in tasks for ref in (task.program, *task.weights))

    def load_ppm(self) -> int:
        """The part of all slots that is taken."""
        slots = sum(one.slots for one in self._all())
        taken_ppm = sum(one.room.taken * 1_000_000 * one.slots // one.room.pages for one in self._all())
        return taken_ppm // slots if slots else 0

    def pause(self, *, is_paused: bool) -> None:
        """Have the next beat, which goes out at once, offer no slot; or offer them again."""
        self.is_paused = is_paused
        self.changed.set()

    def offer(self, one: ServedManifest) -> None:
        """Have the next ad offer it, too, be it new or leaving."""
        self._leaving = tuple(other for other in self._leaving if other is not one)
        self.offered = (*self.offered, one)
        self.changed.set()

    def leave(self, one: ServedManifest) -> None:
        """Have the next ad not offer it. It serves on until `drop`."""
        self.offered = tuple(other for other in self.offered if other is not one)
        self._leaving = (*self._leaving, one)
        self.changed.set()

    async def drop(self, one: ServedManifest) -> None:
        """Take no more jobs for what is leaving, and wait for those that it has."""
        self._leaving = tuple(other for other in self._leaving if other is not one)
        one.closed = True
        await one.idle.wait()

    async def announced(self) -> None:
        """Wait until what is offered now stands in a published ad; an empty one cannot be, and need not."""
        async with self._announced:
            await self._announced.wait_for(lambda: not self.offered or self._published == self.offered)

    async def published(self, offered: tuple[ServedManifest, ...]) -> None:
        """An ad of these is out."""
        async with self._announced:
            self._published = offered
            self._announced.notify_all()

    def _all(self) -> tuple[ServedManifest, ...]:
        return (*self.offered, *self._leaving)
