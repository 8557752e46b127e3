"""A manifest (kind 38840): a model as a DAG of tasks. nips/02-manifests.md.

A task is an actor: tensors come in on its edges, tensors go out on its edges. `customer` is the node outside: edges
from it carry the request, edges to it the answer. Decoders close a ring through their driver; edges marked `back`
do not count as dependencies, so that the rest is acyclic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadInput, BadManifest
from nodewire.protocol.encoding.schema import Count, Hex32, Label, Name, Schema
from nodewire.protocol.model.kv_pages import pages_of

if TYPE_CHECKING:
    from collections.abc import Iterable

CUSTOMER = "customer"
MAX_TASKS = 1_024
MAX_EDGES = 8_192
MAX_CHAT_BYTES = 131_072

Engine = Literal["decoder.driver", "decoder.stage", "encoder.driver", "graph"]
"""What interprets a task's program in the worker (`kinds` maps it to a worker entry)."""
REFERENCE_ENGINE = "decoder.stage.float32"
"""The engine of a stage in float32, whatever its program says. No manifest can name it."""


MAX_BLOB_BYTES = 4 * 1024**3
"""No node uploads or fetches a larger blob."""
MAX_WEIGHT_FILES = 64


class BlobRef(Schema):
    """A content-addressed file: plain SHA-256 of its bytes, as Blossom has it."""

    sha256: Hex32
    bytes: Count


class Tensor(Schema):
    """The type of one tensor on an edge. A dimension is a number, or a name with its largest value in `Edge.dims`."""

    name: Name
    dtype: Literal["float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"]
    shape: tuple[Count | Name, ...] = Field(max_length=8)


class Edge(Schema):
    """Tensors that travel together from one task's output to another's input.

    `bytes_per_position` is what one position (token) or item adds to a frame: the planner's and the wire's estimate.
    """

    name: Name
    source: Name
    target: Name
    tensors: tuple[Tensor, ...] = Field(max_length=64)
    dims: dict[Name, Count] = Field(default_factory=dict, max_length=16)
    bytes_per_position: Count
    back: bool = False
    exact: bool = False
    """Whether the author forbids that customers have it narrowed (`protocol.model.edge_codec`); left out of a document
    if not."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.exact:
            del said["exact"]
        return said


class Task(Schema):
    """One piece of the model.

    `program` is a canonical msgpack blob read by `engine`; `weights` are safetensors blobs of only this task's tensors
    (a decoder driver's second blob is its tokenizer.json).
    `memory_bytes` is the predicted peak of weights, caches for `slots` sessions and activations, in a loaded worker
    above its empty baseline; `page_bytes` of them are each page's of 64 positions of a session (`Manifest.bytes_at`);
    `flops` is per position; `limit` says in words what bounded the cut.
    """

    name: Name
    engine: Engine
    program: BlobRef
    weights: tuple[BlobRef, ...] = Field(max_length=MAX_WEIGHT_FILES)
    memory_bytes: Count
    slots: int = Field(ge=1, le=4_096)
    flops: Count
    limit: Label = ""
    page_bytes: Count = 0
    """Left out of a document if sessions have no pages."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.page_bytes:
            del said["page_bytes"]
        return said


class Manifest(Schema):
    TAG: ClassVar[str] = "nodewire/manifest/1"
    MAX_BYTES: ClassVar[int] = 1_048_576
    ERROR: ClassVar[type[BadInput]] = BadManifest

    v: Literal[1] = 1
    name: Name
    kind: Literal[8843] = 8843
    mode: Literal["generate", "embed", "run"]
    license: Label = ""
    context: Count = 0
    """Most positions in one session, prompt included (0: not a sequence model)."""
    chunk: int = Field(default=64, ge=1, le=4_096)
    """Positions that one payment and one commitment cover; a call of a stateless DAG is one chunk."""
    tasks: tuple[Task, ...] = Field(min_length=1, max_length=MAX_TASKS)
    """In topological order, the driver first."""
    edges: tuple[Edge, ...] = Field(min_length=1, max_length=MAX_EDGES)
    chat: BlobRef | None = None
    """How messages become a prompt (`protocol.model.chat_template`), for customers; left out of a document if there is
    none."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if self.chat is None:
            del said["chat"]
        return said

    @model_validator(mode="after")
    def _chats_only_if_it_generates(self) -> Self:
        if self.chat is not None and (self.mode != "generate" or not 0 < self.chat.bytes <= MAX_CHAT_BYTES):
            raise ValueError(f"chat: of a model that generates, and from 1 to {MAX_CHAT_BYTES} bytes")
        return self

    @model_validator(mode="after")
    def _is_a_dag(self) -> Self:
        order = {task.name: i for i, task in enumerate(self.tasks)}
        if len(order) != len(self.tasks) or CUSTOMER in order:
            raise ValueError("tasks: names are not unique, or one is called 'customer'")
        if len({edge.name for edge in self.edges}) != len(self.edges):
            raise ValueError("edges: names are not unique")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end != CUSTOMER and end not in order:
                    raise ValueError(f"edges: {edge.name} names an unknown task {end}")
            inner = CUSTOMER not in (edge.source, edge.target)
            if inner and not edge.back and order[edge.source] >= order[edge.target]:
                raise ValueError(f"edges: {edge.name} runs against the order of tasks")
        return self

    def is_model_of(self, other: Manifest) -> bool:
        """Whether both compute the same: the same tasks' programs, over the same weights."""
        pieces = [{(task.engine, task.program, task.weights) for task in one.tasks} for one in (self, other)]
        return self.mode == other.mode and pieces[0] == pieces[1]

    @property
    def weight_bytes(self) -> int:
        """Of all tasks, each blob once."""
        return sum({blob.sha256: blob.bytes for task in self.tasks for blob in task.weights}.values())

    def task(self, name: str) -> Task:
        return next(task for task in self.tasks if task.name == name)

    def slot_bytes(self, tasks: Iterable[str]) -> int:
        """What these tasks take for one session more of the whole `context`.

        0 where their manifest fixes how many there may be.
        """
        return pages_of(self.context) * sum(self.task(name).page_bytes for name in tasks)

    def bytes_at(self, name: str, slots: int) -> int:
        """What a task takes with pages for so many sessions."""
        task = self.task(name)
        return max(0, task.memory_bytes + (slots - task.slots) * self.slot_bytes([name]))

    def inputs(self, task: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == task)

    def outputs(self, task: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == task)

    @property
    def inner_edges(self) -> tuple[Edge, ...]:
        """Those between tasks: guesses travel over these."""
        return tuple(edge for edge in self.edges if CUSTOMER not in (edge.source, edge.target))

    @property
    def driver(self) -> Task:
        return self.tasks[0]

    @property
    def lends_its_head(self) -> bool:
        """Whether a ring of this model answers tokens: where two are about as likely, two honest nodes may differ."""
        integers = ("int64", "int32", "uint8")
        returns = (edge for edge in self.edges if edge.back and edge.target == self.driver.name)
        return self.mode == "generate" and any(tensor.dtype in integers for one in returns for tensor in one.tensors)

    @property
    def ends(self) -> frozenset[str]:
        """The tasks that see most of what goes in and comes out.

        Of a generation they are the driver and those beside it, a ring's first and last stage. Else they are those that
        hear from the customer, and those that it hears from.
        """
        inside = self.driver.name if self.mode == "generate" else CUSTOMER
        pairs = [{edge.source, edge.target} for edge in self.edges]
        return frozenset({self.driver.name}.union(*(pair for pair in pairs if inside in pair)) - {CUSTOMER})
