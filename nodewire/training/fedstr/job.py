"""One round in FEDSTR's layout at its provider: fetched and looked at before anything is paid, then as any other."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from nodewire.nostr.nips import nip44
from nodewire.pay.accounts.dues import NEVER_S, Due
from nodewire.protocol.market.ad import MAX_UNIT_MSAT
from nodewire.training.fedstr import events
from nodewire.training.fedstr.admission import stored_bytes
from nodewire.training.fedstr.events import FedstrRequest, Output, Source
from nodewire.training.fedstr.fetch import download
from nodewire.training.protocol.round import BALANCE, DEPOSIT
from nodewire.training.provider.shard_job import TASK, ShardRun

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.kind import TaskSession, Worker
    from nodewire.pay.accounts.till import Till
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.protocol.job import feedback
    from nodewire.training.protocol.result import DeliveryDetails
    from nodewire.training.provider.admission import AdmittedShard
    from nodewire.training.provider.carried_store import CarriedFiles
    from nodewire.training.provider.paid_job import RunResources
    from nodewire.training.provider.undelivered_results import MadeResults

FETCHED = "fetched"
"""The folder of what was fetched and no worker has read yet."""
BALANCE_EXPIRY_S = 30 * 86_400
"""So long a customer that is in debt can pay by the invoice that it has."""
SETTLING_S = 5.0
"""What an invoice was paid with in its last second may take to be heard of."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How data comes, and where results go."""

    servers: tuple[str, ...]
    """Blob servers, whose URLs a result names."""
    allow_private: bool
    """Whether data may come from loopback and private networks."""
    fetch_s: float = 120.0
    """In which somebody's server must have sent it; a request's own deadline may be shorter."""


class FedstrRun(ShardRun):
    """Its deposit and balance are paid by the invoices that it says, and not by zaps."""

    by_name = False

    def __init__(
        self,
        asked: FedstrRequest,
        data: Source,
        job: AdmittedShard,
        resources: RunResources,
        carried: CarriedFiles,
        made: MadeResults,
        *,
        till: Till,
        transfer: Transfer,
    ) -> None:
        super().__init__(job, resources, carried, made)
        self._request = asked
        self._sources = {"theta": asked.state, "shard": data}
        self._till = till
        self._transfer = transfer
        self._fetched: dict[str, Path] = {}

    async def fetch(self) -> None:
        """Weights and shard onto the disk: no worker waits for somebody's server.

        Raises:
            NodewireError: they are not to be had, or not of the size that the request says.

        """
        if self._made.find(self._request.id) is not None:
            return  # this provider died while it delivered
        for edge, source in self._sources.items():
            path = self._fetched[edge] = self._folder / FETCHED / f"{self._request.id}-{edge}"
            with path.open("wb") as file:
                await self._write(source, file)

    async def prepare(self, worker: Worker) -> None:
        """Both into the worker, which looks at them: what cannot be trained is not to be paid for.

        Raises:
            NodewireError: they are not what the request says, or not the recipe's.

        """
        if self._fetched:
            await self._open(worker)

    def forget(self) -> None:
        """Remove what was fetched: the worker has it, or nobody wants it."""
        for path in self._fetched.values():
            path.unlink(missing_ok=True)

    async def deposit(self) -> None:
        amount_msat = self.job.assigned.deposit_msat
        key = self.job.key(DEPOSIT)
        if amount_msat:
            owed = self._ledger.owe(Due(key, self._request.customer, amount_msat, NEVER_S))
            await self._ledger.flushed()
            if owed.state != "settled":
                invoice = await self._invoice(DEPOSIT, max(1, int(self._patience_s)))
                bill = events.Bill(invoice.amount_msat, invoice.bolt11)
                await self._feed_back("payment-required", text="deposit", bill=bill)
                await self._until_paid(DEPOSIT, max(0.0, invoice.expires_at_s - time.time()) + SETTLING_S)
        await self._say("processing")

    async def _open(self, worker: Worker) -> TaskSession:
        if self._session is not None:
            return self._session
        job = self.job
        params = {
            "recipe": job.recipe.pack(),
            "round": self._request.round,
            "index": self._request.index,
            "steps": job.assigned.steps,
            "start": "",
        }
        session = self._session = await worker.open(TASK, self._request.id, params)
        for edge, source in self._sources.items():
            await self._feed(session, edge, self._fetched[edge], source.key, source.sha256)
        self.forget()
        return session

    async def _invoice(self, part: int, expiry_s: int) -> Invoice:
        """In whole satoshis, as most wallets pay: what is more than the part is the customer's balance."""
        return await self._till.plain_invoice(self.job.key(part), unit_msat=MAX_UNIT_MSAT, expiry_s=expiry_s)

    async def _write(self, source: Source, file: IO[bytes]) -> None:
        if source.url:
            allowed, timeout_s = self._transfer.allow_private, min(self._transfer.fetch_s, self._request.deadline_s)
            await download(source.url, file, stored_bytes(source), allow_private=allowed, timeout_s=timeout_s)
        else:
            file.write(source.inline)

    async def _deliver(self, update: Path | bytes, made: DeliveryDetails) -> None:
        blob = await self._blobs.put(update)
        self._check_time()
        await self._owe_balance()
        bill = events.Bill(self.job.assigned.balance_msat)
        if bill.amount_msat and not self._is_paid(BALANCE):
            invoice = await self._invoice(BALANCE, BALANCE_EXPIRY_S)
            bill = events.Bill(invoice.amount_msat, invoice.bolt11)
        output = Output(
            urls=tuple(f"{server.rstrip('/')}/{blob.sha256}" for server in self._transfer.servers),
            sha256=blob.sha256,
            bytes=blob.bytes,
            key=made.key,
            update_sha256=made.sha256,
            update_bytes=made.bytes,
            samples=made.samples,
            loss=made.losses[-1],
        )
        ciphertext = nip44.encrypt(output.to_json(), self._conversation)
        event = events.result(self._keys, self._request, ciphertext, created_at=int(time.time()), bill=bill)
        await self._publish(event)

    async def _say(
        self, status: feedback.Status, *, text: str = "", due: feedback.Due | None = None, ciphertext: str = ""
    ) -> None:
        await self._feed_back(status, text=text, ciphertext=ciphertext)

    async def _feed_back(
        self, status: feedback.Status, *, text: str = "", ciphertext: str = "", bill: events.Bill = events.NO_BILL
    ) -> None:
        event = events.feedback(
            self._keys,
            self._request.id,
            self._request.customer,
            status,
            created_at=int(time.time()),
            text=text,
            bill=bill,
            ciphertext=nip44.encrypt(ciphertext, self._conversation) if ciphertext else "",
        )
        await self._publish(event)
