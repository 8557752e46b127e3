"""Starting the worker's process: what it inherits (three descriptors, a bare environment), where its output goes."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import socket
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.worker.ipc import arena
from nodewire.worker.ipc.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nodewire.kind import Limits

_FORWARDED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
_MAX_LINE_BYTES = 8192
_PR_SET_DUMPABLE = 4
_log = logging.getLogger("nodewire.worker")


@dataclass(frozen=True, slots=True)
class SpawnedWorker:
    """A started process, the channel to it, and both arenas (`inward` carries tensors to the worker)."""

    process: asyncio.subprocess.Process
    channel: Channel
    inward: memoryview
    outward: memoryview

    async def log_output(self) -> None:
        """What the worker prints goes to the daemon's log, made harmless: it may quote what a peer sent."""
        output = self.process.stdout
        assert output is not None
        rest = b""
        while chunk := await output.read(_MAX_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_LINE_BYTES:]
            for line in lines:
                text = line.decode("utf-8", "replace")
                _log.warning("%d: %s", self.process.pid, "".join(c if c.isprintable() else " " for c in text))


async def spawn(entry: str, limits: Limits, readable: Sequence[Path], arena_bytes: int) -> SpawnedWorker:
    """Start the process; it greets over the channel once it is ready."""
    if limits.sandbox == "weak":
        _close_to_tracing()
    ours, theirs = socket.socketpair()
    arenas: list[int] = []
    try:
        arenas += [arena.create(arena_bytes), arena.create(arena_bytes)]
        inward, outward = (memoryview(arena.attach(descriptor, arena_bytes)) for descriptor in arenas)
        options = {
            "entry": entry,
            "limits": asdict(limits),
            "readable": [str(path) for path in readable],
            "channel": theirs.fileno(),
            "arenas": arenas,
            "arena_bytes": arena_bytes,
            "parent": os.getpid(),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "nodewire.worker.process.main",
            json.dumps(options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(theirs.fileno(), *arenas),
            env=_environment(limits),
            start_new_session=True,
        )
    except (OSError, NodewireError):
        ours.close()
        raise
    finally:
        theirs.close()
        for descriptor in arenas:
            os.close(descriptor)
    _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
    return SpawnedWorker(process, channel, inward, outward)


def _close_to_tracing() -> None:
    """Have no other process of this user read this one's memory, which holds the keys."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _environment(limits: Limits) -> dict[str, str]:
    """All that the worker inherits: where modules lie, and how many threads to start. No keys, no home."""
    threads = str(limits.threads)
    return {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "MALLOC_ARENA_MAX": "2",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",  # code for shapes seen, which else grows with every size of a call
        "HF_HUB_OFFLINE": "1",
        "CUDA_CACHE_DISABLE": "1",
        # torch wants to know a cache folder when parts of it are imported; it gets one where nothing can be written.
        "TORCHINDUCTOR_CACHE_DIR": "/",
        **{name: os.environ[name] for name in _FORWARDED if name in os.environ},
    }
