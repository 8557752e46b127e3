"""What this node of a job sends and is sent, by edge and chunk: what it signs to others, and what others sign to it.

It is the job's tape: frames that come are hashed on their way into the spool. A producer signs each chunk that has
been closed, or at once what is a chunk of its own (`sign`). A consumer commits to a chunk when all that it was sent
so far is signed (`complete`): otherwise its honest work could be judged on other inputs than it had. Nobody waits for
the customer, nor for who was replaced: of its last two chunks, which it may have died before it could sign, the
consumer is believed (`verify.recompute`). An earlier one that it did not sign stops its consumer: nothing from there on
is committed to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nodewire.errors import BadFrame, BadHash, LinkLost, NodewireError, NotAllowed, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.protocol.chunk import Leaf, chunk_of
from nodewire.protocol.frame import Array, Frame, Meta
from nodewire.protocol.job import Request
from nodewire.protocol.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.plan import LOCAL
from nodewire.protocol.sent import MAX_OF_A_DOCUMENT, Hashed, Sent, digest_of, hashed, tensors_of
from nodewire.protocol.takeover import Replaced, Takeover, assigned, payees
from nodewire.wire.spool import Spool

PATIENCE_S = 10.0
"""How long a statement is waited for when the chunk is closed and those before it are settled."""
ASK_S = 0.5
"""After how long a consumer asks for what it lacks: it was not in the job yet when that was told."""
MAX_WAITING = 2_048
"""Statements on one edge that are here before what they are about."""
LACKING = "unsent"
"""The type of the control document by which a consumer asks for statements."""

Tell = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Sends a control document to a node of the job."""


@dataclass(slots=True)
class _Came:
    """Frames of one chunk on one edge, and who sent them."""

    senders: set[str] = field(default_factory=set)
    frames: list[Hashed] = field(default_factory=list)


class Statements:
    """Of one job."""

    def __init__(
        self, keys: Keys, request: Request, manifest: Manifest, spool: Spool, takeover: Takeover | None = None
    ) -> None:
        self._keys = keys
        self._request = request
        self._manifest = manifest
        self._spool = spool
        self._takeover = takeover
        self._edges: dict[str, Edge] = {edge.name: edge for edge in manifest.edges}
        self._now = assigned(request.plan, takeover)
        self._out: dict[tuple[str, int], list[Hashed]] = {}
        self._signed: dict[str, dict[int, Sent]] = {}
        self._came: dict[tuple[str, int], _Came] = {}
        self._said: dict[str, dict[int, Sent]] = {}
        self._answered: dict[tuple[str, str], float] = {}
        """When a consumer was last told again of an edge."""
        self._changed = asyncio.Event()
        self._stopped: NodewireError | None = None

    # The tape (`wire.edges.Tape`).

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """Raises as Spool.write."""
        self._spool.write(request, edge, attempt, frame)
        producer = self._producer(edge)
        if producer is not None:
            came = self._came.setdefault((edge, chunk_of(self._manifest, frame.seq)), _Came())
            came.senders.add(producer)
            came.frames.append(hashed(frame))

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]:
        return self._spool.read(request, edge, first)

    # What the job tells.

    def took_over(self, takeover: Takeover) -> None:
        """The assignment changes; called before frames take their new ways."""
        self._takeover, self._now = takeover, assigned(self._request.plan, takeover)
        self._changed.set()

    def produced(self, chunk: int, leaf: Leaf, meta: Meta) -> None:
        """An output that this node commits to."""
        if self._edges[leaf.edge].target != CUSTOMER:
            self._out.setdefault((leaf.edge, chunk), []).append(Hashed(leaf.seq, tensors_of(leaf), meta))

    def sign(self, chunk: int, attempt: int) -> dict[str, list[Sent]]:
        """This node's statements on what it has put out of a chunk and not signed, by the consumer that each is for."""
        told: dict[str, list[Sent]] = {}
        for name in [name for name, number in self._out if number == chunk]:
            frames, edge = self._out.pop((name, chunk)), self._edges[name]
            consumer = self._now.get(edge.target, LOCAL)
            if consumer in (self._keys.public, LOCAL):
                continue
            said = Sent.sign(
                self._keys,
                request=self._request.id,
                task=edge.source,
                edge=name,
                chunk=chunk,
                attempt=attempt,
                frames=digest_of(frames),
            )
            told.setdefault(consumer, []).append(said)
            self._signed.setdefault(name, {})[chunk] = said
        return told

    def again(self, peer: str, edge: object, first: object) -> list[Sent]:
        """What was signed of an edge that leads to `peer` now, from chunk `first` on, as much as a document holds.

        Raises:
            BadFrame: malformed.
            NotAllowed: the edge does not lead from here to there, or it was asked for a moment ago.
        """
        if not isinstance(edge, str) or type(first) is not int:
            raise BadFrame(LACKING, "not {edge, first}")
        if edge not in self._edges or self._now.get(self._edges[edge].target) != peer:
            raise NotAllowed("edge", f"{edge[:64]} does not lead to {peer[:8]}")
        if time.monotonic() < self._answered.get((peer, edge), 0.0) + ASK_S / 2:
            raise NotAllowed("edge", f"{peer[:8]} asks too often for {edge}")
        self._answered[peer, edge] = time.monotonic()
        signed = self._signed.get(edge, {})
        return [signed[chunk] for chunk in sorted(signed) if chunk >= first][:MAX_OF_A_DOCUMENT]

    def heard(self, said: Sent) -> None:
        """A statement came; whoever passed it on. The first on an edge's chunk counts.

        Raises:
            BadFrame, NotAllowed, BadSignature: it is not by the producer of an edge that leads here.
        """
        if said.request != self._request.id:
            raise BadFrame("request", "a statement about another job")
        edge = self._edges.get(said.edge)
        if edge is None or edge.source != said.task or self._producer(said.edge) is None:
            raise BadFrame("edge", f"{said.edge} does not come here from {said.task}")
        if said.signer != payees(self._request.plan, self._takeover, said.chunk)[edge.source]:
            raise NotAllowed("signer", f"does not produce {said.edge} in chunk {said.chunk}")
        waiting = self._said.setdefault(said.edge, {})
        if said.chunk in waiting:
            return
        if len(waiting) >= MAX_WAITING:
            raise BadFrame("sent", f"more than {MAX_WAITING} statements on {said.edge} wait")
        said.check()
        waiting[said.chunk] = said
        self._changed.set()

    async def complete(self, chunk: int, tell: Tell) -> None:
        """Return when all that this node's part of `chunk` was computed from is signed as it came; keep the statements.

        Raises:
            BadHash: a producer signed something else than it sent.
            TimedOut: one that is in its place does not sign for the patience.
            NodewireError: what ended the job.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                ask = self._manifest.mode != "generate"  # there it came with the frames, or before this job was open
                while lacking := self._lacking(chunk):
                    if self._stopped is not None:
                        raise self._stopped
                    self._changed.clear()
                    for edge, first in lacking.items() if ask else ():
                        await self._ask(edge, first, tell)
                    ask = not await self._news()
        except TimeoutError as error:
            lacking = self._lacking(chunk)
            if lacking:
                edge, first = next(iter(lacking.items()))
                raise TimedOut(
                    "sent", f"the producer of {edge} has not signed what it sent in chunk {first}"
                ) from error

    def stop(self, error: NodewireError) -> None:
        """The job has failed: nobody waits any more."""
        self._stopped = error
        self._changed.set()

    # Inside.

    def _producer(self, edge: str) -> str | None:
        """Who must sign what comes on an edge: another provider, if it leads here at all."""
        ends = self._edges[edge]
        producer = self._now.get(ends.source, LOCAL)
        if self._now.get(ends.target) != self._keys.public or producer in (self._keys.public, LOCAL):
            return None
        return producer

    def _lacking(self, chunk: int) -> dict[str, int]:
        """By edge the first chunk of which a statement must still come: up to `chunk`, which has a state, in a
        generation. Raises BadHash."""
        lacking: dict[str, int] = {}
        for edge, number in sorted(self._came):
            if number > chunk or (number < chunk and self._manifest.mode != "generate"):
                continue
            came, said = self._came[edge, number], self._said.get(edge, {}).get(number)
            payee = payees(self._request.plan, self._takeover, number)[self._edges[edge].source]
            # Of frames by two producers neither can sign; who was replaced may be dead, but once was there to sign.
            owed = came.senders == {payee} == {self._producer(edge)} or self._was_due(edge, number)
            if said is None and owed:
                lacking.setdefault(edge, number)
                continue
            as_it_came = said is not None and said.signer == payee and said.frames == digest_of(came.frames)
            if owed and not as_it_came:
                raise BadHash("sent", f"{payee[:8]} signed something else than it sent on {edge} in chunk {number}")
            if said is not None and as_it_came:
                self._spool.keep_sent(said)
            self._said.get(edge, {}).pop(number, None)
            del self._came[edge, number]
        return lacking

    def _was_due(self, edge: str, chunk: int) -> bool:
        """Whether the edge's producer was replaced, but so long after the chunk that it must have signed that before.

        Who judges does not believe this node in such a chunk, unless it entered the job itself by a takeover.
        """
        ends = self._edges[edge]
        firsts = [first for task, _, _, first in self._replaced() if task == ends.source]
        entered = any(task == ends.target for task, *_ in self._replaced())
        return not entered and any(chunk < first - 1 for first in firsts)

    def _replaced(self) -> tuple[Replaced, ...]:
        return self._takeover.replaced if self._takeover is not None else ()

    async def _news(self) -> bool:
        """Whether anything changed for as long as one waits before asking."""
        try:
            async with asyncio.timeout(ASK_S):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _ask(self, edge: str, first: int, tell: Tell) -> None:
        producer = self._producer(edge)
        if producer is not None:
            with suppress(LinkLost):
                await tell(producer, {"t": LACKING, "edge": edge, "first": first})
