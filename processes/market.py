"""A market as processes of this machine, made of public commands and ordinary configuration files only.

    async with Market(folder, providers=6) as market:
        async with market.customer("ada") as customer: ...

Every task of every model stands at `holders` providers or more, so that none is alone with one. Providers are killed,
stopped and started again from outside; the books are read out of the roles' SQLite files, which are opened read-only.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp

from nodewire import Customer
from nodewire.config import CustomerConfig
from nodewire.market import open_market
from nodewire.nostr.event import Event
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol import kinds
from nodewire.protocol.job import request
from nodewire.protocol.job.request import Request
from nodewire.protocol.market.snapshot import Snapshot
from processes.progress import say
from processes.slowdown import children

ROOT = Path(__file__).parent.parent
NODEWIRE = (sys.executable, "-m", "nodewire.cli")
SIMNET = (sys.executable, "-m", "simnet")
DECODER = ROOT / "demo" / "model" / "pycoder"
DECODER_TARGET = "12MB"
"""A driver and three stages."""
DECODER_DTYPE: Literal["float32", "bfloat16"] = "float32"
"""So small a model decodes in it about as fast, and verification finds finer deviations."""
PRICE_MSAT = 3_001
EPOCH_S = 2.0
READY_S = 600.0
"""For a busy machine. A daemon that ends before is noticed at once."""
COMMAND_S = 600.0
STARTS = 4
"""Of one daemon, where what it needs is too busy to answer."""
_ENDING_S = 5.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the market sells: its folder, the memory that a piece may need, its name; `as_tensors`: it is cut
    without a tokenizer; `dtype`: of a decoder's arithmetic, its own unless given; `split`: a decoder's layers by stage,
    in place of the memory."""

    folder: Path = DECODER
    target: str = DECODER_TARGET
    name: str = "pycoder"
    as_tensors: bool = False
    dtype: str = ""
    split: str = ""


@dataclass(slots=True)
class Provider:
    """A provider's process. `command` is what stands before `provider --config ...`: a dishonest one has another."""

    name: str
    config: Path
    tasks: tuple[tuple[str, str], ...]
    """(model's name, task) of each piece that it serves."""
    command: tuple[str, ...] = NODEWIRE
    public: str = ""
    metrics: str = ""
    """Where it shows what it counts, if its file says that it does."""
    process: asyncio.subprocess.Process | None = None

    def signal(self, number: signal.Signals) -> None:
        """To the daemon alone: its worker is in a session of its own, dies with it and waits for it."""
        assert self.process is not None
        if self.process.returncode is None:
            os.kill(self.process.pid, number)

    def workers(self) -> list[int]:
        assert self.process is not None
        return children(self.process.pid)


@dataclass(frozen=True, slots=True)
class Stock:
    """What is on the market."""

    models: Sequence[Model] = (Model(dtype=DECODER_DTYPE),)
    holders: int = 2
    """How many providers hold each piece."""
    fewer: Mapping[str, int] = field(default_factory=dict)
    """By task's name, how many hold it instead."""
    slots: int = 4
    """Sessions that every piece has room for."""


@dataclass(frozen=True, slots=True)
class ProviderSetup:
    """How providers are started."""

    dishonest: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By a provider's number, the command to start it with instead of `nodewire`'s own."""
    provider_lines: Callable[[Provider], Sequence[str]] = lambda provider: ()
    """Further lines of a provider's file."""
    worker_memory: str = "200MB"
    bond_sats: int = 0
    """What each provider locks with the simulated network as the holder; 0: there are no bonds."""
    prices: Mapping[str, int] = field(default_factory=dict)
    """By model's name, what a piece costs in msat; others cost `PRICE_MSAT`."""
    credit_msat: tuple[int, int] | None = (0, 0)
    """What a key may owe before it has paid, and at most. Without any each chunk is paid before the one after the next.
    None: as it is shipped."""
    network: Sequence[str] = ()
    """Further options of the simulated network."""


USUAL_STOCK = Stock()
USUAL_SETUP = ProviderSetup()


class Market:
    """Relay, simulated Lightning network, four oracles, `providers` providers; one folder, gone with its caller's."""

    def __init__(
        self,
        folder: Path,
        *,
        providers: int,
        stock: Stock = USUAL_STOCK,
        setup: ProviderSetup = USUAL_SETUP,
        committee: Sequence[str] = (),
        epoch_s: float = EPOCH_S,
        program: Sequence[str] = NODEWIRE,
    ) -> None:
        """`providers` may be 0: who serves is then added later. `committee`: further options of `committee create`.
        `program`: what daemons are started with."""
        self.folder = folder
        self.relay = self.blossom = self.simnet = self.committee = ""
        self.models: dict[str, dict[str, Any]] = {}
        """What `register` printed, by the model's name."""
        self.providers: dict[str, Provider] = {}
        self._size, self._holders, self._wanted = providers, stock.holders, stock.models
        self._fewer = stock.fewer
        self._setup = setup
        self._dishonest = setup.dishonest
        self._committee_options = tuple(committee)
        self._provider_lines = setup.provider_lines
        self._worker_memory = setup.worker_memory
        self._bond_sats, self._slots, self._program = setup.bond_sats, stock.slots, tuple(program)
        self.epoch_s = epoch_s
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        """Every daemon's, by its name."""
        self._stack = AsyncExitStack()
        self._watch: Any = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        say("a relay with its blob store, a committee of four oracles, models cut into pieces")
        self.folder.mkdir(parents=True, exist_ok=True)
        relay = await self.daemon(
            "relay", "relay", "--port", "0", "--db", self._at("relay.db"), "--blobs", self._at("blobs")
        )
        self.relay, self.blossom = relay["url"], relay["blossom"]
        where = ("--relay", self.relay, "--blossom", self.blossom)
        epoch_ms = round(self.epoch_s * 1000)
        founding = ["--oracles", "4", "--epoch-ms", str(epoch_ms), "--skew-ms", "200", "--beat-ms", "1000"]
        holding: list[str] = []
        if self._bond_sats:
            holder = await self.command("keys", "new", self._at("holder.nsec"))
            founding += ["--bond-holder", holder["npub"]]
            holding = ["--key", self._at("holder.nsec"), "--committee", self._at("committee", "committee.json")]
        founded, *registered = await asyncio.gather(
            self.command("committee", "create", self._at("committee"), *founding, *self._committee_options, *where),
            *(
                self.command(
                    "register", str(model.folder), "--name", model.name,
                    *(("--split", model.split) if model.split else ("--target-vram", model.target)),
                    "--sessions", str(self._slots), "--key", self._at(f"author-{model.name}.nsec"), *where,
                    *(("--as-tensors",) if model.as_tensors else ()),
                    *(("--dtype", model.dtype) if model.dtype else ()),
                )
                for model in self._wanted
            ),
        )  # fmt: skip
        await self.open_money(*holding)
        self.committee = founded["address"]
        self.models = {model.name: said for model, said in zip(self._wanted, registered, strict=True)}
        say(f"{self._size} providers")
        starting = [
            self.daemon(f"oracle-{i}", "oracle", "--config", self._at("committee", f"oracle-{i}", "oracle.toml"))
            for i in range(1, 5)
        ]
        for number, tasks in enumerate(self._spread()):
            # A cheater wants jobs and says that it is quick, which buys it nothing.
            us = 100 if number in self._dishonest else 1_000
            await self.add_provider(tasks, command=self._dishonest.get(number, self._program), us_per_position=us)
        await asyncio.gather(*starting, *(self.start_provider(name) for name in self.providers))
        await self._stack.enter_async_context(self._watching())
        await self.healthy(timeout_s=READY_S)

    async def stop(self) -> None:
        """End every process that was started, stopped ones too."""
        with suppress(Exception):
            await self._stack.aclose()
        for number in (signal.SIGCONT, signal.SIGTERM):
            for process in self.processes.values():
                _signal_group(process, number)
        await asyncio.gather(*(_ended(process) for process in self.processes.values()))

    # Processes.

    async def daemon(
        self,
        name: str,
        *command: str,
        program: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Start `nodewire COMMAND --json`, or another program, and return the line by which it says that it is ready.

        Its log is NAME.log. One whose error says that it may be tried again is started again, as whatever runs daemons
        does.
        """
        for left in reversed(range(STARTS)):
            said = await self._started(name, *command, program=program)
            if not left or not said.get("error", {}).get("retryable"):
                break
            await self.processes.pop(name).wait()
        if not said or "error" in said:
            raise RuntimeError(f"{name} did not start: {said.get('error', '')}; its log ends: {self.log(name)[-1500:]}")
        return said

    async def _started(self, name: str, *command: str, program: Sequence[str]) -> dict[str, Any]:
        """The first document that a new process prints; none if it ends, or takes too long."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(program or self._program), *command, "--json",
                stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        self.processes[name] = process
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        except TimeoutError:
            line = b""
        return dict(json.loads(line)) if line else {}

    async def command(self, *command: str, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        """What `nodewire COMMAND --json` prints; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            *NODEWIRE, *command, "--json", cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise RuntimeError(f"nodewire {' '.join(command[:2])}: {(stderr + stdout).decode()[-1500:]}")
        return dict(json.loads(stdout))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    async def start_provider(self, name: str) -> Provider:
        """Start a provider that does not run; returns when it has loaded what it serves."""
        provider = self.providers[name]
        ready = await self.daemon(
            name, "provider", "--config", str(provider.config),
            program=provider.command,
        )  # fmt: skip
        provider.process, provider.public = self.processes[name], ready["public"]
        provider.metrics = ready.get("metrics", "")
        return provider

    async def kill_provider(self, name: str) -> None:
        """SIGKILL; returns when it is gone."""
        provider = self.providers[name]
        provider.signal(signal.SIGKILL)
        assert provider.process is not None
        await provider.process.wait()

    def named(self, public: str) -> Provider:
        """The provider with this public key. Raises StopIteration."""
        return next(p for p in self.providers.values() if p.public == public)

    # Money. Another network has its own.

    async def open_money(self, *holding: str) -> None:
        """Start the network that the wallets are of. `holding`: what makes it a holder of bonds."""
        simnet = await self.daemon(
            "simnet", "--port", "0", "--db", self._at("simnet.db"), "--faucet", *holding, *self._setup.network,
            program=SIMNET,
        )  # fmt: skip
        self.simnet = simnet["url"]

    async def open_wallet(self, name: str, sats: int) -> list[str]:
        """A wallet with so much for the role of this name, and what the role's file says of it."""
        token = self._at(name, "wallet.token")
        await self.command("wallet", "open", self.simnet, "--out", token, "--balance", f"{sats}sat")
        return ["[wallet]", f'url = "{self.simnet}"', 'token_file = "wallet.token"']

    # Customers.

    async def customer_config(self, name: str, *, sats: int = 1_000_000) -> Path:
        folder = self.folder / name
        folder.mkdir()
        lines = [*self._role(), "max_chunk_msat = 1000000", "max_total_msat = 100000000", "private_endpoints = true"]
        return _write(folder / "customer.toml", [*lines, *await self.open_wallet(name, sats)])

    @asynccontextmanager
    async def customer(self, name: str) -> AsyncIterator[Customer]:
        """A new customer with its own key and wallet, in this process, by the Python API."""
        config = await self.customer_config(name)
        async with Customer.open(config) as customer:
            yield customer

    @asynccontextmanager
    async def requests(self, customer: str) -> AsyncIterator[asyncio.Queue[Request]]:
        """The job requests of a customer's public key, as the relay publishes them."""
        queue: asyncio.Queue[Request] = asyncio.Queue()
        async with Pool([self.relay]) as pool:

            async def follow() -> None:
                wanted = Filter(kinds=frozenset({kinds.INFERENCE}), authors=frozenset({customer}))
                async for event in pool.subscribe([wanted]):
                    queue.put_nowait(request.parse(event))

            following = asyncio.create_task(follow())
            try:
                yield queue
            finally:
                following.cancel()

    async def events(self, *filters: Filter) -> list[Event]:
        async with Pool([self.relay]) as pool:
            return await pool.fetch_all(list(filters))

    # What the committee certifies.

    def epoch_at(self, unix_s: float) -> int:
        """The committee's epoch at a moment."""
        return int(self._watch.committee.epoch_at(int(unix_s * 1_000)))

    async def until(self, holds: Callable[[Snapshot], bool], *, timeout_s: float) -> Snapshot:
        """The first certified snapshot of an epoch after this one that `holds`. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            after = int(self._watch.committee.epoch_at(int(time.time() * 1000)))
            while True:
                epoch = await self._watch.epoch(timeout_s=timeout_s, after=after)
                snapshot: Snapshot = await self._watch.snapshot(epoch.body.snapshot)
                if holds(snapshot):
                    return snapshot
                after = epoch.body.epoch

    async def healthy(self, *, timeout_s: float) -> Snapshot:
        """The first snapshot of a later epoch in which every provider has a free slot for everything it serves."""
        expected = {provider.public for provider in self.providers.values()}

        def holds(snapshot: Snapshot) -> bool:
            return expected <= {n.pubkey for n in snapshot.nodes if n.held and all(h.free > 0 for h in n.held)}

        return await self.until(holds, timeout_s=timeout_s)

    # Books.

    def rows(self, role: str, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """What stands in the ledger of a customer or provider, read only; nothing if it has none yet."""
        path = self.folder / role / "state" / "ledger.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, parameters)]
        finally:
            connection.close()

    def earned_msat(self, provider: str) -> int:
        """What a provider's own wallet has received for its work, by its ledger."""
        sql = "SELECT coalesce(sum(amount_msat), 0) AS msat FROM dues WHERE state = 'settled'"
        return sum(row["msat"] for row in self.rows(provider, sql))

    async def lost_msat(self, provider: Provider) -> int:
        """What is gone of a provider's bond by the holder's word: all of one that was slashed; 0 without bonds."""
        if not self._bond_sats:
            return 0
        url = f"{self.simnet}/v1/bonds/{provider.public}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            said = await answer.json()
            if said["state"] in ("slashed", "burnt"):
                return int(said["amount_msat"])
            return int(said["amount_msat"]) - int(said["remainder_msat"])

    # Inside.

    def _spread(self) -> list[list[tuple[str, str]]]:
        """Which pieces each provider serves: every task at `holders` of them, in turn, no task twice at one."""
        pieces = [(name, task["name"]) for name, said in self.models.items() for task in said["tasks"]]
        places: list[list[tuple[str, str]]] = [[] for _ in range(self._size)]
        if not places:
            return places
        at = 0
        for turn in range(rounds := max(self._holders, -(-self._size // len(pieces)))):
            for piece in pieces:
                if turn >= self._fewer.get(piece[1], rounds):
                    at += 1  # the others stand where they would
                    continue
                free = (p for k in range(self._size) if piece not in (p := places[(at + k) % self._size]))
                next(free).append(piece)
                at += 1
        return places

    async def add_provider(
        self,
        tasks: Sequence[tuple[str, str]],
        *,
        name: str = "",
        command: Sequence[str] = NODEWIRE,
        us_per_position: int = 1_000,
    ) -> Provider:
        """The folder of a further provider, with a wallet and its configuration; `start_provider` starts it."""
        name = name or f"provider-{len(self.providers)}"
        folder = self.folder / name
        folder.mkdir()
        wallet = await self.open_wallet(name, 2 * self._bond_sats)  # the stake, and what moving it costs
        provider = Provider(name, folder / "provider.toml", tuple(tasks), tuple(command))
        lines = [*self._role(), f'name = "{name}"', *self._provider_lines(provider), *wallet]
        # Addresses stay over a restart, as an operator's do: who owes a node something finds it again.
        lines += ["[wire]", f'listen = "127.0.0.1:{free_port()}"', "[lnurl]", f'listen = "127.0.0.1:{free_port()}"']
        if self._setup.credit_msat is not None:
            first_msat, most_msat = self._setup.credit_msat
            lines += ["[credit]", f"first_msat = {first_msat}", f"most_msat = {most_msat}"]
        lines += ["[bond]", f"amount_msat = {self._bond_sats * 1_000}"]
        lines += ["[worker]", f'memory = "{self._worker_memory}"', "threads = 1"]
        for model, said in self.models.items():
            held = [task for served, task in tasks if served == model]
            if held:
                lines += ["[[serve]]", f'manifest = "{said["address"]}"', f"tasks = {json.dumps(held)}"]
                lines += [
                    f"price_msat = {self._setup.prices.get(model, PRICE_MSAT)}",
                    f"us_per_position = {us_per_position}",
                    f"slots = {self._slots}",
                ]
        _write(provider.config, lines)
        self.providers[name] = provider
        return provider

    async def remove_provider(self, name: str) -> None:
        """End a provider for good; its books stay."""
        provider = self.providers.pop(name)
        if provider.process is not None:
            _signal_group(provider.process, signal.SIGTERM)
            await _ended(provider.process)

    def _role(self) -> list[str]:
        return [
            'key = "key.nsec"',
            'state = "state"',
            f'relays = ["{self.relay}"]',
            f'blossom = ["{self.blossom}"]',
            f'committee = "{self.committee}"',
        ]

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Follow the committee's certificates as any customer does."""
        config = CustomerConfig.load(await self.customer_config("watcher", sats=0))
        async with AsyncExitStack() as stack:
            _, _, self._watch = await open_market(stack, config)
            following = asyncio.create_task(self._watch.run())
            try:
                yield
            finally:
                following.cancel()

    def _at(self, *parts: str) -> str:
        return str(self.folder.joinpath(*parts))


def _write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


_ports = iter(random.Random(os.getpid()).sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """Below those that the system hands out to whoever dials: it must be free again when its owner comes back."""
    for port in _ports:
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), _ENDING_S)
    except TimeoutError:
        _signal_group(process, signal.SIGKILL)
        await process.wait()
