"""Ways through home routers: `python -m bench.network.nat [--json] [--quick]`.

Three machines (`bench.tools.wan`): a node that links, one that is to be reached, and a public one with a relay and a
splice, as `nodewire relay` and `nodewire splice` run them; between the two nodes 60 ms, to the third 30 and 50. The
node that is to be reached finds out by itself what to announce: its address, one that its router opens by UPnP, or
the splice, and has the splice dial it back, as `nodewire doctor` does. Linked are public machines, those behind a NAT
that shows all others the same port (cone), and those behind one that shows each another (symmetric). Every link is
dropped and made again.

The links' times are from the call; those after the offers from when the node that links has the answer to its own. What
goes by at the splice is looked through for a marker of which the tensors are full; the same look finds it in plain TCP.
Where the machine can have no network namespaces, or lacks nftables or miniupnpd, it is skipped, and says why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench.network.nat_node import MARKER
from bench.report import Report, run, spread
from bench.tools.wan import Host, Wan, unavailable
from processes.progress import say

RTT_MS = {("a", "b"): 60.0, ("a", "s"): 30.0, ("b", "s"): 50.0}
PAIRS = {
    "public/public": (Host(), Host(), "address"),
    "cone/public": (Host(nat="cone"), Host(), "address"),
    "public/cone": (Host(), Host(nat="cone"), "punch"),
    "cone/cone": (Host(nat="cone"), Host(nat="cone"), "punch"),
    "cone/symmetric": (Host(nat="cone"), Host(nat="symmetric"), "splice"),
    "symmetric/symmetric": (Host(nat="symmetric"), Host(nat="symmetric"), "splice"),
    "symmetric/UPnP": (Host(nat="symmetric"), Host(nat="cone", upnp=True), "address"),
}
TRIES, CONE_TRIES, QUICK_TRIES = 5, 20, 2
_NODE = [sys.executable, "-m", "bench.network.nat_node"]
_NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
_RELAY_PORT, _SPLICE_PORT = 7_777, 7_790
_DROPPED_S = 0.3
_PLAIN = f"import socket; socket.create_connection(({{!r}}, {_RELAY_PORT})).sendall({MARKER!r} * 10)"


async def measure(report: Report, options: argparse.Namespace) -> None:
    if (why := unavailable(nat=True, upnp=True)) is not None:
        report.skip(why)
        return
    for name, (a, b, rung) in PAIRS.items():
        tries = QUICK_TRIES if report.quick else CONE_TRIES if name == "cone/cone" else TRIES
        with Wan({"a": a, "b": b, "s": Host()}, RTT_MS, seed=report.seed) as wan:
            report.arms[name] = arm = await _linked(wan, tries, upnp=b.upnp)
        say(f"{name}: {arm['rungs']}, {arm['link_ms']['p50']} ms {arm['errors'] or ''}")
        report.line(f"{name}: links by {rung}, right npub", arm["rungs"].get(rung, 0), "==", tries)
        outcome = "open" if b.nat is None or b.upnp else "silent"
        report.line(f"{name}: dialled back, {outcome}", int(arm["dialled_back"] == outcome), "==", 1)
        if rung == "splice":
            report.line(f"{name}: longest link, s", round((arm["link_ms"]["max"] or 1e9) / 1_000, 3), "<=", 1.5)
            report.line(f"{name}: markers at the splice", arm["capture"]["markers"], "==", 0)
            report.line(f"{name}: bytes at the splice", arm["capture"]["bytes"], ">=", tries * len(MARKER) * 1_000)
            report.line(f"{name}: markers of plain TCP", arm["plain"]["markers"], ">=", 1)
    cone = report.arms["cone/cone"]["punched_after_offers_ms"]["max"]
    report.line(
        "cone/cone: longest punch after the offers, round trips", round((cone or 1e9) / RTT_MS["a", "b"], 2), "<=", 3
    )


async def _linked(wan: Wan, tries: int, *, upnp: bool) -> dict[str, Any]:
    """What the links from a to b were made by, and took."""
    async with _served(wan) as relay, _talk(wan, "a", _NODE) as a, _talk(wan, "b", _NODE) as b:
        here = await b.asked({"relay": relay, "waits": True, "upnp": upnp})
        await a.asked({"relay": relay, "waits": False})
        found, errors, wrong = [], [], 0
        async with _talk(wan, "s", [*_NODE, "--capture"]) as capture:
            await capture.said()
            for _ in range(tries):
                link = await a.asked([here["public"], here["addresses"]])
                if "error" in link:
                    errors.append(link["error"])
                elif link["peer"] != here["public"]:
                    wrong += 1
                else:
                    found.append(link)
                    await a.asked([None, []])
                    await asyncio.sleep(_DROPPED_S)
            captured = await capture.ended()
        async with _talk(wan, "s", [*_NODE, "--capture"]) as capture:
            await capture.said()
            plain = await wan.machine("a").start([sys.executable, "-c", _PLAIN.format(wan.ip["s"])])
            await plain.wait()
            await asyncio.sleep(_DROPPED_S)
            in_plain = await capture.ended()
    rungs = [link["rung"] for link in found]
    return {
        "announced": here["addresses"],
        "dialled_back": here["dialled_back"],
        "rungs": {rung: rungs.count(rung) for rung in sorted(set(rungs))},
        "errors": errors,
        "wrong": wrong,
        **{
            name: spread([link[name] for link in found if name in link])
            for name in ("link_ms", "punched_after_offers_ms", "linked_after_offers_ms")
        },
        "capture": captured,
        "plain": in_plain,
    }


class _Talk:
    """A process that answers every line with a line."""

    def __init__(self, process: asyncio.subprocess.Process, what: str) -> None:
        self._process = process
        self._what = what

    async def asked(self, what: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.said()

    async def said(self) -> Any:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        if not line:
            raise OSError(f"{self._what} has ended")
        return json.loads(line)

    async def ended(self) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self.said()


@asynccontextmanager
async def _talk(wan: Wan, machine: str, command: list[str]) -> AsyncIterator[_Talk]:
    process = await wan.machine(machine).start(command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    try:
        yield _Talk(process, f"{machine}: {' '.join(command[1:4])}")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def _served(wan: Wan) -> AsyncIterator[str]:
    """A relay and a splice on the third machine; the relay's URL."""
    ip = wan.ip["s"]
    with tempfile.TemporaryDirectory(prefix="nodewire-nat-") as folder:
        there = Path(folder)
        beside = ["--db", str(there / "relay.db"), "--blobs", str(there / "blobs")]
        relay = [*_NODEWIRE, "relay", "--host", ip, "--port", str(_RELAY_PORT), *beside, "--json"]
        async with _talk(wan, "s", relay) as talk:
            url = (await talk.said())["url"]
            splice = ["splice", "--key", str(there / "key"), "--relay", url, "--listen", f"{ip}:{_SPLICE_PORT}"]
            async with _talk(wan, "s", [*_NODEWIRE, *splice, "--json"]) as talk:
                await talk.said()
                yield url


if __name__ == "__main__":
    run(Path(__file__).stem, __doc__, measure)
