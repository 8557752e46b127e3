"""The demo's processes and their configuration files: daemons are public commands, files what an operator writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodewire.nostr.keys import Keys
from nodewire.pay.registry import wallet_class

NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
SIMNET = [sys.executable, "-m", "simnet"]
PROVIDERS = 6
STARTS = 4
"""Of one daemon, where what it needs is too busy to answer."""
DECODER_MSAT, ENCODER_MSAT = 4, 4
"""What a chunk of one piece costs: three pieces sell 64 tokens for 12 msat, a million for 188 sat."""
BOND_MSAT = 1_000_000
"""The least that counts as a bond; more than a hundred times the price of all that may be in flight."""
SLOTS = 2
"""Generations at a time, for which each piece has room."""
CUSTOMER_MSAT = 100_000_000
"""What the customer's wallet holds at first."""


class DemoFailure(Exception):
    """What ends the demo: a process that does not start, or a command that fails."""


class Market:
    """The processes of the demo, each started by a public command and stopped with the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def daemon(self, name: str, *command: str, program: Sequence[str] = NODEWIRE, timeout_s: float = 600) -> dict:
        """Start `nodewire COMMAND --json`, or another program, and return the line by which it says that it is ready.

        One that ends before is noticed at once; the time is for a busy machine, where all take minutes to load. One
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
        raise DemoFailure(f"{name} did not start: {error['code']}: {error['field']}: {error['reason']}")

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
            raise DemoFailure(f"{name} is not ready after {timeout_s:.0f} s; {self._log(name)}") from None
        if not line:
            raise DemoFailure(f"{name} did not start; {self._log(name)}")
        return json.loads(line)

    def _log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        tail = file.read_text(errors="replace")[-2000:]
        return f"its log, {file}, ends:\n{tail}" if tail else f"its log, {file}, is empty"

    async def command(self, *command: str) -> dict:
        """Run `nodewire COMMAND --json` to its end and return its document."""
        process = await asyncio.create_subprocess_exec(
            *NODEWIRE, *command, "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        stdout, stderr = await process.communicate()
        if process.returncode:
            raise DemoFailure(f"nodewire {' '.join(command[:3])} failed:\n{(stderr or stdout).decode()[-2000:]}")
        return json.loads(stdout) if stdout else {}

    async def stop(self) -> None:
        for process in self.processes.values():
            _signal(process, signal.SIGTERM)
        await asyncio.gather(*(_ended(p) for p in self.processes.values()))


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Signal a process and its children. The system may have collected it before asyncio noticed its end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def key_of(folder: Path) -> str:
    """The public key of a role's folder, whose key is made."""
    return Keys.from_file(folder / "key.nsec").public


def specializations(decoder: dict, encoder: dict) -> list[list[tuple[str, str, int]]]:
    """Who serves what: (manifest address, task, price per chunk) for each provider.

    Pieces of each model go round from provider to provider, no two of one model to the same; each of the decoder's
    stands at two or more.
    """
    plan: list[list[tuple[str, str, int]]] = [[] for _ in range(PROVIDERS)]
    for model, price in ((decoder, DECODER_MSAT), (encoder, ENCODER_MSAT)):
        tasks = [task["name"] for task in model["tasks"]]
        for i in range(PROVIDERS):
            plan[i].append((model["address"], tasks[i % len(tasks)], price))
    return plan


async def provider_config(
    market: Market, i: int, serve: list[tuple[str, str, int]], common: dict, bond_msat: int = BOND_MSAT, us: int = 1_000
) -> Path:
    folder = market.folder / f"provider-{i}"
    folder.mkdir()
    await open_wallet(common, folder, 2 * bond_msat)  # the bond, and what moving it costs
    lines = [
        f'name = "provider-{i}"\nhardware = "{os.cpu_count()} cores, CPU"',
        *_role(common),
        f"[bond]\namount_msat = {bond_msat}",
        '[worker]\nmemory = "1GB"\nthreads = 1',
    ]
    lines += [
        f'[[serve]]\nmanifest = "{address}"\ntasks = ["{task}"]\nprice_msat = {price}\nslots = {SLOTS}\n'
        f"us_per_position = {us}"
        for address, task, price in serve
    ]
    return _write(folder / "provider.toml", lines)


async def customer_config(market: Market, common: dict) -> Path:
    folder = market.folder / "customer"
    folder.mkdir()
    await open_wallet(common, folder, CUSTOMER_MSAT)
    return _write(folder / "customer.toml", ["private_endpoints = true", *_role(common)])


def watcher_config(market: Market, common: dict) -> Path:
    """Of a customer that only reads what the committee certifies, and has no money."""
    folder = market.folder / "watcher"
    folder.mkdir()
    return _write(folder / "customer.toml", _role(common))


async def open_wallet(common: Mapping[str, str], folder: Path, msat: int) -> None:
    """As `nodewire wallet open` does: an account for a role, whose token lies in its folder."""
    wallet, token = await wallet_class("sim").open_account(common["simnet"], folder.name, msat)
    await wallet.close()
    file = folder / "wallet.token"
    file.touch(0o600)
    file.write_text(token)


async def balance_msat(common: Mapping[str, str], folder: Path) -> int:
    """What a role's wallet holds, by the Lightning node's books."""
    wallet = wallet_class("sim").from_file(common["simnet"], folder / "wallet.token")
    try:
        return await wallet.balance_msat()
    finally:
        await wallet.close()


def write_addresses(folder: Path, common: Mapping[str, str], models: Mapping[str, str]) -> None:
    """Where the market is, a file each, for README's commands; `models` are addresses by the models' names."""
    files = {f"{one}.url": common[one] for one in ("relay", "blossom", "simnet")}
    files |= {"committee.address": common["committee"]}
    files |= {f"{name}.address": address for name, address in models.items()}
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def _role(common: Mapping[str, str]) -> list[str]:
    """What every role's file says; what is of no section goes before it."""
    return [
        'key = "key.nsec"\nstate = "state"',
        f"relays = {json.dumps([common['relay']])}\nblossom = {json.dumps([common['blossom']])}",
        f'committee = "{common["committee"]}"',
        f'[wallet]\nurl = "{common["simnet"]}"\ntoken_file = "wallet.token"',
    ]


def _write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path
