"""Opens what a provider with `specialize = "auto"` needs beside what it serves anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import OverMemory
from nodewire.plan.place.follow import Settings
from nodewire.provider.autoscale.candidates import Candidates
from nodewire.provider.autoscale.follower import Follower, WindowLimits
from nodewire.provider.tasks.dynamic_loader import Windows
from nodewire.store.bounded_cache import BoundedBlobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack

    from nodewire.config import ProviderConfig
    from nodewire.kind import JobKind, MakeWorker
    from nodewire.market import Market
    from nodewire.nostr.pool import Pool
    from nodewire.provider.tasks.registry import Specializations


@dataclass(frozen=True, slots=True)
class InstalledKinds:
    """Job kinds, and what computes their tasks here."""

    kinds: Mapping[int, JobKind]
    workers_on: Callable[[AsyncExitStack], MakeWorker]
    """What makes workers that end with a stack."""
    speeds: Mapping[str, Mapping[str, int]]
    """By a manifest's digest and a task's name, as they were measured here."""


async def open_following(
    stack: AsyncExitStack,
    config: ProviderConfig,
    public: str,
    pool: Pool,
    market: Market,
    held: Specializations,
    installed: InstalledKinds,
) -> Follower:
    """The follower, which is not running yet; `held` has what is served anyway.

    Raises:
        OverMemory: that leaves nothing of the memory.

    """
    wanted = config.auto
    fixed = sum(one.manifest.bytes_at(name, one.slots) for one in held.offered for name in one.tasks)
    workers = config.worker.memory * config.worker.processes
    memory = wanted.memory if wanted.memory is not None else workers - fixed
    if memory <= 0:
        raise OverMemory("auto.memory", f"[[serve]] may need {fixed} of the {workers} bytes that the workers may take")
    kept = BoundedBlobs(market.blobs, config.state / "followed-blobs.db", wanted.disk)
    stack.callback(kept.close)
    windows = Windows(
        installed.kinds,
        installed.workers_on,
        market.blobs,
        kept,
        config.blobs,
        disk_bytes=wanted.disk,
        slots=wanted.slots,
        measured=installed.speeds,
    )
    stack.push_async_callback(windows.close)
    candidates = Candidates(
        market, pool, wanted.manifests, installed.kinds.keys(), {one.digest for one in held.offered}
    )
    budget = WindowLimits(
        window_bytes=min(memory, workers),
        memory_bytes=memory,
        task_bytes=config.worker.memory,
        least_msat=wanted.least_msat,
        price_ppm=wanted.price_ppm,
        pace=Settings(rest=wanted.rest, patience=wanted.patience),
    )
    return Follower(public, market, candidates, windows, held, config.state, budget)
