"""A paid piece of training at its provider, whatever the work: deposit first, words to the customer, balance last."""

from __future__ import annotations

import asyncio
import io
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from nodewire.errors import NodewireError, PaymentRequired
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip44
from nodewire.pay.accounts.dues import NEVER_S, Due
from nodewire.protocol.job import feedback
from nodewire.store import sealed_blobs
from nodewire.training.protocol.round import BALANCE, DEPOSIT
from nodewire.training.provider.admission import AdmittedShard
from nodewire.training.provider.outer_admission import AdmittedOuter
from nodewire.worker.blob_feed import feed

if TYPE_CHECKING:
    from nodewire.kind import TaskSession
    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.protocol.model.manifest import BlobRef
    from nodewire.protocol.tensors.frame import Array, Frame, Meta

log = logging.getLogger("nodewire.provider")

Publish = Callable[[Event], Awaitable[None]]
Job = TypeVar("Job", AdmittedShard, AdmittedOuter)


class BlobExchange(Protocol):
    """Where blobs come from and go to."""

    async def get(self, blob: BlobRef, *, inline: bytes | None = None) -> Path: ...

    async def put(self, source: Path | bytes) -> BlobRef: ...


@dataclass(frozen=True, slots=True)
class RunResources:
    """What a run works with."""

    keys: Keys
    blobs: BlobExchange
    ledger: Ledger
    publish: Publish
    folder: Path
    patience_s: float


class PaidRun(Generic[Job]):
    """Runs once. `paid` is told of every payment of the request by this provider's own wallet."""

    task: ClassVar[str]
    """What the worker has it loaded as."""
    by_name: ClassVar[bool] = True
    """Whether the customer says of each part when its balance settles it."""

    def __init__(self, job: Job, resources: RunResources) -> None:
        self.job: Job = job
        self._keys = resources.keys
        self._blobs = resources.blobs
        self._ledger = resources.ledger
        self._publish = resources.publish
        self._folder = resources.folder
        self._patience_s = resources.patience_s
        self._settled = asyncio.Condition()
        self._conversation = nip44.conversation_key(resources.keys, job.request.customer)
        self._session: TaskSession | None = None
        """The one that was opened last."""

    async def paid(self) -> None:
        """Something of the request has been paid: the ledger knows what."""
        async with self._settled:
            self._settled.notify_all()

    async def deposit(self) -> None:
        """Ask for the deposit, and return when this provider's own wallet has it, or the customer's balance covers it.

        Raises:
            PaymentRequired: it is not paid within the patience.

        """
        amount_msat = self.job.assigned.deposit_msat
        if not amount_msat:
            await self._say("processing")
            return
        key = self.job.key(DEPOSIT)
        owed = self._ledger.owe(Due(key, self.job.request.customer, amount_msat, NEVER_S), by_name=self.by_name)
        if owed.state == "settled":  # before this provider died
            return
        await self._ledger.flushed()
        due = feedback.Due(DEPOSIT, 0, 1, amount_msat, self.job.assigned.ticket)
        await self._say("payment-required", due=due)
        await self._until_paid(DEPOSIT, self._patience_s)

    def has_deposit(self) -> bool:
        """Whether the deposit has come, where there is one."""
        return not self.job.assigned.deposit_msat or self._is_paid(DEPOSIT)

    def forgo_deposit(self) -> None:
        """It is not waited for any more: from now on there is no invoice for it, unless one is out already."""
        self._ledger.forgo(self.job.key(DEPOSIT))

    async def wait(self) -> None:
        """Say that this has not been forgotten; a relay that does not take it changes nothing."""
        try:
            await self._say("processing")
        except NodewireError as error:
            log.info("job %s: processing: %s", self.job.request.id[:8], error)

    async def close(self) -> None:
        """Forget the session."""
        if self._session is not None:
            await self._session.close()

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

    def _is_paid(self, part: int) -> bool:
        return self._ledger.due(self.job.key(part)).state == "settled"

    async def _until_paid(self, part: int, patience_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, patience_s)), self._settled:
                await self._settled.wait_for(lambda: self._is_paid(part))
        except TimeoutError as error:
            what = "deposit" if part == DEPOSIT else "balance"
            raise PaymentRequired(what, f"not paid within {patience_s:.0f} s") from error

    async def _feed(
        self,
        session: TaskSession,
        edge: str,
        source: Path | bytes,
        key: str | None,
        sha256: str,
        said: Meta | None = None,
    ) -> list[Frame[Array]]:
        """A blob's plaintext into the session, with what is `said` of it; what it answers to the last piece.

        Raises:
            BadHash, BadData, BadCiphertext: it is not what the ticket says.

        """
        pieces, total = (
            _plain(source) if key is None else sealed_blobs.unseal(source, key),
            sealed_blobs.size_of(source),
        )
        return await feed(session, edge, pieces, sha256, said or {}, total=total)

    async def _owe_balance(self) -> None:
        """From the delivery on the customer owes the balance."""
        job, request = self.job, self.job.request
        if job.assigned.balance_msat:
            due_by_s = int(max(time.time(), request.created_at + request.round.deadline_s) + self._patience_s)
            due = Due(job.key(BALANCE), request.customer, job.assigned.balance_msat, due_by_s)
            self._ledger.owe(due, by_name=self.by_name)
            await self._ledger.flushed()

    async def _upload(self, pieces: Iterator[bytes]) -> BlobRef:
        with tempfile.NamedTemporaryFile(dir=self._folder) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            return await self._blobs.put(Path(file.name))

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
            remarks=feedback.Remarks(
                text=text, ciphertext=nip44.encrypt(ciphertext, self._conversation) if ciphertext else ""
            ),
            due=due,
            kind=request.kind,
        )
        await self._publish(event)


def _plain(source: Path | bytes) -> Iterator[bytes]:
    """A file in pieces as `sealed_blobs.unseal` gives them: at least one."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        yield file.read(sealed_blobs.SEGMENT_BYTES)
        while piece := file.read(sealed_blobs.SEGMENT_BYTES):
            yield piece
