"""Claims that were written down and not told: this process died between the two, or no relay took them then."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.nostr.event import Event, parse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodewire.pay.accounts.ledger import Ledger

EVERY_S = 20.0
TO_PAY_S = 30
"""Which a customer has from then on."""
log = logging.getLogger("nodewire.provider")


async def claim_again(ledger: Ledger, publish: Callable[[Event], Awaitable[None]]) -> None:
    """Tell them, now and every EVERY_S, until cancelled. One that a job is just telling is the same event."""
    while True:
        for key, claim in ledger.untold():
            try:
                await publish(parse(claim))
            except (NodewireError, TimeoutError) as error:
                log.info("the claim of chunk %d of job %s is not told: %s", key.chunk, key.job[:8], error)
                break
            ledger.mark_claimed(key, int(time.time()) + TO_PAY_S)
        await asyncio.sleep(EVERY_S)
