"""Measures a node: its machine, and the tasks that it serves or might serve, under the caps that it would have.

What comes of it is published: a provider's ad claims what its tasks were measured to take (`Profile.speeds`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nodewire.errors import BadConfig, NodewireError, OverMemory
from nodewire.plan.cost import Fit, Rates, fit
from nodewire.protocol.encoding.byte_sizes import in_units
from nodewire.protocol.market.ad_profile import (
    DTYPES,
    FITTED,
    UNPROFILED,
    PublishedFit,
    PublishedProfile,
    PublishedRate,
    PublishedTask,
)
from nodewire.protocol.model.manifest import BlobRef, Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.profile import probe
from nodewire.worker.client import WorkerProcess
from nodewire.worker.devices import Device, check, devices, in_use_bytes, sampled
from nodewire.worker.sandbox.rights import RESERVE_BYTES

if TYPE_CHECKING:
    from nodewire.kind import Limits
    from nodewire.provider.profile.probe import ProbeResult

FILE = "profile.json"
MACHINE_BYTES = 2**30
TOLERATED = 0.05
"""By how much a task's process may be above what its manifest predicts before it is said."""
_LARGE = ("too-large", "over-memory", "bad-input")
"""What a call of more positions than a task takes, or than fit, ends with."""

Fetch = Callable[[BlobRef], Awaitable[Path]]
Say = Callable[[str], None]


@dataclass(slots=True)
class TaskProfile:
    """`calls` by positions, in ascending order; `caps` by memory caps (bytes).

    `caps` says whether the task ran under each, "" or what it died of. Bytes are above the worker's empty baseline.
    """

    manifest: str
    task: str
    engine: str
    predicted_bytes: int
    loaded_bytes: int
    peak_bytes: int
    load_ms: int
    busy: float
    calls: list[ProbeResult] = field(default_factory=list)
    caps: dict[int, str] = field(default_factory=dict)
    refused: str = ""
    """Why it could not be loaded or called at all; then nothing was measured."""

    @property
    def overrun(self) -> OverMemory | None:
        """Not raised: what is to be said of a task whose process took more than was predicted.

        What every worker may take for itself is apart.
        """
        if self.refused or self.peak_bytes <= self.predicted_bytes * (1 + TOLERATED) + RESERVE_BYTES:
            return None
        above = f"{self.peak_bytes / max(self.predicted_bytes, 1) - 1:.0%} above the {in_units(self.predicted_bytes)}"
        return OverMemory(self.task, f"its process took {in_units(self.peak_bytes)}, {above} of its manifest")


@dataclass(frozen=True, slots=True)
class Profile:
    """`rates` by dtype, where the device has kernels for it; `fitted` if tasks with work to do were measured."""

    at_s: int
    limits: Limits
    torch: str
    sandbox: str
    devices: Sequence[Device]
    rates: Mapping[str, Rates]
    tasks: Sequence[TaskProfile]
    fitted: Fit | None

    def predicted_us(self, task: TaskProfile, call: ProbeResult) -> float | None:
        """What the fitted roofline says of a call; None of a driver, or of a call with next to no operations."""
        if self.fitted is None or not _is_told(self.rates[FITTED], task, call):
            return None
        return self.fitted.rates.predicted_us(call.work)

    def speeds(self) -> dict[str, dict[str, int]]:
        """By manifest's digest and task: microseconds for a position, as ads claim them."""
        found: dict[str, dict[str, int]] = {}
        for one in self.tasks:
            if one.calls:
                found.setdefault(one.manifest, {})[one.task] = claimed(one.engine, one.calls).us_per_position
        return found

    def published(self) -> PublishedProfile:
        """What goes with the ad."""
        rates = {d: PublishedRate(round(one.flops_per_s), round(one.bytes_per_s)) for d, one in self.rates.items()}
        found = self.fitted
        fit = PublishedFit(round(found.rates.call_us), found.rates.slower, found.within_half) if found else None
        tasks = {(one.manifest, one.task): _published(one) for one in self.tasks if one.calls}
        return PublishedProfile(self.at_s, rates, fit, tasks)

    def document(self) -> dict[str, Any]:
        """Plain data for `--json` and for the file."""
        return {
            "at_s": self.at_s,
            "limits": asdict(replace(self.limits, secrets=())),
            "torch": self.torch,
            "sandbox": self.sandbox,
            "devices": [asdict(one) for one in self.devices],
            "rates": {dtype: asdict(rates) for dtype, rates in self.rates.items()},
            "tasks": [self._task(one) for one in self.tasks],
            "fit": asdict(self.fitted) if self.fitted else None,
            "speeds": self.speeds(),
            "published": _plain(self.published()),
        }

    def _task(self, one: TaskProfile) -> dict[str, Any]:
        said = asdict(one)
        for call, measured in zip(said["calls"], one.calls, strict=True):
            predicted_us = self.predicted_us(one, measured)
            call["predicted_us"] = None if predicted_us is None else round(predicted_us, 1)
        said["warnings"] = [one.overrun.as_dict()] if one.overrun else []
        said["caps"] = [{"memory_bytes": cap, "ran": not why, "why": why} for cap, why in one.caps.items()]
        return said


async def profile(
    limits: Limits,
    wanted: Sequence[tuple[Manifest, Sequence[str], str]],
    fetch: Fetch,
    readable: Path,
    *,
    caps: Sequence[int] = (),
    say: Say = lambda _: None,
) -> Profile:
    """Measure this machine with `limits`, then each task of `wanted` (manifest, its tasks, the kind's worker entry).

    `fetch` brings a blob below `readable`. A task that is refused is in the profile with the reason, and ends nothing.

    Raises:
        WorkerFailed, TimedOut, BadConfig: not even a worker that only measures the machine starts, or torch cannot use
            the device.

    """
    await check(limits.device)
    say(f"the machine: {limits.device}, {limits.threads} threads")
    found = await devices()
    machine = replace(limits, memory_bytes=min(limits.memory_bytes, MACHINE_BYTES), compiled="", draft="")
    worker = await WorkerProcess.start("kinds.profile_worker", machine, readable=[Path(__file__)])
    try:
        rates = await _rates(worker)
        torch, sandbox = worker.hello.torch, worker.hello.sandbox
    finally:
        await worker.stop()
    tasks: list[TaskProfile] = []
    for manifest, names, entry in wanted:
        for name in names:
            say(f"{manifest.name}: {name}")
            task = manifest.task(name)
            files = [await fetch(ref) for ref in (task.program, *task.weights)]
            one = await _measured(manifest, name, entry, limits, files, readable)
            for cap in caps:
                say(f"{manifest.name}: {name} under {cap / 1e6:g} MB")
                capped = replace(limits, memory_bytes=cap, compiled="", draft="")
                tried = await _measured(manifest, name, entry, capped, files, readable, most=1)
                one.caps[cap] = tried.refused
            tasks.append(one)
    roof = rates[FITTED]
    measured = [(call.work, call.us) for one in tasks for call in one.calls if _is_told(roof, one, call)]
    fitted = fit(roof, measured) if measured else None
    return Profile(int(time.time()), limits, torch, sandbox, found, rates, tasks, fitted)


def _is_told(rates: Rates, task: TaskProfile, call: ProbeResult) -> bool:
    """A driver's time is that of tokens, texts and waiting, which no roofline knows."""
    return not task.engine.endswith(".driver") and rates.is_told_by(call.work)


async def _rates(worker: WorkerProcess) -> dict[str, Rates]:
    await worker.load("machine", "machine", Path(__file__), [])
    session = await worker.open("machine", probe.SESSION, {})
    asked: Frame[Array] = Frame("measure", 0)
    (frame,) = await session.receive(asked)
    rows = np.frombuffer(frame.tensors[0].data, np.float32).reshape(len(DTYPES), 4).tolist()
    return {
        dtype: Rates(flops, bytes_, call_us)
        for dtype, (flops, bytes_, call_us, _) in zip(DTYPES, rows, strict=True)
        if flops > 0
    }


async def _measured(
    manifest: Manifest,
    name: str,
    entry: str,
    limits: Limits,
    files: Sequence[Path],
    readable: Path,
    most: int = 2**30,
) -> TaskProfile:
    task = manifest.task(name)
    found = TaskProfile(manifest.digest(), name, task.engine, task.memory_bytes, 0, 0, 0, 0.0)
    worker = await WorkerProcess.start(entry, limits, readable=[readable])
    try:
        empty_bytes = await in_use_bytes(limits.device) or worker.hello.baseline_bytes
        took = await worker.load(name, task.engine, files[0], files[1:])
        found.loaded_bytes, found.load_ms = took["memory_bytes"], took["load_ms"]
        async with sampled(worker.hello.pid, limits.device, empty_bytes) as load:
            for positions in probe.sizes(manifest, name):
                if positions > most:
                    break
                try:
                    found.calls.append(await probe.measure(manifest, name, worker, name, positions))
                except NodewireError as error:
                    if not found.calls or error.code not in _LARGE:
                        raise
                    break
        found.peak_bytes, found.busy = max(load.peak_bytes, found.loaded_bytes), load.mean_busy
    except NodewireError as error:
        found.refused = f"{error.code}: {error}"
    finally:
        await worker.stop()
    return found


def claimed(engine: str, calls: Sequence[ProbeResult]) -> ProbeResult:
    """The call whose speed an ad claims: one position of a decoder, up to 64 at once of others."""
    most = 1 if engine.startswith("decoder") else probe.CLAIMED_AT
    return max((one for one in calls if one.positions <= most), key=lambda one: one.positions, default=calls[0])


def keep(state: Path, made: Profile) -> Path:
    """Write a profile where the provider with this state folder finds it."""
    path = state / FILE
    state.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(made.document(), indent=1) + "\n")
    scratch.replace(path)
    return path


@dataclass(frozen=True, slots=True)
class ProfileClaims:
    """What a profile says for others: the speeds that ads claim, by digest and task, and what they publish beside."""

    speeds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    published: PublishedProfile = UNPROFILED


def kept(state: Path, limits: Limits) -> ProfileClaims:
    """What the profile in a state folder says of `limits`' device and threads; nothing where there is none.

    Raises:
        BadConfig: the file is there and is none.

    """
    path = state / FILE
    try:
        said = json.loads(path.read_text())
        own = said["limits"]["device"] == limits.device and said["limits"]["threads"] == limits.threads
        speeds = {d: {t: max(1, int(us)) for t, us in tasks.items()} for d, tasks in said["speeds"].items()}
        published = _of_plain(said["published"]) if "published" in said else UNPROFILED
    except FileNotFoundError:
        return ProfileClaims()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfig(str(path), "is no profile; `nodewire profile --config FILE` makes a new one") from error
    return ProfileClaims(speeds, published) if own else ProfileClaims()


def _published(one: TaskProfile) -> PublishedTask:
    best = max(one.calls, key=lambda call: call.positions / call.us)
    alone = max(1, round(one.calls[0].us / one.calls[0].positions))
    together = alone if best.positions == 1 else max(1, round(best.us))
    return PublishedTask(one.peak_bytes, alone, best.positions, together)


def _plain(made: PublishedProfile) -> dict[str, Any]:
    tasks = [{"manifest": digest, "task": task, **asdict(one)} for (digest, task), one in made.tasks.items()]
    return {**asdict(replace(made, tasks={})), "tasks": tasks}


def _of_plain(said: Mapping[str, Any]) -> PublishedProfile:
    """Raises KeyError, TypeError, AttributeError: it is none."""
    return PublishedProfile(
        said["at_s"],
        {dtype: PublishedRate(**rate) for dtype, rate in said["rates"].items()},
        PublishedFit(**said["fit"]) if said["fit"] else None,
        {(one.pop("manifest"), one.pop("task")): PublishedTask(**one) for one in map(dict, said["tasks"])},
    )
