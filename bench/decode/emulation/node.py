"""A machine of `bench.decode`'s ring over the internet, the driver's (the first) or a stage's, told by its
input.

Sessions are jobs of the wire. A frame's rows have 1 KiB each, of which the first eight bytes are computed with
(`bench.decode.emulation.truth`); that a stage computes is a wait that occupies it.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from bench.decode.emulation.arms import Driver
from bench.decode.emulation.cells import Back, Sent
from bench.decode.emulation.drivers import driver_of
from bench.decode.emulation.stage import Moving, Stage
from bench.decode.emulation.truth import token_of
from bench.network.transition_node import lines, say
from nodewire.errors import NodewireError
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame, Meta
from nodewire.wire import JobChannelSpec, JobMailbox, LinkPolicy, Node, Patience, Route

WIDTH = 512
ROW_BYTES = 2 * WIDTH
SETTLED_S = 0.5
SILENCE_S = 30.0
"""Nobody dies here, but a busy machine may leave a process waiting for long."""
_SHARP_S = 0.0015
"""What is left of a wait when it is no longer the event loop's, whose timers are coarse."""
_SPUN_S = 0.00015
"""What is left of it when the processor is kept busy, as it would be: who sleeps is woken 0.1 ms late, and cold."""


def array_of(xs: Sequence[int]) -> Array:
    memory = bytearray(len(xs) * ROW_BYTES)
    for row, x in enumerate(xs):
        struct.pack_into("<Q", memory, row * ROW_BYTES, x)
    return Array("bfloat16", (1, len(xs), WIDTH), memory)


def rows_of(frame: Frame[Array]) -> tuple[int, ...]:
    [array] = frame.tensors
    return tuple(struct.unpack_from("<Q", array.data, row * ROW_BYTES)[0] for row in range(array.shape[1]))


def _numbers(raw: Any) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 2}h", raw)


def meta_of(sent: Sent) -> Meta:
    meta: dict[str, int | str | bytes | bool | None] = {"pos": sent.pos, "chunk": 0, "tokens": len(sent.tokens)}
    meta["epoch"] = sent.epoch
    if sent.parents is not None:
        meta["parents"] = struct.pack(f"<{len(sent.parents)}h", *sent.parents)
        meta["keep"] = struct.pack(f"<{len(sent.keep)}h", *sent.keep)
    return meta


def sent_of(frame: Frame[Array]) -> Sent:
    meta: Any = frame.meta
    parents = _numbers(meta["parents"]) if "parents" in meta else None
    keep = _numbers(meta["keep"]) if "keep" in meta else ()
    return Sent(frame.seq, meta["pos"], (), meta["epoch"], parents, keep)


async def until(at_s: float) -> None:
    left_s = at_s - time.perf_counter()
    if left_s > 2 * _SHARP_S:
        await asyncio.sleep(left_s - _SHARP_S)
    time.sleep(max(0.0, at_s - _SPUN_S - time.perf_counter()))  # noqa: ASYNC251 (who computes hears nothing)
    while time.perf_counter() < at_s:
        pass


class Station:
    """A stage's side of a run: several sessions, one stage."""

    def __init__(self, index: int, last: int, plan: dict[str, Any], mailboxes: Sequence[JobMailbox]) -> None:
        self._index, self._mailboxes = index, mailboxes
        self._out = f"back.{index}" if plan["relayed"] and index == last else f"edge.{index}"
        self._stage = Stage(plan["stage_ms"], batches=plan["batches"])
        self._came = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._compute())
            for session in range(len(self._mailboxes)):
                group.create_task(self._listen(session))

    async def _listen(self, session: int) -> None:
        mailbox = self._mailboxes[session]
        while True:
            frame = await mailbox.get()
            if frame.edge.startswith("back"):
                await mailbox.put(Frame(f"back.{self._index}", frame.seq, frame.tensors, frame.meta))
            else:
                self._stage.come(Moving(session, sent_of(frame), rows_of(frame)))
                self._came.set()

    async def _compute(self) -> None:
        free_s = 0.0
        while True:
            if (took_ms := self._stage.begin()) is None:
                self._came.clear()
                await self._came.wait()
                free_s = time.perf_counter()
                continue
            free_s += took_ms / 1_000
            await until(free_s)
            for moving in self._stage.end():
                frame = Frame(self._out, moving.sent.seq, (array_of(moving.xs),), self._meta(moving))
                await self._mailboxes[moving.session].put(frame)

    @staticmethod
    def _meta(moving: Moving) -> Meta:
        return {**meta_of(moving.sent), "tokens": len(moving.xs)}


async def _driven(driver: Driver, mailbox: JobMailbox, tokens: int) -> list[float]:
    """When each token came, in seconds, the first being there as it begins."""

    async def send(frames: Sequence[Sent]) -> None:
        for one in frames:
            await mailbox.put(Frame("edge.0", one.seq, (array_of(one.tokens),), meta_of(one)))

    came_s = [time.perf_counter()]
    await send(driver.start(came_s[0] * 1_000))
    while len(came_s) < tokens:
        frame = await mailbox.get()
        now_s = time.perf_counter()
        frames = driver.returned(Back(frame.seq, tuple(map(token_of, rows_of(frame)))), now_s * 1_000)
        came_s += [now_s] * (len(driver.tokens) - len(came_s))
        await send(frames)
    return came_s


async def _drive(plan: dict[str, Any], mailboxes: Sequence[JobMailbox]) -> list[dict[str, Any]]:
    """Of each session that has a number of tokens to make; the others go on until those are through."""
    made = [driver_of(session) for session in plan["sessions"]]
    tasks = [
        asyncio.create_task(_driven(driver, mailbox, session["tokens"] or 10**9))
        for (driver, _), mailbox, session in zip(made, mailboxes, plan["sessions"], strict=True)
    ]
    timed = [task for task, session in zip(tasks, plan["sessions"], strict=True) if session["tokens"]]
    try:
        await asyncio.gather(*timed)
    finally:
        for task in tasks:
            task.cancel()
    found = []
    for (driver, truth), task, session in zip(made, tasks, plan["sessions"], strict=True):
        if session["tokens"]:
            differ = sum(a != b for a, b in zip(driver.tokens, truth.tokens(len(driver.tokens)), strict=True))
            found.append({"came_s": task.result(), "differ": differ})
    return found


async def main() -> None:
    heard = await lines()
    keys = Keys.generate()
    say(keys.public)
    known = json.loads(await heard.readline())
    index, ring = known["index"], known["ring"]
    node = Node(keys, policy=LinkPolicy(patience=Patience(silence_s=SILENCE_S)))
    host, port = ring[index][1].split(":")
    await node.listen(host, int(port))
    say("listening")
    await heard.readline()
    after = (index + 1) % len(ring)
    await node.link(ring[after][0], [ring[after][1]])
    await node.reach(ring[index - 1][0])
    await asyncio.sleep(SETTLED_S)
    say("linked")
    publics = [public for public, _ in ring]
    routes = {f"edge.{i}": Route(public, publics[(i + 1) % len(ring)]) for i, public in enumerate(publics)}
    routes |= {f"back.{i}": Route(publics[i], publics[i - 1]) for i in range(1, len(ring))}
    while line := await heard.readline():
        plan = json.loads(line)
        mailboxes = [node.open_job(JobChannelSpec(session["job"], routes)) for session in plan["sessions"]]
        say("open")
        await heard.readline()
        if index:
            working = asyncio.create_task(Station(index, len(ring) - 1, plan, mailboxes).run())
            await heard.readline()
            working.cancel()
            ended = (await asyncio.gather(working, return_exceptions=True))[0]
            say("done" if isinstance(ended, asyncio.CancelledError) else repr(ended))
        else:
            try:
                say(await _drive(plan, mailboxes))
            except NodewireError as error:
                say(f"{error.code}: {error}")
            await heard.readline()
            say("done")
        for mailbox in mailboxes:
            mailbox.close()


if __name__ == "__main__":
    uvloop.run(main())
