"""The job request's event: plan, citations, salt, and the work that its providers ask for."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from nodewire.nostr import event as events
from nodewire.nostr.nips import nip13
from nodewire.protocol import kinds
from nodewire.protocol.job import request

if TYPE_CHECKING:
    from nodewire.customer.planning.planner import Draw
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys


async def signed(
    keys: Keys, drawn: Draw, *, manifest_address: str, relays: tuple[str, ...], ticket: str, bits: int
) -> Event:
    """The request for what was drawn, signed by the customer, with `bits` of work."""
    tags, content = request.tags_and_content(
        drawn.plan,
        manifest_address=manifest_address,
        certificate_event=drawn.certificate,
        partials=drawn.partials,
        relays=relays,
        ticket=ticket,
    )
    # The same plan bought twice in one second would be one event, and so one job.
    tags.append(["salt", secrets.token_hex(8)])
    now_s = int(time.time())
    if bits:
        tags = await asyncio.to_thread(_mine, keys.public, bits, created_at=now_s, content=content, tags=tags)
    return events.sign(keys, kinds.INFERENCE, created_at=now_s, content=content, tags=tags)


def _mine(public: str, bits: int, *, created_at: int, content: str, tags: list[list[str]]) -> list[list[str]]:
    mined = nip13.mine(public, kinds.INFERENCE, bits, created_at=created_at, content=content, tags=tags)
    return [list(tag) for tag in mined]
