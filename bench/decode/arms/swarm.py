"""A ring that computes for real, for `bench.decode`: `nodewire provider --swarm` on six of Shard's machines.

Each has a layer of the demo's decoder on one thread, WA drives besides, and who asks sits there. Utah only passes on
what goes from Missouri to Washington. The cores here stand for all six machines, so that computing takes its share.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.decode.draft import MODEL, ROOT, prompts
from bench.report import Report
from bench.tools.lines import said
from bench.tools.wan import SHARD_MS, Host, Wan
from nodewire.nostr.keys import Keys
from processes.progress import say

NAMES = ("WA", "NV", "TX", "WA2", "MN", "MO")
RTT_MS = {pair: SHARD_MS[pair] for pair in pairwise(NAMES)} | {
    ("MO", "WA"): SHARD_MS["MO", "UT"] + SHARD_MS["UT", "WA"]
}
LOOKAHEAD = 32
ARMS: dict[str, tuple[int, bool]] = {"plain": (1, False), "text": (LOOKAHEAD, False), "draft": (LOOKAHEAD, True)}
"""The rows in flight, and whether the driver has the draft model."""
TOKENS, QUICK_TOKENS, ROUNDS = 128, 32, 2
_PORT = 4_000
_STOP_S = 20.0


class Nodes:
    """The six daemons, in `folder`, on machines that far apart."""

    def __init__(self, folder: Path, wan: Wan, stack: AsyncExitStack) -> None:
        self._folder, self._wan, self._stack = folder, wan, stack
        self._file = folder / "swarm.toml"
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
        npubs = {name: Keys.from_file(self._key(name)).npub for name in (*NAMES, "asks")}
        lines = [
            'name = "shard"',
            f'model = "{MODEL}"',
            f"lookahead = {LOOKAHEAD}",
            'dtype = "float32"',
            f'customers = ["{npubs["asks"]}"]',
        ]
        for layer, name in enumerate(NAMES):
            at = f"{wan.ip[name]}:{_PORT}"
            lines += ["[[nodes]]", f'name = "{name.lower()}"', f'npub = "{npubs[name]}"', f'address = "{at}"']
            lines += [f'layers = "{layer}"']
        self._file.write_text("\n".join(lines))

    def _key(self, name: str) -> Path:
        return self._folder / f"{name}.key"

    async def _begun(self, name: str, where: str, *words: str) -> asyncio.subprocess.Process:
        """A command of `nodewire` on a machine, with the key and the folder of `name`."""
        own = ["--swarm", self._file, "--key", self._key(name), "--state", self._folder / name, "--json"]
        with (self._folder / f"{name}.log").open("a") as log:
            process = await self._wan.machine(where).start(
                [sys.executable, "-m", "nodewire.cli", *words, *map(str, own)],
                stdout=asyncio.subprocess.PIPE, stderr=log, env=self._env, limit=2**24,
            )  # fmt: skip
        self._stack.push_async_callback(_stopped, process)
        return process

    async def start(self, names: Sequence[str], *options: str) -> list[asyncio.subprocess.Process]:
        """Raises OSError: one is not ready."""
        nodes = [await self._begun(name, name, "provider", "--threads", "1", *options) for name in names]
        for name, node in zip(names, nodes, strict=True):
            if "tasks" not in (found := await said(node)):
                raise OSError(f"{name} said {found!r}: {self._log(name)}")
        return nodes

    async def generate(self, prompt: str, lookahead: int, tokens: int) -> dict[str, Any]:
        """What the command prints. Raises OSError: it fails."""
        words = ("generate", prompt, "--max-tokens", str(tokens), "--lookahead", str(lookahead))
        process = await self._begun("asks", NAMES[0], *words)
        text, _ = await process.communicate()
        if process.returncode:
            raise OSError(f"nodewire generate ended with {process.returncode}: {text.decode()} {self._log('asks')}")
        found: dict[str, Any] = json.loads(text)
        return found

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-2_000:]


async def measure_swarm(report: Report) -> None:
    """Line 4, with real computing: the same text plain, by its own guesses, and by the demo's draft model besides."""
    tokens, texts = (QUICK_TOKENS if report.quick else TOKENS), list(prompts(report.quick))
    rates: dict[str, list[float]] = {name: [] for name in ARMS}
    ids: dict[str, set[tuple[int, ...]]] = {text: set() for text in texts}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nw-swarm-")))
        wan = stack.enter_context(Wan({name: Host() for name in NAMES}, RTT_MS, seed=report.seed))
        nodes = Nodes(folder, wan, stack)
        await nodes.start(NAMES[1:])
        for number in range(1 if report.quick else ROUNDS):
            for has_draft in (False, True):
                [driver] = await nodes.start(NAMES[:1], *(("--draft", str(MODEL / "draft")) if has_draft else ()))
                await nodes.generate(texts[0], 1, 8)  # the links are there, and the pages are read
                for text in texts:
                    for name in [name for name, (_, drafts) in ARMS.items() if drafts == has_draft]:
                        found = await nodes.generate(text, ARMS[name][0], tokens)
                        ids[text].add(tuple(found["ids"]))
                        rates[name].append(found["tokens_per_s"])
                        say(f"round {number}, {name}: {len(found['ids'])} tokens, {rates[name][-1]:.2f}/s")
                await _stopped(driver)
    turn_s = sum(RTT_MS.values()) / 2_000
    report.arms["swarm"] = {
        "turn_ms_without_computing": round(1_000 * turn_s, 2),
        "tokens_per_s": {name: round(median(found), 2) for name, found in rates.items()},
    }
    at = report.arms["swarm"]["tokens_per_s"]
    report.line("swarm_generations_that_differ", sum(len(said) - 1 for said in ids.values()), "==", 0)
    report.line("swarm_text_over_plain", round(at["text"] / at["plain"], 3), ">", 1)
    report.line("swarm_draft_over_plain", round(at["draft"] / at["plain"], 3), ">", 1)


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
    await process.wait()
