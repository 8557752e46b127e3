"""A customer's account at the treasury's holder: lumps paid ahead, and statements of the shares that they pay."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NotAllowed
from nodewire.pay.accounts.debts import Debt, Key
from nodewire.pay.accounts.dues import CreditTerms
from nodewire.pay.accounts.payer import ZapTerms
from nodewire.pay.lightning import lnurl
from nodewire.protocol.job.share_statement import MAX_CHUNKS, ShareStatement
from nodewire.protocol.market.ad import MAX_UNIT_MSAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodewire.customer.payments.purse import Purse
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bond_holder import BondHolder, Holder

_FIRST_S, _LONGEST_S = 0.2, 60.0
"""Between two tries to hand over what was paid: the first pause, and the longest."""
_FAREWELL_S = 2.0
log = logging.getLogger("nodewire.customer")


class ShareAccount:
    """One customer's. A share that is paid stays in the ledger until the holder has its statement.

    Shares that are paid while a statement is on its way go together into the next.
    """

    def __init__(self, keys: Keys, purse: Purse, holder: BondHolder) -> None:
        self._keys, self._purse, self._port = keys, purse, holder
        self._holder: Holder | None = None
        self._sending: asyncio.Task[None] | None = None

    async def pay(self, request: str, chunk: int, amount_msat: int) -> Debt:
        """Pay a chunk's share out of what was paid ahead, or by a new lump. Raises as `Payer.pay`."""
        holder = await self._known_holder()
        purse = self._purse
        fetch = lnurl.over_lnurl(
            holder.lnurl, nostr_pubkey=holder.public, network=purse.network, allow_private=purse.private_endpoints
        )
        unit_msat = min(holder.unit_msat, MAX_UNIT_MSAT)  # the holder's word: what is rounded up is paid ahead
        terms = ZapTerms(is_prepaid=True, credit=CreditTerms(unit_msat=unit_msat))
        key, encoded = Key(request, holder.public, chunk), lnurl.encode(holder.lnurl)
        try:
            paid = await purse.payer.pay(key, amount_msat, fetch, relays=purse.relays, lnurl=encoded, terms=terms)
        except NodewireError:
            self._holder = None  # it may have moved
            raise
        self.hand_over()
        return paid

    def hand_over(self) -> None:
        """Have the holder hear of all that was paid, also by earlier processes. Nobody waits for it."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def handed_over(self, within_s: float = _FAREWELL_S) -> None:
        """Return when the holder has heard of all, or after so long."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending}, timeout=within_s)

    async def close(self) -> None:
        """Statements that the holder has not heard of by then stay in the ledger for the next process."""
        await self.handed_over()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        pause_s = _FIRST_S
        while True:
            try:
                if not await self._send_once():
                    return
                pause_s = _FIRST_S
            except NodewireError as error:
                self._holder = None
                log.info("the treasury's holder has not heard of all shares yet: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_S, 2 * pause_s)

    async def _send_once(self) -> bool:
        """Whether there was anything to hand over. Raises what may be tried again."""
        holder = await self._known_holder()
        unstated = self._purse.payer.unstated(holder.public)
        for run in _runs(unstated):
            first, shares = run[0].key, [debt.amount_msat for debt in run]
            said = ShareStatement.sign(
                self._keys, request=first.job, holder=holder.public, chunk=first.chunk, shares=shares
            )
            try:
                await self._port.book_shares(said)
            except NotAllowed as error:  # it was told otherwise before, and never takes this
                log.warning("shares of job %s from chunk %d on: %s", first.job[:8], first.chunk, error)
            self._purse.payer.stated([debt.key for debt in run])
        return bool(unstated)

    async def _known_holder(self) -> Holder:
        if self._holder is None:
            self._holder = await self._port.holder()
        return self._holder


def _runs(debts: Sequence[Debt]) -> Iterator[list[Debt]]:
    """The debts, by job and chunk, in runs of one job's chunks without a gap, as one statement has."""
    run: list[Debt] = []
    for debt in debts:
        follows = bool(run) and (debt.key.job, debt.key.chunk) == (run[-1].key.job, run[-1].key.chunk + 1)
        if run and (not follows or len(run) >= MAX_CHUNKS):
            yield run
            run = []
        run.append(debt)
    if run:
        yield run
