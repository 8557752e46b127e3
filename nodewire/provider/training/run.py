"""One shard of one round at its provider: deposit, blobs, training, delivery, balance."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from nodewire.errors import BadHash, NodewireError, NotAllowed, NotFound, PaymentRequired, WorkerFailed
from nodewire.kind import Worker
from nodewire.nostr import nip44
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.pay.dues import Due
from nodewire.pay.ledger import Ledger
from nodewire.protocol import audit, closing, delivery, feedback, inline
from nodewire.protocol.audit import Asked, Showing, Shown
from nodewire.protocol.closing import Closed
from nodewire.protocol.delivery import Delivered, Progress
from nodewire.protocol.frame import Array, Frame, Meta
from nodewire.protocol.manifest import BlobRef
from nodewire.protocol.round import BALANCE, DEPOSIT
from nodewire.provider.training.admission import Admitted
from nodewire.provider.training.carried import NOTHING, CarriedFiles
from nodewire.provider.training.made import MadeResults
from nodewire.store import sealed
from nodewire.store.blobs import Blobs

log = logging.getLogger("nodewire.provider")
TASK = "trainer"
MAX_AUDITS = 3
"""Of one shard's round: a customer that died may ask once more."""
PROGRESS_S = 2.0
"""Between two words to the customer about how far it is."""
TOGETHER_MS = 100
"""For so long a worker trains before it answers: segments can be quicker than words about them."""
SOON_S = 0.5
"""After which a customer is told that work has begun."""
ALIVE_S = 10.0
"""After so long without one it says that it is still at it."""
_NEVER_S = 2**53 - 1
"""A deposit that nobody pays is no debt: nothing was done for it."""

Publish = Callable[[Event], Awaitable[None]]


class ShardRun:
    """Runs once. `paid` is told of every payment of the request by this provider's own wallet."""

    def __init__(
        self,
        job: Admitted,
        *,
        keys: Keys,
        blobs: Blobs,
        ledger: Ledger,
        publish: Publish,
        folder: Path,
        patience_s: float,
        carried: CarriedFiles,
        made: MadeResults,
    ) -> None:
        self.job = job
        self._carried = carried
        self._made = made
        self._keys = keys
        self._blobs = blobs
        self._ledger = ledger
        self._publish = publish
        self._folder = folder
        self._patience_s = patience_s
        self._settled = asyncio.Condition()
        self._conversation = nip44.conversation_key(keys, job.request.customer)
        self._said_s = 0.0
        self._worker: Worker | None = None
        """The one that has the session open."""
        self._revealing = asyncio.Lock()
        self._audits = 0
        self.committed: str | None = None
        """What was delivered commits to; None if nothing was, or not since this provider was started."""
        self._close: str | None = None
        self._answer: Event | None = None
        """To what was drawn: the same however often it is asked for."""

    async def paid(self) -> None:
        """Something of the request has been paid: the ledger knows what."""
        async with self._settled:
            self._settled.notify_all()

    async def deposit(self) -> None:
        """Ask for the deposit, and return when this provider's own wallet has it.

        Raises:
            PaymentRequired: it is not paid within the patience.
        """
        amount_msat = self.job.assigned.deposit_msat
        if not amount_msat:
            return
        key = self.job.key(DEPOSIT)
        owed = self._ledger.owe(Due(key, self.job.request.customer, amount_msat, _NEVER_S))
        if owed.state in ("settled", "receipted"):  # before this provider died
            return
        due = feedback.Due(DEPOSIT, 0, 1, amount_msat, self.job.assigned.ticket)
        await self._say("payment-required", due=due)
        await self._until_paid(DEPOSIT, self._patience_s)

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
            made: tuple[Path | bytes, Delivered] | None = self._made.find(request)
            if made is None:  # or else this provider died while it delivered
                await self._open(worker)
                losses, states, samples = await self._steps(worker)
                made = await self._make(worker, losses, states, samples)
            await self._deliver(*made)
        finally:
            living.cancel()
        self._made.over(request)

    async def close(self) -> None:
        """Forget the shard."""
        if self._worker is not None:
            try:
                await self._worker.close(TASK, self.job.request.id)
            except NodewireError as error:
                log.info("job %s: its worker ended before: %s", self.job.request.id[:8], error)

    async def reveal(self, asked: Asked, closed: Closed, worker: Worker) -> None:
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

    def _check_drawn(self, asked: Asked, closed: Closed) -> None:
        job, request = self.job, self.job.request
        counted = closing.check_asked(
            closed,
            job=request.round.job,
            customer=request.customer,
            request=request.id,
            provider=self._keys.public,
            commitment=self.committed,
        )
        if self._close not in (None, closed.id):
            raise NotAllowed("close", "there was another for the same result")
        drawn = closing.drawn(closed, counted, job.recipe, job.assigned.steps)
        if asked.snapshots != closing.shown(drawn, job.recipe, job.assigned.steps):
            raise NotAllowed("snapshots", "not those that the close draws")
        self._close = closed.id

    async def _shown(self, asked: Asked, worker: Worker) -> Event:
        shown = []
        for segment in asked.snapshots:
            pieces = await self._snapshot(segment, worker)
            key = sealed.new_key()
            blob = await self._upload(sealed.seal(pieces, key))
            sha256 = hashlib.sha256(b"".join(pieces)).hexdigest()
            shown.append(Shown(segment=segment, blob=blob, key=key, sha256=sha256))
        text = nip44.encrypt(Showing(shown=tuple(shown)).to_json(), self._conversation)
        request = self.job.request
        return audit.show(self._keys, request.kind, request.id, request.customer, text, created_at=int(time.time()))

    async def _snapshot(self, segment: int, worker: Worker) -> list[bytes]:
        meta: Meta = {"segment": segment}
        frame: Frame[Array] = Frame("reveal", 0, (), meta)
        if self._worker is not None:
            try:
                frames = await self._worker.receive(TASK, self.job.request.id, frame)
                return [bytes(one.tensors[0].data) for one in frames]
            except (NotFound, WorkerFailed):  # it had to make room, or died
                pass
        await self._open(worker)
        frames = await worker.receive(TASK, self.job.request.id, frame)
        return [bytes(one.tensors[0].data) for one in frames]

    async def _open(self, worker: Worker) -> None:
        """A session with theta and shard."""
        job, session = self.job, self.job.request.id
        ticket, round_ = job.ticket, job.request.round
        begun = self._carried.begun(job)
        cited = (round_.start,) if round_.start else ()
        theta, *frozen = await asyncio.gather(
            self._blobs.get(round_.theta, inline=job.request.theta), *map(self._blobs.get, cited)
        )
        params = {
            "recipe": job.recipe.pack(),
            "round": round_.round,
            "index": job.assigned.index,
            "steps": job.assigned.steps,
            "start": job.start_name,
            "shard": f"{round_.job}.{ticket.shard_sha256}",
        }
        await worker.open(TASK, session, params)
        self._worker = worker
        for path in frozen:
            await self._freeze(worker, path)
        await self._feed(worker, "theta", theta, ticket.theta_key, ticket.theta_sha256)
        (said,) = await worker.receive(TASK, session, Frame("held", 0))
        if not said.meta["here"]:
            shard = await self._blobs.get(job.assigned.data)
            await self._feed(worker, "shard", shard, ticket.shard_key, ticket.shard_sha256)
        if begun is not None and ticket.carried is not None:
            path, key = begun
            await self._feed(worker, "carried", path, key, ticket.carried)

    async def _freeze(self, worker: Worker, path: Path) -> None:
        """The frozen weights into the worker, unless it has them from a round before."""
        job = self.job
        assert job.start_sha256 is not None and job.ticket.start_key is not None
        (said,) = await worker.receive(TASK, job.request.id, Frame("frozen", 0))
        if not said.meta["here"]:
            await self._feed(worker, "start", path, job.ticket.start_key, job.start_sha256)

    async def balance(self) -> None:
        """Return when the balance is paid.

        Raises:
            PaymentRequired: it is not, in its time.
        """
        if self.job.assigned.balance_msat:
            due = self._ledger.due(self.job.key(BALANCE))
            await self._until_paid(BALANCE, due.due_by_s - time.time())

    async def refuse(self, error: NodewireError) -> None:
        """Tell the customer that this came to nothing, and why."""
        try:
            await self._say("busy" if error.code == "busy" else "error", text=error.code)
        except NodewireError as failure:
            log.warning("feedback: %s", failure)

    async def _until_paid(self, part: int, patience_s: float) -> None:
        def is_paid() -> bool:
            return self._ledger.due(self.job.key(part)).state in ("settled", "receipted")

        try:
            async with asyncio.timeout(max(0.0, patience_s)), self._settled:
                await self._settled.wait_for(is_paid)
        except TimeoutError as error:
            what = "deposit" if part == DEPOSIT else "balance"
            raise PaymentRequired(what, f"not paid within {patience_s:.0f} s") from error

    async def _feed(self, worker: Worker, edge: str, path: Path, key: str, sha256: str) -> None:
        """The blob's plaintext into the worker, piece by piece; nothing of it touches the disk. Raises BadHash."""
        digest, pieces, seq = hashlib.sha256(), sealed.unseal(path, key), 0
        piece: bytes | None = await asyncio.to_thread(next, pieces)
        while piece is not None:
            whole = len(piece) < sealed.SEGMENT_BYTES  # what is shorter is the last
            following = None if whole else await asyncio.to_thread(next, pieces, None)
            digest.update(piece)
            if following is None and digest.hexdigest() != sha256:
                raise BadHash(edge, "not what the ticket says")
            frame = Frame(edge, seq, (Array("uint8", (len(piece),), piece),), {"end": following is None})
            await worker.receive(TASK, self.job.request.id, frame)
            piece, seq = following, seq + 1

    async def _live(self) -> None:
        """Say that the work has begun, unless it is done in a moment, and now and then that it goes on, where segments
        are long: a late one that is silent is given up."""
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

    async def _steps(self, worker: Worker) -> tuple[list[int], list[str], int]:
        """Train, segment by segment: losses in millionths, the states' hashes, samples seen."""
        losses: list[int] = []
        states: list[str] = []
        done = 0
        while len(states) < delivery.MAX_STATES:
            self._check_time()
            frame: Frame[Array] = Frame("train", len(states), (), {"ms": TOGETHER_MS})
            for said in await worker.receive(TASK, self.job.request.id, frame):
                step, loss, state = said.meta["step"], said.meta["loss"], said.meta["state"]
                if not isinstance(step, int) or not isinstance(loss, int) or not isinstance(state, str):
                    raise WorkerFailed("train", "an answer that is none")
                losses.append(loss)
                states.append(state)
                if said.meta["end"]:
                    return losses, states, int(said.meta["samples"] or 0)
                done = step
            await self._report(done, losses[-1])
        raise WorkerFailed("train", f"no end after {len(states)} segments")

    async def _make(
        self, worker: Worker, losses: list[int], states: list[str], samples: int
    ) -> tuple[Path | bytes, Delivered]:
        """The packed update, sealed, and what the customer needs to open it; on disk if it is not small, or something
        is carried on, which is, too."""
        job, request = self.job, self.job.request
        frames = await worker.receive(TASK, request.id, Frame("update", 0))
        pieces = [bytes(frame.tensors[0].data) for frame in frames]
        sha256 = hashlib.sha256()
        for piece in pieces:
            sha256.update(piece)
        kept = None
        if job.recipe.compression.carries:
            left = await worker.receive(TASK, request.id, Frame("carry", 0))
            rest = [bytes(frame.tensors[0].data) for frame in left]
            kept = hashlib.sha256(b"".join(rest)).hexdigest() if rest else NOTHING
            self._carried.keep(job, kept, rest)
        made = Delivered(
            key=sealed.new_key(),
            sha256=sha256.hexdigest(),
            bytes=sum(map(len, pieces)),
            samples=samples,
            losses=tuple(losses[:: -(-len(losses) // delivery.MAX_LOSSES)]),
            states=tuple(states),
            carried=kept,
        )
        if kept is None and sealed.sealed_bytes(made.bytes) <= request.round.inline:
            return b"".join(sealed.seal(pieces, made.key)), made  # made again as quickly as it is read
        return self._made.keep(request.id, made, pieces), made

    async def _deliver(self, update: Path | bytes, made: Delivered) -> None:
        """Upload the sealed update if it is not small, and publish what the customer needs to open it."""
        job, request = self.job, self.job.request
        result = None
        if sealed.sealed_bytes(made.bytes) <= request.round.inline:
            result = update if isinstance(update, bytes) else await asyncio.to_thread(update.read_bytes)
            blob = BlobRef(sha256=hashlib.sha256(result).hexdigest(), bytes=len(result))
        else:
            blob = await self._blobs.put(update)
        self._check_time()
        amount_msat = job.assigned.balance_msat
        if amount_msat:
            due_by_s = int(max(time.time(), request.created_at + request.round.deadline_s) + self._patience_s)
            self._ledger.owe(Due(job.key(BALANCE), request.customer, amount_msat, due_by_s))
        committed = made.commitment(self._keys.public, request.id, request.round.round, job.assigned.index)
        event = delivery.build(
            self._keys,
            request.kind,
            request.id,
            request.customer,
            commitment=committed,
            blob=blob,
            amount_msat=amount_msat,
            ciphertext=nip44.encrypt(made.to_json(), self._conversation),
            created_at=int(time.time()),
            result=result,
        )
        if result is not None and event.tag(inline.TAG) is None:  # there was no room for it
            await self._blobs.put(result)
        self.committed = committed
        await self._publish(event)

    async def _upload(self, pieces: Iterator[bytes]) -> BlobRef:
        with tempfile.NamedTemporaryFile(dir=self._folder) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            return await self._blobs.put(Path(file.name))

    async def _report(self, step: int, loss: int) -> None:
        """Say how far it is, now and then; a relay that does not take it stops nothing."""
        if time.monotonic() < self._said_s + PROGRESS_S:
            return
        self._said_s = time.monotonic()
        try:
            await self._say("partial", ciphertext=Progress(step=step, loss=loss).to_json())
        except NodewireError as error:
            log.info("job %s: progress: %s", self.job.request.id[:8], error)

    async def _say(
        self, status: feedback.Status, *, text: str = "", due: feedback.Due | None = None, ciphertext: str = ""
    ) -> None:
        request = self.job.request
        event = feedback.build(
            self._keys,
            request.id,
            request.customer,
            status,
            created_at=int(time.time()),
            text=text,
            due=due,
            kind=request.kind,
            ciphertext=nip44.encrypt(ciphertext, self._conversation) if ciphertext else "",
        )
        await self._publish(event)
