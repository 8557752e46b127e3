"""The verification share of a job's price: zapped chunk by chunk to whoever keeps the committee's treasury."""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.pay.accounts.debts import Debt, Key
from nodewire.pay.accounts.payer import ZapTerms
from nodewire.pay.bond.bond_holder import BondHolder
from nodewire.pay.bond.settlement import share_msat
from nodewire.pay.lightning import lnurl

if TYPE_CHECKING:
    from nodewire.customer.payments.job_payments import JobPayments
    from nodewire.customer.payments.purse import Purse
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.protocol.job.plan import Plan

log = logging.getLogger("nodewire.customer")


class Shares:
    """One job's shares. What cannot be paid now stays in the ledger, and is paid when its holder can be reached."""

    def __init__(
        self,
        request: str,
        plan: Plan,
        purse: Purse,
        holder: BondHolder | None,
        *,
        grows: bool,
    ) -> None:
        """`grows`: of a generation shares grow with the context."""
        self.paid: dict[int, Debt] = {}
        """By chunk."""
        self.share_msat = share_msat(plan)
        self._request = request
        self._purse = purse
        self._holder = holder
        self._next = 0
        self._plan, self._grows = plan, grows
        self._units = 0
        """Units of the chunks before `_next`."""

    async def follow(self, payments: JobPayments) -> None:
        """Pay each chunk's share when the chunk may be paid, until cancelled."""
        if not self.share_msat:
            return
        for chunk in count(self._next):
            await payments.payable(chunk)
            await self._pay(chunk, payments.units(chunk))

    async def finish(self, payments: JobPayments, last_chunk: int) -> None:
        """Pay what is still due up to the job's last chunk."""
        if self.share_msat:
            for chunk in range(self._next, last_chunk + 1):
                await self._pay(chunk, payments.units(chunk))

    async def _pay(self, chunk: int, units: int) -> None:
        assert self._holder is not None  # where something is verified
        amount_msat = share_msat(self._plan, units, self._units + 1) if self._grows else units * self.share_msat
        purse = self._purse
        try:
            holder = await self._holder.holder()
            fetch = lnurl.over_lnurl(
                holder.lnurl, nostr_pubkey=holder.public, network=purse.network, allow_private=purse.private_endpoints
            )
            key = Key(self._request, holder.public, chunk)
            encoded = lnurl.encode(holder.lnurl)
            self.paid[chunk] = await purse.payer.pay(
                key, amount_msat, fetch, relays=purse.relays, lnurl=encoded, terms=ZapTerms(alone=True)
            )
        except NodewireError as error:
            log.warning("the verification share of chunk %d: %s", chunk, error)
        # Not before: a payment that is cancelled is asked for again, as it was.
        self._next, self._units = chunk + 1, self._units + units
