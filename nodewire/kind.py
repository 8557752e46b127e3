"""What a job kind is, and the ports it is handed. A kind opens no socket and holds no key.

A kind's module (entry point in the group `nodewire.kinds`) is light: every daemon loads it. What computes stands in
the module that `worker_entry` names; only the capped worker process imports it, and calls its `load`.

    def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nodewire.protocol.model.edge_codec import OWN, Codings

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.errors import NodewireError
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.protocol.tensors.inbox import Inbox
    from nodewire.training.protocol.recipe import Recipe

Params = Mapping[str, Any]
"""A session's parameters (max_tokens, stop ...): plain msgpack data, checked by the kind."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use: memory, CPU threads, a device, and what the operator gives it beside them.

    `memory_bytes` counts above its empty baseline. `compiled` is a folder of libraries that the operator has made of
    tasks (graph/compile.py), none if empty. `draft` is likewise that of a model whose guesses a decoder's driver may
    send ahead (llm/speculation/draft_model.py). `graphs` says whether steps of decoding are captured on a GPU
    (llm/cuda_graphs/runner.py).
    """

    memory_bytes: int
    threads: int = 1
    device: str = "cpu"
    compiled: str = ""
    draft: str = ""
    graphs: bool = True
    sandbox: str = "full"
    """What the kernel must be able to confine: a worker under "weak" starts with less than all layers, too."""
    secrets: tuple[str, ...] = ()
    """Files that no worker may read, as keys and wallet tokens are."""
    slots: int = 0
    """Sessions that a task whose sessions have pages has them for; 0: as many as its program says."""


CAPTURED_BYTES = 2**30
"""The most that a task's captured steps take of `Limits.memory_bytes` besides what it needs itself."""
Say = Callable[[str], None]
"""Tells people what is being done, while it takes long."""


@dataclass(frozen=True, slots=True)
class TaskSize:
    """What is known of a task when it is cut. Both sizes together are its predicted peak, frames that wait aside.

    `most_at` is the operator at which it takes the most, `no_room_for` the one that would have made it too large;
    `holds` says of what it has parts: rows of a matrix, some of the experts, layers.
    """

    weights_bytes: int
    live_bytes: int
    operators: int = 0
    most_at: str = ""
    no_room_for: str = ""
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """What a decoder comes to at a memory target: so many tasks.

    The smallest of them has room for `sessions` of `context` positions. Without tasks one does not fit: `change` says
    what to ask for instead, if anything helps.
    """

    target_bytes: int
    context: int
    sessions: int
    tasks: int = 0
    change: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """A model that was split: its manifest, the blobs it cites (sha256 -> file), what limited each cut.

    Of a dry run there are no `blobs`, and no hashes of weights in the manifest (`weights/blob_folder.py`); `lacks`
    names the files that a registration needs and the model's folder has not.
    """

    manifest: Manifest
    blobs: Mapping[str, Path]
    report: tuple[str, ...]
    pieces: Mapping[str, TaskSize] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    fits: tuple[Fit, ...] = ()
    """Of a decoder: at targets that people have."""

    @property
    def upload_bytes(self) -> int:
        """What is uploaded: every blob once, and the manifest."""
        return sum(self.cited.values()) + len(self.manifest.pack())

    @property
    def cited(self) -> dict[str, int]:
        """The bytes of every blob that the manifest cites, by hash."""
        chat = (self.manifest.chat,) if self.manifest.chat is not None else ()
        tasks = (blob for task in self.manifest.tasks for blob in (task.program, *task.weights))
        return {blob.sha256: blob.bytes for blob in (*tasks, *chat)}


class Actor(Protocol):
    """A loaded task, in the worker: frames in, frames out. Sessions are independent of each other.

    Every method may raise any NodewireError; other exceptions become WorkerFailed and end only that session.
    """

    def open(self, session: str, params: Params) -> None:
        """Reserve what a session needs (a KV cache, say). Raises Busy when all slots are taken."""

    def receive(self, session: str, frame: Frame[Any]) -> Sequence[Frame[Any]]:
        """Take one input frame (torch tensors), return the output frames that it makes possible, in order.

        They may be made when they are asked for, which is before the next call.
        """

    def close(self, session: str) -> None:
        """Free the session; unknown sessions are ignored."""


@runtime_checkable
class BatchActor(Actor, Protocol):
    """An actor that can compute calls of several sessions as one."""

    @property
    def batches(self) -> int:
        """In how many of their first dimensions such calls may differ.

        0 where it computes none as one, because one session's data could be seen in another's.
        """

    def receive_together(
        self, calls: Sequence[tuple[str, Sequence[Frame[Any]]]]
    ) -> Sequence[Sequence[Frame[Any]] | NodewireError]:
        """By session and its frames, what `receive` answers to them, or the error that it raises."""


@runtime_checkable
class BlockActor(Actor, Protocol):
    """An actor that may be sent the positions of a frame in parts, one after the other.

    `protocol.tensors.position_split` parts them.
    """

    @property
    def block(self) -> int:
        """How many it computes at once."""


@runtime_checkable
class SizedActor(Actor, Protocol):
    """An actor that knows what it takes of memory."""

    @property
    def held_bytes(self) -> int:
        """As long as it is loaded."""

    @property
    def call_bytes(self) -> int:
        """More, at most, while it computes."""


class TaskSession(Protocol):
    """A session of one task that is open in a worker."""

    async def receive(self, frame: Frame[Array]) -> list[Frame[Array]]:
        """One frame in, the frames that it makes possible out. Raises WorkerFailed where the worker has died since."""

    async def close(self) -> None:
        """Free what it holds. Closed twice, or in a worker that has died, it is closed all the same."""


class Worker(Protocol):
    """A worker with its tasks loaded, as who uses it sees it."""

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> TaskSession:
        """Reserve what a session needs.

        On edges in `codings` frames come, and go, narrowed: the actor has them in their own dtypes. Cancelled, it
        leaves nothing open.
        """


@dataclass(frozen=True, slots=True)
class Turn:
    """By what a worker that many jobs share chooses whose call is computed next."""

    customer: str = ""
    """Who shares the worker with others, whatever the number of its jobs."""
    remaining_us: int = 0
    """How long it takes, by estimate, from the beginning of this task's call to the end of the job's longest path."""
    together: frozenset[str] = frozenset()
    """The edges whose frames of one seq make one call; none where every frame is a call of its own."""


class SharedWorker(Worker, Protocol):
    """A worker process as the daemon sees it (`nodewire.worker`): many jobs share it."""

    async def load(
        self, task: str, engine: str, program: Path, weights: Sequence[Path], slots: int = 0
    ) -> Mapping[str, int]:
        """Verify and load a task; {"memory_bytes", "load_ms"}.

        With `slots` one whose sessions have pages has them for so many, and not for as many as its manifest says.
        Raises BadTask, BadHash, OverMemory, WorkerFailed.
        """

    async def open(
        self, task: str, session: str, params: Params, codings: Codings = OWN, turn: Turn = Turn()
    ) -> TaskSession: ...


MakeWorker = Callable[[str], SharedWorker]
"""A worker around a kind's entry module."""


class Mailbox(Protocol):
    """One job's edges as one node sees them (`nodewire.wire`, or in-process)."""

    async def put(self, frame: Frame[Array]) -> None:
        """Deliver on an edge that this node produces; waits while the consumer's window is full."""

    async def get(self) -> Frame[Array]:
        """The next frame, in order per edge, on any edge that this node consumes. Raises LinkLost, TimedOut."""

    def deliver_to(self, inbox: Inbox) -> None:
        """Hand the frames that `get` would return to an inbox: those that wait now, and later ones as they come.

        Their windows open at once. What the inbox does not take stays for `get`.
        """


class Clock(Protocol):
    def time_s(self) -> float:
        """Unix time."""

    def monotonic_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One job as a node that runs part of it sees it. `tasks` are this node's, in the manifest's order."""

    request: str
    manifest: Manifest
    tasks: tuple[str, ...]
    params: Params
    codings: Codings = field(default_factory=lambda: OWN)
    """What the plan narrows: the worker is told, and nobody else needs to know."""
    lookahead: int = 1
    """How far the plan lets a generation run ahead by guess (`protocol.speculation.frame_meta`); 1 is not at all."""


class Desk(Protocol):
    """What the role does around a job's computation: credit, commitment, closing."""

    async def admit(self, chunk: int, units: int = 1) -> None:
        """Return when work on `chunk`, as much as `units` chunks, may begin.

        Its predecessors but one are paid, or within credit then.

        Raises:
            PaymentRequired: they are not, for the desk's patience.
            BadFrame: the chunk has been closed; or the driver has not closed that predecessor: nothing is asked for.

        """

    def produced(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        """Take note of an output for the chunk's commitment, before it is delivered."""

    def received(self, task: str, frame: Frame[Array]) -> None:
        """Of a generation: take note of an input, before it is computed.

        Raises:
            BadFrame: it cannot follow those before it, or is more than the plan allows.

        """

    async def completed(self, chunk: int, units: int, end: bool, positions: int | None = None) -> None:
        """All of this node's part of `chunk` is done; it counts as `units` chunks.

        `end`: it was the last. `positions`: how many of the chunk's count, if not all.
        """


class JobKind(Protocol):
    """One job kind: what the entry point `nodewire.kinds` names."""

    request: int
    worker_entry: str

    def check(self, manifest: Manifest, params: Params) -> Params:
        """The parameters with their defaults filled in. Raises BadInput naming the field."""

    async def serve(self, job: Job, mailbox: Mailbox, worker: Worker, desk: Desk) -> None:
        """Run this node's tasks of a job until its part is done; cancelling it ends its sessions in the worker.

        A node without the driver learns of a chunk's end from the driver's signed close, through its role.
        """

    def merged(self, manifest: Manifest, task: str, frames: Sequence[Frame[Array]]) -> Sequence[Frame[Array]]:
        """Fewer frames that leave a session of `task` where `frames`, its first inputs in order, would leave it.

        For one who verifies what came later: what the task makes of them is of no interest.
        """


class TrainingKind(Protocol):
    """One kind of training round: what the entry point `nodewire.training` names.

    `worker_entry` loads the engines "trainer", whose sessions are shards of rounds, "outer", whose sessions are outer
    steps, "coordinator", whose sessions are whole trainings at their customer, and "auditor", whose session is a
    training computed again from its transcript.
    """

    request: int
    worker_entry: str

    def check(self, recipe: Recipe) -> None:
        """Raises BadRecipe: rounds of this recipe are of another kind."""


def installed_training() -> dict[int, TrainingKind]:
    """The kinds of training rounds of all installed packages, by request number."""
    found: dict[int, TrainingKind] = {}
    for entry in entry_points(group="nodewire.training"):
        kind: TrainingKind = entry.load()
        found[kind.request] = kind
    return found


def installed() -> dict[int, JobKind]:
    """The job kinds of all installed packages, by request number."""
    found: dict[int, JobKind] = {}
    for entry in entry_points(group="nodewire.kinds"):
        kind: JobKind = entry.load()
        found[kind.request] = kind
    return found
