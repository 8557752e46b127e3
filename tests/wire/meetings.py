"""A relay, a splice, and nodes on this machine that announce nothing but the splice; splices that lie, by hand."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import relay
from nodewire.nostr.event import parse
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.wire import LinkPolicy, Node
from nodewire.wire.nat.rendezvous import Reach
from nodewire.wire.nat.splice_client import message
from nodewire.wire.nat.splice_server import Splicer


@dataclass
class Meetings:
    folder: Path
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    url: str = ""

    async def open(self) -> None:
        config = relay.Config(host="127.0.0.1", port=0, db=self.folder / "relay.db", blobs=self.folder / "blobs")
        self.url = (await self.stack.enter_async_context(relay.serve(config))).url

    async def splice(self, host: str = "127.0.0.1", **options) -> tuple[Splicer, SpliceAddress]:
        keys = Keys.generate()
        splicer = Splicer(keys.public, **options)
        self.stack.push_async_callback(splicer.close)
        return splicer, SpliceAddress(keys.public, await splicer.listen(host))

    async def liar(self, lie: "Lie") -> SpliceAddress:
        """A splice that says how it sees an end, and then does what `lie` does with the connections of a room."""
        return SpliceAddress(Keys.generate().public, await _lying(self.stack, lie))

    async def pool(self, keys: Keys) -> Pool:
        return await self.stack.enter_async_context(Pool([self.url], keys=keys))

    async def node(self, keys: Keys | None = None, *, private: bool = True, here=(), **options) -> Node:
        keys = keys or Keys.generate()
        pool = await self.pool(keys)
        policy = {name: options.pop(name) for name in LinkPolicy.__slots__ if name in options}
        node = Node(keys, policy=LinkPolicy(**policy), **options)
        self.stack.push_async_callback(node.close)
        node.ladder = Reach(node, keys, pool, here=here, allow_private=private)
        return node

    async def pair(self, here: SpliceAddress, *, dials_lower: bool = True, **options) -> tuple[Node, Node]:
        """Who asks and who is met at `here`; whether the one who asks is the end that dials."""
        one, other = sorted((Keys.generate(), Keys.generate()), key=lambda keys: keys.public)
        asking, met = (one, other) if dials_lower else (other, one)
        b = await self.node(met, here=[here], expect=lambda peer: True, **options)
        return await self.node(asking, **options), b


Ends = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
Lie = Callable[[Ends], Awaitable[None]]


async def _lying(stack: contextlib.AsyncExitStack, lie: Lie) -> str:
    rooms: dict[str, Ends] = {}
    lying: set[asyncio.Task] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big")))
        host, port = writer.get_extra_info("peername")
        writer.write(message({"seen": f"{host}:{port}"}))
        ends = rooms.setdefault(request.tag("room"), [])
        ends.append((reader, writer))
        if len(ends) == 2:
            for _, other in ends:
                other.write(message({"met": True}))
            lying.add(asyncio.create_task(lie(ends)))

    server = await asyncio.start_server(serve, "127.0.0.1")

    async def close() -> None:
        server.close()
        for task in lying:
            task.cancel()
        await asyncio.gather(*lying, return_exceptions=True)
        for ends in rooms.values():
            for _, writer in ends:
                writer.transport.abort()

    stack.push_async_callback(close)
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"


async def copied(source: asyncio.StreamReader, sink: asyncio.StreamWriter, change=lambda data: data) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            sink.write(change(data))
