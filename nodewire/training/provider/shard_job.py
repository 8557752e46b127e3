"""One shard of one round at its provider: deposit, blobs, training, delivery, balance."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import Busy, NodewireError, NotAllowed, NotFound, WorkerFailed
from nodewire.nostr.nips import nip44
from nodewire.protocol.model import inline_blob
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.store import sealed_blobs
from nodewire.training.protocol import audit, round_close
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol.audit import AuditAnswer, AuditRequest, SnapshotCiphertext
from nodewire.training.protocol.recipe import NOTHING
from nodewire.training.protocol.result import DeliveryDetails, Goods, Progress
from nodewire.training.provider.admission import AdmittedShard
from nodewire.training.provider.paid_job import PaidRun, RunResources

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.kind import TaskSession, Worker
    from nodewire.nostr.event import Event
    from nodewire.training.protocol.round_close import CloseEvent
    from nodewire.training.provider.carried_store import CarriedFiles
    from nodewire.training.provider.undelivered_results import MadeResults

log = logging.getLogger("nodewire.provider")
TASK = "trainer"
MAX_AUDITS = 3
"""Times that snapshots of one shard's round are made, should that fail."""
MAX_ASKED = 64
"""Questions for them that are answered: a customer that died asks again, and finds what was said at its relays."""
PROGRESS_S = 2.0
"""Between two words to the customer about how far it is."""
TOGETHER_MS = 100
"""For so long a worker trains before it answers: segments can be quicker than words about them."""
SOON_S = 0.5
"""After which a customer is told that work has begun."""
ROOM_S = 1.0
"""Between two tries to find room in a worker for what is to be shown."""
ALIVE_S = 10.0
"""After so long without one it says that it is still at it."""


class ShardRun(PaidRun[AdmittedShard]):
    """A shard's training."""

    task = TASK

    def __init__(self, job: AdmittedShard, resources: RunResources, carried: CarriedFiles, made: MadeResults) -> None:
        super().__init__(job, resources)
        self._carried = carried
        self._made = made
        self._said_s = 0.0
        self._revealing = asyncio.Lock()
        self._audits = self._asked = 0
        self.committed: str | None = None
        """What was delivered commits to; None if nothing was, or not since this provider was started."""
        self._close: str | None = None
        self._answer: Event | None = None
        """To what was drawn: the same however often it is asked for."""

    async def deposit(self) -> None:
        """As of any work; where there is none, `train` says that it has begun unless it is done in a moment."""
        if self.job.assigned.deposit_msat:
            await super().deposit()

    async def train(self, worker: Worker) -> None:
        """Train and deliver; when this returns the balance is due.

        Raises:
            NotAllowed: the deadline has passed; what is delivered after it is not paid.
            NodewireError: a blob is not to be had or not what was cited, or the worker failed.

        """
        self._said_s = time.monotonic()
        request = self.job.request.id
        living = asyncio.create_task(self._live())
        try:
            made: tuple[Path | bytes, DeliveryDetails] | None = self._made.find(request)
            if made is None:  # or else this provider died while it delivered
                session = await self._open(worker)
                made = await self._make(session, *await self._steps(session))
            await self._deliver(*made)
        finally:
            living.cancel()

    def check_asked(self) -> None:
        """Count a question for snapshots, each of which costs a look at the relays. Raises Busy: too many."""
        self._asked += 1
        if self._asked > MAX_ASKED:
            raise Busy("snapshots", f"asked for more than {MAX_ASKED} times")

    async def reveal(self, asked: AuditRequest, closed: CloseEvent, worker: Worker) -> None:
        """Show the customer the snapshots that the round's close draws, and no others; asked again, the same answer.

        `worker` computes them again if this run has none (any more).

        Raises:
            NotAllowed: a close of something else, or a second one; other snapshots than it draws; asked too often.

        """
        async with self._revealing:
            self._check_drawn(asked, closed)
            if self._answer is None:
                self._audits += 1
                if self._audits > MAX_AUDITS:
                    raise NotAllowed("snapshots", f"asked for more than {MAX_AUDITS} times")
                self._answer = await self._shown(asked, worker)
            await self._publish(self._answer)

    def _check_drawn(self, asked: AuditRequest, closed: CloseEvent) -> None:
        job, request = self.job, self.job.request
        counted = round_close.check_asked(
            closed,
            job=request.round.job,
            customer=request.customer,
            request=request.id,
            provider=self._keys.public,
            commitment=self.committed,
        )
        if self._close not in (None, closed.id):
            raise NotAllowed("close", "there was another for the same result")
        drawn = round_close.drawn(closed, counted, job.recipe, job.assigned.steps)
        if asked.snapshots != round_close.shown(drawn, job.recipe, job.assigned.steps):
            raise NotAllowed("snapshots", "not those that the close draws")
        self._close = closed.id

    async def _shown(self, asked: AuditRequest, worker: Worker) -> Event:
        shown = []
        for segment in asked.snapshots:
            pieces = await self._snapshot(segment, worker)
            key = sealed_blobs.new_key()
            blob = await self._upload(sealed_blobs.seal(pieces, key))
            sha256 = hashlib.sha256(b"".join(pieces)).hexdigest()
            shown.append(SnapshotCiphertext(segment=segment, blob=blob, key=key, sha256=sha256))
        text = nip44.encrypt(AuditAnswer(shown=tuple(shown)).to_json(), self._conversation)
        request = self.job.request
        return audit.show(self._keys, request.kind, request.id, request.customer, text, created_at=int(time.time()))

    async def _snapshot(self, segment: int, worker: Worker) -> list[bytes]:
        """What a segment ended with, out of the session that trained or another one.

        The next round, which is trained meanwhile, goes first: it may leave no room for this one, until it is done.
        """
        with suppress(NotFound, WorkerFailed):  # it had to make room, or died
            if self._session is not None:
                return await self._shows(self._session, segment)
        until_s = time.monotonic() + self.job.request.round.deadline_s
        while True:
            try:
                return await self._shows(await self._open(worker), segment)
            except (NotFound, Busy):
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(ROOM_S)

    async def _shows(self, session: TaskSession, segment: int) -> list[bytes]:
        """The snapshot's bytes, computed again where they are not kept, in turns with whatever else it trains."""
        frame: Frame[Array] = Frame("reveal", 0, (), {"segment": segment, "ms": TOGETHER_MS})
        while True:
            said = await session.receive(frame)
            if said[0].edge != "revealing":
                return [bytes(one.tensors[0].data) for one in said]

    async def _open(self, worker: Worker) -> TaskSession:
        """A session with theta and shard."""
        job = self.job
        ticket, round_ = job.ticket, job.request.round
        begun = self._carried.begun(job)
        cited = (round_.start,) if round_.start else ()
        theta, frozen = await asyncio.gather(self._theta(), asyncio.gather(*map(self._blobs.get, cited)))
        params = {
            "recipe": job.recipe.pack(),
            "round": round_.round,
            "index": job.assigned.index,
            "steps": job.assigned.steps,
            "start": job.start_name,
            "shard": f"{round_.job}.{ticket.shard_sha256}",
            "shard_bytes": job.assigned.data.bytes,
        }
        session = self._session = await worker.open(TASK, job.request.id, params)
        for path in frozen:
            await self._freeze(session, path)
        (said,) = await self._feed(session, "theta", theta, ticket.theta_key, ticket.theta_sha256)
        if not said.meta["shard"]:
            shard = await self._blobs.get(job.assigned.data)
            await self._feed(session, "shard", shard, ticket.shard_key, ticket.shard_sha256)
        if begun is not None and ticket.carried is not None:
            path, key = begun
            await self._feed(session, "carried", path, key, ticket.carried)
        return session

    async def _theta(self) -> Path | bytes:
        """The weights' ciphertext: out of the request, where it stands there, or else from a server."""
        request = self.job.request
        return request.theta if request.theta is not None else await self._blobs.get(request.round.theta)

    async def _freeze(self, session: TaskSession, path: Path) -> None:
        """The frozen weights into the worker, unless it has them from a round before."""
        job = self.job
        assert job.start_sha256 is not None and job.ticket.start_key is not None
        (said,) = await session.receive(Frame("frozen", 0))
        if not said.meta["here"]:
            await self._feed(session, "start", path, job.ticket.start_key, job.start_sha256)

    async def _live(self) -> None:
        """Say that the work has begun, unless it is done in a moment, and now and then that it goes on.

        The latter is where segments are long: a late one that is silent is given up.
        """
        pause_s = SOON_S
        while True:
            await asyncio.sleep(max(0.0, self._said_s + pause_s - time.monotonic()))
            if time.monotonic() < self._said_s + pause_s:
                continue
            self._said_s, pause_s = time.monotonic(), ALIVE_S
            try:
                await self._say("processing")
            except NodewireError as error:
                log.info("job %s: processing: %s", self.job.request.id[:8], error)

    def _check_time(self) -> None:
        request = self.job.request
        if time.time() > request.created_at + request.round.deadline_s:
            raise NotAllowed("deadline_s", "it is over")

    async def _steps(self, session: TaskSession) -> tuple[list[int], list[str], int, list[bytes]]:
        """Train, segment by segment: losses in millionths, the states' hashes, samples seen, the packed update."""
        losses: list[int] = []
        states: list[str] = []
        done = 0
        while len(states) < delivery.MAX_STATES:
            self._check_time()
            frame: Frame[Array] = Frame("train", len(states), (), {"ms": TOGETHER_MS})
            answer = await session.receive(frame)
            update = [bytes(said.tensors[0].data) for said in answer if said.edge == "update"]
            for said in answer[: len(answer) - len(update)]:
                step, loss, state = said.meta["step"], said.meta["loss"], said.meta["state"]
                if not isinstance(step, int) or not isinstance(loss, int) or not isinstance(state, str):
                    raise WorkerFailed("train", "an answer that is none")
                losses.append(loss)
                states.append(state)
                if said.meta["end"]:
                    return losses, states, int(said.meta["samples"] or 0), update
                done = step
            await self._report(done, losses[-1])
        raise WorkerFailed("train", f"no end after {len(states)} segments")

    async def _make(
        self, session: TaskSession, losses: list[int], states: list[str], samples: int, pieces: list[bytes]
    ) -> tuple[Path | bytes, DeliveryDetails]:
        """The packed update, sealed, and what the customer needs to open it.

        It is on disk if it is not small, or something is carried on, which is, too.
        """
        job, request = self.job, self.job.request
        sha256 = hashlib.sha256()
        for piece in pieces:
            sha256.update(piece)
        kept = None
        if job.recipe.compression.carries:
            left = await session.receive(Frame("carry", 0))
            rest = [bytes(frame.tensors[0].data) for frame in left]
            kept = hashlib.sha256(b"".join(rest)).hexdigest() if rest else NOTHING
            self._carried.keep(job, kept, rest)
        made = DeliveryDetails(
            key=sealed_blobs.new_key(),
            sha256=sha256.hexdigest(),
            bytes=sum(map(len, pieces)),
            samples=samples,
            losses=tuple(losses[:: -(-len(losses) // delivery.MAX_LOSSES)]),
            states=tuple(states),
            carried=kept,
        )
        if kept is None and sealed_blobs.sealed_bytes(made.bytes) <= request.round.inline:
            return b"".join(sealed_blobs.seal(pieces, made.key)), made  # made again as quickly as it is read
        return self._made.keep(request.id, made, pieces), made

    async def _deliver(self, update: Path | bytes, made: DeliveryDetails) -> None:
        """Upload the sealed update if it is not small, and publish what the customer needs to open it."""
        job, request = self.job, self.job.request
        result = None
        if sealed_blobs.sealed_bytes(made.bytes) <= request.round.inline:
            result = update if isinstance(update, bytes) else await asyncio.to_thread(update.read_bytes)
            blob = BlobRef(sha256=hashlib.sha256(result).hexdigest(), bytes=len(result))
        else:
            blob = await self._blobs.put(update)
        self._check_time()
        await self._owe_balance()
        committed = made.commitment(self._keys.public, request.id, request.round.round, job.assigned.index)
        ciphertext = nip44.encrypt(made.to_json(), self._conversation)
        goods = Goods(committed, blob, job.assigned.balance_msat, ciphertext, result)
        event = delivery.build(
            self._keys, request.kind, request.id, request.customer, goods, created_at=int(time.time())
        )
        if result is not None and event.tag(inline_blob.TAG) is None:  # there was no room for it
            await self._blobs.put(result)
        self.committed = committed
        await self._publish(event)

    async def _report(self, step: int, loss: int) -> None:
        """Say how far it is, now and then; a relay that does not take it stops nothing."""
        if time.monotonic() < self._said_s + PROGRESS_S:
            return
        self._said_s = time.monotonic()
        try:
            await self._say("partial", ciphertext=Progress(step=step, loss=loss).to_json())
        except NodewireError as error:
            log.info("job %s: progress: %s", self.job.request.id[:8], error)
