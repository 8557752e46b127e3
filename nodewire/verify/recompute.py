"""A sampled chunk computed again, from inputs that nobody can have changed. NIPS.md, "Samples".

The ticket is the one that the request sealed; frames from the customer are those that the ticket names; frames from a
task are those that its provider signed when it sent them, and hash to what it committed to, in a root that a
certificate holds. What is missing of that makes the chunk one that cannot be judged: it is never taken from the word
of the one who is judged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

from nodewire.errors import BadHash, BadInput, Busy, NodewireError, NotAllowed, NotFound, Withheld
from nodewire.kind import JobKind, Worker
from nodewire.protocol.chunk import Leaf, Opening, chunk_of, leaf_of, most_bytes
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.job import Request, Ticket, content_of
from nodewire.protocol.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.sent import MAX_PACKED_BYTES, Equivocation, Sent, Tensors, hashed, settle, tensors_of, unpack
from nodewire.protocol.takeover import Takeover, payees
from nodewire.protocol.verification import Sample
from nodewire.wire.node import Node
from nodewire.wire.pull import Want, pull, pull_document

MAX_FRAMES = 65_536
MAX_BYTES = 2**30
_TICKET_BYTES = 65_536
_RESULT_S = 120.0
_TRIES = 10
"""How often a busy node is asked again."""

T = TypeVar("T")
Roots = Mapping[tuple[str, str, int], str]
"""By provider, task and chunk of a job: the root that was certified first, by the chunk's deadline."""


class Equivocated(BadHash):
    """The producer of an input signed other frames than it committed to: it is to blame, whatever was made of them."""

    def __init__(self, equivocation: Equivocation) -> None:
        where = f"{equivocation.edge} in chunk {equivocation.chunk}"
        super().__init__("sent", f"{equivocation.culprit[:8]} signed something else for {where} than it committed to")
        self.equivocation = equivocation


@dataclass(frozen=True, slots=True)
class _Case:
    """One sample with all that says where its inputs come from."""

    sample: Sample
    request: Request
    manifest: Manifest
    takeover: Takeover | None
    addresses: Mapping[str, Sequence[str]]
    patience_s: float
    last: bool
    said: Mapping[tuple[str, int], Sent] = field(default_factory=dict)
    """By edge and chunk: what producers signed to the provider, by what it shows."""


def _want(
    sample: Sample,
    what: Literal["frames", "opening", "ticket", "sent"],
    task: str,
    chunk: int,
    edges: tuple[str, ...] = (),
) -> Want:
    return Want(
        what=what, request=sample.request, task=task, edges=edges, attempt=sample.attempt, first=chunk, last=chunk
    )


async def recompute(
    *,
    sample: Sample,
    request: Request,
    manifest: Manifest,
    takeover: Takeover | None,
    node: Node,
    roots: Roots,
    addresses: Mapping[str, Sequence[str]],
    kind: JobKind,
    worker: Worker,
    loaded: str,
    patience_s: float,
    last: bool = False,
) -> tuple[Leaf, ...]:
    """The leaves of the sampled chunk, computed by the task `loaded` in `worker`, in the order that an opening has.

    `takeover` is the job's newest; `addresses` are of the plan's providers and standbys; `patience_s`: for what one
    node shows of one chunk. `last`: of inputs that their producer signed, what it committed to is not waited for any
    more.

    Raises:
        Equivocated: an input's producer signed something else than it committed to.
        Withheld: the provider does not show the ticket, or inputs that only it can show.
        NotFound, BadHash, BadInput: another's input is not to be had, or not what was committed to.
        NodewireError: the worker's error, or a peer's refusal.
    """
    of = _Case(sample, request, manifest, takeover, addresses, patience_s, last)
    ticket = await _asked(of, sample.provider, lambda: _ticket(of, node))
    said = await _asked(of, sample.provider, lambda: _statements(of, node))
    of = replace(of, said=said)
    inputs = await _inputs(of, ticket, node, roots)
    before = [frame for frame in inputs if chunk_of(manifest, frame.seq) < sample.chunk]
    session = secrets.token_hex(32)
    found: list[Leaf] = []
    await worker.open(loaded, session, kind.check(manifest, ticket.params))
    try:
        async with asyncio.timeout(_RESULT_S):
            for frame in (*kind.merged(manifest, sample.task, before), *inputs[len(before) :]):
                for out in await worker.receive(loaded, session, frame):
                    if chunk_of(manifest, out.seq) == sample.chunk:
                        found.append(leaf_of(request.plan.manifest, out))
    except TimeoutError as error:
        raise NotFound("leaves", f"not computed within {_RESULT_S:.0f} s") from error
    finally:
        await worker.close(loaded, session)
    order = {edge.name: i for i, edge in enumerate(of.manifest.edges)}
    return tuple(sorted(found, key=lambda leaf: (order[leaf.edge], leaf.seq)))


async def _asked(of: _Case, node: str, ask: Callable[[], Awaitable[T]]) -> T:
    """What `node` shows, asked again while it is busy; silence is withheld, if it is the provider who is judged."""
    try:
        async with asyncio.timeout(of.patience_s):
            while True:
                try:
                    return await ask()
                except Busy:
                    await asyncio.sleep(of.patience_s / _TRIES)
    except (NodewireError, TimeoutError) as error:
        if node == of.sample.provider:
            raise Withheld("inputs", str(error) or "not shown in time") from error
        if isinstance(error, TimeoutError):
            raise NotFound("inputs", f"{node[:8]} does not show them in time") from error
        raise


async def pull_opening(node: Node, peer: str, addresses: Sequence[str], sample: Sample, manifest: Manifest) -> Opening:
    """`peer`'s opening of the sampled chunk; whether it opens the certified root is for the caller to see.

    Raises:
        BadInput: it is another chunk's.
        NodewireError: `peer` refuses, or cannot be reached.
    """
    return await _opening(sample, manifest, node, peer, addresses, sample.task, sample.chunk)


async def _opening(
    sample: Sample,
    manifest: Manifest,
    node: Node,
    peer: str,
    addresses: Sequence[str],
    task: str,
    chunk: int,
    attempt: int | None = None,
) -> Opening:
    want = _want(sample, "opening", task, chunk)
    if attempt is not None:
        want = want.model_copy(update={"attempt": attempt})
    most = most_bytes(manifest, task)
    opening = Opening.unpack(await pull_document(node, peer, addresses, want, max_bytes=most))
    if (opening.author, opening.request, opening.task, opening.chunk) != (peer, sample.request, task, chunk):
        raise BadInput("opening", "of another chunk")
    return opening


def _address(of: _Case, node: str) -> Sequence[str]:
    """Raises NotFound: nothing says where the node is."""
    if not of.addresses.get(node):
        raise NotFound("wire", f"no ad says where {node[:8]} is")
    return of.addresses[node]


async def _ticket(of: _Case, node: Node) -> Ticket:
    provider = of.sample.provider
    want = _want(of.sample, "ticket", of.sample.task, of.sample.chunk)
    text = await pull_document(node, provider, _address(of, provider), want, max_bytes=_TICKET_BYTES)
    ticket = Ticket.parse(text)
    if ticket.seal() != of.request.ticket:
        raise BadHash("ticket", "not the one that the request sealed")
    return ticket


async def _inputs(of: _Case, ticket: Ticket, node: Node, roots: Roots) -> list[Frame[Array]]:
    """Every frame that the task was given up to the sampled chunk, in an order that it can be given again."""
    found: list[tuple[int, int, Frame[Array]]] = []
    for edge in of.manifest.inputs(of.sample.task):
        for chunk in range(of.sample.chunk + 1):
            producer = of.sample.provider
            received = None
            if edge.source != CUSTOMER:
                producer = payees(of.request.plan, of.takeover, chunk)[edge.source]
                received = await _received(of, edge, chunk, producer, roots, node)
            if received is None:
                # It did not show that it was sent anything else, so it must have been what is shown here; and an honest
                # provider commits to nothing before its inputs are signed.
                duty = of.sample.provider if producer in of.addresses else producer
                ask = partial(_frames, of, edge, chunk, producer, ticket, roots, node)
                received = await _asked(of, duty, ask)
            frames = received
            found += [(frame.seq, int(edge.source != CUSTOMER), frame) for frame in frames]
            if len(found) > MAX_FRAMES:
                raise BadInput("frames", f"more than {MAX_FRAMES}")
    return [frame for _, _, frame in sorted(found, key=lambda one: one[:2])]


async def _frames(
    of: _Case,
    edge: Edge,
    chunk: int,
    producer: str,
    ticket: Ticket,
    roots: Roots,
    node: Node,
) -> list[Frame[Array]]:
    """The frames of one chunk on one edge, which `producer` made or was given by the customer, checked."""
    from_customer = edge.source == CUSTOMER
    if producer not in of.addresses:
        raise NotFound("producer", f"{edge.name} is the customer's own work")
    addresses = _address(of, producer)
    task = of.sample.task if from_customer else edge.source
    want = _want(of.sample, "frames", task, chunk, (edge.name,))
    frames = [frame async for _, frame in pull(node, producer, addresses, want, max_bytes=MAX_BYTES)]
    if from_customer:
        promised = {(name, seq): content for name, seq, content in ticket.inputs}
        expected = sorted(seq for name, seq in promised if name == edge.name and chunk_of(of.manifest, seq) == chunk)
        if sorted(frame.seq for frame in frames) != expected:
            raise NotFound(edge.name, "not all frames of the customer's")
        if any(content_of(frame) != promised[frame.edge, frame.seq] for frame in frames):
            raise BadHash(edge.name, "not what the customer sent")
        return frames
    opening = await _opening(of.sample, of.manifest, node, producer, addresses, edge.source, chunk)
    if opening.root() != roots.get((producer, edge.source, chunk)):
        raise NotFound(edge.source, f"no certificate holds what {producer[:8]} shows of chunk {chunk}")
    shown = {leaf.seq: leaf for leaf in opening.leaves if leaf.edge == edge.name}
    if shown.keys() != {frame.seq for frame in frames}:
        raise NotFound(edge.name, "not all frames that were committed to")
    for frame in frames:
        mine = leaf_of(of.request.plan.manifest, frame)
        if [t.sha256 for t in mine.tensors] != [t.sha256 for t in shown[frame.seq].tensors]:
            raise BadHash(edge.name, "not what its producer committed to")
    return frames


async def _statements(of: _Case, node: Node) -> dict[tuple[str, int], Sent]:
    """What the provider shows of what was signed to it, by edge and chunk. It need not show any, but answer.

    Raises:
        NodewireError: it cannot be reached, or is busy: that is not yet an answer.
    """
    provider, sample = of.sample.provider, of.sample
    want = _want(sample, "sent", sample.task, sample.chunk).model_copy(update={"first": 0})
    try:
        shown = unpack(await pull_document(node, provider, _address(of, provider), want, max_bytes=MAX_PACKED_BYTES))
    except (NotFound, NotAllowed, BadInput):
        return {}
    sources = {edge.name: edge.source for edge in of.manifest.inputs(sample.task)}
    return {
        (one.edge, one.chunk): one
        for one in shown
        if (one.request, one.task) == (sample.request, sources.get(one.edge)) and one.chunk <= sample.chunk
    }


async def _received(
    of: _Case,
    edge: Edge,
    chunk: int,
    producer: str,
    roots: Roots,
    node: Node,
) -> list[Frame[Array]] | None:
    """The frames that the provider was sent, if it shows the producer's word for them, or there can be none; else None.

    Raises:
        Equivocated: that is not what the producer committed to.
        NotFound: what it committed to is not known yet.
        Withheld: the provider cannot be reached, or is busy.
    """
    if producer == of.sample.provider:
        return None  # its word to itself
    said = of.said.get((edge.name, chunk))
    if said is not None and said.signer != producer:
        said = None
    left = said is None and _left(of, edge, chunk)
    if said is None and not left:
        return None
    want = _want(of.sample, "frames", of.sample.task, chunk, (edge.name,))
    try:
        if said is not None:
            said.check()
    except BadInput:
        return None
    shown = await _asked(of, of.sample.provider, lambda: _shown(of, want, node))
    committed = await _committed(of, edge, chunk, said, roots, node) if said is not None else None
    found = settle(said, map(hashed, shown), committed, left=left)
    if found == "equivocated":
        raise Equivocated(Equivocation(producer, edge.name, chunk))
    if found != "received":
        return None
    if committed is None and not of.last and not left:
        raise NotFound(edge.source, f"what {producer[:8]} committed to in chunk {chunk} is not known yet")
    return shown


async def _shown(of: _Case, want: Want, node: Node) -> list[Frame[Array]]:
    """What the provider shows; nothing if it says that it has nothing. Raises as `pull`."""
    provider = of.sample.provider
    try:
        return [frame async for _, frame in pull(node, provider, _address(of, provider), want, max_bytes=MAX_BYTES)]
    except (NotFound, NotAllowed, BadInput):
        return []


def _left(of: _Case, edge: Edge, chunk: int) -> bool:
    """Whether the edge's producer was replaced before it could sign the chunk: in its middle, or when it was closed."""
    for task, _, _, first in of.takeover.replaced if of.takeover is not None else ():
        if task == edge.source:
            entered = of.request.plan.assignment(of.sample.task).provider != of.sample.provider  # and got a replay
            return chunk in (first - 1, first) or (entered and chunk < first)
    return False


async def _committed(
    of: _Case, edge: Edge, chunk: int, said: Sent, roots: Roots, node: Node
) -> dict[int, Tensors] | None:
    """The edge's frames of the chunk as their producer committed to them; None if it did not, or does not show it."""
    certified = roots.get((said.signer, edge.source, chunk))
    if certified is None:
        return None
    addresses = _address(of, said.signer)
    try:
        async with asyncio.timeout(of.patience_s):
            shown = await _opening(
                of.sample, of.manifest, node, said.signer, addresses, edge.source, chunk, said.attempt
            )
    except (NodewireError, TimeoutError):
        return None
    if shown.root() != certified:
        return None
    return {leaf.seq: tensors_of(leaf) for leaf in shown.leaves if leaf.edge == edge.name}
