"""What a job kind is, and the ports it is handed. A kind opens no socket and holds no key.

A kind's module (entry point in the group `nodewire.kinds`) is light: every daemon loads it. What computes stands in
the module that `worker_entry` names; only the capped worker process imports it, and calls its `load`.

    def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest

Params = Mapping[str, Any]
"""A session's parameters (max_tokens, stop ...): plain msgpack data, checked by the kind."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use: `memory_bytes` above its empty baseline, `threads` CPU threads, `device` for tensors."""

    memory_bytes: int
    threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Registration:
    """A model made ready to be served: its manifest, the files of every blob that it cites, and why it was cut so."""

    manifest: Manifest
    blobs: Mapping[str, Path]
    """By SHA-256."""
    report: tuple[str, ...]
    """For people: a line for each task."""


class Actor(Protocol):
    """A loaded task, in the worker: frames in, frames out. Sessions are independent of each other.

    Every method may raise any NodewireError; other exceptions become WorkerFailed and end only that session.
    """

    def open(self, session: str, params: Params) -> None:
        """Reserve what a session needs (a KV cache, say). Raises Busy when all slots are taken."""

    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        """Take one input frame (torch tensors), return the output frames that it makes possible, in order."""

    def close(self, session: str) -> None:
        """Free the session; unknown sessions are ignored."""


class Worker(Protocol):
    """A worker process as the daemon sees it (`nodewire.worker`)."""

    async def load(self, task: str, engine: str, program: Path, weights: Sequence[Path]) -> Mapping[str, int]:
        """Verify and load a task; {"memory_bytes", "load_ms"}. Raises BadTask, BadHash, OverMemory, WorkerFailed."""

    async def open(self, task: str, session: str, params: Params) -> None: ...

    async def receive(self, task: str, session: str, frame: Frame[Array]) -> list[Frame[Array]]: ...

    async def close(self, task: str, session: str) -> None: ...


class Mailbox(Protocol):
    """One job's edges as one node sees them (`nodewire.wire`, or in-process)."""

    async def put(self, frame: Frame[Array]) -> None:
        """Deliver on an edge that this node produces; waits while the consumer's window is full."""

    async def get(self) -> Frame[Array]:
        """The next frame, in order per edge, on any edge that this node consumes. Raises LinkLost, TimedOut."""


class Clock(Protocol):
    def time_s(self) -> float:
        """Unix time."""

    def monotonic_s(self) -> float: ...
