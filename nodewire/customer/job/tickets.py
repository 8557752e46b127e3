"""A purchase's tickets: what every provider needs to know and nobody else may read."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, TooLarge
from nodewire.nostr.nips import nip59
from nodewire.protocol import kinds
from nodewire.protocol.job import request as job

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nodewire.kind import Params
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.tensors.frame import Array, Frame

_EVERY_S = 1.0
_UNKNOWN = "0" * 64
log = logging.getLogger("nodewire.customer")


class Tickets:
    """The same parameters, salt and hashes of inputs for every request that the purchase takes.

    Raises TooLarge: one of them alone, such as a schema, is within its bounds, and all together are too much.
    """

    def __init__(self, keys: Keys, params: Params, inputs: Sequence[Frame[Array]]) -> None:
        self._keys = keys
        self._params = params
        self._salt = secrets.token_hex(32)
        self._contents = tuple((frame.edge, frame.seq, job.content_of(frame)) for frame in inputs)
        if (size := len(self.make_ticket(_UNKNOWN).to_json())) > job.Ticket.MAX_BYTES:
            raise TooLarge("params", f"{size} bytes with all that a ticket has, at most {job.Ticket.MAX_BYTES}")

    def seal(self) -> str:
        """What the request says of them."""
        return self.make_ticket(_UNKNOWN).seal()

    def make_ticket(self, request: str) -> job.Ticket:
        return job.Ticket(request=request, params=dict(self._params), salt=self._salt, inputs=self._contents)

    async def send(self, request: str, provider: str, heard: Collection[str], pool: EventTransport) -> None:
        """Send the provider its ticket until it is among those that were heard of."""
        ticket = self.make_ticket(request)
        while provider not in heard:
            now_s = int(time.time())
            rumor = nip59.rumor(self._keys.public, kinds.TICKET, created_at=now_s, content=ticket.to_json())
            wrap = nip59.wrap(rumor, self._keys, provider, now_s=now_s, ephemeral=True)
            try:
                await pool.publish(wrap, timeout_s=5.0)
            except NodewireError as error:
                log.debug("ticket: %s", error)
            await asyncio.sleep(_EVERY_S)
