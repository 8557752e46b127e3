"""What a provider serves: manifests checked and tasks loaded into a capped worker before anything is announced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, BadInput, Busy, NodewireError, NotAllowed, WorkerFailed
from nodewire.protocol.market.token_price import chunk_price_msat
from nodewire.protocol.model.kv_pages import Room
from nodewire.protocol.model.manifest import BlobRef, Manifest
from nodewire.provider.profile import probe

if TYPE_CHECKING:
    from nodewire.config import Serve
    from nodewire.kind import JobKind, MakeWorker, SharedWorker, Worker
    from nodewire.public_record import PublicRecord

log = logging.getLogger("nodewire.provider")

Fetch = Callable[[BlobRef], Awaitable[Path]]
MAX_SLOTS = 4_096
"""Of one manifest: what an ad may say."""


@dataclass(eq=False, slots=True)
class ServedManifest:
    """One manifest of which this provider holds tasks, for `slots` sessions of its context, or more shorter ones."""

    manifest: Manifest
    digest: str
    kind: JobKind
    tasks: tuple[str, ...]
    prices_msat: Mapping[str, int]
    us_per_position: Mapping[str, int]
    """By task: the speed that is claimed."""
    slots: int
    worker: SharedWorker
    room: Room = field(init=False)
    closed: bool = False
    """It is being given up, and takes no more sessions."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no session is taken."""

    def __post_init__(self) -> None:
        self.idle.set()
        self.shrink(self.slots)

    def shrink(self, slots: int) -> None:
        """Have so many slots, before any is taken."""
        self.slots = slots
        self.room = Room(slots, self.manifest.context if self.manifest.mode == "generate" else 0)

    @property
    def free(self) -> int:
        return self.room.slots

    def allocate(self, positions: int | None = None) -> int:
        """Take the pages of a session of so many positions, or a slot; how many they are. Raises Busy: too few."""
        if self.closed:
            raise Busy("tasks", "not held here any more")
        pages = self.room.allocate(positions)
        self.idle.clear()
        return pages

    def give(self, pages: int) -> None:
        self.room.give(pages)
        if not self.room.taken:
            self.idle.set()


async def specialize(
    record: PublicRecord,
    wanted: tuple[Serve, ...],
    kinds: Mapping[int, JobKind],
    make_worker: MakeWorker,
    profiled: Mapping[str, Mapping[str, int]],
    memory_bytes: int = 0,
) -> list[ServedManifest]:
    """Fetch, verify and load everything in `wanted`.

    `memory_bytes`: what all of it may take (`slots_of`). A task's speed is what its [[serve]] says; else what
    `profiled` (by digest and task) says; else it is measured.

    Raises:
        NotFound, BadHash, BadManifest: a manifest or blob is not to be had or not what was cited.
        BadTask, OverMemory, WorkerFailed: a task is refused by the worker, or does not fit its cap.
        NotAllowed: no installed package serves the manifest's kind, or it has no such task.

    """
    served: dict[str, ServedManifest] = {}
    entries: dict[str, SharedWorker] = {}

    async def fetch(ref: BlobRef) -> Path:
        return await record.fetch_blob(ref.sha256, ref.bytes)

    manifests = [await record.manifest(want.manifest, want.digest) for want in wanted]
    for want, manifest in zip(wanted, manifests, strict=True):
        if manifest.kind not in kinds:
            raise NotAllowed("kind", f"no installed package serves {manifest.kind}")
        names = {task.name for task in manifest.tasks}
        if missing := sorted(set(want.tasks) - names):
            raise NotAllowed("tasks", f"{manifest.name} has no task {missing[0]}; it has {', '.join(sorted(names))}")
    room, _ = slots_of(wanted, manifests, memory_bytes)
    for want, manifest in zip(wanted, manifests, strict=True):
        kind, digest = kinds[manifest.kind], manifest.digest()
        worker = entries.get(kind.worker_entry)
        if worker is None:
            worker = entries[kind.worker_entry] = make_worker(kind.worker_entry)
        slots = room[digest]
        await load(manifest, want.tasks, worker, fetch, slots)
        prices = dict.fromkeys(want.tasks, price_of(want, manifest))
        known_us = profiled.get(digest, {})
        speeds = {name: want.us_per_position or known_us.get(name, 0) for name in want.tasks}
        for name, us in speeds.items():
            if us:
                source = (
                    "[[serve]] names it" if want.us_per_position else "`nodewire profile` measured it (profile.json)"
                )
                log.info("%s of %s: claims %d us a position: %s", name, manifest.name, us, source)
            else:
                speeds[name] = await speed(manifest, name, worker)
        known = served.get(digest)
        if known is None:
            served[digest] = ServedManifest(manifest, digest, kind, want.tasks, prices, speeds, slots, worker)
        else:
            known.tasks += want.tasks
            known.prices_msat = {**known.prices_msat, **prices}
            known.us_per_position = {**known.us_per_position, **speeds}
    return list(served.values())


def price_of(want: Serve, manifest: Manifest) -> int:
    """What a chunk of each task costs, in msat.

    Raises:
        BadConfig: the price is for tokens, and the model's chunks are calls, or no whole msat.

    """
    if want.price_msat is not None:
        return want.price_msat
    assert want.price_per_million is not None  # one of the two stands there
    if manifest.mode != "generate":
        raise BadConfig("serve.price_per_million", f"{manifest.name} is paid by the call: name price_msat, for a call")
    try:
        return chunk_price_msat(want.price_per_million, manifest.chunk)
    except BadInput as error:
        raise BadConfig("serve.price_per_million", error.reason) from error


def slots_of(
    wanted: Sequence[Serve], manifests: Sequence[Manifest], memory_bytes: int
) -> tuple[dict[str, int], dict[str, int]]:
    """By digest, the sessions that each manifest's tasks are loaded for, and the bytes that they take then.

    `manifests` are those of `wanted`, one each. Of several [[serve]] of one the fewest count; those of `most` share
    what the others leave of `memory_bytes`, and have one session at least.
    """
    served: dict[str, list[Serve]] = {}
    for want, manifest in zip(wanted, manifests, strict=True):
        served.setdefault(manifest.digest(), []).append(want)
    by_digest = {manifest.digest(): manifest for manifest in manifests}
    tasks = {digest: sorted({name for want in wants for name in want.tasks}) for digest, wants in served.items()}
    slots, growing = dict[str, int](), list[str]()
    for digest, wants in served.items():
        manifest = by_digest[digest]
        own = min(manifest.task(name).slots for name in tasks[digest])
        said = [want.slots for want in wants if isinstance(want.slots, int)]
        if manifest.mode != "generate":
            slots[digest] = min([own, *said])
        elif not said and any(want.slots == "most" for want in wants) and manifest.slot_bytes(tasks[digest]):
            slots[digest] = 1
            growing.append(digest)
        else:
            slots[digest] = min(said, default=own)

    def taken(digest: str) -> int:
        return sum(by_digest[digest].bytes_at(name, slots[digest]) for name in tasks[digest])

    left = max(0, memory_bytes - sum(map(taken, slots)))
    for digest in growing:
        more = left // len(growing) // by_digest[digest].slot_bytes(tasks[digest])
        slots[digest] = min(MAX_SLOTS, 1 + more)
    return slots, {digest: taken(digest) for digest in slots}


def loaded_name(manifest_digest: str, task: str) -> str:
    """A task's name in a worker that may hold several manifests."""
    return f"{manifest_digest[:16]}/{task}"


async def speed(manifest: Manifest, name: str, worker: Worker) -> int:
    """What a position takes, measured. A task that refuses to be measured is no worse for it: it claims a second.

    Raises:
        WorkerFailed: its worker died of a single position, or that took too long: nobody is to call it.

    """
    positions = probe.CLAIMED_AT if not manifest.task(name).engine.startswith("decoder") else 1
    while True:
        try:
            found = await probe.measure(manifest, name, worker, loaded_name(manifest.digest(), name), positions)
        except NodewireError as error:
            if positions == 1 and isinstance(error, WorkerFailed):
                raise
            if positions == 1:
                log.warning("%s of %s cannot be measured, and claims 1 s a position: %s", name, manifest.name, error)
                return 1_000_000
            positions //= 4
            continue
        log.info("%s of %s: claims %d us a position: measured now", name, manifest.name, found.us_per_position)
        return found.us_per_position


async def load(manifest: Manifest, names: Sequence[str], worker: SharedWorker, fetch: Fetch, slots: int) -> None:
    """Fetch these tasks' blobs and load them for so many sessions, one after the other. Raises as `specialize`."""
    digest = manifest.digest()
    for name in names:
        task = manifest.task(name)
        program, *weights = await asyncio.gather(*(fetch(ref) for ref in (task.program, *task.weights)))
        took = await worker.load(loaded_name(digest, name), task.engine, program, weights, slots)
        log.info("%s of %s loaded: %.1f MB in %d ms", name, manifest.name, took["memory_bytes"] / 1e6, took["load_ms"])
