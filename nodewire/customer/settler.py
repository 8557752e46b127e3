"""Pays, beside everything else, what jobs that are over left unpaid: who owes is refused.

A provider may be out of reach when its chunk is paid, or claim a chunk after its job has ended for the customer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

from nodewire.customer import debts
from nodewire.customer.payments import JobPayments
from nodewire.errors import BadInput, NodewireError
from nodewire.nostr.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.debts import Key
from nodewire.pay.payer import Payer
from nodewire.protocol import feedback, kinds
from nodewire.protocol.feedback import Feedback

MAX_REMEMBERED = 256
"""Jobs whose late claims are still checked and paid."""
LATE_S = 2.0
"""Within which a late claim must be payable: its chunk has come and was closed, or never will be."""
_FIRST_S, _LONGEST_S = 1.0, 60.0
log = logging.getLogger("nodewire.customer")


class Settler:
    """`under_way` are the jobs whose payments are made by themselves, and left alone here."""

    def __init__(
        self, pool: Pool, payer: Payer, customer: str, *, relays: tuple[str, ...], network: str, private_endpoints: bool
    ) -> None:
        self.under_way: set[str] = set()
        self._pool = pool
        self._payer = payer
        self._customer = customer
        self._relays = relays
        self._network = network
        self._private_endpoints = private_endpoints
        self._over: OrderedDict[str, JobPayments] = OrderedDict()
        self._again: dict[Key, tuple[float, float]] = {}
        """By debt: when it is tried next (monotonic), and the pause after that."""

    def over(self, request: str, payments: JobPayments) -> None:
        """A job has ended here; what its providers still claim is checked by its payments."""
        self.under_way.discard(request)
        self._over[request] = payments
        while len(self._over) > MAX_REMEMBERED:
            self._over.popitem(last=False)

    async def run(self) -> None:
        """Pay until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_claims())
            group.create_task(self._follow_ledger())

    async def _follow_claims(self) -> None:
        mine = {"p": frozenset({self._customer})}
        wanted = Filter(kinds=frozenset({kinds.FEEDBACK}), tags=mine, since=int(time.time()))
        async with self._pool.subscribe([wanted]) as events:
            async for event in events:
                try:
                    said = feedback.parse(event)
                    if said.due is not None and said.request in self._over:
                        await self._late(said, self._over[said.request])
                except (NodewireError, TimeoutError) as error:
                    log.info("a late claim by %s is not paid: %r", event.pubkey[:8], error)

    async def _late(self, said: Feedback, payments: JobPayments) -> None:
        if payments.expects(said):
            async with asyncio.timeout(LATE_S):
                await payments.asked(said)

    async def _follow_ledger(self) -> None:
        while True:
            await asyncio.sleep(_FIRST_S)
            now = time.monotonic()
            owed = [one for one in debts.in_ledger(self._payer) if one.key.job not in self.under_way]
            self._again = {one.key: self._again.get(one.key, (now, _FIRST_S)) for one in owed}
            due = [one for one in owed if self._again[one.key][0] <= now]
            for done in await debts.settle(
                self._payer,
                due,
                relays=self._relays,
                network=self._network,
                private_endpoints=self._private_endpoints,
            ):
                key, pause_s = done.owed.key, self._again[done.owed.key][1]
                self._again[key] = (time.monotonic() + pause_s, min(2 * pause_s, _LONGEST_S))
                level = logging.INFO if done.error is None or isinstance(done.error, BadInput) else logging.DEBUG
                log.log(level, "an old debt to %s: %s", key.payee[:8], done.error or "paid")
