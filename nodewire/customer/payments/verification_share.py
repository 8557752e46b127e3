"""The verification share of a job's price: paid to whoever keeps the committee's treasury, as chunks come."""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.pay.bond.settlement import share_msat

if TYPE_CHECKING:
    from nodewire.customer.payments.job_payments import JobPayments
    from nodewire.customer.payments.share_account import ShareAccount
    from nodewire.pay.accounts.debts import Debt
    from nodewire.protocol.job.plan import Plan

log = logging.getLogger("nodewire.customer")


class Shares:
    """One job's shares. What cannot be paid now stays in the ledger, and is paid when its holder can be reached."""

    def __init__(self, request: str, plan: Plan, account: ShareAccount | None, *, grows: bool) -> None:
        """`grows`: of a generation shares grow with the context."""
        self.paid: dict[int, Debt] = {}
        """By chunk."""
        self.share_msat = share_msat(plan)
        self._request = request
        self._account = account
        self._next = 0
        self._plan, self._grows = plan, grows
        self._units = 0
        """Units of the chunks before `_next`."""

    async def follow(self, payments: JobPayments) -> None:
        """Pay each chunk's share when the chunk may be paid, until cancelled."""
        if not self.share_msat:
            return
        if self._account is not None:
            self._account.hand_over()  # what an earlier process left
        for chunk in count(self._next):
            await payments.payable(chunk)
            await self._pay(chunk, payments.units(chunk))

    async def finish(self, payments: JobPayments, last_chunk: int) -> None:
        """Pay what is still due up to the job's last chunk."""
        if self.share_msat:
            for chunk in range(self._next, last_chunk + 1):
                await self._pay(chunk, payments.units(chunk))
            if self._account is not None:
                await self._account.handed_over()

    async def _pay(self, chunk: int, units: int) -> None:
        assert self._account is not None  # where something is verified
        amount_msat = share_msat(self._plan, units, self._units + 1) if self._grows else units * self.share_msat
        try:
            self.paid[chunk] = await self._account.pay(self._request, chunk, amount_msat)
        except NodewireError as error:
            log.warning("the verification share of chunk %d: %s", chunk, error)
        # Not before: a payment that is cancelled is asked for again, as it was.
        self._next, self._units = chunk + 1, self._units + units
