"""What is settled when a job's outputs have ended: payments, the verification shares, receipts."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nodewire.customer.payments.receipts import receipts_for
from nodewire.errors import NodewireError
from nodewire.protocol.job import receipt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from nodewire.customer.job.provider_events import Answers
    from nodewire.customer.payments.job_payments import JobPayments
    from nodewire.customer.payments.verification_share import Shares
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.job.plan import Plan

LATE_CLAIMS_S = 0.3
"""How long after a job's failure its providers may still claim what they had completed."""
LINGER_S = 3.0
"""How long the payment of those claims may take."""
SETTLE_S = 30.0
"""How long after the last output payments and receipts may take."""
log = logging.getLogger("nodewire.customer")


async def pay_what_came(payments: JobPayments, gone: Collection[str]) -> None:
    """A job that failed half-way is paid as far as it came: who leaves a chunk unpaid is refused later.

    Who is `gone` is paid when it can be, and not waited for: what is bought next may wait for this.
    """
    await payments.close()
    if payments.failed or not payments.may_owe():
        return
    try:
        async with asyncio.timeout(LINGER_S):
            await asyncio.sleep(LATE_CLAIMS_S)
            await payments.claims_settled(gone)
            await payments.pay_tabs()
    except TimeoutError:
        log.warning("what a failed job still owed could not be paid in time")


async def settle(
    payments: JobPayments, shares: Shares, sharing: asyncio.Task[None], answers: Answers, last_chunk: int
) -> set[str]:
    """Wait for the last payments and the providers' receipts. `sharing` is what has paid the shares until now.

    Returns the providers that were waited for in vain: they asked for no payment, or gave no result or receipt.
    """
    try:
        async with asyncio.timeout(SETTLE_S):
            await payments.settled(last_chunk)
            await payments.pay_tabs()
            sharing.cancel()
            await asyncio.gather(sharing, return_exceptions=True)
            await shares.finish(payments, last_chunk)
            await answers.complete(lambda: payments.paid.values())
    except TimeoutError:
        silent = payments.unclaimed(last_chunk) or answers.lacking(payments.paid.values())
        named = ", ".join(sorted(provider[:8] for provider in silent))
        log.warning("some providers asked for no payment or gave no receipt in time: %s", named)
        return silent
    return set()


async def give_receipts(
    keys: Keys,
    request: str,
    plan: Plan,
    payments: JobPayments,
    answers: Answers,
    publish: Callable[[Event], Awaitable[None]],
) -> list[Event]:
    """Publish the customer's receipts for a job, as far as relays take them; `receipt_finalizer` gives the others.

    All is made and paid: a job that is over does not fail by its relays.
    """
    given: list[Event] = []
    for provider in plan.providers():
        for one in receipts_for(provider, request, plan, payments.paid, answers.zap_receipts):
            event = receipt.build(keys, one, created_at=int(time.time()))
            try:
                await publish(event)
            except NodewireError as error:
                log.warning("job %s: its receipts are not all given yet: %s", request[:8], error)
                return given
            given.append(event)
    return given
