"""A sampled chunk computed again, from inputs that nobody can have changed. nips/18-samples.md.

The ticket is the one that the request sealed; frames from the customer are those that the ticket names; frames from a
task are those that its provider signed when it sent them, and hash to what it committed to, in a root that a
certificate holds. What is missing of that makes the chunk one that cannot be judged: it is never taken from the word
of the one who is judged.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from nodewire.errors import BadHash, BadInput, Busy, NodewireError, NotAllowed, NotFound, TooLarge, Withheld
from nodewire.protocol.job.chunk import Leaf, Opening, chunk_of, leaf_of, most_bytes
from nodewire.protocol.job.request import Request, Ticket, content_of
from nodewire.protocol.model import token_list
from nodewire.protocol.model.edge_codec import Codings, codings
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.tensors.frame import ITEM_BYTES, Array, Frame, bytes_of
from nodewire.protocol.verification import choices
from nodewire.protocol.verification.sample import Sample
from nodewire.protocol.verification.statement import (
    MAX_PACKED_BYTES,
    Equivocation,
    FrameStatement,
    Tensors,
    digest_of,
    hashed,
    settle,
    tensors_of,
    unpack,
)
from nodewire.wire.evidence.pull import Want, pull, pull_document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from nodewire.kind import JobKind, Params, Worker
    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.verify.finality import Finality
    from nodewire.wire.node import Node

MAX_FRAMES = 65_536
MAX_BYTES = 2**30
"""Of all inputs together, from the job's begin to the sampled chunk."""
_TICKET_BYTES = 65_536
_TOKEN_BYTES = 8
_RESULT_S = 120.0
_TRIES = 10
"""How often a busy node is asked again."""
ANSWERS = 3
"""Slow answers of one node for which a case has the time: an honest node on a busy machine gives many."""
_SHOWN_BYTES_PER_S = 2**20
"""A node that shows this much a second may go on."""

T = TypeVar("T")


class Equivocated(BadHash):
    """The producer of an input signed other frames than it committed to: it is to blame, whatever was made of them."""

    def __init__(self, equivocation: Equivocation) -> None:
        where = f"{equivocation.edge} in chunk {equivocation.chunk}"
        super().__init__("sent", f"{equivocation.culprit[:8]} signed something else for {where} than it committed to")
        self.equivocation = equivocation


class Unopened(NotFound):
    """The producer of an input does not open what it committed to: `sample` is that.

    It must be shown in any case, or two neighbours would make each other pass, one by its word for what was never sent.
    """

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample.task, f"{sample.provider[:8]} does not open its chunk {sample.chunk}")
        self.sample = sample


class Patience:
    """How long a node is waited for: `each_s` for an answer, ANSWERS times that in all, longer for the bytes it shows.

    A node that is silent, or trickles, takes no more of an oracle's time than that, however many questions there are.
    """

    def __init__(self, each_s: float) -> None:
        self.each_s = each_s
        self._left_s: dict[str, float] = {}
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def on(self, node: str) -> AsyncIterator[None]:
        """Wait for `node`. Raises TimeoutError: its time is over."""
        loop = asyncio.get_running_loop()
        left_s = self._left_s.get(node, ANSWERS * self.each_s)
        spare_s = left_s - min(self.each_s, left_s)
        async with asyncio.timeout(min(self.each_s, left_s)) as limit:
            self._limit = limit
            try:
                yield
            finally:
                self._limit = None
                ends_s = limit.when()
                assert ends_s is not None
                self._left_s[node] = min(left_s, spare_s + max(0.0, ends_s - loop.time()))

    def shown(self, size: int) -> None:
        """`size` bytes came from the node that is waited for."""
        if self._limit is not None and not self._limit.expired():
            ends_s = self._limit.when()
            assert ends_s is not None
            self._limit.reschedule(ends_s + size / _SHOWN_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class _Case:
    """One sample with all that says where its inputs come from."""

    sample: Sample
    request: Request
    manifest: Manifest
    final: Finality
    addresses: Mapping[str, Sequence[str]]
    patience: Patience
    last: bool
    said: Mapping[tuple[str, int, str], FrameStatement] = field(default_factory=dict)
    """By edge, chunk and signer: what was signed to the provider, by what it shows."""

    def at(self, node: str) -> Sequence[str]:
        """Where the node is. Raises NotFound: nobody says."""
        if not self.addresses.get(node):
            raise NotFound("wire", f"no ad says where {node[:8]} is")
        return self.addresses[node]

    def root(self, producer: str, task: str, chunk: int) -> ChunkRoot | None:
        """What the producer committed to: of several attempts the first that was certified; None if nothing."""
        found = [
            one
            for (who, _, name, number, _), one in self.final.roots.items()
            if (who, name, number) == (producer, task, chunk)
        ]
        return min(found, key=lambda one: (one.epoch, one.commitment, one.root.attempt)).root if found else None


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


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a task was given up to the sampled chunk, checked: it can be computed again from this alone."""

    sample: Sample
    manifest: Manifest
    digest: str
    """The manifest's, by the plan."""
    params: Params
    narrowed: Codings
    before: tuple[Frame[Array], ...]
    """Of earlier chunks."""
    frames: tuple[Frame[Array], ...]
    """Of the sampled chunk."""
    said: Mapping[int, int]
    """By number, the tokens of earlier chunks, by what a provider shows that chose them. They need not be true: none is
    followed that cannot be excused."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for frame in (*self.before, *self.frames) for tensor in frame.tensors)


@dataclass(frozen=True, slots=True)
class ComputedLeaves:
    """A chunk's leaves, in the order that an opening has."""

    leaves: tuple[Leaf, ...]
    excused: frozenset[int] = frozenset()
    """Of which numbers a third's token is another, and excused (`protocol.verification.choices`)."""
    reference: tuple[Leaf, ...] = ()
    """The same frames computed in float32, where a task's results are rounded (`protocol.verification.arithmetic`)."""


def most_input_bytes(manifest: Manifest, task: str) -> int:
    """What the inputs of one of the task's samples may take: MAX_BYTES, or less where the manifest says less."""
    per_position = sum(edge.bytes_per_position for edge in manifest.inputs(task))
    if manifest.mode != "generate" or not manifest.context or not per_position:
        return MAX_BYTES
    return min(MAX_BYTES, 2 * manifest.context * per_position + _TICKET_BYTES)


async def gather(
    *,
    sample: Sample,
    request: Request,
    manifest: Manifest,
    final: Finality,
    node: Node,
    addresses: Mapping[str, Sequence[str]],
    patience_s: float,
    last: bool = False,
) -> Inputs:
    """The sampled chunk's inputs, as others show them and certificates hold them. Nothing is computed for it.

    `final` is what certificates hold of the job; `addresses` are of the plan's providers; `patience_s`: for one node
    (`Patience`). `last`: of inputs that their producer signed, what it committed to is not waited for any more.

    Raises:
        Equivocated: an input's producer signed something else than it committed to.
        Unopened: it does not open what it committed to.
        Withheld: the provider does not show the ticket, or inputs that only it can show.
        NotFound, BadHash, BadInput: another's input is not to be had, or not what was committed to; or nothing says
            where the provider is.
        TooLarge: the inputs have more than `most_input_bytes` in all.
        NodewireError: a peer's refusal.

    """
    of = _Case(sample, request, manifest, final, addresses, Patience(patience_s), last)
    of.at(sample.provider)
    ticket = await _asked(of, sample.provider, lambda: _ticket(of, node))
    said = await _asked(of, sample.provider, lambda: _statements(of, node))
    of = replace(of, said=said)
    inputs = await _inputs(of, ticket, node)
    before = tuple(frame for frame in inputs if chunk_of(manifest, frame.seq) < sample.chunk)
    return Inputs(
        sample,
        manifest,
        request.plan.manifest,
        ticket.params,
        codings(manifest, request.plan.terms.codecs),
        before,
        tuple(inputs[len(before) :]),
        await _asked(of, sample.provider, lambda: _tokens(of, node)),
    )


async def recompute(
    inputs: Inputs,
    *,
    kind: JobKind,
    worker: Worker,
    loaded: str,
    judged: Opening | None = None,
    beside: Opening | None = None,
) -> ComputedLeaves:
    """The sampled chunk, computed by the task `loaded` in `worker`.

    Where the task chooses tokens, those of `judged` are followed as far as they are excused, and it is said which of
    `beside` are. Whoever computes for itself leaves both out.

    Raises:
        NotFound: it takes longer than 120 s.
        NodewireError: the worker's error.

    """
    manifest, sample = inputs.manifest, inputs.sample
    found: list[Leaf] = []
    excused: set[int] = set()
    params = dict(kind.check(manifest, inputs.params))  # with the defaults, as it was served
    if (edge := choices.tokens_edge(manifest, sample.task)) is not None:
        said, third = ({} if one is None else choices.of_leaves(one.leaves, edge) for one in (judged, beside))
        params |= {token_list.SAID: token_list.pack({**inputs.said, **said}), token_list.BESIDE: token_list.pack(third)}
    session = await worker.open(loaded, secrets.token_hex(32), params, inputs.narrowed)
    try:
        async with asyncio.timeout(_RESULT_S):
            for frame in (*kind.merged(manifest, sample.task, inputs.before), *inputs.frames):
                for out in await session.receive(frame):
                    if chunk_of(manifest, out.seq) == sample.chunk:
                        found.append(leaf_of(inputs.digest, out))
                        excused |= {out.seq} if out.meta.get(token_list.EXCUSED) is True else set()
    except TimeoutError as error:
        raise NotFound("leaves", f"not computed within {_RESULT_S:.0f} s") from error
    finally:
        await session.close()
    order = {edge.name: i for i, edge in enumerate(manifest.edges)}
    return ComputedLeaves(tuple(sorted(found, key=lambda leaf: (order[leaf.edge], leaf.seq))), frozenset(excused))


async def _asked(of: _Case, node: str, ask: Callable[[], Awaitable[T]]) -> T:
    """What `node` shows, asked again while it is busy.

    `of.sample.provider` is waited for, too, where another's frames are to be shown that it should not have relied on.
    """
    try:
        async with of.patience.on(node):
            while True:
                try:
                    return await ask()
                except Busy:
                    await asyncio.sleep(of.patience.each_s / _TRIES)
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
        raise BadInput("opening", "of another node's work, or of another chunk")
    return opening


async def _ticket(of: _Case, node: Node) -> Ticket:
    provider = of.sample.provider
    want = _want(of.sample, "ticket", of.sample.task, of.sample.chunk)
    text = await pull_document(node, provider, of.at(provider), want, max_bytes=_TICKET_BYTES)
    ticket = Ticket.parse(text)
    if ticket.seal() != of.request.ticket:
        raise BadHash("ticket", "not the one that the request sealed")
    return ticket


async def _inputs(of: _Case, ticket: Ticket, node: Node) -> list[Frame[Array]]:
    """Every frame that the task was given up to the sampled chunk, in an order that it can be given again.

    Calls have no state: it is the sampled chunk alone (but a driver's one frame of the customer's may be cut into
    many).
    """
    found: list[tuple[int, int, Frame[Array]]] = []
    left = most_input_bytes(of.manifest, of.sample.task)
    for edge in of.manifest.inputs(of.sample.task):
        alone = of.manifest.mode == "run" or (edge.source != CUSTOMER and of.manifest.mode != "generate")
        for chunk in range(of.sample.chunk if alone else 0, of.sample.chunk + 1):
            if edge.source == CUSTOMER:
                frames = await _asked(of, of.sample.provider, partial(_customers, of, edge, chunk, ticket, node, left))
            else:
                producer = of.request.plan.node_of(edge.source)
                received = await _received(of, edge, chunk, producer, node, left)
                frames = received if received is not None else await _frames(of, edge, chunk, producer, node, left)
            left -= sum(tensor.nbytes for frame in frames for tensor in frame.tensors)
            found += [(frame.seq, int(edge.source != CUSTOMER), frame) for frame in frames]
            if len(found) > MAX_FRAMES:
                raise BadInput("frames", f"more than {MAX_FRAMES}")
    return [frame for _, _, frame in sorted(found, key=lambda one: one[:2])]


async def _customers(
    of: _Case, edge: Edge, chunk: int, ticket: Ticket, node: Node, max_bytes: int
) -> list[Frame[Array]]:
    """The customer's frames of one chunk on one edge, as the provider shows them, checked against the ticket."""
    provider = of.sample.provider
    want = _want(of.sample, "frames", of.sample.task, chunk, (edge.name,))
    frames = await _pulled(of, node, provider, want, max_bytes)
    promised = {(name, seq): content for name, seq, content in ticket.inputs}
    expected = sorted(seq for name, seq in promised if name == edge.name and chunk_of(of.manifest, seq) == chunk)
    if sorted(frame.seq for frame in frames) != expected:
        raise NotFound(edge.name, "not all frames of the customer's")
    if any(content_of(frame) != promised[frame.edge, frame.seq] for frame in frames):
        raise BadHash(edge.name, "not what the customer sent")
    return frames


async def _frames(of: _Case, edge: Edge, chunk: int, producer: str, node: Node, max_bytes: int) -> list[Frame[Array]]:
    """The frames of one chunk on one edge, which `producer` made, as it committed to them.

    The provider did not show that it was sent anything else, so it must have been what is shown here; and an honest
    provider commits to nothing before its inputs are signed: it withholds what its producer does not show.

    Raises:
        Withheld, NotFound: they are not shown, or not committed to; or what was certified cannot be read.
        TooLarge: there are more than `max_bytes` of them.

    """
    if producer == of.request.customer:
        raise Withheld("sent", f"the customer's word for {edge.name} in chunk {chunk} is not shown")
    addresses = of.at(producer)
    root = of.root(producer, edge.source, chunk)
    if root is None and of.final.unread:
        raise NotFound("certificates", f"epochs {sorted(of.final.unread)} cannot be read")

    async def opened() -> Opening:
        if root is None:
            raise NotFound(edge.source, f"no certificate holds anything of {producer[:8]} of chunk {chunk}")
        opening = await _opening(of.sample, of.manifest, node, producer, addresses, edge.source, chunk, root.attempt)
        if opening.root() != root.root:
            raise NotFound(edge.source, f"no certificate holds what {producer[:8]} shows of chunk {chunk}")
        return opening

    opening = await _asked(of, of.sample.provider, opened)
    shown = {leaf.seq: leaf for leaf in opening.leaves if leaf.edge == edge.name}
    expected = _bytes(shown.values())
    if expected > max_bytes:
        raise TooLarge("frames", f"{expected} bytes on {edge.name} in chunk {chunk}, {max_bytes} are left")
    want = _want(of.sample, "frames", edge.source, chunk, (edge.name,))

    async def pulled() -> list[Frame[Array]]:
        frames = await _pulled(of, node, producer, want, expected)
        if shown.keys() != {frame.seq for frame in frames}:
            raise NotFound(edge.name, "not all frames that were committed to")
        for frame in frames:
            mine = leaf_of(of.request.plan.manifest, frame)
            if [t.sha256 for t in mine.tensors] != [t.sha256 for t in shown[frame.seq].tensors]:
                raise BadHash(edge.name, "not what its producer committed to")
        return frames

    return await _asked(of, of.sample.provider, pulled)


async def _pulled(of: _Case, node: Node, peer: str, want: Want, max_bytes: int) -> list[Frame[Array]]:
    found = []
    async for _, frame in pull(node, peer, of.at(peer), want, max_bytes=max_bytes):
        of.patience.shown(sum(tensor.nbytes for tensor in frame.tensors))
        found.append(frame)
    return found


def _bytes(leaves: Iterable[Leaf]) -> int:
    """How large the tensors are that leaves are of."""
    return sum(bytes_of(t.dtype, t.shape) for leaf in leaves for t in leaf.tensors if t.dtype in ITEM_BYTES)


async def _statements(of: _Case, node: Node) -> dict[tuple[str, int, str], FrameStatement]:
    """What the provider shows of what was signed to it. It need not show any, but answer.

    Raises:
        NodewireError: it cannot be reached, or is busy: that is not yet an answer.

    """
    provider, sample = of.sample.provider, of.sample
    want = _want(sample, "sent", sample.task, sample.chunk).model_copy(update={"first": 0})
    try:
        shown = unpack(await pull_document(node, provider, of.at(provider), want, max_bytes=MAX_PACKED_BYTES))
    except (NotFound, NotAllowed, BadInput):
        return {}
    sources = {edge.name: edge.source for edge in of.manifest.inputs(sample.task)}
    return {
        (one.edge, one.chunk, one.signer): one
        for one in shown
        if (one.request, one.task) == (sample.request, sources.get(one.edge)) and one.chunk <= sample.chunk
    }


async def _tokens(of: _Case, node: Node) -> dict[int, int]:
    """The tokens of earlier chunks that the provider shows, if it chose some. It need not show any, but answer.

    Raises:
        NodewireError: it cannot be reached, or is busy: that is not yet an answer.

    """
    provider, sample = of.sample.provider, of.sample
    edge = choices.tokens_edge(of.manifest, sample.task)
    if edge is None or sample.chunk == 0:
        return {}
    want = _want(sample, "frames", sample.task, 0, (edge,)).model_copy(update={"last": sample.chunk - 1})
    pulled = pull(node, provider, of.at(provider), want, max_bytes=_TOKEN_BYTES * token_list.MAX_TOKENS)
    try:
        return choices.of_frames([frame async for _, frame in pulled])
    except (NotFound, NotAllowed, BadInput):
        return {}


async def _received(
    of: _Case, edge: Edge, chunk: int, producer: str, node: Node, max_bytes: int
) -> list[Frame[Array]] | None:
    """The frames that the provider was sent, if it shows a producer's word for them, or there can be none; else None.

    What the provider shows                     the signer's certified root       it is judged on
    ------------------------------------------  --------------------------------  -------------------------------------
    its own task put the frames out             its own                           what it committed to (None)
    a statement, and the frames signed          the same frames                   the frames shown
    a statement, and the frames signed          other frames                      nothing: the producer is convicted
    a statement, and the frames signed          not opened                        nothing: its producer must open it
    a statement, and the frames signed          none                              the frames shown, if `of.last`
    the customer's, of a task that it runs      there can be none                 the frames shown
    no statement, or other frames than signed   some                              what was committed to (None)
    no statement, or other frames than signed   none                              nothing: the provider withholds (None)

    Raises:
        Equivocated: that is not what the producer committed to.
        Unopened: it does not open what it committed to.
        NotFound: what it committed to is not known yet.
        Withheld: the provider cannot be reached, or is busy.

    """
    if producer == of.sample.provider:
        return None  # it can sign to itself what it likes: only what it committed to binds it
    said = of.said.get((edge.name, chunk, producer))
    if said is None or not _is_signed(said):
        return None
    want = _want(of.sample, "frames", of.sample.task, chunk, (edge.name,))
    shown = await _asked(of, of.sample.provider, lambda: _shown(of, want, node, max_bytes))
    came = [hashed(frame) for frame in shown]
    if said.frames != digest_of(came):
        return None
    if said.signer == of.request.customer:
        return shown
    committed = await _committed(of, edge, chunk, said, node)
    if settle(said, came, committed) == "equivocated":
        raise Equivocated(Equivocation(said.signer, edge.name, chunk))
    root = of.root(said.signer, edge.source, chunk)
    if committed is None and root is not None:
        raise Unopened(
            Sample(
                provider=said.signer,
                request=root.request,
                task=root.task,
                chunk=root.chunk,
                attempt=root.attempt,
                root=root.root,
                verifiers=(),
            )
        )
    if committed is None and not of.last:
        raise NotFound(edge.source, f"what {said.signer[:8]} committed to in chunk {chunk} is not known yet")
    return shown


def _is_signed(said: FrameStatement) -> bool:
    try:
        said.check()
    except BadInput:
        return False
    return True


async def _shown(of: _Case, want: Want, node: Node, max_bytes: int) -> list[Frame[Array]]:
    """What the provider shows; nothing if it says that it has nothing. Raises as `pull`."""
    try:
        return await _pulled(of, node, of.sample.provider, want, max_bytes)
    except (NotFound, NotAllowed, BadInput):
        return []


async def _committed(of: _Case, edge: Edge, chunk: int, said: FrameStatement, node: Node) -> dict[int, Tensors] | None:
    """The edge's frames of the chunk as their producer committed to them; None if it did not, or does not show it."""
    root = of.root(said.signer, edge.source, chunk)
    if root is None:
        return None
    try:
        addresses = of.at(said.signer)
        async with of.patience.on(said.signer):
            shown = await _opening(
                of.sample, of.manifest, node, said.signer, addresses, edge.source, chunk, root.attempt
            )
    except (NodewireError, TimeoutError):
        return None
    if shown.root() != root.root:
        return None
    return {leaf.seq: tensors_of(leaf) for leaf in shown.leaves if leaf.edge == edge.name}
