"""Jobs with a cheater among the providers: `python -m bench.byzantine [--json] [--quick] [--seed N] [--only CHEAT]`.

For each cheat of tests/faults a market of public commands in which one of eight providers, started by the faults'
launcher, cheats in every stage that it serves. Customers buy generations under sampled verification and follow them to
their verdicts (`wait`). Then the same with a sentence encoder cut into twelve tasks: one trial after the other, each
with a fresh corrupt node for one seeded task.

Figures, per cheat:
- caught: verdicts `fail` with the cheater as culprit; wrongly: with anybody else.
- after: plans that still name the cheater, of requests published more than `LEAVING_EPOCHS` epochs after the first such
  verdict was certified.
- cheater_net_msat: what its own ledger has received for work, less what left its bond, by the bond holder. Honest
  providers likewise; with --quick those that no plan named and that verified nothing are left out.
- repaired: jobs with a verdict `fail` whose ids in the end are those of one process alone.
- unnoticed: jobs that the cheater spoilt and no sample hit (they do not pay; there may be some).
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench import dag
from bench.jobs import PROMPTS, generate, references
from bench.market import DECODER, EPOCH_S, Market, Model, Provider
from bench.report import Report, run, say
from nodewire import Customer, NodewireError, Terms
from nodewire.nostr.event import Event
from nodewire.nostr.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import Request
from nodewire.protocol.job import parse as parse_request

CHEATS = ("wrong", "scaled", "skipped", "other", "stale", "copied")
PROVIDERS, HOLDERS = 8, 5
CHEATER = 3
TOKENS = 96
JOB_S = 180.0
LEAVING_EPOCHS = 2
BOND_SATS = 100_000
RATE = "5%"
"""The policy's sampling rate (`nodewire policy check`)."""
DAG_JOBS = 40
"""Calls in one trial until the corrupt node is caught."""

FAULTS = (sys.executable, "-m", "tests.faults.run")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict's certificate (8852), as far as the books need it."""

    request: str
    task: str
    provider: str
    outcome: str
    culprit: str
    verifiers: tuple[str, ...]
    certified_s: int

    @classmethod
    def read(cls, event: Event) -> Verdict | None:
        """The verdict in a certificate, or None: 8852 certifies epochs, too."""
        try:
            said = json.loads(event.content)["verdict"]
        except (ValueError, KeyError, TypeError):
            return None
        verifiers = tuple(str(public) for public, agreed in said["verifiers"] if agreed)
        parts = (said["request"], said["task"], said["provider"], said["outcome"], said["culprit"] or "")
        return cls(*parts, verifiers=verifiers, certified_s=event.created_at)


@dataclass(slots=True)
class Books:
    """What a market's records say after its jobs: `slashed_msat` and `earned_msat` by provider's name."""

    verdicts: list[Verdict] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    earned_msat: dict[str, int] = field(default_factory=dict)
    slashed_msat: dict[str, int] = field(default_factory=dict)

    @classmethod
    async def of(cls, market: Market, providers: Sequence[Provider]) -> Books:
        """Verdicts and requests from the relay, money from the providers' ledgers and the bond holder."""
        wanted = (kinds.CERTIFICATE, kinds.INFERENCE)
        events = await market.events(Filter(kinds=frozenset(wanted)))
        books = cls()
        found = {verdict for e in events if e.kind == kinds.CERTIFICATE and (verdict := Verdict.read(e))}
        # Several members may certify one verdict: it is one.
        first: dict[tuple[str, ...], Verdict] = {}
        for verdict in sorted(found, key=lambda v: v.certified_s):
            first.setdefault((verdict.request, verdict.task, verdict.provider, verdict.outcome), verdict)
        books.verdicts = list(first.values())
        books.requests = [parse_request(e) for e in events if e.kind == kinds.INFERENCE]
        for provider in providers:
            books.slashed_msat[provider.name] = await market.slashed_msat(provider)
            books.earned_msat[provider.name] = market.earned_msat(provider.name)
        return books

    def net_msat(self, provider: Provider) -> int:
        return self.earned_msat[provider.name] - self.slashed_msat[provider.name]

    def failed(self, culprit: str) -> list[Verdict]:
        return [v for v in self.verdicts if v.outcome == "fail" and v.culprit == culprit]

    def blamed(self) -> set[str]:
        return {v.culprit for v in self.verdicts if v.outcome == "fail"}

    def worked(self, provider: Provider) -> bool:
        named = any(provider.public in request.plan.providers() for request in self.requests)
        return named or any(provider.public in verdict.verifiers for verdict in self.verdicts)

    def plans_after(self, public: str, epoch_s: float) -> int | None:
        """Plans that name the node well after its first failed verdict; None if it was never caught."""
        caught = self.failed(public)
        if not caught:
            return None
        gone_s = min(v.certified_s for v in caught) + LEAVING_EPOCHS * epoch_s
        return sum(r.created_at > gone_s and public in r.plan.providers() for r in self.requests)


def bond_sats() -> int:
    """`BOND_SATS`, or 0 as long as nodewire has no `bond` command."""
    return BOND_SATS if find_spec("nodewire.cli.bond") else 0


def sampled(customer: Customer) -> dict[str, Any]:
    """The options of a job under sampled verification that is followed to its verdicts."""
    options: dict[str, Any] = {"terms": customer.terms.model_copy(update={"verify": "sampled"})}
    if "wait" in inspect.signature(customer.generate).parameters:
        options["wait"] = True
    return options


async def cheat(name: str, prompts: Sequence[str], count: int, rng: random.Random) -> dict[str, Any]:
    """One market with one cheater: `count` jobs and the books after them."""
    with tempfile.TemporaryDirectory(prefix=f"nodewire-{name}-") as folder:
        stages = "stage.0,stage.1,stage.2"
        launched = [*FAULTS, "--cheat", name, "--tasks", stages, "--"]
        async with Market(
            Path(folder),
            providers=PROVIDERS,
            holders=HOLDERS,
            dishonest={CHEATER: launched},
            committee=("--verify-rate", RATE),
            bond_sats=bond_sats(),
        ) as market:
            alone = await references(market, DECODER, prompts, TOKENS)
            jobs = await _bought(market, prompts, alone, count, rng, name)
            await asyncio.sleep(3)  # payments and statements that are on their way
            books = await Books.of(market, list(market.providers.values()))
            return _cheat_arm(market, books, jobs)


async def _bought(
    market: Market, prompts: Sequence[str], alone: dict[str, list[int]], count: int, rng: random.Random, name: str
) -> list[dict[str, Any]]:
    jobs = []
    number = 0
    customers = 0
    while number < count:
        customers += 1
        async with market.customer(f"customer-{customers}") as customer:
            # A customer whose job failed is replaced: what that job owes does not reach the next.
            while number < count:
                number += 1
                prompt = rng.choice(prompts)
                address = market.models["pycoder"]["address"]
                options = sampled(customer)
                done = await generate(customer, address, prompt, TOKENS, timeout_s=JOB_S, **options)
                same = done.ids == alone[prompt]
                request = done.said.get("request", "")
                jobs.append({"request": request, "identical": same, "error": done.error})
                how = done.error[:100] or ("identical" if same else "different")
                say(f"{name} {number}/{count}: {how}")
                if done.error:
                    break
    return jobs


def _cheat_arm(market: Market, books: Books, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    cheater = market.providers[f"provider-{CHEATER}"]
    honest = [p for p in market.providers.values() if p is not cheater]
    working = [p for p in honest if books.worked(p)]
    failed = {v.request for v in books.verdicts if v.outcome == "fail"}
    named = {r.id for r in books.requests if cheater.public in r.plan.providers()}
    repaired = [job for job in jobs if job["request"] in failed]
    nets = {p.name: books.net_msat(p) for p in honest}
    return {
        "jobs": len(jobs),
        "identical": sum(job["identical"] for job in jobs),
        "errors": sorted({job["error"].partition(":")[0] for job in jobs if job["error"]}),
        "jobs_with_the_cheater": len(named),
        "caught": len(books.failed(cheater.public)),
        "wrongly": sorted(books.blamed() - {cheater.public}),
        "plans_after": books.plans_after(cheater.public, EPOCH_S),
        "cheater_net_msat": books.net_msat(cheater),
        "cheater_slashed_msat": books.slashed_msat[cheater.name],
        "honest_net_msat": nets,
        "honest_without_work": sorted(p.name for p in honest if p not in working),
        "least_honest_net_msat": min(nets.values()),
        "least_working_net_msat": min((nets[p.name] for p in working), default=None),
        "failed_jobs": len(repaired),
        "repaired": sum(job["identical"] for job in repaired),
        "unnoticed": sum(not job["identical"] and not job["error"] for job in jobs if job["request"] not in failed),
        "outcomes": {o: sum(v.outcome == o for v in books.verdicts) for o in ("pass", "fail", "withheld", "unsure")},
    }


@dataclass(slots=True)
class Trial:
    """One corrupt node in the DAG. `slashed`: the names of providers whose bonds shrank by it."""

    task: str
    calls: int = 0
    spoilt: int = 0
    errors: int = 0
    caught: bool = False
    blamed: tuple[str, ...] = ()
    slashed: tuple[str, ...] = ()
    exact: bool = False


async def dag_trials(count: int, rng: random.Random) -> list[Trial]:
    """`count` trials on one market, each with a new corrupt node for one task of the twelve."""
    with tempfile.TemporaryDirectory(prefix="nodewire-dag-") as folder:
        model = Model(await asyncio.to_thread(dag.make, Path(folder) / "encoder"), dag.TARGET, "twelve")
        async with Market(
            Path(folder) / "market",
            providers=PROVIDERS,
            holders=HOLDERS,
            models=[model],
            worker_memory="100MB",
            bond_sats=bond_sats(),
        ) as market:
            said = market.models["twelve"]
            tasks = [task["name"] for task in said["tasks"]]
            if len(tasks) != dag.TASKS:
                raise RuntimeError(f"the encoder was cut into {len(tasks)} tasks, not {dag.TASKS}")
            alone = [
                np.array((await market.command("embed", *texts, "--local", str(model.folder)))["vectors"])
                for texts in dag.SENTENCES
            ]
            trials = []
            for number in range(count):
                trial = Trial(rng.choice(tasks[1:]))
                await _corrupt(market, trial, number, alone, rng)
                trials.append(trial)
                say(f"dag {number + 1}/{count}: {asdict(trial)}")
            return trials


async def _corrupt(market: Market, trial: Trial, number: int, alone: list[np.ndarray], rng: random.Random) -> None:
    before = await Books.of(market, list(market.providers.values()))
    # It says that it is quick, so that assign/1 prefers it for its task.
    command = [*FAULTS, "--cheat", "wrong", "--"]
    corrupt = await market.add_provider(
        [("twelve", trial.task)], name=f"corrupt-{number}", command=command, us_per_position=1
    )
    await market.start_provider(corrupt.name)
    await market.healthy(timeout_s=60)
    async with market.customer(f"dag-{number}") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        while trial.calls < DAG_JOBS and not trial.caught and not trial.errors:
            await _call(market, trial, customer, terms, alone, rng)
            books = await Books.of(market, list(market.providers.values()))
            trial.caught = bool(books.failed(corrupt.public))
            if trial.calls >= 3 and not any(r.plan.verification.rate_ppm for r in books.requests):
                break  # nothing is ever drawn: to go on would only take time
    await asyncio.sleep(2 * EPOCH_S)
    after = await Books.of(market, list(market.providers.values()))
    names = {p.public: p.name for p in market.providers.values()}
    trial.blamed = tuple(sorted(names.get(culprit, culprit) for culprit in after.blamed() - before.blamed()))
    trial.slashed = tuple(
        sorted(name for name, msat in after.slashed_msat.items() if msat > before.slashed_msat.get(name, 0))
    )
    trial.exact = trial.blamed == trial.slashed == (corrupt.name,)
    await market.remove_provider(corrupt.name)


async def _call(
    market: Market, trial: Trial, customer: Customer, terms: Terms, alone: list[np.ndarray], rng: random.Random
) -> None:
    which = rng.randrange(len(dag.SENTENCES))
    options: dict[str, Any] = {"wait": True} if "wait" in inspect.signature(customer.embed).parameters else {}
    trial.calls += 1
    try:
        async with asyncio.timeout(JOB_S):
            address = market.models["twelve"]["address"]
            vectors = await customer.embed(address, list(dag.SENTENCES[which]), terms=terms, **options)
            trial.spoilt += not np.allclose(vectors, alone[which], atol=1e-5)
    except (NodewireError, TimeoutError) as error:
        trial.errors += 1
        say(f"a call failed: {error}")


async def measure(report: Report, options: argparse.Namespace) -> None:
    jobs, trials = (options.jobs or (8 if report.quick else 200)), (2 if report.quick else 200)
    prompts = PROMPTS[: 3 if report.quick else None]
    chosen = [name for name in CHEATS if options.only in ("", name)]
    for name in chosen:
        say(f"cheat {name}")
        arm = report.arms[name] = await cheat(name, prompts, jobs, random.Random(f"{report.seed} {name}"))
        judge(report, name, arm)
    if options.only in ("", "dag"):
        done = await dag_trials(trials, random.Random(f"{report.seed} dag"))
        report.arms["dag"] = [asdict(trial) for trial in done]
        report.line("dag_exactly_the_corrupt_node", sum(trial.exact for trial in done), "==", len(done))


def judge(report: Report, name: str, arm: dict[str, Any]) -> None:
    """The acceptance lines of one cheat."""
    report.line(f"{name}_caught", arm["caught"], ">=", 1)
    report.line(f"{name}_wrongly_blamed", len(arm["wrongly"]), "==", 0)
    report.line(f"{name}_plans_after_the_verdict", arm["plans_after"], "==", 0)
    report.line(f"{name}_cheater_net_msat", arm["cheater_net_msat"], "<", 0)
    least = arm["least_working_net_msat"] if report.quick else arm["least_honest_net_msat"]
    report.line(f"{name}_least_honest_net_msat", least, ">", 0)
    # Where no job failed, nothing shows that failed ones are repaired.
    report.line(f"{name}_repaired", arm["repaired"] if arm["failed_jobs"] else None, "==", arm["failed_jobs"])


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", choices=("", *CHEATS, "dag"), help="one cheat, or the twelve tasks")
    parser.add_argument("--jobs", type=int, default=0, help="for each cheat, instead of 200, or 8 with --quick")


if __name__ == "__main__":
    run("byzantine", __doc__, measure, add=_options)
