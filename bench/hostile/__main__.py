"""A market under floods: `python -m bench.hostile [--json] [--quick] [--only ARM]`.

A market of public commands; beside it an honest bystander with an address of its own (loopback has many), which
pings a provider over the wire, asks the relay, and every so often opens a new websocket and uploads a small blob. Where
there is a gateway, it buys a short completion again and again.

Each arm measures a quiet span and one as long under a flood, in slices by turns, so that what else the machine does is
in both. A flood comes from another address and process, and gets the cores that nobody else wants: what counts is the
work that it makes for others.

Figures, per arm:
- epochs: certified ones of all that ended in the span.
- ping_ms: round trips over an open link to a provider.
- req_ms: from a REQ to its EOSE, over an open websocket.
- turned_away: new websockets, uploads and completions of the bystander that failed.
- chat_ms: from a completion's request to its end.
- flood: what the flood did; that it struck is an acceptance line, too.

An arm is one line in `ARMS` and a function in a module beside this one (`bench.hostile.flood`). Each way of attack that
was known has an arm here, or a test:

| attack | arm or test |
|---|---|
| trickled uploads that hold all slots, until a committee stops | trickled_uploads |
| idle websockets that fill a relay | idle_websockets |
| answers and blobs that nobody reads | slow_readers |
| COUNTs that starve the queries of others | count_loop |
| wrong signatures; events as large as may be | bad_signatures, big_events |
| filters by the thousand; empty deletions; index entries; tiny blobs | tests/attacks/input/test_relay_hoarders.py |
| ads and beats of keys without a bond | strangers_beats |
| FILLER, and DATA for unknown jobs | wire_filler, wire_filler_bytes, wire_unknown_jobs |
| documents that take long to read | wire_documents |
| handshakes, half ones, links that say nothing | wire_handshakes, wire_half_open, wire_links |
| completions by the hundred | gateway_requests |
| slowloris; streams that nobody reads | gateway_connections, gateway_unread |
| zap requests for jobs that never were | lnurl_callbacks |
| HTTP that is malformed | tests/attacks/input/test_malformed_http.py, tests/pay/lightning/test_lnurl.py |
| free Sybils, bonded or not | tests/attacks/market/test_claims_and_free_keys.py |
| hostile templates; a lying oracle | test_hostile_templates.py, test_withheld_beacons.py |
| an upload that is redirected | tests/store/test_store_blobs.py |
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from websockets.asyncio.client import ClientConnection, connect

from bench.hostile import flood_http, flood_relay, flood_wire
from bench.hostile.flood import Flood, Target, flooding
from bench.report import Report, percentile, run, spread
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nipb7
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.committee import quorum_certificate
from nodewire.protocol.market.ad import parse as parse_ad
from nodewire.wire import Node
from nodewire.wire.framing import frames
from nodewire.wire.link.link import Link
from processes.market import Market
from processes.progress import say

PROVIDERS = 4
EPOCH_S = 3.0
"""Relay, oracles, providers, bystander and flood share this machine's cores."""
SPAN_S, QUICK_SPAN_S = 45.0, 12.0
SLICES = 3
"""Of each span, quiet and flooded by turns."""
BYSTANDER = "127.0.0.2"
PING_S, REQ_S, VISIT_S, CHAT_S = 0.05, 0.1, 1.0, 1.0
CERTIFIED, PING_MS, SLOWER = 0.95, 50.0, 10.0
_SETTLING_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Arm:
    """`flood` runs in another process. Of what it counts, `struck` must not be 0. `prepare` starts what else it needs
    in the market, and tells the flood of it (`Target.extra`)."""

    flood: Flood
    struck: str
    prepare: Callable[[Market], Awaitable[dict[str, str]]] | None = None


ARMS = {
    "idle_websockets": Arm(flood_relay.idle_websockets, "opened"),
    "slow_readers": Arm(flood_relay.slow_readers, "blobs unread"),
    "count_loop": Arm(flood_relay.count_loop, "answers", flood_relay.many_events),
    "trickled_uploads": Arm(flood_relay.trickled_uploads, "begun"),
    "big_events": Arm(flood_relay.big_events, "sent"),
    "bad_signatures": Arm(flood_relay.bad_signatures, "sent"),
    "strangers_beats": Arm(flood_relay.strangers_beats, "beats"),
    "wire_filler": Arm(flood_wire.wire_filler, "sent"),
    "wire_filler_bytes": Arm(flood_wire.wire_filler_bytes, "sent"),
    "wire_unknown_jobs": Arm(flood_wire.wire_unknown_jobs, "sent"),
    "wire_documents": Arm(flood_wire.wire_documents, "sent"),
    "wire_links": Arm(flood_wire.wire_links, "linked"),
    "wire_handshakes": Arm(flood_wire.wire_handshakes, "linked"),
    "wire_half_open": Arm(flood_wire.wire_half_open, "sent"),
    "gateway_requests": Arm(flood_http.gateway_requests, "sent", flood_http.gateway),
    "gateway_connections": Arm(flood_http.gateway_connections, "sent", flood_http.gateway),
    "gateway_unread": Arm(flood_http.gateway_unread, "sent", flood_http.gateway),
    "lnurl_callbacks": Arm(flood_http.lnurl_callbacks, "sent", flood_http.lnurl),
}


@dataclass(slots=True)
class Seen:
    """What the bystander saw, in slices of a span that each began and ended at a Unix time."""

    slices_s: list[tuple[float, float]] = field(default_factory=list)
    ping_ms: list[float] = field(default_factory=list)
    req_ms: list[float] = field(default_factory=list)
    chat_ms: list[float] = field(default_factory=list)
    visits: int = 0
    turned_away: Counter[str] = field(default_factory=Counter)


class Bystander:
    """An honest node with a link to a provider and a websocket to the relay. Use as `async with`."""

    def __init__(self, target: Target) -> None:
        self._relay, self._blossom, self._gateway = target.relay, target.blossom, target.extra.get("gateway")
        self._provider, self._addresses = target.provider, target.addresses
        self._keys = Keys.generate()
        self._node = Node(self._keys)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Bystander:
        self._stack.push_async_callback(self._node.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def look(self, seconds: float, seen: Seen) -> None:
        """Measure for so long."""
        acts = [(self._ping, PING_S), (self._ask, REQ_S), (self._visit, VISIT_S)]
        if self._gateway is not None:
            acts.append((self._buy, CHAT_S))
        began_s = time.time()
        looking = [asyncio.create_task(self._again(act, pause_s, seen)) for act, pause_s in acts]
        done, pending = await asyncio.wait(looking, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        seen.slices_s.append((began_s, time.time()))
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()

    async def _again(self, act: Callable[[Seen, AsyncExitStack], Awaitable[None]], pause_s: float, seen: Seen) -> None:
        async with AsyncExitStack() as stack:
            await act(seen, stack)
            while True:
                await asyncio.sleep(pause_s)
                await act(seen, stack)

    async def _ping(self, seen: Seen, _: AsyncExitStack) -> None:
        """One round trip; one that never ends counts with the time that it was waited for."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(5):
                link = await self._node.link(self._provider, self._addresses)
                began = time.perf_counter()
                await _pong(link)
        except Exception as error:  # noqa: BLE001 - whatever turns the visitor away is counted
            seen.turned_away[f"ping: {type(error).__name__}"] += 1
        seen.ping_ms.append((time.perf_counter() - began) * 1_000)

    async def _ask(self, seen: Seen, stack: AsyncExitStack) -> None:
        if not hasattr(self, "_socket"):
            self._socket: ClientConnection = await stack.enter_async_context(self._dial())
            stack.callback(self.__delattr__, "_socket")
        began = time.perf_counter()
        authors = [os.urandom(32).hex() for _ in range(40)]
        await self._socket.send(orjson.dumps(["REQ", "q", {"authors": authors, "kinds": [7], "limit": 10}]).decode())
        async with asyncio.timeout(30):
            while orjson.loads(await self._socket.recv())[0] not in ("EOSE", "CLOSED"):
                pass
        seen.req_ms.append((time.perf_counter() - began) * 1_000)

    async def _visit(self, seen: Seen, _: AsyncExitStack) -> None:
        """As somebody new: a websocket, and an upload."""
        seen.visits += 1
        try:
            async with asyncio.timeout(20), self._dial() as socket:
                await socket.recv()
        except Exception as error:  # noqa: BLE001 - whatever turns the visitor away is counted
            seen.turned_away[f"websocket: {type(error).__name__}"] += 1
        body, now_s = os.urandom(1_000), int(time.time())
        sha256 = hashlib.sha256(body).hexdigest()
        token = nipb7.build_token(self._keys, "upload", now_s=now_s, expires_at_s=now_s + 60, hashes=[sha256])
        try:
            connector = aiohttp.TCPConnector(local_addr=(BYSTANDER, 0))
            async with asyncio.timeout(20), aiohttp.ClientSession(connector=connector) as http:
                headers = {"Authorization": nipb7.to_header(token)}
                async with http.put(f"{self._blossom}/upload", data=body, headers=headers) as answer:
                    if answer.status != 200:
                        seen.turned_away[f"upload: {answer.status}"] += 1
        except Exception as error:  # noqa: BLE001 - whatever turns the visitor away is counted
            seen.turned_away[f"upload: {type(error).__name__}"] += 1

    async def _buy(self, seen: Seen, _: AsyncExitStack) -> None:
        began = time.perf_counter()
        try:
            connector = aiohttp.TCPConnector(local_addr=(BYSTANDER, 0))
            async with asyncio.timeout(60), aiohttp.ClientSession(connector=connector) as http:
                url, asked = f"{self._gateway}/v1/completions", flood_http.completion(4)
                async with http.post(url, json=asked) as answer:
                    await answer.read()
                    if answer.status != 200:
                        seen.turned_away[f"completion: {answer.status} {(await answer.text())[:80]}"] += 1
        except Exception as error:  # noqa: BLE001 - whatever turns the visitor away is counted
            seen.turned_away[f"completion: {type(error).__name__}"] += 1
        seen.chat_ms.append((time.perf_counter() - began) * 1_000)

    def _dial(self) -> connect:
        return connect(self._relay, compression=None, open_timeout=20, local_addr=(BYSTANDER, 0))


async def _pong(link: Link) -> None:
    """Wait for the answer to a heartbeat that is sent now."""
    pulse = link._pulse
    tag = pulse.ping(time.perf_counter())
    link._send_urgent(frames.ping(tag))
    while tag in pulse._pings:
        await asyncio.sleep(0.001)
        if not link.is_open:
            raise ConnectionError("the link is lost")


async def measure(report: Report, options: argparse.Namespace) -> None:
    span_s = options.seconds or (QUICK_SPAN_S if report.quick else SPAN_S)
    chosen = options.only or list(ARMS)
    with tempfile.TemporaryDirectory(prefix="nodewire-hostile-") as folder:
        async with Market(Path(folder), providers=PROVIDERS, epoch_s=EPOCH_S) as market:
            hostile = await market.customer_config("hostile")
            provider = market.providers["provider-0"].public
            ad = (await market.events(Filter(kinds=frozenset({kinds.AD}), authors=frozenset({provider}))))[0]
            addresses = tuple(parse_ad(ad).wire)
            for name in chosen:
                prepare = ARMS[name].prepare
                extra = {} if prepare is None else await prepare(market)
                manifest = str(market.models["pycoder"]["address"])
                target = Target(
                    market.relay, market.blossom, provider, addresses, manifest, str(hostile), 10 * span_s, extra
                )
                async with Bystander(target) as bystander:
                    await _measured(report, market, bystander, name, target, span_s)


async def _measured(
    report: Report, market: Market, bystander: Bystander, name: str, target: Target, span_s: float
) -> None:
    await bystander.look(1.0, Seen())  # links are made
    quiet, under, counts = Seen(), Seen(), Counter[str]()
    for number in range(SLICES):
        say(f"{name}: slice {number + 1} of {SLICES}")
        await bystander.look(span_s / SLICES, quiet)
        async with flooding(name, target) as counted:
            await bystander.look(span_s / SLICES, under)
        counts += counted
        await asyncio.sleep(_SETTLING_EPOCHS * market.epoch_s)
    arm: dict[str, Any] = {"flood": dict(counts)}
    for when, seen in (("quiet", quiet), ("flooded", under)):
        certified, all_ = await _epochs(market, seen)
        arm[when] = {
            "epochs": {"certified": certified, "of": all_},
            "ping_ms": {**spread(seen.ping_ms), "p99": percentile(seen.ping_ms, 99)},
            "req_ms": {**spread(seen.req_ms), "p99": percentile(seen.req_ms, 99)},
            "chat_ms": spread(seen.chat_ms) if seen.chat_ms else {},
            "visits": seen.visits,
            "turned_away": dict(seen.turned_away),
        }
    report.arms[name] = arm
    quiet_p99, p99 = percentile(quiet.req_ms, 99), percentile(under.req_ms, 99)
    epochs = arm["flooded"]["epochs"]
    report.line(f"{name}: struck", counts[ARMS[name].struck], ">=", 1)
    report.line(f"{name}: epochs certified", epochs["certified"] / max(1, epochs["of"]), ">=", CERTIFIED)
    report.line(f"{name}: ping p99, ms", percentile(under.ping_ms, 99), "<=", PING_MS)
    report.line(f"{name}: REQ p99 over quiet", p99 / quiet_p99 if p99 and quiet_p99 else None, "<=", SLOWER)
    report.line(f"{name}: bystander turned away", sum(under.turned_away.values()), "==", 0)
    if under.chat_ms:
        report.line(f"{name}: requests reset", counts["reset"] + counts["503 without Retry-After"], "==", 0)
    say(f"{name}: {epochs}, REQ p99 {p99} ms, quiet {quiet_p99} ms, {dict(counts)}, {dict(under.turned_away)}")


async def _epochs(market: Market, seen: Seen) -> tuple[int, int]:
    """Of the epochs that ended in a span, those that were certified; and all of them."""
    ended = {e for began_s, end_s in seen.slices_s for e in range(market.epoch_at(began_s), market.epoch_at(end_s))}
    since_s = int(seen.slices_s[0][0]) - 1
    events = await market.events(Filter(kinds=frozenset({kinds.CERTIFICATE}), since=since_s))
    return len({quorum_certificate.parse(event).body.epoch for event in events} & ended), len(ended)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=list(ARMS), help="one arm; may be given several times")
    parser.add_argument("--seconds", type=float, default=0, help=f"of a span; {SPAN_S:.0f}, or {QUICK_SPAN_S:.0f}")


if __name__ == "__main__":
    run("hostile", __doc__, measure, add=_options)
