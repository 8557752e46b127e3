"""What this machine computes on, and how busy it is.

GPUs and their slices are as the driver's own tool lists them, the CPU as the kernel counts it. No library of a vendor,
and no torch, is loaded for it here.

`nvidia-smi -L` names GPUs and, under each, its MIG slices; the MPS control daemon is known by its pipe.
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig
from nodewire.worker.sandbox.rights import private_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SAMPLED_EVERY_S = 0.1
_TOOL_S = 10.0
_TRIED = "import sys, torch; (torch.ones(2, device=sys.argv[1]) + 1).sum().item()"
_GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-f-]+)\)$")
_SLICE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[0-9A-Za-z/-]+)\)$")
_MPS_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - where NVIDIA's MPS has its pipe
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG instance: its profile ("3g.20gb") and the name by which CUDA_VISIBLE_DEVICES selects it."""

    profile: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Device:
    """`kind` is "cpu" or "cuda", `index` its number there. `memory_bytes` is 0 where it is not known."""

    kind: str
    index: int
    name: str
    memory_bytes: int
    uuid: str = ""
    slices: tuple[Slice, ...] = ()
    shared: bool = False
    """Whether an MPS daemon lets processes share it."""


async def devices() -> list[Device]:
    """The CPU, then every GPU that the driver lists."""
    found = [_cpu()]
    listed = await _told("nvidia-smi", "-L")
    if listed:
        sizes = await _told("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
        found += gpus(listed, sizes, mps=_has_mps())
    return found


def gpus(listed: str, sizes: str, *, mps: bool) -> list[Device]:
    """The GPUs in the output of `nvidia-smi -L`, with the sizes (MiB by uuid) of its query."""
    memory: dict[str, int] = {}
    for line in sizes.splitlines():
        uuid, _, mib = line.partition(", ")
        if mib.strip().isdecimal():
            memory[uuid] = int(mib) * 2**20
    found: list[Device] = []
    slices: list[Slice] = []
    for line in listed.splitlines():
        if gpu := _GPU.match(line):
            slices = []
            found.append(Device("cuda", int(gpu[1]), gpu[2], memory.get(gpu[3], 0), gpu[3], (), mps))
        elif (part := _SLICE.match(line)) and found:
            slices.append(Slice(part[1], part[3]))
            last = found[-1]
            found[-1] = Device(
                last.kind, last.index, last.name, last.memory_bytes, last.uuid, tuple(slices), last.shared
            )
    return found


async def check(device: str) -> None:
    """Whether torch computes on `device` here, tried in a process of its own.

    Raises:
        BadConfig: it does not; torch's reason is told.

    """
    if device == "cpu":
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _TRIED, device, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:200] or f"exit {process.returncode}"
        raise BadConfig("worker.device", f'torch cannot use "{device}" on this machine ({last}); "cpu" always works')


@dataclass(slots=True)
class Load:
    """What was seen of a process and its device, every 100 ms."""

    busy: list[float] = field(default_factory=list)
    """Shares of one core (of a CPU's process), or of the GPU's time."""
    memory_bytes: list[int] = field(default_factory=list)
    """Private memory of the process, or memory in use on the GPU, above `baseline_bytes`."""

    @property
    def peak_bytes(self) -> int:
        return max(self.memory_bytes, default=0)

    @property
    def mean_busy(self) -> float:
        return sum(self.busy) / len(self.busy) if self.busy else 0.0


@contextlib.asynccontextmanager
async def sampled(pid: int, device: str, baseline_bytes: int = 0) -> AsyncIterator[Load]:
    """What process `pid` takes of `device` ("cpu", "cuda", "cuda:1") while the block runs."""
    load = Load()
    watching = (
        _gpu_samples(device, baseline_bytes, load)
        if device.startswith("cuda")
        else _cpu_samples(pid, baseline_bytes, load)
    )
    task = asyncio.create_task(watching)
    try:
        yield load
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _cpu_samples(pid: int, baseline_bytes: int, load: Load) -> None:
    loop = asyncio.get_running_loop()
    before_s, before = loop.time(), _cpu_seconds(pid)
    while before is not None:
        load.memory_bytes.append(max(0, private_bytes(pid) - baseline_bytes))
        await asyncio.sleep(SAMPLED_EVERY_S)
        now_s, now = loop.time(), _cpu_seconds(pid)
        if now is None:
            return
        load.busy.append((now - before) / max(now_s - before_s, 1e-6))
        before_s, before = now_s, now


async def in_use_bytes(device: str) -> int:
    """Memory in use on a GPU, by whomever; 0 of another device, and where the driver's tool does not say."""
    if not device.startswith("cuda"):
        return 0
    said = await _told("nvidia-smi", _id(device), "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return int(said) * 2**20 if said.strip().isdecimal() else 0


async def _gpu_samples(device: str, baseline_bytes: int, load: Load) -> None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return
    process = await asyncio.create_subprocess_exec(
        tool,
        _id(device),
        "--query-gpu=utilization.gpu,memory.used",
        "--format=csv,noheader,nounits",
        f"--loop-ms={round(SAMPLED_EVERY_S * 1000)}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            busy, _, used = line.decode("utf-8", "replace").partition(", ")
            if busy.strip().isdecimal() and used.strip().isdecimal():
                load.busy.append(int(busy) / 100)
                load.memory_bytes.append(max(0, int(used) * 2**20 - baseline_bytes))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _id(device: str) -> str:
    return f"--id={device.partition(':')[2] or '0'}"


def _has_mps() -> bool:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_PIPE), "control").exists()


def _cpu() -> Device:
    name = "CPU"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), name)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("cpu", 0, f"{name}, {len(os.sched_getaffinity(0))} cores", memory)


def _cpu_seconds(pid: int) -> float | None:
    """Of all threads; None once the process has ended, or where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _CLOCK_HZ


async def _told(*command: str) -> str:
    """What a tool prints; nothing if it is not installed, fails, or does not answer."""
    tool = shutil.which(command[0])
    if tool is None:
        return ""
    process = await asyncio.create_subprocess_exec(
        tool, *command[1:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_TOOL_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return said.decode("utf-8", "replace") if process.returncode == 0 else ""
