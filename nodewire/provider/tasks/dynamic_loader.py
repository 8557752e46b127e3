"""Tasks that are loaded while the daemon runs and let go of again: each window of them in workers of its own.

So what it held is free for good when it goes, and one whose tasks break their cap takes nothing else along.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, NodewireError, NotAllowed, TooLarge
from nodewire.provider.tasks import loader
from nodewire.provider.tasks.loader import ServedManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nodewire.kind import JobKind, MakeWorker
    from nodewire.protocol.model.manifest import BlobRef, Manifest
    from nodewire.store.blobs import Blobs
    from nodewire.store.bounded_cache import BoundedBlobs

log = logging.getLogger("nodewire.provider")


class NotLoaded(Exception):
    """A task is refused, or does not fit, or its blobs are not to be had."""

    def __init__(self, task: str, error: NodewireError) -> None:
        super().__init__(f"{task}: {error}")
        self.task, self.error = task, error


@dataclass(eq=False, slots=True)
class LoadedWindow:
    """A window: what it serves, and the address of its manifest."""

    address: str
    served: ServedManifest
    stack: AsyncExitStack

    @property
    def memory_bytes(self) -> int:
        return sum(self.served.manifest.task(name).memory_bytes for name in self.served.tasks)

    @property
    def blobs(self) -> dict[str, BlobRef]:
        return blobs_of(self.served.manifest, self.served.tasks)


class Windows:
    """Loads and unloads them.

    `measured` has microseconds for a position, by digest and task; `make` is given the stack that ends a window's
    workers.
    """

    def __init__(
        self,
        kinds: Mapping[int, JobKind],
        make: Callable[[AsyncExitStack], MakeWorker],
        blobs: Blobs,
        kept: BoundedBlobs,
        folder: Path,
        *,
        disk_bytes: int,
        slots: int,
        measured: Mapping[str, Mapping[str, int]],
    ) -> None:
        """`kept` is what of `blobs` (in `folder`) these windows fetch, of at most `disk_bytes`."""
        self.measured = {digest: dict(tasks) for digest, tasks in measured.items()}
        self._profiled = {digest: dict(tasks) for digest, tasks in measured.items()}
        self._kinds, self._make = kinds, make
        self._blobs, self._kept, self._folder = blobs, kept, folder
        self._disk_bytes, self._slots = disk_bytes, slots
        self._loaded: list[LoadedWindow] = []

    async def load(
        self, address: str, manifest: Manifest, tasks: Sequence[str], prices: Mapping[str, int]
    ) -> LoadedWindow:
        """Fetch, verify, load and warm these tasks. Raises NotLoaded; nothing of it is left then."""
        digest = manifest.digest()
        name = tasks[0]
        try:
            kind = self._kinds.get(manifest.kind)
            if kind is None:
                raise NotAllowed("kind", f"no installed package serves {manifest.kind}")
            await self._make_room(manifest, tasks)
            async with AsyncExitStack() as stack:
                worker = self._make(stack)(kind.worker_entry)
                slots = min(self._slots, *(manifest.task(one).slots for one in tasks))
                speeds = {}
                for name in tasks:
                    await loader.load(manifest, [name], worker, self._kept.get, slots)
                    speeds[name] = await loader.speed(manifest, name, worker)  # it is warm from now on
                speeds |= {one: us for one, us in self._profiled.get(digest, {}).items() if one in speeds}
                self.measured.setdefault(digest, {}).update(speeds)
                served = ServedManifest(manifest, digest, kind, tuple(tasks), dict(prices), speeds, slots, worker)
                made = LoadedWindow(address, served, stack.pop_all())
        except NodewireError as error:
            raise NotLoaded(name, error) from error
        except OSError as error:  # a full disk
            raise NotLoaded(name, BadConfig("disk", str(error))) from error
        self._loaded.append(made)
        return made

    async def unload(self, loaded: LoadedWindow) -> None:
        """End its workers. Nobody may be using them."""
        self._loaded.remove(loaded)
        await loaded.stack.aclose()

    async def close(self) -> None:
        for loaded in list(self._loaded):
            await self.unload(loaded)

    async def _make_room(self, manifest: Manifest, tasks: Sequence[str]) -> None:
        """Raises TooLarge: the disk, or the part of it that is for this, has no room beside what is held."""
        held = {sha256: ref for loaded in self._loaded for sha256, ref in loaded.blobs.items()}
        wanted = blobs_of(manifest, tasks)
        together = sum(ref.bytes for ref in (held | wanted).values())
        if together > self._disk_bytes:
            raise TooLarge("auto.disk", f"{together} bytes in all with what is held, {self._disk_bytes} are allowed")
        missing = sum(ref.bytes for ref in wanted.values() if not self._blobs.path(ref.sha256).is_file())
        if missing > (free := shutil.disk_usage(self._folder).free):
            raise TooLarge("disk", f"{missing} bytes are to be fetched, {free} are free")
        for ref in held.values():  # used now: what is fetched pushes out what nobody holds
            await self._kept.get(ref)


def blobs_of(manifest: Manifest, tasks: Sequence[str]) -> dict[str, BlobRef]:
    """All that these tasks are made of, by sha256."""
    found = [manifest.task(name) for name in tasks]
    return {ref.sha256: ref for task in found for ref in (task.program, *task.weights)}
