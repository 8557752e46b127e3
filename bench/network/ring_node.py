"""A node of `bench.network.ring`, on a machine of its own: told what to do on standard input, it says what it has
done."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Any

import uvloop

from nodewire.errors import LinkLost
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, JobMailbox, LinkPolicy, Node, Patience, Route
from nodewire.wire.link import link
from nodewire.wire.transport.tcp import TcpTls

JOB = "ab" * 32
FRAME_BYTES = 65_536
PAUSE_S = 1.0
OPEN_S = 0.5
DEPTH = 4
NEVER_S = 3_600.0


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _heard(lines: asyncio.StreamReader) -> Any:
    return json.loads(await lines.readline())


async def _ring(lines: asyncio.StreamReader) -> None:
    keys = Keys.generate()
    _say(keys.public)
    plan = await _heard(lines)
    index, ring = plan["index"], plan["ring"]
    patience, transport = Patience(), TcpTls()
    if not plan["is_hot"]:
        link.WARM_UP_BYTES = 0
        patience, transport = Patience(heartbeat_s=NEVER_S, silence_s=NEVER_S), TcpTls(congestion="cubic")
    node = Node(keys, policy=LinkPolicy(patience=patience, transport=transport))
    host, port = ring[index][1].split(":")
    await node.listen(host, int(port))
    _say("listening")
    await lines.readline()
    after = (index + 1) % len(ring)
    mine = await node.link(ring[after][0], [ring[after][1]])
    before = ring[index - 1][0]
    await node.reach(before)
    await asyncio.sleep(PAUSE_S)
    routes = {f"edge.{i}": Route(public, ring[(i + 1) % len(ring)][0]) for i, (public, _) in enumerate(ring)}
    mailbox = node.open_job(JobChannelSpec(JOB, routes))
    await asyncio.sleep(OPEN_S)
    _say("linked")
    await lines.readline()
    with suppress(LinkLost):  # the bench is over
        while index:
            frame = await mailbox.get()
            await mailbox.put(Frame(f"edge.{index}", frame.seq, frame.tensors))
    if not index:
        _say({**await _measured(mailbox, plan["turns"], plan["deep_turns"]), "congestion": mine.congestion})


async def _measured(mailbox: JobMailbox, turns: int, deep_turns: int) -> dict[str, Any]:
    memory = bytes(FRAME_BYTES)
    tensors = (Array("uint8", (FRAME_BYTES,), memory),)
    sent_s: dict[int, float] = {}

    async def begin() -> None:
        seq = len(sent_s)
        sent_s[seq] = time.perf_counter()
        await mailbox.put(Frame("edge.0", seq, tensors))

    async def end() -> float:
        frame = await mailbox.get()
        if bytes(frame.tensors[0].data) != memory:
            raise AssertionError("other bytes came back")
        return (time.perf_counter() - sent_s[frame.seq]) * 1_000

    took_ms = []
    for _ in range(turns + 1):
        await begin()
        took_ms.append(await end())
        if len(took_ms) % 5 == 0:
            await asyncio.sleep(PAUSE_S)
    began_s = time.perf_counter()
    for _ in range(DEPTH):
        await begin()
    for _ in range(deep_turns):
        await end()
        await begin()
    per_s = deep_turns / (time.perf_counter() - began_s)
    return {"first_ms": took_ms[0], "turns_ms": took_ms[1:], "per_s": per_s}


async def _main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await _ring(lines)


if __name__ == "__main__":
    uvloop.run(_main())
