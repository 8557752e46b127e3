"""Pays, beside everything else, what jobs that are over left unpaid: who owes is refused.

A provider may be out of reach when its chunk is paid, or claim a chunk after its job has ended for the customer. The
first purchase of a process sets it going; what earlier processes left, in the ledger or in claims on relays, is paid
within `ROUND_S` of that, beside the job, and told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.customer.payments import debts
from nodewire.customer.payments.job_payments import JobPayments
from nodewire.errors import BadInput, NodewireError
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nodewire.customer.payments.debts import ChunkDebt, DebtOutcome
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.pay.accounts.debts import Debt, Key
    from nodewire.pay.accounts.payer import Payer
    from nodewire.protocol.job.feedback import Feedback

MAX_REMEMBERED = 256
"""Jobs whose late claims are still checked and paid."""
LATE_S = 2.0
"""Within which a late claim must be payable: its chunk has come and was closed, or never will be."""
MAX_LATE = 16
"""Late claims of one provider that are checked and paid at a time. `nodewire wallet settle` finds further ones."""
MAX_TOLD = 256
"""Claims of jobs that are not remembered, which are judged in one turn; `MAX_LATE` of them are of one provider. Keys
that the ledger does not know to be in their job, as a stranger's, have half of them."""
ROUND_S = 5.0
"""Of what earlier jobs left: all that can be paid so long after the first purchase began is paid, and then told."""
_FIRST_S, _LONGEST_S = 1.0, 60.0
_RESOLVE_S = 2.0
log = logging.getLogger("nodewire.customer")


@dataclass(slots=True)
class EarlierDebts:
    """What was paid for earlier jobs than this process's, and what of it is still owed."""

    chunks: int = 0
    paid_msat: int = 0
    fees_msat: int = 0
    unpaid_chunks: int = 0
    unpaid_msat: int = 0

    def __str__(self) -> str:
        parts = []
        if self.chunks:
            parts.append(f"{self.paid_msat / 1000:,.3f} sat paid for {self.chunks} chunks")
        if self.unpaid_chunks:
            owed = f"{self.unpaid_msat / 1000:,.3f} sat still owed for {self.unpaid_chunks} chunks"
            parts.append(f"{owed} (`nodewire wallet settle` tells why)")
        return f"debts of earlier jobs: {', '.join(parts)}"


class Settler:
    """`under_way` are the jobs whose payments are made by themselves, and left alone here."""

    def __init__(
        self,
        pool: EventTransport,
        payer: Payer,
        customer: str,
        *,
        relays: tuple[str, ...],
        network: str,
        private_endpoints: bool,
    ) -> None:
        self.under_way: set[str] = set()
        self._pool = pool
        self._payer = payer
        self._customer = customer
        self._relays = relays
        self._network = network
        self._private_endpoints = private_endpoints
        self._own: set[str] = set()
        """Jobs of this process."""
        self._over = BoundedDict[str, JobPayments](MAX_REMEMBERED)
        self._late: Counter[str] = Counter()
        """By provider, how many of its late claims are being paid."""
        self._told: dict[str, Feedback] = {}
        """Claims of jobs that are not remembered, by their ids, which are not judged yet."""
        self._again: dict[Key, tuple[float, float]] = {}
        """By debt: when it is tried next (monotonic), and the pause after that."""
        self._old = EarlierDebts()
        self._paid: set[str] = set()
        """Payees whose debts have been paid since a job was refused for one."""
        self._begun = asyncio.Event()
        self._caught_up = asyncio.Event()

    def begin(self) -> None:
        """A purchase begins; the first one sets all of this going."""
        self._begun.set()

    def requests(self, request: str) -> None:
        """A job is about to be requested."""
        self.under_way.add(request)
        self._own.add(request)

    def end_job(self, request: str, payments: JobPayments) -> None:
        """A job has ended here; what its providers still claim is checked by its payments."""
        self._payer.end(request, payments.count_owed())
        self.under_way.discard(request)
        self._over[request] = payments

    async def caught_up(self) -> None:
        """Return when what earlier jobs left has been paid as far as it can be.

        That is at most `ROUND_S` after the first purchase began.
        """
        if self._begun.is_set():
            await self._caught_up.wait()

    async def finish(self) -> None:
        """Learn what became of payments that were being made when their job broke off, as far as a moment goes."""
        await self.caught_up()
        with suppress(NodewireError, TimeoutError):
            async with asyncio.timeout(_RESOLVE_S):
                self.recovered(await self._payer.recover())

    def recovered(self, found: Iterable[Debt]) -> None:
        """Payments that were under way when their process ended, and turned out to have been made."""
        for debt in found:
            self._add(debt)

    async def still_owed(self, blamed: Collection[str]) -> set[str]:
        """Those of `blamed` who were paid no debt since a job was last refused for one.

        What is due to them is paid now, but for what could not be paid lately. Waits as `caught_up`, and `ROUND_S` for
        these payments.
        """
        await self.caught_up()
        now = time.monotonic()
        owed = [one for one in self._in_ledger() if one.key.payee in blamed]
        await self._settle([one for one in owed if self._again.get(one.key, (now, 0.0))[0] <= now], ROUND_S)
        paid, self._paid = self._paid & set(blamed), self._paid - set(blamed)
        return set(blamed) - paid

    def take_old(self) -> dict[str, int]:
        """What was paid for earlier jobs since this was last asked, and what is owed; as plain data, in msat."""
        taken, self._old = (
            self._old,
            EarlierDebts(unpaid_chunks=self._old.unpaid_chunks, unpaid_msat=self._old.unpaid_msat),
        )
        return asdict(taken)

    async def run(self) -> None:
        """Pay until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_claims(group))
            group.create_task(self._follow_debts())

    async def _follow_claims(self, group: asyncio.TaskGroup) -> None:
        """Pay what is claimed of jobs that are over. A claim that is told again may be older than this process."""
        said_to_me = Filter(kinds=frozenset({kinds.FEEDBACK}), tags={"p": frozenset({self._customer})})
        wanted = [replace(said_to_me, since=int(time.time())), replace(said_to_me, limit=1)]
        async with self._pool.subscribe(wanted) as events:
            async for event in events:
                try:
                    said = feedback.parse(event)
                    if said.due is not None and said.request not in self.under_way:
                        self._heard(said, group)
                except NodewireError as error:
                    log.info("a late claim by %s is not paid: %r", event.pubkey[:8], error)

    def _heard(self, said: Feedback, group: asyncio.TaskGroup) -> None:
        """See to a late claim, if its provider has not too many of them. Raises BadInput: it cannot be right."""
        payments = self._over.get(said.request)
        if payments is None:
            self._tell(said)
        elif payments.expects(said):
            if self._late[said.provider] >= MAX_LATE:
                log.warning("a late claim by %s is dropped: %d others are being paid", said.provider[:8], MAX_LATE)
                return
            self._late[said.provider] += 1
            group.create_task(self._pay_late(said, payments))

    def _tell(self, said: Feedback) -> None:
        """Have a claim judged by plan and ledger.

        Without any debt of its job nothing is evident; and what more is owed where a process died amid a job is judged
        once a process (`_catch_up`).
        """
        booked = self._payer.debts_of(said.request)
        if not booked or not self._payer.has_ended(said.request):
            return
        same = sum(one.provider == said.provider for one in self._told.values())
        most = MAX_TOLD if said.provider in {debt.key.payee for debt in booked} else MAX_TOLD // 2
        if len(self._told) >= most or same >= MAX_LATE:
            log.warning("a claim by %s is dropped: too many wait", said.provider[:8])
            return
        self._told[said.id] = said

    async def _pay_late(self, said: Feedback, payments: JobPayments) -> None:
        try:
            async with asyncio.timeout(LATE_S):
                await payments.asked(said)
            self._paid.add(said.provider)
        except (NodewireError, TimeoutError) as error:
            log.info("a late claim by %s is not paid: %r", said.provider[:8], error)
        finally:
            self._late -= Counter([said.provider])

    async def _follow_debts(self) -> None:
        await self._begun.wait()
        try:
            await self._catch_up()
        finally:
            self._caught_up.set()
        while True:
            await asyncio.sleep(_FIRST_S)
            await self._judge_told()
            now = time.monotonic()
            owed = self._in_ledger()
            self._again = {one.key: self._again.get(one.key, (now, _FIRST_S)) for one in owed}
            due = [one for one in owed if self._again[one.key][0] <= now]
            for done in await self._settle(due):
                key, pause_s = done.owed.key, self._again[done.owed.key][1]
                self._again[key] = (time.monotonic() + pause_s, min(2 * pause_s, _LONGEST_S))

    async def _catch_up(self) -> None:
        """What earlier processes left: what the ledger knows, then what relays know besides."""
        known, (claimed, left) = await asyncio.gather(self._settle(self._in_ledger(), ROUND_S), self._claimed())
        failed = [one.owed for one in (*known, *claimed) if one.error is not None]
        unpaid = {debt.key for debt in self._payer.unpaid()}  # another process of this customer may have paid it
        left += [one for one in failed if one.key in unpaid or not self._payer.has(one.key)]
        self._old.unpaid_chunks, self._old.unpaid_msat = len(left), sum(one.amount_msat for one in left)
        if self._old != EarlierDebts():
            log.warning("%s", self._old)

    async def _claimed(self) -> tuple[list[DebtOutcome], list[ChunkDebt]]:
        """What became of claims that only relays know of, and those that only a person can judge."""
        until = asyncio.get_running_loop().time() + ROUND_S
        try:
            async with asyncio.timeout_at(until):
                found = await debts.on_relays(self._pool, self._payer, self._customer, briefly=True)
        except (NodewireError, TimeoutError) as error:
            log.info("claims of earlier jobs cannot be looked for: %r", error)
            return [], []
        theirs = [one for one in found if one.key.job not in self._own]
        within_s = max(0.0, until - asyncio.get_running_loop().time())
        done = await self._settle([one for one in theirs if one.is_evident], within_s)
        return done, [one for one in theirs if not one.is_evident and not one.is_broken]

    async def _judge_told(self) -> None:
        """Pay those claims of jobs which are not remembered that plan and ledger say are owed."""
        told, self._told = self._told, {}
        if not told:
            return
        try:
            async with asyncio.timeout(ROUND_S):
                found = await debts.claimed(self._pool, self._payer, self._customer, told.values(), briefly=True)
        except (NodewireError, TimeoutError) as error:
            log.info("claims of earlier jobs cannot be judged yet: %r", error)
            self._told = told | self._told
            return
        await self._settle([one for one in found if one.is_evident], ROUND_S)

    def _in_ledger(self) -> list[ChunkDebt]:
        """What is owed of jobs that are over, but what a payee's credit leaves for later."""
        over = [one for one in debts.in_ledger(self._payer) if one.key.job not in self.under_way]
        due = {payee for payee in {one.key.payee for one in over} if self._payer.is_due(payee)}
        return [one for one in over if one.key.payee in due]

    async def _settle(self, owed: Sequence[ChunkDebt], within_s: float | None = None) -> list[DebtOutcome]:
        done = await debts.settle(
            self._payer,
            owed,
            relays=self._relays,
            network=self._network,
            private_endpoints=self._private_endpoints,
            within_s=within_s,
        )
        self._count(done)
        return done

    def _add(self, paid: Debt) -> None:
        self._paid.add(paid.key.payee)
        if paid.key.job not in self._own:
            self._old.chunks += 1
            self._old.paid_msat += paid.amount_msat
            self._old.fees_msat += paid.fee_msat

    def _count(self, done: Iterable[DebtOutcome]) -> None:
        for one in done:
            key = one.owed.key
            if one.paid is not None:
                self._add(one.paid)
            level = logging.INFO if one.error is None or isinstance(one.error, BadInput) else logging.DEBUG
            log.log(level, "an old debt to %s: %s", key.payee[:8], one.error or "paid")
