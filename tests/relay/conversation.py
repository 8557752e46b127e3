"""A client for tests: says exactly what it is told to, and reads what comes back."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager

from websockets.asyncio.client import connect

from nodewire.nostr.event import Event, sign
from nodewire.nostr.keys import Keys

ALICE, BOB = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
NOW = int(time.time())


def note(keys=ALICE, kind=1, *, ago=0, content="", tags=()) -> Event:
    return sign(keys, kind, created_at=NOW - ago, content=content, tags=tags)


class Talk:
    def __init__(self, socket):
        self.socket = socket
        self._numbers = itertools.count()

    async def say(self, *message):
        await self.socket.send(json.dumps(message))

    async def hear(self):
        """The next message; AUTH challenges, which a relay may send at any time, are kept aside."""
        while True:
            message = json.loads(await asyncio.wait_for(self.socket.recv(), 5))
            if message[0] != "AUTH":
                return message
            self.challenge = message[1]

    async def until(self, verb):
        """The next message with this verb, and those before it."""
        before = []
        while (message := await self.hear())[0] != verb:
            before.append(message)
        return message, before

    async def publish(self, event: Event | dict):
        """(accepted, message) of the OK."""
        data = event.as_dict() if isinstance(event, Event) else event
        await self.say("EVENT", data)
        ok, _ = await self.until("OK")
        assert ok[1] == data["id"]
        return ok[2], ok[3]

    async def ask(self, *filters, name=None):
        """Ids of the stored events, in the order sent. Under a `name`, the subscription stays open."""
        own = name or f"ask {next(self._numbers)}"
        await self.say("REQ", own, *filters)
        end, before = await self.until("EOSE")
        assert end == ["EOSE", own]
        if name is None:
            await self.say("CLOSE", own)
        return [message[2]["id"] for message in before if message[:2] == ["EVENT", own]]

    async def count(self, *filters):
        await self.say("COUNT", "c", *filters)
        answer, _ = await self.until("COUNT")
        return answer[2]["count"]


@asynccontextmanager
async def talk(url):
    async with connect(url, compression=None, max_queue=None) as socket:
        yield Talk(socket)
