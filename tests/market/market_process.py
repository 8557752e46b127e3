"""A whole market as processes of this machine, made of public commands and configuration files only."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodewire.config import CustomerConfig, ProviderConfig
from nodewire.customer.api import Customer
from nodewire.market import Epoch, open_market
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.market.snapshot import Snapshot
from simnet.wallet import SimWallet
from tests.market.tiny_models import BERT_TARGET, LLAMA_TARGET, make_decoder, make_encoder
from tests.patience import readable

NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
SIMNET = [sys.executable, "-m", "simnet"]
READY_S = 120.0
EPOCH_S = 2, 10
"""An epoch lasts half as long again as the relay takes to start, in whole seconds, at least and at most this: the rules
count in epochs, so a slow machine gets longer ones."""
FAST_US, SLOW_US, SLOWEST_US = 1_000, 200_000, 600_000
"""So far apart that no way between two processes of a busy machine looks longer."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What one provider sells: the decoder's and the encoder's tasks, how fast, and to how many at once."""

    decoder: Sequence[str]
    encoder: Sequence[str]
    us: int
    slots: int = 4
    patience_s: int = 30
    bond_msat: int = 0
    credit_msat: int = 0
    """What a customer may owe before it has paid anything, and a thousand times that in all."""


STALLS = {
    # Every task stands twice, and everybody has a bond, the fast ones more: so theirs is the speed that others are
    # credited with at most, and a test knows whom it will meet. Nobody is placed who says that it is slow. A bond is a
    # hundred times the price of all slots, or it counts for fewer of them.
    "ada": Stall(["driver"], ["driver"], FAST_US, slots=1, bond_msat=10_000_000),
    "bea": Stall(["stage.0", "stage.1"], ["graph.0"], FAST_US, bond_msat=10_000_000),
    "cyd": Stall(["stage.2"], ["graph.1"], FAST_US, bond_msat=12_000_000),
    "dan": Stall(["driver", "stage.2"], ["driver", "graph.1"], SLOW_US, patience_s=15, bond_msat=4_000_000),
    "eve": Stall(["stage.0", "stage.1"], ["graph.0"], SLOW_US, bond_msat=4_000_000),
}
GUESTS = {
    # Started by tests that want it; the slowest, it has a part in no plan, so it can be drawn to verify the others.
    "fay": Stall(["driver", "stage.0", "stage.1", "stage.2"], [], SLOWEST_US, bond_msat=5_000_000),
    "gil": Stall([], ["graph.1"], FAST_US, bond_msat=2_000_000),
    "hal": Stall([], ["graph.0"], FAST_US, bond_msat=2_000_000),
    "isa": Stall(["driver", "stage.0", "stage.1", "stage.2"], [], 30 * FAST_US, bond_msat=5_000_000),
    "lia": Stall(["stage.2"], [], SLOWEST_US, bond_msat=2_000_000),
    "ned": Stall([], ["graph.0"], FAST_US, patience_s=2),
    "ola": Stall([], ["graph.1"], FAST_US),
    "pam": Stall([], ["graph.0"], FAST_US, slots=8),
    "quin": Stall([], ["graph.1"], FAST_US, slots=8),
}
SPARE_MSAT = 1_000_000
"""What a provider has beside its bond: one that was killed pays for work that it did not commit to, and comes back."""
WORKER = '[worker]\nmemory = "60MB"'
WIRE = "[wire]\nprivate = true"
"""Whoever is met here is met on this machine."""
METRICS = '[metrics]\nlisten = "127.0.0.1:0"'
DECODER_MSAT, ENCODER_MSAT = 3_001, 1_009


@dataclass
class RunningMarket:
    """`decoder` and `encoder` are what `register` printed; `public` has the providers' public keys by their names,
    `metrics` the URLs where daemons show what they count, `lnurls` where providers are paid."""

    folder: Path
    relay: str = ""
    blossom: str = ""
    simnet: str = ""
    committee: str = ""
    decoder: dict[str, Any] = field(default_factory=dict)
    encoder: dict[str, Any] = field(default_factory=dict)
    public: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    lnurls: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def decoder_folder(self) -> Path:
        return self.folder / "llama"

    @property
    def encoder_folder(self) -> Path:
        return self.folder / "bert"

    def _make_models(self) -> None:
        """One after the other: both draw from PyTorch's one generator."""
        make_decoder(self.decoder_folder)
        make_encoder(self.encoder_folder)

    def start(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            made = threads.submit(self._make_models)
            relay = ["relay", "--port", "0", "--db", str(self.folder / "relay.db"), "--blobs", self._path("blobs")]
            began_s = time.monotonic()
            self.spawn("relay", *relay, "--metrics", "127.0.0.1:0")
            ready = self.ready("relay")
            least_s, most_s = EPOCH_S
            epoch_ms = 1000 * min(max(math.ceil(1.5 * (time.monotonic() - began_s)), least_s), most_s)
            holder = self.command("keys", "new", self._path("holder.nsec"))
            self.relay, self.blossom = ready["url"], ready["blossom"]
            where = ["--relay", self.relay, "--blossom", self.blossom]
            founding = ["--oracles", "4", "--epoch-ms", f"{epoch_ms}", "--skew-ms", f"{epoch_ms // 10}", *where]
            founding += ["--beat-ms", f"{epoch_ms // 2}"]
            founding += ["--bond-holder", holder["npub"], "--verify-rate", "100%"]
            self.committee = self.command("committee", "create", self._path("committee"), *founding)["address"]
            simnet = ["--port", "0", "--db", self._path("simnet.db"), "--faucet"]
            simnet += ["--key", self._path("holder.nsec"), "--committee", self._path("committee", "committee.json")]
            self.spawn("simnet", *simnet, program=SIMNET)
            self.simnet = self.ready("simnet")["url"]
            for i in range(1, 5):
                with (self.folder / "committee" / f"oracle-{i}" / "oracle.toml").open("a") as file:
                    file.write(f"\n[bonds]\nurl = {json.dumps(self.simnet)}\n{METRICS}\n")
                self.spawn(f"oracle-{i}", "oracle", "--config", self._path("committee", f"oracle-{i}", "oracle.toml"))
            made.result()
            author = ["--key", self._path("author.nsec"), *where]
            Keys.from_file(self.folder / "author.nsec")
            registrations = [
                threads.submit(self.command, "register", str(folder), "--target-vram", target, *author)
                for folder, target in ((self.decoder_folder, LLAMA_TARGET), (self.encoder_folder, BERT_TARGET))
            ]
            self.decoder, self.encoder = (one.result() for one in registrations)
        asyncio.run(self._open_stalls())
        for name in STALLS:
            self.start_provider(name, wait=False)
        for name in STALLS:
            self.public[name] = self.ready(name)["public"]
        for i in range(1, 5):
            self.ready(f"oracle-{i}")
        asyncio.run(self._until_all_are_live())

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()

    # Processes.

    def spawn(self, name: str, *command: str, program: Sequence[str] = NODEWIRE) -> None:
        """Start `nodewire COMMAND --json`, or another program; its log is NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*program, *command, "--json"], stdout=subprocess.PIPE, stderr=log, bufsize=0
            )

    def stop_one(self, name: str) -> None:
        process = self.processes[name]
        process.terminate()
        process.wait(120)
        if process.stdout:
            process.stdout.close()

    def spawn_dishonest(self, name: str, cheat: str, tasks: str, *, after: int = 0) -> None:
        """Start a provider whose worker cheats (`tests.faults`) from frame `after` on, from outside of nodewire."""
        command = [sys.executable, "-m", "tests.faults.run", "--cheat", cheat, "--tasks", tasks]
        command += ["--after", str(after), "--"]
        command += ["provider", "--config", str(self.config_of(name)), "--json"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, bufsize=0)

    def ready(self, name: str) -> dict[str, Any]:
        """The line by which a process says that it is ready."""
        stdout = self.processes[name].stdout
        assert stdout
        line = stdout.readline() if readable(stdout.fileno(), READY_S) else b""
        assert b'"ready"' in line, f"{name} did not start: {line!r}\n{self.log(name)[-2000:]}"
        said = json.loads(line)
        self.metrics[name], self.lnurls[name] = said.get("metrics", ""), said.get("lnurl", "")
        return said

    def start_provider(self, name: str, *, wait: bool = True) -> dict[str, Any]:
        self.spawn(name, "provider", "--config", str(self.config_of(name)))
        return self.ready(name) if wait else {}

    def run(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        """`nodewire COMMAND --json`, to its end."""
        return subprocess.run([*NODEWIRE, *command, "--json"], capture_output=True, timeout=READY_S)

    def command(self, *command: str) -> dict[str, Any]:
        """What `nodewire COMMAND --json` prints; it must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-2000:]
        return json.loads(done.stdout)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    # Roles.

    def config_of(self, name: str) -> Path:
        return self.folder / name / "role.toml"

    async def customer_config(self, name: str, *, sats: int = 100_000, **changes: Any) -> Path:
        """The configuration of a new customer with its own key and `sats` of play money."""
        await self._open_wallet(name, sats * 1_000)
        lines = {
            "key": "key.nsec",
            "state": "state",
            "relays": [self.relay],
            "blossom": [self.blossom],
            "committee": self.committee,
            "private_endpoints": True,
            **changes,
        }
        return self._write(name, [*_toml(lines), *self._wallet(), WORKER, WIRE])

    @asynccontextmanager
    async def customer(self, name: str, **changes: Any) -> AsyncIterator[Customer]:
        config = self.config_of(name)
        if not config.exists():
            config = await self.customer_config(name, **changes)
        async with Customer.open(config) as customer:
            yield customer

    @asynccontextmanager
    async def pool(self, keys: Keys | None = None) -> AsyncIterator[Pool]:
        async with Pool([self.relay], keys=keys or Keys.generate()) as pool:
            yield pool

    async def events(self, *filters: Filter) -> list[Event]:
        async with self.pool() as pool:
            return await pool.fetch_all(list(filters))

    async def balances_msat(self, *names: str) -> dict[str, int]:
        """What the wallets of roles hold, by the Lightning network's own word."""
        held = {}
        for name in names:
            role = self._role(name)
            wallet = SimWallet.from_file(role.wallet.url, role.wallet.token_file)
            held[name] = await wallet.balance_msat()
            await wallet.close()
        return held

    async def came_in_msat(self, name: str) -> int:
        """What came in for dues of a role's ledger, by the network's own word. Bonds and verdicts are no dues."""
        role = self._role(name)
        ledger, wallet = self.ledger(name), SimWallet.from_file(role.wallet.url, role.wallet.token_file)
        total_msat, after = 0, 0
        try:
            while events := (await wallet.ask("GET", f"/v1/events?after={after}&limit=100&wait_s=0"))["events"]:
                after = int(events[-1]["cursor"])
                came = [one for one in events if (one["event"], one["direction"]) == ("settled", "in")]
                total_msat += sum(int(one["amount_msat"]) for one in came if ledger.quote(one["payment_hash"]))
        finally:
            await wallet.close()
            ledger.close()
        return total_msat

    def ledger(self, name: str) -> Ledger:
        return Ledger(self._role(name).ledger)

    async def settled(self, customer: str, **guests: str) -> None:
        """Wait until providers, and `guests` (public keys by name), have booked what this customer's book says that it
        paid them: they hear of it a little later."""
        own, public = self.ledger(customer), self.keys(customer).public
        sql = "SELECT sum(amount_msat) FROM dues WHERE customer = ? AND state = 'settled'"
        try:
            for name, payee in (self.public | guests).items():
                theirs = self.ledger(name)
                try:
                    paid_msat = own.spent(payee=payee).paid_msat
                    async with asyncio.timeout(300):
                        while (theirs._db.execute(sql, (public,)).fetchone()[0] or 0) < paid_msat:
                            await asyncio.sleep(0.02)
                finally:
                    theirs.close()
        finally:
            own.close()

    def keys(self, name: str) -> Keys:
        return Keys.from_file(self._role(name).key)

    async def until(self, holds: Any, *, after: int = -1) -> Epoch:
        """The first certified epoch after number `after` whose snapshot `holds`."""
        config = self.folder / "watcher" / "role.toml"
        if not config.exists():
            config = await self.customer_config("watcher")
        async with AsyncExitStack() as stack:
            _, _, market = await open_market(stack, CustomerConfig.load(config))
            following = asyncio.create_task(market.run())
            stack.callback(following.cancel)
            while True:
                epoch = await market.epoch(timeout_s=40, after=after)
                if holds(await market.snapshot(epoch.body.snapshot)):
                    return epoch
                after = epoch.body.epoch

    def is_free(self, *names: str) -> Any:
        """Whether a snapshot has the decoder's sessions of these providers all free, by ads of their present processes.

        One that has been started anew is paid elsewhere. A busy oracle may still have its ad of before.
        """

        def holds(snapshot: Snapshot) -> bool:
            ads = snapshot.ads({self.public[name] for name in names})
            if any(public not in ads or ads[public].lnurl != self.lnurls[name] for name, public in self._keys(names)):
                return False
            free = {
                node.pubkey: held.free
                for node in snapshot.nodes
                for held in node.held
                if held.manifest == self.decoder["digest"]
            }
            return all(free.get(public) == STALLS[name].slots for name, public in self._keys(names))

        return holds

    def _keys(self, names: Iterable[str]) -> list[tuple[str, str]]:
        return [(name, self.public[name]) for name in names]

    # Inside.

    async def _open_stalls(self) -> None:
        for name, stall in (STALLS | GUESTS).items():
            await self._open_wallet(name, stall.bond_msat + SPARE_MSAT)
            lines = {
                "key": "key.nsec",
                "state": "state",
                "relays": [self.relay],
                "blossom": [self.blossom],
                "committee": self.committee,
                "patience_s": stall.patience_s,
            }
            serve = [
                "\n".join(
                    [
                        "[[serve]]",
                        *_toml(
                            {
                                "manifest": model["address"],
                                "tasks": tasks,
                                "price_msat": price,
                                "slots": stall.slots,
                                "us_per_position": stall.us,
                            }
                        ),
                    ]
                )
                for model, tasks, price in (
                    (self.decoder, stall.decoder, DECODER_MSAT),
                    (self.encoder, stall.encoder, ENCODER_MSAT),
                )
                if tasks
            ]
            bond = ["[bond]", *_toml({"amount_msat": stall.bond_msat})]
            owed = {"first_msat": stall.credit_msat, "most_msat": 1_000 * stall.credit_msat}
            credit = ["[credit]", *_toml(owed)]
            self._write(name, [*_toml(lines), *self._wallet(), *bond, *credit, WORKER, WIRE, METRICS, *serve])

    async def _until_all_are_live(self) -> None:
        await self.until(self.is_free(*STALLS))

    async def _open_wallet(self, name: str, msat: int) -> None:
        (self.folder / name).mkdir()
        wallet, token = await SimWallet.open_account(self.simnet, name, msat)
        await wallet.close()
        (self.folder / name / "wallet.token").write_text(token)
        (self.folder / name / "wallet.token").chmod(0o600)

    def _wallet(self) -> list[str]:
        return ["[wallet]", *_toml({"url": self.simnet, "token_file": "wallet.token"})]

    def _write(self, name: str, lines: list[str]) -> Path:
        path = self.config_of(name)
        path.write_text("\n".join(lines) + "\n")
        return path

    def _role(self, name: str) -> CustomerConfig | ProviderConfig:
        return (ProviderConfig if name in STALLS | GUESTS else CustomerConfig).load(self.config_of(name))

    def _path(self, *parts: str) -> str:
        return str(self.folder.joinpath(*parts))


def _toml(values: Mapping[str, Any]) -> list[str]:
    """JSON's strings, numbers and lists are TOML's."""
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]
