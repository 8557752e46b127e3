"""What this node of a job sends and is sent, by edge and chunk: what it signs to others, and what others sign to it.

It is the job's tape: frames that come are hashed on their way into the spool. A producer signs each chunk that has
been closed, or at once what is a chunk of its own (`sign`). A consumer commits to a chunk when all that it was sent so
far is signed (`complete`): otherwise its honest work could be judged on other inputs than it had. The customer signs
for the tasks that it runs itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, LinkLost, NodeFailed, NodewireError, NotAllowed
from nodewire.protocol.job.chunk import chunk_of
from nodewire.protocol.job.plan import LOCAL
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.verification.statement import LACKING, FrameStatement, HashedFrame, digest_of, hashed
from nodewire.wire.evidence.output_signer import ASK_S, OutputSigner, Tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.nostr.keys import Keys
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.wire.evidence.spool import Spool

PATIENCE_S = 10.0
"""How long a statement is waited for when the chunk is closed and those before it are settled."""
MAX_WAITING = 2_048
"""Chunks of one edge of which statements are here before what they are about."""

log = logging.getLogger("nodewire.provider")


class Statements:
    """Of one job."""

    def __init__(self, keys: Keys, request: Request, manifest: Manifest, spool: Spool) -> None:
        self._me = keys.public
        self._request = request
        self._plan = request.plan
        self._manifest = manifest
        self._spool = spool
        self._edges: dict[str, Edge] = {edge.name: edge for edge in manifest.edges}
        self._providers = {a.task: a.provider for a in request.plan.tasks}
        self._signing = OutputSigner(keys, request.id, manifest, self._consumer)
        self._came: dict[tuple[str, int], list[HashedFrame]] = {}
        self._said: dict[str, dict[int, FrameStatement]] = {}
        """By edge and chunk."""
        self._settled: set[tuple[str, int]] = set()
        self._changed = asyncio.Event()
        self._stopped: NodewireError | None = None

    # The tape (`wire.job.edge_window.Tape`).

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """Raises as Spool.write."""
        self._spool.write(request, edge, attempt, frame)
        if self._producer(edge) is not None:
            self._came.setdefault((edge, chunk_of(self._manifest, frame.seq)), []).append(hashed(frame))

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]:
        return self._spool.read(request, edge, first)

    # What the job tells.

    def produced(self, chunk: int, edge: str, frame: HashedFrame) -> None:
        self._signing.produced(chunk, edge, frame)

    def sign(self, chunk: int) -> dict[str, list[FrameStatement]]:
        """Its statements on what it has put out of a chunk and not signed, by the consumer that each is for."""
        return self._signing.sign(chunk)

    def again(self, peer: str, edge: object, first: object) -> list[FrameStatement]:
        """What was signed of an edge, as `OutputSigner.again`."""
        return self._signing.again(peer, edge, first)

    def add(self, said: FrameStatement) -> None:
        """A statement came; whoever passed it on. The first on an edge's chunk counts.

        Raises:
            BadFrame, NotAllowed, BadSignature: it is not by the producer of an edge that leads here.

        """
        if said.request != self._request.id:
            raise BadFrame("request", "a statement about another job")
        edge = self._edges.get(said.edge)
        if edge is None or edge.source != said.task or self._providers.get(edge.target) != self._me:
            raise BadFrame("edge", f"{said.edge} does not come here from {said.task}")
        if said.signer != self._producer(said.edge):
            raise NotAllowed("signer", f"does not produce {said.edge}")
        waiting = self._said.setdefault(said.edge, {})
        if (said.edge, said.chunk) in self._settled or said.chunk in waiting:
            return
        if len(waiting) >= MAX_WAITING:
            raise BadFrame("sent", f"more than {MAX_WAITING} statements on {said.edge} wait")
        said.check()
        waiting[said.chunk] = said
        self._changed.set()

    async def complete(self, chunk: int, tell: Tell) -> None:
        """Return when all that this node's part of `chunk` was computed from is signed as it came; keep the statements.

        Raises:
            BadFrame: a producer signed something else than it sent, or nothing for the patience; names the edge.
            NodeFailed: the spool lacks a part of the job, so that what comes of it could not be shown to a judge.
            NodewireError: what ended the job.

        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                # Of a generation it comes with the frames; of a call it came before this job was open, perhaps.
                asked_s = time.monotonic() if self._manifest.mode == "generate" else float("-inf")
                while lacking := self._lacking(chunk):
                    if self._stopped is not None:
                        raise self._stopped
                    self._changed.clear()
                    if time.monotonic() >= asked_s + ASK_S:
                        asked_s = time.monotonic()
                        for edge, first in lacking.items():
                            await self._ask(edge, first, tell)
                    await self._news()
        except TimeoutError as error:
            if lacking := self._lacking(chunk):
                edge, first = next(iter(lacking.items()))
                raise BadFrame(edge, f"its producer has not signed what came of chunk {first}") from error
        self._keep(chunk)

    def stop(self, error: NodewireError) -> None:
        """The job has failed: nobody waits any more."""
        self._stopped = error
        self._changed.set()

    # Inside.

    def _consumer(self, edge: Edge) -> str | None:
        """The provider that an edge leads to."""
        consumer = self._providers.get(edge.target, LOCAL)
        return consumer if consumer != LOCAL else None

    def _producer(self, edge: str) -> str | None:
        """The other node of the job that sends on an edge which leads here; None for one of the customer's own."""
        ends = self._edges[edge]
        if ends.source == CUSTOMER or self._providers.get(ends.target) != self._me:
            return None
        producer = self._plan.node_of(ends.source)
        return producer if producer != self._me else None

    def _lacking(self, chunk: int) -> dict[str, int]:
        """By edge the first chunk of which a statement must still come. Raises as `complete`."""
        lacking: dict[str, int] = {}
        for edge, number in self._due(chunk):
            if not self._agrees(edge, number):
                lacking.setdefault(edge, number)
        return lacking

    def _due(self, chunk: int) -> list[tuple[str, int]]:
        """The edges and chunks of what came and is not settled, that a part of `chunk` was computed from.

        In a generation, which has a state, they include what came before.
        """
        generates = self._manifest.mode == "generate"
        return [at for at in sorted(self._came) if at[1] == chunk or (generates and at[1] < chunk)]

    def _agrees(self, edge: str, chunk: int) -> bool:
        """Whether what came is what its producer signed; False if that is to come. Raises as `complete`."""
        said = self._said.get(edge, {}).get(chunk)
        if said is None or said.frames == digest_of(self._came[edge, chunk]):
            return said is not None
        if self._manifest.mode == "generate":
            # A statement overtakes frames that wait for room. One of them may show that the driver took back rows of a
            # chunk that it had closed, which is its fault and not the producer's: so patience has to end first.
            return False
        raise BadFrame(edge, f"{said.signer[:8]} signed something else than was sent in chunk {chunk}")

    def _keep(self, chunk: int) -> None:
        """All that came for `chunk` is signed: keep that, and forget what it was compared with."""
        for edge, number in self._due(chunk):
            self._spool.keep_sent(self._said[edge].pop(number))
            self._settled.add((edge, number))
            del self._came[edge, number]
        if not self._spool.is_whole(self._request.id):
            raise NodeFailed("spool", "it has no room for this job, or cannot be written: raise `spool`, or make room")

    async def _news(self) -> None:
        """Wait until something changes, as long as one waits before asking."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                await self._changed.wait()

    async def _ask(self, edge: str, first: int, tell: Tell) -> None:
        producer = self._producer(edge)
        if producer is not None:
            with suppress(LinkLost):
                await tell(producer, {"t": LACKING, "edge": edge, "first": first})
