"""Jobs with a cheater among the providers: `python -m bench.verification.byzantine [--json] [--quick] [--only CHEAT]
[--jobs N]`.

For each cheat of tests/faults a market of public commands in which one of ten providers, started by the faults'
launcher, cheats in every stage that it serves, at the shipped policy's rate and with the bonds that it asks for.
Customers, several at once, buy short generations under sampled verification and follow them to their verdicts
(`wait`). A driver that cheats is honest as a verifier, so that only what it drove convicts it. Then a sentence encoder
cut into twelve tasks, one corrupt node in each job: many in one process by the real rules
(bench.verification.tribunal), and some on a market of processes (bench.verification.corrupt).

Figures, per cheat:
- altered: frames, tokens and weights that the cheat changed, by its own log.
- caught_at_job: how many requests had been published when the first verdict that convicts the cheater was certified.
- wrongly: whoever else was convicted.
- plans_after: plans that still name the cheater, of requests published more than `LEAVING_EPOCHS` epochs after that.
- cheater_net_msat: what its own ledger has received for work, less what is gone of its bond, by the bond holder. Honest
  providers likewise; with --quick those that no plan named and that verified nothing are left out.
- failed_jobs: those with a verdict `fail` or `withheld`; repaired_identical: those of them whose ids in the end are
  those of one process alone.
- repairs: of each of these, the chunks with such a verdict, from which tokens on it was made again, and the first token
  that is wrong in the end.
- unnoticed: jobs that the cheater spoilt and no sample hit.
- unsure, withheld: verdicts that say neither.
- struck_samples: verdicts on drawn chunks of the cheater's in which its cheat altered a frame or token, by its own log.
  struck_found: those of them that convict it. With `--rate 100%` every chunk is drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.report import Report, run
from bench.tools.books import Books
from bench.tools.jobs import PROMPTS, generate, references
from bench.verification import corrupt, tribunal
from bench.verification.corrupt import Trial
from bench.verification.recompute import FAULTS as FAULTS_FOLDER
from nodewire.plan.policy import SHIPPED, minimum_bond_msat
from nodewire.protocol.job.chunk import chunk_of
from nodewire.protocol.model.manifest import Manifest
from processes.market import DECODER, PRICE_MSAT, Market, ProviderSetup, Stock
from processes.progress import say

CHEATS = ("wrong", "scaled", "skipped", "other", "stale", "copied", "forged", "mistaken", "second", "colder")
DRIVERS = ("mistaken", "second", "colder")
"""Those of which the driver cheats; the others do in every stage."""
SILENT = ("other", "copied")
"""Those whose log names no frame: one has other weights in all, the other commits to what others did."""
SAMPLED = {"colder": {"temperature": 1.0, "seed": 7}}
"""What their customers ask for, others greedy decoding."""
PROVIDERS, HOLDERS = 10, 6
FEWER = {"driver": 3}
"""Where the driver cheats: it drives one plan in three, so that ten jobs have plans of its own."""
CHEATER = 4
"""It holds the driver and three stages (`Market` hands them out in turn), so every cheat has something to alter."""
TOKENS = 40
"""The prompt's chunk, and one that is not full."""
JOB_S = 180.0
LEAVING_EPOCHS = 2
EPOCH_S = 3.0
"""All oracles, providers and customers share this machine's cores; with other work beside them, `--epoch` is longer."""
TOGETHER = 6
"""Customers that buy at once, one job after the other."""
TASKS = 7
"""Of the decoder as the market cuts it: a driver and six stages. A cheat of four of them would leave others honest."""
IN_FLIGHT = 4 * 9
"""Four sessions, each of which begins a chunk in every epoch until the first has its verdict, nine epochs later."""
BOND_SATS = -(
    -minimum_bond_msat(
        base_msat=1_000_000, per_gb_msat=0, weights_gb=0, chunk_msat=TASKS * PRICE_MSAT, in_flight=IN_FLIGHT
    )
    // 1_000
)
RATE = f"{SHIPPED.rate:.2%}"
sys.path.append(str(FAULTS_FOLDER))
from nodewire_faults.strike import FRAME, STRUCK  # noqa: E402

FAULTS = (sys.executable, "-m", "tests.faults.run")


@dataclass(slots=True)
class Bought:
    """One job as its buyer saw it; `requests` is more than one if it was repaired or begun anew."""

    customer: str
    began_s: float
    identical: bool = False
    differs_at: int | None = None
    """The first token that is not what one process alone generates."""
    error: str = ""
    repaired: list[int] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)


async def cheat(
    name: str, prompts: Sequence[str], count: int, rng: random.Random, rate: str = RATE, epoch_s: float = EPOCH_S
) -> dict[str, Any]:
    """One market with one cheater: `count` jobs and the books after them."""
    with tempfile.TemporaryDirectory(prefix=f"nodewire-{name}-") as folder:
        tasks = "driver" if name in DRIVERS else ",".join(f"stage.{k}" for k in range(TASKS - 1))
        launched = [*FAULTS, "--cheat", name, "--tasks", tasks, "--"]
        sampled = SAMPLED.get(name, {})
        options = [word for key, value in sampled.items() for word in (f"--{key}", str(value))]
        async with Market(
            Path(folder),
            providers=PROVIDERS,
            stock=Stock(holders=HOLDERS, fewer=FEWER if name in DRIVERS else {}),
            setup=ProviderSetup(dishonest={CHEATER: launched}, bond_sats=BOND_SATS),
            committee=("--verify-rate", rate),
            epoch_s=epoch_s,
        ) as market:
            if (count_of := len(market.models["pycoder"]["tasks"])) != TASKS:
                raise RuntimeError(f"the decoder is cut into {count_of} tasks, the cheats know {TASKS}")
            alone = await references(market, DECODER, prompts, TOKENS, *options)
            began = time.monotonic()
            chosen = iter([rng.choice(prompts) for _ in range(count)])
            jobs: list[Bought] = []
            async with asyncio.TaskGroup() as group:
                for lane in range(min(TOGETHER, count)):
                    group.create_task(_buy(market, f"{name}-{lane}", chosen, alone, jobs, count, sampled))
            seconds = time.monotonic() - began
            await asyncio.sleep(3)  # payments and statements that are on their way
            books = await Books.of(market, list(market.providers.values()))
            async with market.customer("reader") as reader:
                manifest = await reader.session.market.manifest(market.models["pycoder"]["address"])
            return {**_arm(market, manifest, books, jobs), "seconds": round(seconds, 1)}


async def _buy(
    market: Market,
    name: str,
    prompts: Iterator[str],
    alone: dict[str, list[int]],
    jobs: list[Bought],
    count: int,
    sampled: dict[str, Any],
) -> None:
    """One customer after the other buys jobs until there are no more `prompts`."""
    for number in itertools.count(1):
        async with market.customer(f"{name}-{number}") as customer:
            # A customer whose job failed is replaced: what that job owes does not reach the next.
            for prompt in prompts:
                job = Bought(customer.session.keys.public, time.time())
                jobs.append(job)
                terms = customer.terms.model_copy(update={"verify": "sampled"})
                address = market.models["pycoder"]["address"]
                wanted = {"terms": terms, "wait": True, **sampled}
                done = await generate(customer, address, prompt, TOKENS, timeout_s=JOB_S, **wanted)
                job.identical, job.error = done.ids == alone[prompt], done.error
                job.differs_at = _differs_at(done.ids, alone[prompt])
                job.repaired = done.said.get("repaired", [])
                how = job.error[:100] or ("identical" if job.identical else "different")
                say(f"{name} {len(jobs)}/{count}: {how}{', repaired' * bool(job.repaired)}")
                if job.error:
                    break
            else:
                return


def _arm(market: Market, manifest: Manifest, books: Books, jobs: list[Bought]) -> dict[str, Any]:
    cheater = market.providers[f"provider-{CHEATER}"]
    honest = [p for p in market.providers.values() if p is not cheater]
    _attribute(books, jobs)
    failed = {v.request for v in books.verdicts if v.outcome in ("fail", "withheld")}
    convicting = books.convictions(cheater.public)
    first_s = min((v.certified_s for v in convicting), default=None)
    repairing = [job for job in jobs if job.requests & failed]
    nets = {p.name: books.net_msat(p) for p in honest}
    working = [p.name for p in honest if books.worked(p)]
    outcomes = books.outcomes()
    altered = _altered(market.log(cheater.name), manifest)
    struck = [v for v in books.verdicts if v.provider == cheater.public and (v.request, v.task, v.chunk) in altered]
    return {
        "jobs": len(jobs),
        "altered": market.log(cheater.name).count(STRUCK),
        "identical": sum(job.identical for job in jobs),
        "errors": dict(Counter(job.error.partition(":")[0] for job in jobs if job.error)),
        "requests": len(books.requests),
        "requests_with_the_cheater": sum(cheater.public in r.plan.providers() for r in books.requests),
        "samples": len(books.samples),
        "samples_of_the_cheater": sum(provider == cheater.public for *_, provider in books.samples),
        "outcomes": outcomes,
        "outcomes_of_the_cheater": books.outcomes(v for v in books.verdicts if v.provider == cheater.public),
        "unsure": outcomes["unsure"],
        "struck_samples": len(struck),
        "struck_found": sum(cheater.public in verdict.convicted for verdict in struck),
        "caught": len(convicting),
        "caught_as_verifier": sum(v.provider != cheater.public for v in convicting),
        "caught_at_job": None if first_s is None else books.jobs_until(first_s),
        "expelled": first_s is not None
        and books.plans_after(cheater.public, first_s + LEAVING_EPOCHS * market.epoch_s) == 0,
        "plans_after": None
        if first_s is None
        else books.plans_after(cheater.public, first_s + LEAVING_EPOCHS * market.epoch_s),
        "wrongly": sorted(books.convicted() - {cheater.public}),
        "cheater_earned_msat": books.earned_msat[cheater.name],
        "cheater_slashed_msat": books.lost_msat[cheater.name],
        "cheater_net_msat": books.net_msat(cheater),
        "honest_net_msat": nets,
        "honest_min_net_msat": min(nets.values()),
        "honest_working_min_net_msat": min((nets[name] for name in working), default=None),
        "failed_jobs": len(repairing),
        "repaired_identical": sum(job.identical for job in repairing),
        "repairs": [
            {
                "failed_chunks": sorted(
                    {v.chunk for v in books.verdicts if v.request in job.requests and v.outcome in ("fail", "withheld")}
                ),
                "made_again_from": job.repaired,
                "differs_at": job.differs_at,
                "error": job.error,
            }
            for job in repairing
        ],
        "unnoticed": sum(not job.identical and not job.error and not job.requests & failed for job in jobs),
    }


def _altered(log: str, manifest: Manifest) -> set[tuple[str, str, int]]:
    """Request, task and chunk of what a cheat altered, by its provider's log."""
    source = {edge.name: edge.source for edge in manifest.edges}
    return {(request, source[edge], chunk_of(manifest, int(seq))) for request, edge, seq in FRAME.findall(log)}


def _differs_at(ids: Sequence[int], alone: Sequence[int]) -> int | None:
    if list(ids) == list(alone):
        return None
    return next((k for k, (a, b) in enumerate(zip(ids, alone, strict=False)) if a != b), min(len(ids), len(alone)))


def _attribute(books: Books, jobs: list[Bought]) -> None:
    """Give each job the requests that its customer published while it ran."""
    for request in books.requests:
        own = [job for job in jobs if job.customer == request.customer and int(job.began_s) <= request.created_at]
        if own:
            max(own, key=lambda job: job.began_s).requests.add(request.id)


async def measure(report: Report, options: argparse.Namespace) -> None:
    jobs = options.jobs or (12 if report.quick else 200)
    prompts = PROMPTS[: 3 if report.quick else None]
    for name in CHEATS:
        if options.only in ("", name):
            say(f"cheat {name}, a bond of {BOND_SATS} sat, {options.rate} sampled")
            rng = random.Random(f"{report.seed} {name}")
            arm = report.arms[name] = await cheat(name, prompts, jobs, rng, options.rate, options.epoch)
            judge(report, name, arm)
    if options.only in ("", "rules"):
        count, rng = options.jobs or (20 if report.quick else 200), random.Random(f"{report.seed} rules")
        _dag(report, "rules", await asyncio.to_thread(tribunal.trials, count, rng))
    if options.only in ("", "dag"):
        count, rng = options.jobs or (4 if report.quick else 20), random.Random(f"{report.seed} dag")
        _dag(report, "dag", await corrupt.trials(count, rng))


def _dag(report: Report, name: str, done: list[Trial]) -> None:
    report.arms[name] = {"by_cheat": corrupt.by_cheat(done), "trials": [asdict(trial) for trial in done]}
    report.line(f"{name}_exactly_the_corrupt_node", sum(trial.exact for trial in done), "==", len(done))
    wrongly = [one for trial in done for one in trial.convicted if one not in (trial.task, trial.newcomer)]
    wrongly += [one for trial in done for one in trial.liars if not one.startswith("corrupt-")]
    report.line(f"{name}_wrongly_convicted", len(wrongly), "==", 0)


def judge(report: Report, name: str, arm: dict[str, Any]) -> None:
    """The acceptance lines of one cheat."""
    report.line(f"{name}_altered", arm["altered"], ">=", 1)
    report.line(f"{name}_caught", arm["caught"], ">=", 1)
    if name in DRIVERS:  # honest as verifiers: else most are out of plans before they drive a drawn chunk
        report.line(f"{name}_struck_samples", arm["struck_samples"], ">=", 1)
    if name not in SILENT:
        report.line(f"{name}_struck_samples_found", arm["struck_found"], "==", arm["struck_samples"])
    report.line(f"{name}_wrongly_convicted", len(arm["wrongly"]), "==", 0)
    report.line(f"{name}_plans_after_the_verdict", arm["plans_after"], "==", 0)
    report.line(f"{name}_cheater_net_msat", arm["cheater_net_msat"], "<", 0)
    least = arm["honest_working_min_net_msat"] if report.quick else arm["honest_min_net_msat"]
    report.line(f"{name}_honest_min_net_msat", least, ">", 0)
    # Where no job failed, nothing shows that failed ones are repaired.
    report.line(
        f"{name}_repaired_identical",
        arm["repaired_identical"] if arm["failed_jobs"] else None,
        "==",
        arm["failed_jobs"],
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", choices=("", *CHEATS, "rules", "dag"), help="one of the arms")
    parser.add_argument("--rate", default=RATE, help="of chunks that are drawn")
    parser.add_argument("--epoch", type=float, default=EPOCH_S, help="seconds")
    parser.add_argument("--jobs", type=int, default=0, help="of each arm, instead of 200 (20 in `dag`)")


if __name__ == "__main__":
    run("byzantine", __doc__, measure, add=_options)
