"""Trainings that lose a provider or their customer at every step: `python -m bench.training.chaos_train [--json]
[--quick]`.

Relay, simulated Lightning network and three trainers as processes, `nodewire train` as the customer's. Each training
has one fault, SIGKILL:

- a provider, at the moment a step of the protocol is seen from outside (an event on the relay, a payment in its
  own wallet, a file or a row of its own books), and it is started again at once;
- the customer, at the moment a type of event stands in its journal for the first time, and after a random moment more;
- a provider that stays dead: another one takes its shard over;
- with a provider that cheats in round 0 and is found out when round 2 was asked for (`bench.training.late_cheat`), so
  that both steps are undone: the customer right before that is written down (`bench.training.crash_customer`), when it
  stands there, and on the way back; who trains in the round that is made again, at each of its steps.

A step can pass while nobody looks: a training whose fault has missed it is made again with another seed, a few times.

Figures:
- identical: trainings whose final weights are the bare loop's, byte for byte. Every shard is trained by somebody
  honest (in the end), and rounds are stateless, so whoever that was the weights must be these.
- undone: with the cheat, trainings whose journal says that they went back to before its round.
- double_payments: (request, payee, part) that the network settled more than one invoice for: hashes of the network's
  own journal, their meaning from what providers quoted.
- resumed_s: from the kill to the next word of the training by whom was killed (an event on the relay, a row of the
  customer's journal), or the training's end. With a provider that stays dead: until another
  one speaks of its shard.
- starts_s: how long the provider's process takes to be ready on this machine, which resumed_s holds, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.report import Report, run, spread
from nodewire.nostr.event import Event
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol import kinds
from processes.market import NODEWIRE, ROOT, Provider
from processes.progress import say
from processes.trainers import LEAST_MSAT, Trainers

RESUMED_S, REPLACED_S = 10.0, 30.0
TRAINING_S = 300.0
"""More than a machine takes that has much else to do."""
MOST_MISSED = 3
LOOK_S = 0.01
SHARDS, ROUNDS = 2, 3
STEPS, LONG = 400, 4_000
"""Of a round; that work has begun is only said if it takes half a second."""
RECIPE = """
name = "chaos"
loss = "cross_entropy"
steps = {steps}
batch = 32
rounds = {rounds}
seed = {seed}
[family]
name = "mlp"
inputs = 64
hidden = [64]
classes = 10
[data]
layout = "arrays"
[inner]
optimizer = "adamw"
lr = 0.003
[outer]
method = "nesterov"
lr = 0.7
momentum = 0.9
[compression]
method = "int8"
[audit]
segment = 50
"""
PROVIDER_STEPS = (
    "request", "deposit_asked", "deposit_paid", "fetched", "training", "uploading", "balance_due", "delivered",
    "audit_asked", "shown", "balance_paid",
)  # fmt: skip
CUSTOMER_STEPS = (
    "Opened", "Published", "DepositAsked", "Paid", "Begun", "Delivered", "Received", "Judged", "Stepped", "Audited",
    "Paid#3",
)  # fmt: skip
QUICK_PROVIDER, QUICK_CUSTOMER = ("deposit_paid", "training", "shown"), ("Published", "Judged", "Audited")
CHEAT = f"provider-{SHARDS + 1}"
DEAD_STEPS = ("request", "training", "delivered")
UNDONE_PROVIDER = ("request", "training", "balance_due", "delivered", "shown", "balance_paid")
"""Of a round that is made again."""
UNDONE_CUSTOMER = ("<Undone", "Undone", "Undone+", "Undone>Published", "Undone>Judged", "Undone>Stepped")
"""<NAME: right before it is written; NAME>OTHER: the first OTHER after NAME."""
QUICK_UNDONE_PROVIDER, QUICK_UNDONE_CUSTOMER = ("training",), ("<Undone", "Undone")
PUBLIC = frozenset({kinds.FEDAVG, kinds.DILOCO, 6840, 6841, kinds.FEEDBACK, kinds.VERIFICATION, 6844, 9735})


@dataclass(frozen=True, slots=True)
class Fault:
    """Who is killed (`provider for good`: and stays so), and when. `undoing`: with somebody whose work is undone."""

    who: str
    step: str
    undoing: bool = False

    @property
    def name(self) -> str:
        return f"{self.who}{', undoing' * self.undoing} at {self.step}"


@dataclass(slots=True)
class Outcome:
    """One training with its fault."""

    who: str
    step: str
    undoing: bool
    seed: int
    undone: int = 0
    """Times that steps were."""
    missed: int = 0
    """Trainings before, whose fault did not strike."""
    victim: str = ""
    struck: bool = False
    identical: bool = False
    resumed_s: float | None = None
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    error: str = ""


class World:
    """What can be seen of a training from outside."""

    def __init__(self, market: Trainers, customer: Path, past: set[str]) -> None:
        """`past`: requests of trainings before."""
        self.market, self.customer, self.past = market, customer, past
        self.events: list[tuple[float, Event]] = []
        self.requests: set[str] = set()
        self.public = ""
        """The customer's."""
        self.again = False
        """Whether only what was asked for after steps were undone counts as a provider's steps."""
        self._known_journals = set(self._journals())

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with Pool([self.market.relay]) as pool:

            async def follow() -> None:
                wanted = Filter(kinds=PUBLIC, since=int(time.time()) - 1)
                async for event in pool.subscribe([wanted]):
                    self.events.append((time.monotonic(), event))
                    if event.kind in (kinds.FEDAVG, kinds.DILOCO) and event.id not in self.past:
                        self.requests.add(event.id)
                        self.public = event.pubkey

            following = asyncio.create_task(follow())
            try:
                yield
            finally:
                following.cancel()

    def said(self, provider: Provider | None, after: float = 0.0) -> list[Event]:
        """Events of this training that a provider (or the customer, for None) published."""
        author = self.public if provider is None else provider.public
        found = [event for at, event in self.events if at > after and event.pubkey == author]
        return [event for event in found if event.id in self.requests or self._cites(event)]

    def _cites(self, event: Event) -> bool:
        return any(value in self.requests for value in event.values("e")) or event.kind == 9735

    @property
    def fresh(self) -> set[str]:
        """The requests of this training that a provider's steps are looked for in."""
        if not self.again:
            return self.requests
        undone = "SELECT min(seq) FROM events WHERE type = 'Undone'"
        sql = f"SELECT json_extract(data, '$.request') FROM events WHERE type = 'Published' AND seq > ({undone})"
        return self.requests & {row[0] for row in self._written(sql)}

    def paid(self, part: int) -> set[tuple[str, str]]:
        """Requests and payees of which a part is paid, by the providers' own wallets."""
        sql = "SELECT job, payee FROM dues WHERE chunk = ? AND state = 'settled'"
        rows = [row for name in self.market.providers for row in self.market.rows(name, sql, part)]
        return {(row["job"], row["payee"]) for row in rows if row["job"] in self.fresh}

    def reached(self, step: str, victim: Provider) -> bool:
        """Whether a provider has come to a step of this training."""
        fresh = self.fresh
        said = [event for event in self.said(victim) if event.id in fresh or fresh & set(event.values("e"))]
        state = self.market.folder / victim.name / "state"
        asked = [event for _, event in self.events if event.id in fresh and victim.public in event.values("p")]
        match step:
            case "request":
                return bool(asked)
            case "deposit_asked":
                return any(event.tag("status") == "payment-required" for event in said)
            case "deposit_paid":
                return any(payee == victim.public for _, payee in self.paid(0))
            case "fetched" | "training":
                return any(self._has_shard(event, victim, state) for event in asked)
            case "uploading":
                return any(asked) and any((state / "training").glob("tmp*"))
            case "balance_due":
                rows = self.market.rows(victim.name, "SELECT job FROM dues WHERE chunk = 1")
                return any(row["job"] in fresh for row in rows)
            case "delivered":
                return any(event.kind in (6840, 6841) for event in said)
            case "audit_asked":
                own = [event for _, event in self.events if event.kind == kinds.VERIFICATION]
                return any(victim.public in event.values("p") and fresh & set(event.values("e")) for event in own)
            case "shown":
                return any(event.kind == 6844 for event in said)
            case "balance_paid":
                return any(payee == victim.public for _, payee in self.paid(1))
        raise ValueError(step)

    def _has_shard(self, event: Event, victim: Provider, state: Path) -> bool:
        mine = [
            one["data"]["sha256"] for one in json.loads(event.content)["shards"] if one["provider"] == victim.public
        ]
        return any((state / "blobs" / sha256[:2] / sha256).exists() for sha256 in mine)

    def journal(self) -> list[str]:
        """Types of what the customer has written down of this training, in order."""
        return [row[0] for row in self._written("SELECT type FROM events ORDER BY seq")]

    def _written(self, sql: str) -> list[tuple[str]]:
        for path in self._journals():
            if path not in self._known_journals:
                try:
                    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1)) as db:
                        return db.execute(sql).fetchall()
                except sqlite3.OperationalError:  # it is being made
                    return []
        return []

    def written(self, step: str) -> bool:
        """Whether an event stands in the journal; NAME#n: for the nth time; NAME>OTHER: an OTHER after the NAME."""
        journal = self.journal()
        first, _, then = step.partition(">")
        if then:
            return first in journal and then in journal[journal.index(first) :]
        name, _, nth = step.partition("#")
        return journal.count(name) >= int(nth or 1)

    def _journals(self) -> list[Path]:
        return sorted(self.customer.parent.glob("state/training/*/journal.db"))


class Trial:
    """One market, one customer; each training has a recipe of its own."""

    def __init__(self, market: Trainers, folder: Path, customer: Path, seed: int) -> None:
        self.market, self.folder, self.customer = market, folder, customer
        self.rng = random.Random(seed)
        self.trainings = seed * 1_000
        self.training_s = 0.5
        """How long a provider usually trains a shard."""
        self.data = folder / "data"
        self.past: set[str] = set()
        self.starts_s: list[float] = []
        """How long killed providers took to be ready again."""

    def prepare(self) -> None:
        from nodewire.training.engine import state
        from tests.kinds.digits import dataset

        self.data.mkdir()
        (self.data / "digits.safetensors").write_bytes(state.pack(dataset()))

    async def struck(self, fault: Fault) -> Outcome:
        """A training whose fault has struck, if that can be had."""
        missed = 0
        while True:
            outcome = await self.one(fault)
            outcome.missed = missed
            await self.all_back()
            # One that went wrong is not made up for.
            if not fault.step or outcome.struck or not outcome.identical or missed == MOST_MISSED:
                return outcome
            missed += 1

    async def one(self, fault: Fault) -> Outcome:
        self.trainings += 1
        who, step = fault.who, fault.step
        outcome = Outcome(who, step, fault.undoing, self.trainings)
        recipe, out = self.folder / f"{self.trainings}.toml", self.folder / f"{self.trainings}.safetensors"
        recipe.write_text(
            RECIPE.format(rounds=ROUNDS, steps=LONG if step.startswith("Begun") else STEPS, seed=self.trainings)
        )
        world = World(self.market, self.customer, self.past)
        began = time.monotonic()
        async with world.watching():
            before = step.removeprefix("<") if step.startswith("<") else ""
            customer = await self._start(recipe, out, dies_before=before)
            try:
                async with asyncio.timeout(TRAINING_S):
                    if who == "customer":
                        customer = await self._kill_customer(outcome, world, customer, recipe, out)
                    elif step:
                        await self._kill_provider(outcome, world, customer)
                    said, errors = await customer.communicate()
            except TimeoutError:
                customer.kill()
                said, errors = await customer.communicate()
                outcome.error = f"not done within {TRAINING_S:.0f} s; journal: {Counter(world.journal())}"
            self.past |= world.requests
            outcome.undone = world.journal().count("Undone")
            if not step:
                self._learn(world)
        outcome.seconds = round(time.monotonic() - began, 2)
        if customer.returncode and not outcome.error:
            outcome.error = (errors or said).decode()[-400:]
        if not outcome.error:
            outcome.failures = [one["reason"] for one in json.loads(said)["failures"]]
            outcome.identical = out.read_bytes() == await asyncio.to_thread(self.expected, recipe.read_text())
        return outcome

    @staticmethod
    def expected(recipe: str) -> bytes:
        """The bare loop's weights."""
        import torch

        from nodewire.training.engine import bare_loop, state
        from nodewire.training.protocol.recipe import Recipe
        from tests.kinds.digits import dataset

        torch.set_num_threads(1)
        return state.pack(bare_loop.run(Recipe.from_toml(recipe), dataset(), SHARDS)[0])

    def _learn(self, world: World) -> None:
        moments = [at for at, event in world.events if event.kind in (kinds.FEDAVG, kinds.DILOCO)]
        results = [at for at, event in world.events if event.kind in (6840, 6841)]
        if len(moments) > 1 and results:  # of a round without deposits
            later = [at for at in results if at > moments[1]]
            self.training_s = max(0.05, (later[0] - moments[1]) / 2 if later else self.training_s)

    async def _start(self, recipe: Path, out: Path, *, dies_before: str = "") -> asyncio.subprocess.Process:
        program = (sys.executable, "-m", "bench.training.crash_customer", dies_before) if dies_before else NODEWIRE
        return await asyncio.create_subprocess_exec(
            *program, "train", str(recipe), "--data", str(self.data), "--config", str(self.customer),
            "--out", str(out), "--budget", "1000sat", "--shards", str(SHARDS), "--json",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip

    async def _until(self, holds: Callable[[], bool], customer: asyncio.subprocess.Process) -> bool:
        """Whether it came to hold before the training was over."""
        while True:
            try:
                if holds():
                    return True
            except sqlite3.OperationalError:  # somebody writes just now, or has died while writing
                pass
            if customer.returncode is not None:
                return False
            await asyncio.sleep(LOOK_S)

    async def _kill_provider(self, outcome: Outcome, world: World, customer: asyncio.subprocess.Process) -> None:
        if not await self._until(lambda: bool(world.requests), customer):
            return
        if outcome.undoing:
            if not await self._until(lambda: world.written("Undone"), customer):
                return
            world.again = True
            if not await self._until(lambda: bool(world.fresh), customer):
                return
        request = next(event for _, event in world.events if event.id in world.fresh)
        victim = self.market.named(self.rng.choice(request.values("p")))
        outcome.victim = victim.name
        if not await self._until(lambda: world.reached(outcome.step, victim), customer):
            return
        if outcome.step == "training":
            await asyncio.sleep(self.training_s / 2)
        await self.market.kill_provider(victim.name)
        struck, outcome.struck = time.monotonic(), True
        if outcome.who == "provider":
            starting = asyncio.create_task(self._start_provider(victim.name))
            speaks = await self._until(lambda: bool(world.said(victim, struck)), customer)
            await starting
        else:
            spare = [one for one in self.market.providers.values() if one.public not in request.values("p")]
            speaks = await self._until(lambda: any(world.said(one, struck) for one in spare), customer)
        outcome.resumed_s = round(time.monotonic() - struck, 3) if speaks or customer.returncode == 0 else None

    async def _kill_customer(
        self, outcome: Outcome, world: World, customer: asyncio.subprocess.Process, recipe: Path, out: Path
    ) -> asyncio.subprocess.Process:
        step, _, between = outcome.step.partition("+")
        rows = 0
        if step.startswith("<"):  # it dies by itself
            await customer.wait()
            if customer.returncode != -signal.SIGKILL:
                return customer
        else:
            if not await self._until(lambda: world.written(step), customer):
                return customer
            if between:
                await asyncio.sleep(self.rng.random() * self.training_s)
            rows = len(world.journal())
            if customer.returncode is not None:
                return customer
            customer.send_signal(signal.SIGKILL)
        await customer.communicate()
        struck, outcome.struck = time.monotonic(), True
        rows = max(rows, len(world.journal()))
        customer = await self._start(recipe, out)

        def goes_on() -> bool:
            return bool(world.said(None, struck)) or len(world.journal()) > rows

        went_on = await self._until(goes_on, customer)
        outcome.resumed_s = round(time.monotonic() - struck, 3) if went_on or customer.returncode == 0 else None
        return customer

    async def all_back(self) -> None:
        """Start who is dead."""
        for name, provider in self.market.providers.items():
            if provider.process is not None and provider.process.returncode is not None:
                await self._start_provider(name)

    async def _start_provider(self, name: str) -> None:
        began = time.monotonic()
        await self.market.start_provider(name)
        self.starts_s.append(round(time.monotonic() - began, 3))


async def measure(report: Report, options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="nodewire-chaos-train-"))
    kept = True
    try:
        await _measure(report, options, folder)
        kept = not report.ok
    finally:
        if kept:
            say(f"logs and books stay in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _measure(report: Report, options: argparse.Namespace, folder: Path) -> None:
    market = Trainers(folder / "market", providers=0, worker_memory="400MB")
    async with market:
        for number in range(SHARDS + 1):
            provider = await market._add_trainer()
            if number == SHARDS:  # who is dearer is asked when nobody else is left
                dearer = provider.config.read_text().replace(f"= {LEAST_MSAT}\n", f"= {2 * LEAST_MSAT}\n")
                provider.config.write_text(dearer)
        await asyncio.gather(*(market.start_provider(name) for name in market.providers))
        customer = await market.customer_config("customer")
        with customer.open("a") as file:
            file.write('[worker]\nmemory = "400MB"\nthreads = 1\n')
        trial = Trial(market, folder, customer, report.seed)
        trial.prepare()
        outcomes: list[Outcome] = []
        for fault in _faults(report.quick):
            if options.only and options.only not in fault.name and fault != Fault("nobody", ""):
                continue
            if fault.undoing and CHEAT not in market.providers:  # from now on it is the cheapest
                await market.start_provider((await _add_cheat(market)).name)
            outcomes.append(await trial.struck(fault))
            say(_told(outcomes[-1]))
        network = market.processes["simnet"]
        network.terminate()  # it has its journal for itself
        await network.wait()
        report.arms["starts_s"] = spread(trial.starts_s)
        _judge(report, outcomes, settled(market))


def _faults(quick: bool) -> list[Fault]:
    """All that is done, those with a cheat last: its ad stays where it is."""
    providers = QUICK_PROVIDER if quick else PROVIDER_STEPS
    customers = QUICK_CUSTOMER if quick else CUSTOMER_STEPS
    dead = DEAD_STEPS[1:2] if quick else DEAD_STEPS
    again = QUICK_UNDONE_PROVIDER if quick else UNDONE_PROVIDER
    undoing = QUICK_UNDONE_CUSTOMER if quick else UNDONE_CUSTOMER
    return [
        Fault("nobody", ""),
        *(Fault("provider", step) for step in providers),
        *(Fault("customer", step) for step in customers),
        *(Fault("customer", f"{step}+") for step in customers if not quick),
        *(Fault("provider for good", step) for step in dead),
        Fault("nobody", "", undoing=True),
        *(Fault("provider", step, undoing=True) for step in again),
        *(Fault("customer", step, undoing=True) for step in undoing),
    ]


async def _add_cheat(market: Trainers) -> Provider:
    cheat = await market._add_trainer()
    cheat.command = (sys.executable, "-m", "bench.training.late_cheat")
    cheaper = cheat.config.read_text().replace(f"= {LEAST_MSAT}\n", f"= {LEAST_MSAT - 1}\n")
    cheat.config.write_text(cheaper)
    return cheat


def settled(market: Trainers) -> Counter[tuple[str, str, int]]:
    """Invoices that the network settled, by (request, payee, part); invoices of nothing known are under ("", hash)."""
    with closing(sqlite3.connect(f"file:{market.folder / 'simnet.db'}?mode=ro", uri=True, timeout=10)) as db:
        paid = {row[0] for row in db.execute("SELECT payment_hash FROM events WHERE type = 'Settled'")}
    quoted = [row for name in market.providers for row in market.rows(name, "SELECT * FROM quotes")]
    known = {row["payment_hash"]: (row["job"], row["payee"], row["chunk"]) for row in quoted}
    return Counter(known.get(hash_, ("", hash_, 0)) for hash_ in paid)


def _judge(report: Report, every: list[Outcome], settled_: Counter[tuple[str, str, int]]) -> None:
    report.arms["trainings"] = [asdict(one) for one in every]
    times = {who: [o.resumed_s for o in every if o.who == who and o.resumed_s is not None] for who in _WHO}
    report.arms["resumed_s"] = {who: spread(found) for who, found in times.items()}
    report.arms["payments"] = sum(settled_.values())
    disturbed = [one for one in every if one.who != "nobody"]
    unresumed = [one for one in disturbed if one.struck and one.resumed_s is None]
    report.line("trainings", len(every), ">=", 2)
    report.line("faults_that_struck", sum(one.struck for one in disturbed), "==", len(disturbed))
    report.line("not_undone", sum(one.undoing and not one.undone for one in every), "==", 0)
    report.line("with_other_weights_than_the_bare_loop", sum(not one.identical for one in every), "==", 0)
    report.line("payments_of_nothing_known", sum(not request for request, _, _ in settled_), "==", 0)
    report.line("double_payments", sum(count > 1 for count in settled_.values()), "==", 0)
    report.line("not_resumed", len(unresumed), "==", 0)
    back = [seconds for who in ("provider", "customer") for seconds in times[who]]
    report.line("resumed_s_at_most", max(back, default=None), "<", RESUMED_S)
    if times["provider for good"]:
        report.line("replaced_s_at_most", max(times["provider for good"], default=None), "<", REPLACED_S)


_WHO = ("provider", "customer", "provider for good")


def _told(outcome: Outcome) -> str:
    end = outcome.error or ("identical" if outcome.identical else "OTHER WEIGHTS")
    if not outcome.step:
        return f"undisturbed{', with a cheat' * outcome.undoing}: {outcome.seconds} s, {end}"
    missed = "" if outcome.struck else ", the fault missed"
    again = f", undone {outcome.undone} times" if outcome.undoing else ""
    fault = Fault(outcome.who, outcome.step, outcome.undoing)
    return (
        f"{fault.name}: resumed after {outcome.resumed_s} s of {outcome.seconds} s,"
        f" {end}{again}{missed} {outcome.failures or ''}"
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", default="", help="faults whose name has this in it, such as 'provider at shown' or 'undoing'"
    )


if __name__ == "__main__":
    run("chaos_train", __doc__, measure, add=_options)
