"""A node of `bench.network.chaos_wire`: echoes frames until its peer is lost, or sends numbered ones on through every
loss."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from nodewire.errors import LinkLost, NodewireError
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, JobMailbox, Node, Route, Spool

JOB = "ef" * 32
FRAME_BYTES = 512
ECHO_S = 0.02
GRACE_S = 60.0
SPOOL_BYTES = 2**30


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def _frame(edge: str, seq: int) -> Frame[Array]:
    return Frame(edge, seq, (Array("uint8", (FRAME_BYTES,), seq.to_bytes(8, "big") * (FRAME_BYTES // 8)),))


def _is_right(frame: Frame[Array], seq: int) -> bool:
    return frame.seq == seq and bytes(frame.tensors[0].data) == bytes(_frame("", seq).tensors[0].data)


async def _echo(mailbox: JobMailbox, mine: str, dials: bool) -> None:
    """Frames to and fro until the peer is lost; says when that was known."""
    seq = 0
    try:
        while True:
            if dials:
                await mailbox.put(_frame(mine, seq))
                await asyncio.sleep(ECHO_S)
            await mailbox.get()
            if not dials:
                await mailbox.put(_frame(mine, seq))
            seq += 1
    except NodewireError:
        _say({"lost_s": time.monotonic()})


async def _send(mailbox: JobMailbox, frames: int, per_s: float) -> None:
    began_s = time.monotonic()
    for seq in range(frames):
        await mailbox.put(_frame("there", seq))
        if (ahead_s := began_s + seq / per_s - time.monotonic()) > 0:
            await asyncio.sleep(ahead_s)


async def _read(mailbox: JobMailbox, frames: int) -> None:
    wrong = 0
    for seq in range(frames):
        wrong += not _is_right(await mailbox.get(), seq)
    _say({"frames": frames, "wrong": wrong})


async def _tell_links(node: Node, peer: str) -> None:
    """Say whenever there is a link again."""
    link = node.peers[peer]
    while True:
        await link.over.wait()
        link = await _next(node, peer)
        _say({"linked_s": time.monotonic()})


async def _next(node: Node, peer: str) -> Any:
    while True:
        try:
            return await node.reach(peer)
        except LinkLost:
            continue


async def _main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    node = Node(Keys.generate())
    _say([node.public, await node.listen(sys.argv[1])])
    told = json.loads(await lines.readline())
    peer, dials = told["to"], told["dials"]
    if dials:
        node.keep(peer, [told["address"]])
    await _next(node, peer)
    first, second = (node.public, peer) if dials else (peer, node.public)
    routes = {"there": Route(first, second), "back": Route(second, first)}
    if told["role"] == "echo":
        mailbox = node.open_job(JobChannelSpec(JOB, routes))
        _say("linked")
        await _echo(mailbox, "there" if dials else "back", dials)
        return
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "spool", SPOOL_BYTES, SPOOL_BYTES)
        mailbox = node.open_job(
            JobChannelSpec(JOB, routes, on_lost=lambda lost, error: None, grace_s=GRACE_S, tape=spool)
        )
        _say("linked")
        if not dials:
            await _read(mailbox, told["frames"])
            return
        telling = asyncio.create_task(_tell_links(node, peer))
        await _send(mailbox, told["frames"], told["per_s"])
        await lines.readline()
        telling.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
