"""What a machine of the demo needs: the memory of processes, and how much of a model lies where."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path


def memory_bytes(pid: int) -> int:
    """What a process has in memory now, libraries included; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def children(pid: int) -> list[int]:
    """Of the main thread of a process: a provider's worker."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def machine_bytes(pid: int) -> int:
    """A daemon's memory and its worker's."""
    return sum(memory_bytes(one) for one in (pid, *children(pid)))


def weights_bytes(model: Mapping, tasks: Iterable[str]) -> int:
    """What these of a registered model's tasks hold of it."""
    held = set(tasks)
    return sum(task["weights_bytes"] for task in model["tasks"] if task["name"] in held)


def load() -> float:
    """How many processes of this machine have wanted a core in the last minute."""
    return os.getloadavg()[0]
