"""What this node of a job sends and is sent, by edge and chunk: what it signs to others, and what others sign to it.

It is the job's tape: frames that come are hashed on their way into the spool. A producer signs each chunk that has
been closed, or at once what is a chunk of its own (`sign`); a standby that enters also those that it computes again
(`whole`). A consumer commits to a chunk when all that it was sent so far is signed (`complete`): otherwise its honest
work could be judged on other inputs than it had. The customer signs for the tasks that it runs itself. What a producer
that was replaced did not sign before it died its standby signs; where that is this node itself, what it computed again
says as much.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import takewhile

from nodewire.errors import BadFrame, LinkLost, NodewireError, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.protocol.chunk import chunk_of, first_seq, leaf_of
from nodewire.protocol.compare import alike
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.guesses import AHEAD_CHUNKS
from nodewire.protocol.job import Request
from nodewire.protocol.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.plan import LOCAL
from nodewire.protocol.sent import LACKING, Hashed, Sent, digest_of, hashed
from nodewire.protocol.takeover import Takeover, assigned, hedges, signers
from nodewire.wire.signing import ASK_S, Signing, Tell
from nodewire.wire.spool import Spool

PATIENCE_S = 10.0
"""How long a statement is waited for when the chunk is closed and those before it are settled. After a takeover it is
the time of a first result longer: so long a standby may take to compute what was before it."""
MAX_WAITING = 2_048
"""Chunks of one edge of which statements are here before what they are about."""

Again = Callable[[str, Edge, int, int], AsyncIterator[Frame[Array]]]
"""The frames on an edge in a chunk as its present producer has them, of at most so many bytes together."""

log = logging.getLogger("nodewire.provider")


class Statements:
    """Of one job."""

    def __init__(
        self,
        keys: Keys,
        request: Request,
        manifest: Manifest,
        spool: Spool,
        takeover: Takeover | None = None,
        again: Again | None = None,
    ) -> None:
        """`again` has a standby show what it computed again; without it that must be the same to the last bit."""
        self._again = again
        self._me = keys.public
        self._request = request
        self._plan = request.plan
        self._manifest = manifest
        self._spool = spool
        self._takeover = takeover
        self._edges: dict[str, Edge] = {edge.name: edge for edge in manifest.edges}
        self._now = assigned(request.plan, takeover)
        self._hedged = {task for task, hedge in request.plan.hedges.items() if hedge == self._me and takeover is None}
        """What this node computes along: it is given what who has it is given."""
        self._signing = Signing(keys, request.id, manifest, self._consumer, self._along)
        self._reached: dict[str, int] = {}
        """By edge of this node's tasks, the newest chunk of which it put something out."""
        self._came: dict[tuple[str, int], list[Hashed]] = {}
        self._said: dict[str, dict[int, dict[str, Sent]]] = {}
        """By edge, chunk and signer."""
        self._settled: set[tuple[str, int]] = set()
        self._shown: set[tuple[str, int, str]] = set()
        """By edge, chunk and signer: something else was signed than came, and has been shown."""
        self._changed = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        """Of who waits for statements."""
        self._replayed_by_s = 0.0
        self._stopped: NodewireError | None = None
        if takeover is not None:
            self._gives_time()

    # The tape (`wire.edges.Tape`).

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """Raises as Spool.write."""
        self._spool.write(request, edge, attempt, frame)
        if self._producer(edge) is not None:
            self._came.setdefault((edge, chunk_of(self._manifest, frame.seq)), []).append(hashed(frame))

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]:
        return self._spool.read(request, edge, first)

    # What the job tells.

    def took_over(self, takeover: Takeover) -> None:
        """The assignment changes; called before frames take their new ways."""
        self._takeover, self._now = takeover, assigned(self._plan, takeover)
        self._gives_time()
        self._changed.set()

    def produced(self, chunk: int, edge: str, frame: Hashed) -> None:
        """An output, also one that is computed again."""
        self._signing.produced(chunk, edge, frame)
        self._reached[edge] = max(chunk, self._reached.get(edge, 0))
        if self._consumer(self._edges[edge]) == self._me:
            self._changed.set()

    def sign(self, chunk: int, attempt: int, edge: str | None = None) -> dict[str, list[Sent]]:
        """This node's statements on what it has put out of a chunk and not signed, by the consumer that each is for."""
        return self._signing.sign(chunk, attempt, edge)

    def whole(self, edge: str) -> list[int]:
        """Of the chunks that this node computed again for an edge, and has not signed, those of which all is there."""
        first = self._first(self._edges[edge].source) if edge in self._edges else None
        if first is None or self._consumer(self._edges[edge]) in (None, self._me):
            return []
        return [chunk for chunk in self._signing.behind(edge, first) if self._is_whole(edge, chunk, frozenset())]

    def again(self, peer: str, edge: object, first: object) -> list[Sent]:
        """What was signed of an edge, as `Signing.again`."""
        return self._signing.again(peer, edge, first)

    def heard(self, said: Sent) -> None:
        """A statement came; whoever passed it on. The first of a signer on an edge's chunk counts.

        Raises:
            BadFrame, NotAllowed, BadSignature: it is not by the producer of an edge that leads here.
        """
        if said.request != self._request.id:
            raise BadFrame("request", "a statement about another job")
        edge = self._edges.get(said.edge)
        if edge is None or edge.source != said.task or not self._is_mine(edge.target):
            raise BadFrame("edge", f"{said.edge} does not come here from {said.task}")
        if said.signer not in self._signers(said.edge, said.chunk) or said.signer == self._me:
            raise NotAllowed("signer", f"does not produce {said.edge} in chunk {said.chunk}")
        waiting = self._said.setdefault(said.edge, {})
        if (said.edge, said.chunk) in self._settled or said.signer in waiting.get(said.chunk, ()):
            return
        if len(waiting) >= MAX_WAITING:
            raise BadFrame("sent", f"more than {MAX_WAITING} statements on {said.edge} wait")
        said.check()
        waiting.setdefault(said.chunk, {})[said.signer] = said
        self._changed.set()

    async def complete(self, chunk: int, tell: Tell) -> int:
        """Return when all that this node's part of `chunk` was computed from is signed as it came; keep the statements.

        The attempt of the takeover by which that is so, which is to be committed to with the chunk; 0 for none.

        Raises:
            BadFrame: a producer signed something else than it sent, or nothing for the patience; names the edge.
            LinkLost: so did who entered for one that was replaced.
            NodewireError: what ended the job.
        """
        try:
            async with asyncio.timeout(max(PATIENCE_S, self._replayed_by_s - time.monotonic())) as self._patience:
                # Of a generation it comes with the frames; of a call it came before this job was open, perhaps.
                asked_s = time.monotonic() if self._manifest.mode == "generate" else float("-inf")
                while await self._compared(chunk) and (lacking := self._lacking(chunk)):
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
                raise self._unsaid(edge, first, f"its producer has not signed what came of chunk {first}") from error
        finally:
            self._patience = None
        self._keep(chunk)
        return self._attempt

    async def ask_for(self, edge: str, tell: Tell) -> None:
        """Ask for what is lacking of what this node computed an edge's chunks from again: or it cannot sign them."""
        first = self._first(self._edges[edge].source) if edge in self._edges else None
        if first:
            for name, lacking in self._lacking(first - 1).items():
                await self._ask(name, lacking, tell)

    def stop(self, error: NodewireError) -> None:
        """The job has failed: nobody waits any more."""
        self._stopped = error
        self._changed.set()

    # Inside.

    @property
    def _attempt(self) -> int:
        return self._takeover.attempt if self._takeover is not None else 0

    def _gives_time(self) -> None:
        """A standby enters: what it computes again takes the time of a first result, and is waited for."""
        more_s = self._plan.first_result_ms / 1000 + PATIENCE_S
        self._replayed_by_s = time.monotonic() + more_s
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + more_s)

    def _consumer(self, edge: Edge) -> str | None:
        """The provider that an edge leads to now."""
        consumer = self._now.get(edge.target, LOCAL)
        return consumer if consumer != LOCAL else None

    def _along(self, edge: Edge) -> str | None:
        """Who computes along what an edge leads to."""
        return hedges(self._plan, self._takeover).get(edge.target)

    def _is_mine(self, task: str) -> bool:
        return self._now.get(task) == self._me or task in self._hedged

    def _producer(self, edge: str) -> str | None:
        """Who sends on an edge now: another node of the job, if it leads here at all and is not the customer's own."""
        ends = self._edges[edge]
        if ends.source == CUSTOMER or not self._is_mine(ends.target):
            return None
        producer = self._now[ends.source]
        return self._plan.customer if producer == LOCAL else producer if producer != self._me else None

    def _signers(self, edge: str, chunk: int) -> tuple[str, ...]:
        source = self._edges[edge].source
        return signers(self._plan, self._takeover, source, chunk) if source != CUSTOMER else ()

    def _first(self, task: str) -> int | None:
        """The first chunk of a task that this node took over which is its own; None if it did not."""
        replaced = self._takeover.replaced if self._takeover is not None else ()
        return next((first for name, _, entered, first in replaced if (name, entered) == (task, self._me)), None)

    def _lacking(self, chunk: int) -> dict[str, int]:
        """By edge the first chunk of which a statement must still come: up to `chunk`, which has a state, in a
        generation. Raises BadFrame, LinkLost."""
        lacking: dict[str, int] = {}
        for edge, number in self._due(chunk):
            if not self._agrees(edge, number):
                lacking.setdefault(edge, number)
        return lacking

    def _due(self, chunk: int) -> list[tuple[str, int]]:
        """The edges and chunks of what came and is not settled, that a part of `chunk` was computed from."""
        generates = self._manifest.mode == "generate"
        return [at for at in sorted(self._came) if at[1] == chunk or (generates and at[1] < chunk)]

    def _agrees(self, edge: str, chunk: int) -> bool:
        """Whether what came is what its producer signed; False if that is to come. Raises as `complete`."""
        if self._word(edge, chunk) is not None:
            return True
        came, last = self._came[edge, chunk], self._signers(edge, chunk)[-1]
        if last == self._me:  # it was sent this by whom it replaced, and computes it again itself
            mine = {frame.seq: frame for frame in self._signing.unsigned(edge, chunk)}
            if all(mine.get(frame.seq, frame) == frame for frame in came):
                return all(frame.seq in mine for frame in came)
        elif last not in self._said.get(edge, {}).get(chunk, {}) or self._may_show(edge, chunk, last):
            return False
        error = self._unsaid(edge, chunk, f"{last[:8]} signed something else than was sent in chunk {chunk}")
        if isinstance(error, BadFrame) and self._request.plan.terms.lookahead > 1:
            # A statement overtakes frames that wait for room. One of them may show that the driver took back rows of a
            # chunk that it had closed, which is its fault and not the producer's: so patience has to end first.
            return False
        raise error

    def _unsaid(self, edge: str, chunk: int, reason: str) -> NodewireError:
        """What came has nobody's word: its producer lies, or this node does, so the edge is named. If part of it may be
        by who was replaced, nobody can tell."""
        replaced = self._takeover.replaced if self._takeover is not None else ()
        first = next((one for task, _, _, one in replaced if task == self._edges[edge].source), None)
        if first is not None and chunk < first + AHEAD_CHUNKS:
            return LinkLost(edge, f"gone, and {reason}")
        return BadFrame(edge, reason)

    async def _compared(self, chunk: int) -> bool:
        """Have it shown what was signed, where that is not bit by bit what came, and need not be. If it is the same
        work it takes the place of what came, for whoever judges this node's; True."""
        for edge, number in self._due(chunk):
            last = self._signers(edge, number)[-1]
            said = self._said.get(edge, {}).get(number, {}).get(last)
            if said is not None and self._may_show(edge, number, last) and self._word(edge, number) is None:
                with suppress(NodewireError):  # it may answer when it is asked again
                    await self._take_again(edge, number, said)
                    self._shown.add((edge, number, last))
        return True

    async def _take_again(self, edge: str, chunk: int, said: Sent) -> None:
        """Take the signer's frames for those that came if they are the same work, and what it signed."""
        assert self._again is not None
        first = first_seq(self._manifest, chunk)
        read = (frame for _, frame in self._spool.read(self._request.id, edge, first))
        mine = list(takewhile(lambda frame: chunk_of(self._manifest, frame.seq) == chunk, read))
        most = sum(array.nbytes for frame in mine for array in frame.tensors)
        theirs = [frame async for frame in self._again(said.signer, self._edges[edge], chunk, most)]
        shown = [hashed(frame) for frame in theirs]
        if digest_of(shown) != said.frames or [f.seq for f in mine] != [f.seq for f in theirs]:
            return
        digest, both = self._plan.manifest, list(zip(mine, theirs, strict=True))
        if all(a.meta == b.meta and alike(self._manifest, leaf_of(digest, a), leaf_of(digest, b)) for a, b in both):
            log.info("job %s: %s of chunk %d is what was signed of it now", self._request.id[:8], edge, chunk)
            self._spool.amend(self._request.id, edge, theirs)
            self._came[edge, chunk] = shown

    def _may_show(self, edge: str, chunk: int, signer: str) -> bool:
        """Whether what somebody signed may be what came though not bit by bit, and has not been compared."""
        return self._again is not None and (edge, chunk, signer) not in self._shown and self._may_differ(edge)

    def _may_differ(self, edge: str) -> bool:
        """Whether an edge's frames were computed more than once, and so need not be the same bits: by who died and its
        standby, on other hardware."""
        replaced = self._takeover.replaced if self._takeover is not None else ()
        return any(task == self._edges[edge].source for task, *_ in replaced)

    def _word(self, edge: str, chunk: int) -> Sent | None:
        """The statement that says what came."""
        came, said = digest_of(self._came[edge, chunk]), self._said.get(edge, {}).get(chunk, {})
        right = (said[one] for one in self._signers(edge, chunk) if one in said and said[one].frames == came)
        return next(right, None)

    def _keep(self, chunk: int) -> None:
        """All that came for `chunk` is signed: keep that, and forget what it was compared with."""
        for edge, number in self._due(chunk):
            word = self._word(edge, number)
            if word is None and len(self._signers(edge, number)) > 1:  # before this node's own first
                word = self._signing.word(edge, number, self._attempt, self._came[edge, number])
            if word is not None:
                self._spool.keep_sent(word)
            self._said.get(edge, {}).pop(number, None)
            self._settled.add((edge, number))
            del self._came[edge, number]
        for own in self._manifest.edges:
            if self._consumer(own) == self._me:
                for number in self._signing.behind(own.name, chunk + 1):
                    self._signing.drop(own.name, number)

    def _is_whole(self, edge: str, chunk: int, asked: frozenset[str]) -> bool:
        """Whether nothing more of an edge's chunk will be put out, which is closed: a later one has begun, or all that
        it is computed from is there and signed (a decoder's tasks put out as many frames as they are given)."""
        if self._reached.get(edge, 0) > chunk:
            return True
        mine = {frame.seq for frame in self._signing.unsigned(edge, chunk)}
        sources = [one for one in self._manifest.inputs(self._edges[edge].source) if one.source != CUSTOMER]
        return all(one.name not in asked and mine == self._given(one.name, chunk, asked | {edge}) for one in sources)

    def _given(self, edge: str, chunk: int, asked: frozenset[str]) -> set[int] | None:
        """The numbers of all frames of an edge's chunk that were put in here; None if there may be more."""
        if self._now.get(self._edges[edge].source) == self._me:
            mine = {frame.seq for frame in self._signing.unsigned(edge, chunk)}
            return mine if self._is_whole(edge, chunk, asked) else None
        came = self._came.get((edge, chunk), [])
        return {frame.seq for frame in came} if came and self._word(edge, chunk) is not None else None

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
