"""A node of `bench.network.nat`, on a machine of its own: told what to do on standard input, it says what it has done.

python -m bench.network.nat_node            a node: its first line is {"relay", "waits"}, each further one whom to link
to
python -m bench.network.nat_node --capture  says how many bytes came by, and how often each marker was among them
"""

from __future__ import annotations

import asyncio
import json
import secrets
import select
import socket
import sys
import time
from typing import Any

import uvloop

from nodewire.errors import NodewireError
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, Link, Node, Route
from nodewire.wire.nat import dialback, public_address, rendezvous, strategies
from nodewire.wire.nat.rendezvous import Reach

PORT = 4_000
MARKER = b"nodewire-bench-nat-plaintext-marker"
REPEATS = 1_000
SENT_S = 0.3
_ALL_PROTOCOLS = 3
_PACKET_BYTES = 65_536
_FOUND_S = 10.0


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _node(lines: asyncio.StreamReader) -> None:
    told = json.loads(await lines.readline())
    keys = Keys.generate()
    async with Pool([told["relay"]], keys=keys) as pool:
        node = Node(keys, expect=lambda peer: True)
        listening = await node.listen(port=PORT)
        here: tuple[str, ...] = ()
        outcome = ""
        if told["waits"]:
            splices = await _splices(pool)
            seen = await public_address.look(splices, keys)
            here, _ = await public_address.addresses(listening, seen, upnp=told["upnp"])
            node.ladder = Reach(node, keys, pool, here=splices)
            dialled = await dialback.ask_some(splices, PORT, keys, allow_private=False)
            outcome = dialled.outcome if isinstance(dialled, dialback.DialbackResult) else str(dialled)
        else:
            node.ladder = Reach(node, keys, pool)
        _say({"public": keys.public, "addresses": here, "dialled_back": outcome})
        times = _Times()
        while line := await lines.readline():
            peer, addresses = json.loads(line)
            if peer is None:
                for link in list(node.peers.values()):
                    link.end(NodewireError("bench", "again"))
                _say({})
                continue
            times.exchanged_s = times.punched_s = None
            began_s = time.perf_counter()
            try:
                link = await node.link(peer, addresses)
            except NodewireError as error:
                _say({"error": str(error)})
                continue
            linked_s = time.perf_counter()
            await _mark(node, link)
            _say(
                {"peer": link.peer, "rung": link.rung, "link_ms": _ms(began_s, linked_s), **times.said(linked_s)},
            )


async def _splices(pool: Pool) -> tuple[Any, ...]:
    async with asyncio.timeout(_FOUND_S):
        while True:  # the splice's ad may be on its way
            if found := await public_address.find(pool):
                return found
            await asyncio.sleep(0.1)


async def _mark(node: Node, link: Link) -> None:
    """Send the peer a frame full of markers."""
    job = node.open_job(JobChannelSpec(secrets.token_hex(32), {"edge": Route(node.public, link.peer)}))
    data = MARKER * REPEATS
    await job.put(Frame("edge", 0, (Array("uint8", (len(data),), data),)))
    await asyncio.sleep(SENT_S)
    job.close()


class _Times:
    """When the offers were exchanged here, and when the hole was through: taken from outside, by wrapping."""

    def __init__(self) -> None:
        self.exchanged_s: float | None = None
        self.punched_s: float | None = None
        climb, punch, answer = rendezvous.climb, strategies.punch, strategies.answer  # type: ignore[attr-defined]

        async def climbing(*args: Any, **named: Any) -> Link:
            self.exchanged_s = time.perf_counter()
            return await climb(*args, **named)

        def timed(through: Any) -> Any:
            async def work(*args: Any) -> socket.socket:
                connection: socket.socket = await through(*args)
                self.punched_s = self.punched_s or time.perf_counter()
                return connection

            return work

        rendezvous.climb, strategies.punch, strategies.answer = climbing, timed(punch), timed(answer)  # type: ignore[attr-defined]

    def said(self, linked_s: float) -> dict[str, float]:
        found = {}
        if self.exchanged_s is not None:
            found["linked_after_offers_ms"] = _ms(self.exchanged_s, linked_s)
            if self.punched_s is not None:
                found["punched_after_offers_ms"] = _ms(self.exchanged_s, self.punched_s)
        return found


def _ms(from_s: float, to_s: float) -> float:
    return round((to_s - from_s) * 1_000, 1)


def _capture() -> None:
    """Everything that comes by on this machine, until standard input ends."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as tap:
        tap.settimeout(0.1)
        _say("capturing")
        nbytes = marked = 0
        while True:
            readable, _, _ = select.select([tap, sys.stdin], [], [])
            if tap in readable:
                packet = tap.recv(_PACKET_BYTES)
                nbytes += len(packet)
                marked += packet.count(MARKER)
            elif sys.stdin in readable:
                break
        _say({"bytes": nbytes, "markers": marked})


async def _main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await _node(lines)


if __name__ == "__main__":
    if "--capture" in sys.argv:
        _capture()
    else:
        uvloop.run(_main())
