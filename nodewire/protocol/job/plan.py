"""A plan: every task's provider, fixed prices, deadlines and the verification policy. nips/11-job-requests.md.

`nodewire.plan.assign` derives one from (manifest, snapshot, beacon, terms, customer, busy, k); a job request carries
it whole, and anyone re-derives it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadInput, BadPlan
from nodewire.protocol.committee.committee import VALID_EPOCHS
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Label, Msat, Name, Schema
from nodewire.protocol.encoding.tags import MAX_EPOCH
from nodewire.protocol.model.edge_codec import Codec
from nodewire.protocol.model.manifest import CUSTOMER, MAX_EDGES, Manifest
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    import hashlib

LOCAL = "local"
MAX_BUSY = 8
MAX_REDRAWS = 8
MAX_EXCLUDED = 64

MAX_JOB_EPOCHS = 4_096
"""No chunk is certified later than this many epochs after the one that its job was planned with: an oracle forgets its
votes, and what it may forget must never be drawn again (`oracle.journal`)."""
CHUNK_OUTPUTS = 512
"""Outputs for which a chunk is allowed the whole `next_result_ms`. That is 8 predicted turns or more, so the largest
chunk (4,096 positions) is done by then at the predicted speed, and one of 64 at an eighth of what a customer bears."""
CERTIFY_EPOCHS = 8
"""From a chunk's end to its certificate: the provider's next commitment, and epochs that found no quorum."""
_TICKET_MS = 30_000
_PATIENCE_MS = 30_000
"""A provider's default: what is not paid so long after it was due ends the job."""


class Terms(Schema):
    """What the customer asks for; part of the plan, so that it can be re-derived."""

    max_chunk_msat: Msat
    """Most that one chunk may cost over all tasks."""
    max_total_msat: Msat
    trusted: tuple[Hex32, ...] = Field(default=(), max_length=64)
    """If not empty, only these providers."""
    excluded: tuple[Hex32, ...] = Field(default=(), max_length=MAX_EXCLUDED)
    regions: tuple[Label, ...] = Field(default=(), max_length=16)
    """If not empty, only providers that declare one of these."""
    driver: Literal["provider", "local", "ends"] = "provider"
    """Whose the first task is, a provider's or the customer's; with "ends" all `Manifest.ends` are the customer's."""
    ends: tuple[Hex32, ...] = Field(default=(), max_length=64)
    """If not empty, only these providers have a task of `Manifest.ends`; left out of a document if empty."""
    verify: Literal["none", "sampled"] = "none"
    codecs: dict[Name, Codec] = Field(default_factory=dict, max_length=MAX_EDGES)
    """Edges that carry less than their own dtypes, by the customer's wish; left out of a document if there is none."""
    lookahead: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    """Of a generation: so many rows of a frame, and for each position that is paid, a driver may have computed by
    guess; left out of a document at 1, which is none."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.codecs:
            del said["codecs"]
        if not self.ends:
            del said["ends"]
        if self.lookahead == 1:
            del said["lookahead"]
        return said

    def local(self, manifest: Manifest) -> tuple[str, ...]:
        """The tasks that the customer runs itself, in the manifest's order."""
        if self.driver == "ends":
            return tuple(task.name for task in manifest.tasks if task.name in manifest.ends)
        return (manifest.driver.name,) if self.driver == "local" else ()

    @property
    def lossy(self) -> tuple[Codec, ...]:
        """The codecs among the job's edges, sorted: what its receipts say."""
        return tuple(sorted(set(self.codecs.values())))


class Assignment(Schema):
    """One task of a plan. `provider` is "local" where the customer runs the task itself, for nothing."""

    task: Name
    provider: Hex32 | Literal["local"]
    price_msat: Msat
    """Per chunk."""


class Verification(Schema):
    """`rate_ppm` of chunks are re-computed; `share_ppm` of the price pays for it."""

    policy: Literal["none", "sampled"]
    rate_ppm: int = Field(ge=0, le=1_000_000)
    share_ppm: int = Field(ge=0, le=1_000_000)


class Plan(Schema):
    TAG: ClassVar[str] = "nodewire/plan/1"
    MAX_BYTES: ClassVar[int] = 32_768
    ERROR: ClassVar[type[BadInput]] = BadPlan

    v: Literal[1] = 1
    algorithm: Literal["assign/2", "file/1"] = "assign/2"
    manifest: Hex32
    """Manifest.digest()."""
    committee: Hex32
    """Committee.digest()."""
    epoch: int = Field(ge=0, le=MAX_EPOCH)
    snapshot: Hex32
    """SHA-256 of the snapshot blob that the epoch's QC certifies."""
    certificate: Hex32
    """Digest of the epoch's certified body (Body.digest()), which the beacon signs."""
    beacon: Hex32
    customer: Hex32
    k: int = Field(ge=0, lt=MAX_REDRAWS)
    busy: tuple[Hex32, ...] = Field(default=(), max_length=MAX_BUSY)
    """Ids of the signed `busy` feedbacks whose authors were excluded."""
    terms: Terms
    tasks: tuple[Assignment, ...] = Field(min_length=1, max_length=1_024)
    """In the manifest's order."""
    chunk_msat: Msat
    """Sum of the tasks' prices for one unit. A chunk is one unit; a prompt, chunk 0, may be several."""
    first_result_ms: Count
    """Deadline for the first output after the request."""
    next_result_ms: Count
    """Deadline between outputs."""
    verification: Verification

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if len({task.task for task in self.tasks}) < len(self.tasks):
            raise ValueError("tasks: one stands twice")
        if self.chunk_msat != sum(task.price_msat for task in self.tasks):
            raise ValueError("chunk_msat: not the sum of the tasks' prices")
        return self

    def standing_msat(self, task: str, provider: str) -> int:
        """The msat that a pass of a chunk counts in the account of `provider` (a pubkey).

        It is the task's price where the plan places the provider, and nothing for anybody else.
        """
        return next((one.price_msat for one in self.tasks if (one.task, one.provider) == (task, provider)), 0)

    def deadline_epoch(self, chunk: int, epoch_ms: int) -> int:
        """The last epoch whose certificate may hold a root of this chunk: a later one is never final.

        It is no estimate but a bound: a request in the last valid epoch, then every wait as long as a customer or a
        provider bears it, first results anew after each link that is lost. Linear in the chunk up to MAX_JOB_EPOCHS.
        """
        waits_ms = _TICKET_MS + (1 + len(self.providers())) * self.first_result_ms
        waits_ms += chunk * CHUNK_OUTPUTS * self.next_result_ms + (chunk + 1) * _PATIENCE_MS
        epochs = VALID_EPOCHS + 1 + -(-waits_ms // epoch_ms) + CERTIFY_EPOCHS
        return self.epoch + min(epochs, MAX_JOB_EPOCHS)

    def assignment(self, task: str) -> Assignment:
        """Raises BadPlan: there is no task of this name."""
        found = next((a for a in self.tasks if a.task == task), None)
        if found is None:
            raise BadPlan("tasks", f"none is called {task[:64]}")
        return found

    def providers(self) -> tuple[str, ...]:
        """The distinct providers in task order, the customer's own tasks left out."""
        return tuple(dict.fromkeys(a.provider for a in self.tasks if a.provider != LOCAL))

    def node_of(self, task: str) -> str:
        """Public key of the node that runs a task: its provider, or the customer. Raises BadPlan: no such task."""
        provider = self.assignment(task).provider
        return self.customer if provider == LOCAL else provider

    def tasks_of(self, provider: str) -> tuple[str, ...]:
        """The tasks that the plan gives to `provider` (a pubkey or "local"), in the manifest's order."""
        return tuple(a.task for a in self.tasks if a.provider == provider)

    def price_msat(self, provider: str) -> int:
        """What one unit of a chunk costs at `provider` (a pubkey), in msat."""
        return sum(a.price_msat for a in self.tasks if a.provider == provider)


def tensor_key(request: str, edge: str, attempt: int, seq: int) -> bytes:
    """The name, known to everybody in advance, of the `seq`-th frame on an edge of a job (16 bytes).

    `request` is the job request's event id; `attempt` is 0.
    """
    state = _key_state(request, edge, attempt).copy()
    state.update(canonical.encode(seq))
    return state.digest()[:16]


@lru_cache(maxsize=1_024, typed=True)
def _key_state(request: str, edge: str, attempt: int) -> hashlib._Hash:
    """The hash of [request, edge, attempt, seq] up to `seq`: every frame of an edge has the same beginning."""
    fields = (canonical.encode(field) for field in (request, edge, attempt))
    return canonical.tagged_state("nodewire/tensor/1", b"\x94" + b"".join(fields))


def ends(manifest: Manifest, plan: Plan) -> dict[str, tuple[str, str]]:
    """For every edge the public keys of its producer and its consumer under `plan`."""
    place = {a.task: plan.customer if a.provider == LOCAL else a.provider for a in plan.tasks}
    place[CUSTOMER] = plan.customer
    return {edge.name: (place[edge.source], place[edge.target]) for edge in manifest.edges}
