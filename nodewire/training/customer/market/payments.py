"""Paying deposits and balances."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost, NodewireError, NotAllowed
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.payer import PAID
from nodewire.training.customer.machine.events import ResultPayment
from nodewire.training.protocol.round import DEPOSIT

if TYPE_CHECKING:
    from nodewire.training.customer.market.context import Course

log = logging.getLogger("nodewire.customer")

_AGAIN_S = 2.0


async def pay(course: Course, request: str, provider: str, part: int) -> None:
    """Pay a deposit or a balance, however often it takes: what is owed stays owed, but deposits for what is over."""
    row = course.state.debts[request, provider].row
    key, amount_msat = Key(request, provider, part), row.deposit_msat if part == DEPOSIT else row.balance_msat
    url, unit_msat, pause_s = row.lnurl, row.unit_msat, _AGAIN_S
    while part != DEPOSIT or course.state.debts[request, provider].deposit == "owed":  # or its work is over
        try:
            fee_msat = await _fee_msat(course, key, amount_msat, url, unit_msat)
        except NodewireError as error:
            log.warning("%d msat to %s are not paid yet: %s", amount_msat, provider[:8], error)
            course.refused[provider] = isinstance(error, LinkLost) and error.field == "lnurl"
            course.changed.set()
            await asyncio.sleep(pause_s)
            pause_s = min(60.0, 2 * pause_s)
            url, unit_msat = await _endpoint(course, provider, url, unit_msat)
            continue
        course.refused.pop(provider, None)
        course.hearing.record(request, provider)  # until now it had nothing to say
        course.record(ResultPayment(request, provider, part, amount_msat, fee_msat))
        return


def forget_deposits(course: Course) -> None:
    """Owe none of the deposits that were not paid before their work was over.

    What was paid ahead may have settled one at its provider, whose answer was lost: then it is spent.
    """
    ledger = course.session.ledger
    for (request, provider), debt in course.state.debts.items():
        key = Key(request, provider, DEPOSIT)
        if debt.deposit == "none" and ledger.has_debt(key) and ledger.debt(key).state not in ("paying", "paid"):
            ledger.settle_by_ahead(key)
            ledger.forgive(key)


async def _fee_msat(course: Course, key: Key, amount_msat: int, url: str, unit_msat: int) -> int:
    """Pay a part; what routing it has cost. Raises as `TrainingSession.pay`."""
    try:
        return (await course.session.pay(key, amount_msat, url, unit_msat)).fee_msat
    except NotAllowed as error:
        if error.field != PAID:
            raise
        return 0  # its provider has it paid, whatever this customer's ledger says


async def _endpoint(course: Course, provider: str, known: str, known_msat: int) -> tuple[str, int]:
    """Where a provider is paid now, and in multiples of what (msat): it may have been restarted elsewhere."""
    try:
        ad = (await course.ads.now()).get(provider)
    except NodewireError:
        return known, known_msat
    return (ad.lnurl, ad.unit_msat) if ad is not None and ad.lnurl else (known, known_msat)
