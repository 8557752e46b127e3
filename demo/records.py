"""What anybody can read: the relay's events by plain NIP-01, its database file, and the bonds' holder's books."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import websockets


def plaintext_hits(folder: Path, relay_events: list[str], secrets: list[str]) -> int:
    """How often one of `secrets` occurs in the relay's database files or in any event that it serves."""
    dumps = [path.read_bytes() for path in folder.glob("relay.db*")] + [e.encode() for e in relay_events]
    needles = [form for s in secrets for form in {s.encode(), json.dumps(s)[1:-1].encode()}]
    return sum(dump.count(needle) for dump in dumps for needle in needles)


async def events(url: str, **wanted: object) -> list[dict]:
    """The stored events of one filter (NIP-01), newest first, as the relay serves them to an anonymous reader."""
    found = []
    async with websockets.connect(url, max_size=2**22) as socket:
        await socket.send(json.dumps(["REQ", "demo", wanted]))
        while True:
            message = json.loads(await asyncio.wait_for(socket.recv(), 180))
            if message[0] == "EVENT":
                found.append(message[2])
            elif message[0] in ("EOSE", "CLOSED"):
                return found


async def relay_events(url: str) -> list[str]:
    """Every event that the relay serves."""
    return [json.dumps(event) for event in await events(url, limit=5000)]


@asynccontextmanager
async def next_plan(url: str, customer: str) -> AsyncIterator[asyncio.Task[dict]]:
    """The plan in the next request (8843) of `customer` (public key), once the relay has it."""
    async with websockets.connect(url, max_size=2**22) as socket:
        await socket.send(json.dumps(["REQ", "demo", {"kinds": [8843], "authors": [customer], "limit": 0}]))

        async def plan() -> dict:
            while (message := json.loads(await socket.recv()))[0] != "EVENT":
                continue
            return json.loads(message[2]["content"])["plan"]

        coming = asyncio.create_task(plan())
        try:
            yield coming
        finally:
            coming.cancel()


async def certified(url: str, requests: list[str]) -> dict[str, dict]:
    """The committee's certified verdicts (8852) on these jobs, by their topic `verdict/...`: verdict, and who voted."""
    found: dict[str, dict] = {}
    for event in await events(url, kinds=[8852], **{"#e": requests}):
        topic = next(tag[1] for tag in event["tags"] if tag[0] == "n")
        said = json.loads(event["content"])
        # Several oracles may publish one certificate; the one with the most votes tells most.
        if topic not in found or len(said["votes"]) > len(found[topic]["votes"]):
            found[topic] = said
    return found


async def held(simnet: str, path: str) -> dict:
    """What the holder says at `path`, such as `bonds/<public key>` or `cases/<case>`; empty if it knows no such."""
    async with aiohttp.ClientSession() as session, session.get(f"{simnet}/v1/{path}") as answer:
        if answer.status == 404:
            return {}
        answer.raise_for_status()
        return await answer.json()
