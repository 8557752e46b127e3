"""Floods of a relay and its blob store, each from one address (`bench.hostile`)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from websockets.asyncio.client import ClientConnection, connect

from bench.hostile.flood import GREEDY, Target, local, together
from nodewire.config import load_role
from nodewire.market import open_market
from nodewire.nostr.event import Event, sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nipb7
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import heartbeat as beats
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.heartbeat import Beat
from processes.market import Market

_SOCKETS = 2_200
_SLOW_SOCKETS, _SLOW_READERS = 64, 200
_COUNTERS = 24
_STORED = 20_000
_WRITING = tuple(f"127.0.0.{n}" for n in range(32, 40))
_UPLOADS = 80
_WRITERS = 8
_BEATING = 300


def _dial(target: Target) -> connect:
    return connect(
        target.relay, compression=None, max_size=None, open_timeout=20, local_addr=(GREEDY[0], 0), ping_interval=None
    )


def _event(keys: Keys, content: str, kind: int = 1) -> Event:
    return sign(keys, kind, created_at=int(time.time()), content=content)


def _grant(keys: Keys, sha256: str) -> str:
    now_s = int(time.time())
    return nipb7.to_header(nipb7.build_token(keys, "upload", now_s=now_s, expires_at_s=now_s + 3_600, hashes=[sha256]))


async def idle_websockets(target: Target, counts: Counter[str]) -> None:
    """More websockets than the relay has room for; each is opened again when it is closed."""

    async def hold() -> None:
        while True:
            try:
                async with _dial(target) as socket:
                    counts["opened"] += 1
                    with suppress(Exception):
                        while True:
                            await socket.recv()
                    counts["closed"] += 1
            except Exception:  # noqa: BLE001 - any refusal counts
                counts["refused"] += 1
            await asyncio.sleep(2)

    await together(*(hold() for _ in range(_SOCKETS)))


async def slow_readers(target: Target, counts: Counter[str]) -> None:
    """Queries and blobs that are asked for and never read."""
    data = os.urandom(8 << 20)
    sha256, keys = hashlib.sha256(data).hexdigest(), Keys.generate()
    connector = aiohttp.TCPConnector(local_addr=(GREEDY[0], 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        headers = {"Authorization": _grant(keys, sha256)}
        async with http.put(f"{target.blossom}/upload", data=data, headers=headers) as answer:
            counts[f"upload {answer.status}"] += 1
    host, _, port = local(target.blossom).partition(":")

    async def fetch() -> None:
        while True:
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=(GREEDY[0], 0), limit=1_024)
            writer.write(f"GET /{sha256} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            head = await reader.readline()
            counts["blobs unread" if b" 200 " in head else "blobs refused"] += 1
            await asyncio.sleep(30)
            writer.transport.abort()

    async def ask() -> None:
        async with _dial(target) as socket:
            for n in range(200):
                await socket.send(orjson.dumps(["REQ", f"s{n}", {"limit": 500}]).decode())
                counts["queries unread"] += 1
            socket.transport.pause_reading()
            await asyncio.sleep(target.seconds)

    await together(*(fetch() for _ in range(_SLOW_READERS)), *(ask() for _ in range(_SLOW_SOCKETS)))


async def many_events(market: Market) -> dict[str, str]:
    """Events for COUNT to look at, by addresses that do nothing else."""
    authors = [Keys.generate() for _ in range(200)]

    async def write(address: str) -> None:
        async with connect(market.relay, compression=None, local_addr=(address, 0)) as socket:
            for n in range(_STORED // len(_WRITING)):
                keys, other = authors[n % len(authors)], authors[(n * 7 + 1) % len(authors)]
                tags = [["p", other.public], ["e", os.urandom(32).hex()]]
                event = sign(keys, 1 + 6 * (n % 2), created_at=int(time.time()) - n, content=address, tags=tags)
                await socket.send(orjson.dumps(["EVENT", event.as_dict()]).decode())
                if n % 100 == 99:
                    await asyncio.sleep(0)
            stored = 0
            async for said in socket:
                stored += orjson.loads(said)[0] == "OK"
                if stored == _STORED // len(_WRITING):
                    return

    await asyncio.gather(*(write(address) for address in _WRITING))
    return {"stored": str(_STORED)}


async def count_loop(target: Target, counts: Counter[str]) -> None:
    """COUNTs that no index answers, one after the other on many connections."""

    def heavy() -> str:
        keys = [os.urandom(32).hex() for _ in range(200)]
        filters: list[dict[str, Any]] = [{}, {"#p": keys, "kinds": [1, 7]}, {"since": 1}, {"until": 2**40}]
        filters += [{"authors": keys[n::8], "#e": keys[:40]} for n in range(8)]
        return orjson.dumps(["COUNT", "c", *filters]).decode()

    async def loop(number: int) -> None:
        async with _dial(target) as socket:
            asked = heavy()
            for _ in range(20):
                await socket.send(asked)
            while True:
                counts[str(orjson.loads(await socket.recv())[0])] += 1
                counts["answers"] += 1
                await socket.send(asked)

    await together(*(loop(n) for n in range(_COUNTERS)))


async def trickled_uploads(target: Target, counts: Counter[str]) -> None:
    """More uploads than the store takes at a time, a byte a second each, of two hundred keys."""
    host, _, port = local(target.blossom).partition(":")
    grants = [_grant(Keys.generate(), "0" * 64) for _ in range(_UPLOADS)]

    async def upload(grant: str) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(GREEDY[0], 0))
                head = f"PUT /upload HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: {grant}\r\n"
                writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode())
                counts["begun"] += 1
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            counts[(await reader.readline()).decode()[9:12] or "closed"] += 1
                            break
                writer.close()
            except OSError:
                counts["closed"] += 1
            await asyncio.sleep(0.5)

    await together(*(upload(grant) for grant in grants))


async def big_events(target: Target, counts: Counter[str]) -> None:
    """Events as large as may be, of ever new keys."""
    body = "x" * 60_000

    async def loop() -> None:
        async with _dial(target) as socket:
            writing = asyncio.create_task(_write(socket, body, counts))
            try:
                async for said in socket:
                    verb, *rest = orjson.loads(said)
                    if verb == "OK":
                        counts["taken" if rest[1] else str(rest[2]).partition(":")[0]] += 1
            finally:
                writing.cancel()

    await together(*(loop() for _ in range(_WRITERS)))


async def _write(socket: ClientConnection, body: str, counts: Counter[str]) -> None:
    while True:
        event = _event(Keys.generate(), body + os.urandom(8).hex())
        await socket.send(orjson.dumps(["EVENT", event.as_dict()]).decode())
        counts["sent"] += 1


async def bad_signatures(target: Target, counts: Counter[str]) -> None:
    """Events whose signatures are wrong, over connections that are opened again."""

    async def loop() -> None:
        event = _event(Keys.generate(), "x").as_dict()
        while True:
            with suppress(Exception):
                async with _dial(target) as socket:
                    counts["connections"] += 1
                    for _ in range(64):
                        forged = {**event, "sig": os.urandom(64).hex()}
                        await socket.send(orjson.dumps(["EVENT", forged]).decode())
                        counts["sent"] += 1
                    with suppress(TimeoutError):
                        async with asyncio.timeout(2):
                            async for _ in socket:
                                counts["answered"] += 1
            await asyncio.sleep(0.05)

    await together(*(loop() for _ in range(2 * _WRITERS)))


async def strangers_beats(target: Target, counts: Counter[str]) -> None:
    """Ads and beats, in every epoch, of keys without a bond that serve nothing."""
    async with AsyncExitStack() as stack:
        _, pool, market = await open_market(stack, load_role(Path(target.role)))
        following = asyncio.create_task(market.run())
        stack.callback(following.cancel)
        digest = (await market.manifest(target.manifest)).digest()
        await market.epoch(timeout_s=30)
        task = TaskOffer(task="stage.0", price_msat=1, us_per_position=1)
        offer = ManifestOffer(manifest=digest, tasks=(task,), slots=4)
        said = Ad(name="x", manifests=(offer,), wire=("127.0.0.1:9",), committees=(market.committee_digest,))
        all_keys = [Keys.generate() for _ in range(_BEATING)]
        ad_ids: dict[str, str] = {}
        while True:
            for keys in all_keys:
                now_s = int(time.time())
                if keys.public not in ad_ids:
                    ad = ads.build(keys, said, created_at=now_s)
                    ad_ids[keys.public] = ad.id
                    counts["ads"] += await _is_taken(pool, ad)
                epoch = market.committee.epoch_at(now_s * 1_000)
                beat = Beat(
                    committee=market.committee_digest, last=market.last_body(), epoch=epoch, ad=ad_ids[keys.public],
                    load_ppm=0, free={digest: 4}, coordinates=(0, 0, 0),
                )  # fmt: skip
                event = beats.build(keys, beat, created_at=now_s, expires_at_s=now_s + 30)
                counts["beats"] += await _is_taken(pool, event)


async def _is_taken(pool: Any, event: Event) -> bool:
    try:
        await pool.publish(event, timeout_s=5)
    except Exception:  # noqa: BLE001 - any refusal counts
        return False
    return True
