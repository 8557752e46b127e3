"""Which of a machine's CPUs a worker's threads run on: one of each physical core, and fast cores rather than slow ones.

Products wait for each other's threads: two on one core, or one on an efficiency core, slow all of them down.
https://docs.kernel.org/admin-guide/cputopology.html
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

SYSTEM = Path("/sys/devices/system/cpu")
_FAST = 0.8
"""Of the fastest core: what boosts a little higher than others is no core of another kind."""


def choose(threads: int, system: Path = SYSTEM) -> None:
    """Have this process, and what it starts, run there. Without effect where Linux is not, or does not say."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen(os.sched_getaffinity(0), threads, system))


def chosen(allowed: Collection[int], threads: int, system: Path = SYSTEM) -> set[int]:
    """Of the CPUs that are `allowed` those for so many threads: all where there are fewer cores than threads."""
    firsts: dict[str, int] = {}
    for cpu in sorted(allowed):
        core = _said(system / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        firsts.setdefault(core, cpu)
    speeds = {cpu: _speed(cpu, system) for cpu in firsts.values()}
    fast = {cpu for cpu, speed in speeds.items() if speed >= _FAST * max(speeds.values())}
    return next((found for found in (fast, set(speeds)) if len(found) >= threads), set(allowed))


def _speed(cpu: int, system: Path) -> int:
    """As far as one CPU can be compared with another of the machine."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        said = _said(system / f"cpu{cpu}" / name)
        if said.isdecimal():
            return int(said)
    return 0


def _said(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
