"""What `nodewire doctor` says of the disk: how near to their limits the stores of a role's state folder are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from nodewire.cli.doctor.reach import CheckResult
from nodewire.config import AnyRole, OracleConfig, ProviderConfig
from nodewire.protocol.encoding.byte_sizes import in_units
from nodewire.store.sweep import files_of

_NEAR_PPM = 900_000
_LEAST_FREE_BYTES = 10**9


async def check(role: AnyRole) -> CheckResult:
    """Not ok where a limit is near that something is lost beyond, or where the disk is nearly full."""
    return await asyncio.to_thread(_check, role)


def _check(role: AnyRole) -> CheckResult:
    free = shutil.disk_usage(_standing(role.state)).free
    blobs = sum(file.bytes for file in files_of(role.blobs))
    said, wrong = [f"{in_units(free)} free", f"{in_units(blobs)} of blobs"], []
    facts: dict[str, object] = {"free_bytes": free, "blobs_bytes": blobs}
    to_come = 0
    if isinstance(role, OracleConfig):
        to_come = max(0, role.disk - blobs)
        said[1] += f" of {in_units(role.disk)}"
        if blobs > role.disk:
            wrong.append("disputes or the tasks that it holds need more blobs than `disk` admits: raise it")
    if isinstance(role, ProviderConfig):
        spool = _bytes_below(role.state / "spool")
        to_come = max(0, role.spool - spool)
        facts["spool_bytes"] = spool
        said.append(f"{in_units(spool)} of {in_units(role.spool)} of frames")
        if spool * 1_000_000 >= role.spool * _NEAR_PPM:
            wrong.append("jobs that may need more of `spool` than is left are refused: raise it, or sell fewer slots")
    if to_come > free:
        field = "disk" if isinstance(role, OracleConfig) else "spool"
        said.append(f"`{field}` lets {in_units(to_come)} come, more than is free: lower it, or make room")
    if free < _LEAST_FREE_BYTES:
        wrong.append("the disk is nearly full: a ledger that cannot be written stops the role")
    return CheckResult(not wrong, "; ".join([*said, *wrong]), facts)


def _standing(folder: Path) -> Path:
    """The folder, or what of its path is there."""
    return next(one for one in (folder, *folder.parents) if one.exists())


def _bytes_below(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a sweep beside us
                total += (Path(at) / name).stat().st_size
    return total
