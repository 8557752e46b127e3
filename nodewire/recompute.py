"""A sampled chunk computed again, from inputs that nobody can have changed. NIPS.md, "Samples".

The ticket is the one that the request sealed; frames from the customer are those that the ticket names; frames from a
task hash to what its provider committed to, in a root that a certificate holds. What is missing of that makes the
chunk one that cannot be judged: it is never taken from the word of the one who is judged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nodewire.errors import BadHash, BadInput, NodewireError, NotFound
from nodewire.kind import Worker
from nodewire.market import Market
from nodewire.protocol.chunk import Leaf, Opening, chunk_of, leaf_of
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.job import Request, Ticket, content_of
from nodewire.protocol.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.takeover import Takeover, payees
from nodewire.protocol.verification import Sample
from nodewire.wire.node import Node
from nodewire.wire.pull import Want, pull, pull_document

MAX_FRAMES = 65_536
MAX_BYTES = 2**30
_TICKET_BYTES = 65_536
_RESULT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Case:
    """One sample with all that says where its inputs come from."""

    sample: Sample
    request: Request
    manifest: Manifest
    takeover: Takeover | None
    addresses: Mapping[str, Sequence[str]]


def _want(
    sample: Sample,
    what: Literal["frames", "opening", "ticket"],
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
    market: Market,
    addresses: Mapping[str, Sequence[str]],
    worker: Worker,
    loaded: str,
) -> tuple[Leaf, ...]:
    """The leaves of the sampled chunk, computed by the task `loaded` in `worker`, in the order that an opening has.

    `takeover` is the job's newest; `addresses` are of the plan's providers and standbys.

    Raises:
        NotFound, BadHash, BadInput: an input is not to be had, or not what was committed to.
        NodewireError: the worker's error, or a peer's refusal.
    """
    of = _Case(sample, request, manifest, takeover, addresses)
    ticket = await _ticket(of, node)
    inputs = await _inputs(of, ticket, node, market)
    session = secrets.token_hex(32)
    found: list[Leaf] = []
    await worker.open(loaded, session, ticket.params)
    try:
        async with asyncio.timeout(_RESULT_S):
            for frame in inputs:
                for out in await worker.receive(loaded, session, frame):
                    if chunk_of(of.manifest, out.seq) == of.sample.chunk:
                        found.append(leaf_of(of.request.plan.manifest, out))
    except TimeoutError as error:
        raise NotFound("leaves", f"not computed within {_RESULT_S:.0f} s") from error
    finally:
        await worker.close(loaded, session)
    order = {edge.name: i for i, edge in enumerate(of.manifest.edges)}
    return tuple(sorted(found, key=lambda leaf: (order[leaf.edge], leaf.seq)))


async def pull_opening(node: Node, peer: str, addresses: Sequence[str], sample: Sample) -> Opening:
    """`peer`'s opening of the sampled chunk; whether it opens the certified root is for the caller to see.

    Raises:
        BadInput: it is another chunk's.
        NodewireError: `peer` refuses, or cannot be reached.
    """
    return await _opening(sample, node, peer, addresses, sample.task, sample.chunk)


async def _opening(sample: Sample, node: Node, peer: str, addresses: Sequence[str], task: str, chunk: int) -> Opening:
    want = _want(sample, "opening", task, chunk)
    opening = Opening.unpack(await pull_document(node, peer, addresses, want, max_bytes=Opening.MAX_BYTES))
    if (opening.request, opening.task, opening.chunk) != (sample.request, task, chunk):
        raise BadInput("opening", "of another chunk")
    return opening


async def _ticket(of: _Case, node: Node) -> Ticket:
    provider = of.sample.provider
    want = _want(of.sample, "ticket", of.sample.task, of.sample.chunk)
    text = await pull_document(node, provider, of.addresses[provider], want, max_bytes=_TICKET_BYTES)
    ticket = Ticket.parse(text)
    if ticket.seal() != of.request.ticket:
        raise BadHash("ticket", "not the one that the request sealed")
    return ticket


async def _inputs(of: _Case, ticket: Ticket, node: Node, market: Market) -> list[Frame[Array]]:
    """Every frame that the task was given up to the sampled chunk, in an order that it can be given again."""
    roots = await _certified_roots(of, market)
    found: list[tuple[int, int, Frame[Array]]] = []
    for edge in of.manifest.inputs(of.sample.task):
        for chunk in range(of.sample.chunk + 1):
            frames = await _frames(of, edge, chunk, ticket, roots, node)
            found += [(frame.seq, int(edge.source != CUSTOMER), frame) for frame in frames]
            if len(found) > MAX_FRAMES:
                raise BadInput("frames", f"more than {MAX_FRAMES}")
    return [frame for _, _, frame in sorted(found, key=lambda one: one[:2])]


async def _frames(
    of: _Case, edge: Edge, chunk: int, ticket: Ticket, roots: Mapping[tuple[str, str, int], set[str]], node: Node
) -> list[Frame[Array]]:
    """The frames of one chunk on one edge, checked."""
    from_customer = edge.source == CUSTOMER
    producer = of.sample.provider if from_customer else payees(of.request.plan, of.takeover, chunk)[edge.source]
    if producer not in of.addresses:
        raise NotFound("producer", f"{edge.name} is the customer's own work")
    addresses = of.addresses[producer]
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
    opening = await _opening(of.sample, node, producer, addresses, edge.source, chunk)
    if opening.root() not in roots.get((producer, edge.source, chunk), ()):
        raise NotFound(edge.source, f"no certificate holds what {producer[:8]} shows of chunk {chunk}")
    shown = {leaf.seq: leaf for leaf in opening.leaves if leaf.edge == edge.name}
    if shown.keys() != {frame.seq for frame in frames}:
        raise NotFound(edge.name, "not all frames that were committed to")
    for frame in frames:
        mine = leaf_of(of.request.plan.manifest, frame)
        if [t.sha256 for t in mine.tensors] != [t.sha256 for t in shown[frame.seq].tensors]:
            raise BadHash(edge.name, "not what its producer committed to")
    return frames


async def _certified_roots(of: _Case, market: Market) -> dict[tuple[str, str, int], set[str]]:
    """By provider, task and chunk of the job: the root that was certified first, by the chunk's deadline."""
    roots: dict[tuple[str, str, int], set[str]] = {}
    for epoch in market.epochs_after(of.request.plan.epoch - 1):
        try:
            commitments = await market.commitments(epoch.body)
        except NodewireError:
            continue  # what only this epoch certified is missing, and said to be
        for committed in sorted(commitments, key=lambda one: one.id):
            for root in committed.commitment.chunks if committed.commitment is not None else ():
                late = epoch.body.epoch > of.request.plan.deadline_epoch(root.chunk, market.committee.epoch_ms)
                if root.request == of.sample.request and not late:
                    roots.setdefault((committed.provider, root.task, root.chunk), {root.root})
    return roots
