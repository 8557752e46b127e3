"""Paying deposits and balances."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost, NodewireError
from nodewire.pay.accounts.debts import Key
from nodewire.training.customer.machine.events import ResultPayment
from nodewire.training.protocol.round import DEPOSIT

if TYPE_CHECKING:
    from nodewire.training.customer.market.context import Course

log = logging.getLogger("nodewire.customer")

_AGAIN_S = 2.0


async def pay(course: Course, request: str, provider: str, part: int) -> None:
    """Pay a deposit or a balance, however often it takes: what is owed stays owed, but deposits for what is over."""
    row = course.state.debts[request, provider].row
    amount_msat = row.deposit_msat if part == DEPOSIT else row.balance_msat
    url, pause_s = row.lnurl, _AGAIN_S
    while part != DEPOSIT or course.state.debts[request, provider].deposit == "owed":  # or its work is over
        try:
            debt = await course.session.pay(Key(request, provider, part), amount_msat, url)
        except NodewireError as error:
            log.warning("%d msat to %s are not paid yet: %s", amount_msat, provider[:8], error)
            course.refused[provider] = isinstance(error, LinkLost) and error.field == "lnurl"
            course.changed.set()
            await asyncio.sleep(pause_s)
            pause_s = min(60.0, 2 * pause_s)
            url = await _endpoint(course, provider, url)
            continue
        course.refused.pop(provider, None)
        course.hearing.record(request, provider)  # until now it had nothing to say
        course.record(ResultPayment(request, provider, part, amount_msat, debt.fee_msat))
        return


async def _endpoint(course: Course, provider: str, known: str) -> str:
    """Where a provider is paid now: it may have been restarted elsewhere."""
    try:
        ad = (await course.ads.now()).get(provider)
    except NodewireError:
        return known
    return ad.lnurl if ad is not None and ad.lnurl else known
