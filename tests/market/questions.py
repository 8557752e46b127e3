"""Job requests made by hand: what a customer that does not keep to the rules could publish."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from nodewire.nostr.event import Event, sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip13, nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.job import request as job
from nodewire.protocol.job.feedback import Feedback
from nodewire.protocol.job.plan import Plan
from nodewire.protocol.job.request import Request, Ticket
from tests.market.market_process import RunningMarket

WORK_BITS = 8
SALT = "5a" * 32


def seal(**params: Any) -> str:
    """What a request says of tickets with these parameters."""
    return Ticket(request=SALT, params=params, salt=SALT, inputs=()).seal()


def request_event(keys: Keys, base: Request, plan: Plan, *, bits: int = WORK_BITS, **changes: Any) -> Event:
    """A request like `base`, carrying `plan`, signed by `keys` with new work of `bits`."""
    cited = {
        "manifest_address": base.manifest_address,
        "certificate_event": base.certificate_event,
        "partials": base.partials,
        "relays": base.relays,
        "ticket": seal(),
        **changes,
    }
    tags, content = job.tags_and_content(plan, **cited)
    tags.append(["salt", secrets.token_hex(8)])
    at_s = base.created_at
    if bits:
        tags = nip13.mine(keys.public, kinds.INFERENCE, bits, created_at=at_s, content=content, tags=tags)
    return sign(keys, kinds.INFERENCE, created_at=at_s, content=content, tags=tags)


async def send_tickets(pool: Pool, keys: Keys, request: Event, **params: Any) -> None:
    """A ticket from `keys` to every provider that the request names."""
    text = Ticket(request=request.id, params=params, salt=SALT, inputs=()).to_json()
    for provider in request.values("p"):
        now_s = int(time.time())
        rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=text)
        await pool.publish(nip59.wrap(rumor, keys, provider, now_s=now_s, ephemeral=True))


async def answers(pool: Pool, requests: list[Event], count: int, *, timeout_s: float = 10.0) -> list[Feedback]:
    """The first `count` feedback events on any of `requests`."""
    wanted = Filter(kinds=frozenset({kinds.FEEDBACK}), tags={"e": frozenset(r.id for r in requests)})
    came: list[Feedback] = []
    async with asyncio.timeout(timeout_s), pool.subscribe([wanted]) as subscription:
        async for event in subscription:
            came.append(feedback.parse(event))
            if len(came) == count:
                return came
    return came


async def the_request(market: RunningMarket, id_: str) -> Request:
    (event,) = await market.events(Filter(ids=frozenset({id_})))
    return job.parse(event)
