"""One corrupt node among the twelve of a job, job after job on one market: who is convicted, whose bond is slashed.

Every task of bench.tasks.dag's encoder has an honest provider of its own, and a few more that hold all tasks: they are
in no plan, so that they can be drawn as verifiers. For each trial a newcomer with a cheat of tests/faults takes the
place of the provider of one random task: the customer's terms name whom it trusts, which is the newcomer and the eleven
others. Every chunk is sampled. Several trials run at once; a newcomer has one job, and leaves after its verdicts.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.tasks import dag
from bench.tools.books import Books, Verdict
from nodewire import Customer, NodewireError
from nodewire.nostr.event import Event
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from processes.market import Market, Model, Provider, ProviderSetup, Stock
from processes.progress import say

CHEATS = ("wrong", "scaled", "skipped", "other", "stale", "copied")
OF_DRIVERS = ("wrong", "stale", "copied")
"""A driver puts out integers and has no weights."""
VERIFIERS = 3
TOGETHER = 4
EPOCH_S = 4.0
"""All oracles, providers and customers share this machine's cores, and every job has twelve samples."""
CALL_S = 150.0
VERDICT_EPOCHS = 15
BOND_SATS = 20_000
FAULTS = (sys.executable, "-m", "tests.faults.run")
MODEL = "twelve"


@dataclass(slots=True)
class Trial:
    """One corrupt node in one job. `outcomes` of its verdicts; `convicted`, `liars`, `slashed`: providers by name.

    Corrupt nodes of trials that run at once may be drawn to verify each other's jobs, and lie there, too.
    """

    task: str
    cheat: str
    newcomer: str = ""
    """The corrupt node's name; in one process nodes are called by their tasks."""
    spoilt: bool = False
    error: str = ""
    verdicts: int = 0
    outcome: str = ""
    """What the committee said of the corrupt node's own chunk."""
    outcomes: dict[str, int] = field(default_factory=dict)
    convicted: tuple[str, ...] = ()
    """For their work in this job."""
    liars: tuple[str, ...] = ()
    """Convicted as verifiers of this job."""
    slashed: tuple[str, ...] = ()
    exact: bool = False
    """The corrupt node was convicted of its work and slashed, and nobody else but corrupt verifiers."""


def by_cheat(trials: Sequence[Trial]) -> dict[str, Any]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        found[trial.cheat]["trials"] += 1
        found[trial.cheat]["exact"] += trial.exact
        found[trial.cheat][trial.outcome or "no verdict"] += 1
    return {cheat: dict(count) for cheat, count in sorted(found.items())}


async def trials(count: int, rng: random.Random) -> list[Trial]:
    """`count` trials on one market."""
    with tempfile.TemporaryDirectory(prefix="nodewire-dag-") as folder:
        model = Model(await asyncio.to_thread(dag.make, Path(folder) / "encoder"), dag.TARGET, MODEL)
        async with Market(
            Path(folder) / "market",
            providers=0,
            stock=Stock(models=[model], slots=2 * TOGETHER),  # a job's seats are freed a while after it
            committee=("--verify-rate", "100%"),
            setup=ProviderSetup(worker_memory="100MB", bond_sats=BOND_SATS),
            epoch_s=EPOCH_S,
        ) as market:
            tasks = [task["name"] for task in market.models[MODEL]["tasks"]]
            if len(tasks) != dag.TASKS:
                raise RuntimeError(f"the encoder was cut into {len(tasks)} tasks, not {dag.TASKS}")
            seats = {task: await market.add_provider([(MODEL, task)], name=f"seat-{task}") for task in tasks}
            everything = [(MODEL, task) for task in tasks]
            others = [await market.add_provider(everything, name=f"verifier-{k}") for k in range(VERIFIERS)]
            await _started(market, [*seats.values(), *others])
            alone = [
                np.array((await market.command("embed", *texts, "--local", str(model.folder)))["vectors"])
                for texts in dag.SENTENCES
            ]
            done: list[Trial] = []
            while len(done) < count:
                some = [drawn(tasks, rng) for _ in range(min(TOGETHER, count - len(done)))]
                await _round(market, some, seats, alone, len(done), rng)
                done += some
                say(f"{len(done)}/{count}: {sum(trial.exact for trial in done)} exact; {by_cheat(some)}")
            return done


def drawn(tasks: Sequence[str], rng: random.Random) -> Trial:
    task = rng.choice(tasks)
    return Trial(task, rng.choice(OF_DRIVERS if task == "driver" else CHEATS))


async def _started(market: Market, providers: Sequence[Provider]) -> None:
    await asyncio.gather(*(market.start_provider(provider.name) for provider in providers))
    await market.healthy(timeout_s=90)


async def _round(
    market: Market,
    some: Sequence[Trial],
    seats: dict[str, Provider],
    alone: Sequence[np.ndarray],
    first: int,
    rng: random.Random,
) -> None:
    """Trials at once, each with its own newcomer and customer."""
    after_s = int(time.time()) - 1
    newcomers = []
    for number, trial in enumerate(some, first):
        command = [*FAULTS, "--cheat", trial.cheat, "--"]
        newcomers.append(await market.add_provider([(MODEL, trial.task)], name=f"corrupt-{number}", command=command))
    await _started(market, newcomers)
    jobs = [
        _one(market, trial, seats, newcomer, alone, rng.randrange(len(alone)))
        for trial, newcomer in zip(some, newcomers, strict=True)
    ]
    requests = await asyncio.gather(*jobs)
    providers = list(market.providers.values())
    names = {provider.public: provider.name for provider in providers}
    books = await Books.of(market, providers, after_s=after_s)
    lost = {name for name, msat in books.lost_msat.items() if msat}
    corrupt = {newcomer.name for newcomer in newcomers}
    for trial, newcomer, request in zip(some, newcomers, requests, strict=True):
        verdicts = [v for v in books.verdicts if v.request == request]
        trial.newcomer = newcomer.name
        trial.verdicts, trial.outcomes = len(verdicts), {k: n for k, n in books.outcomes(verdicts).items() if n}
        own = [v.outcome for v in verdicts if v.provider == newcomer.public]
        trial.outcome = own[0] if own else ""
        trial.convicted = tuple(sorted({names[v.provider] for v in verdicts if v.provider in v.convicted}))
        liars = {culprit for v in verdicts for culprit in v.convicted if culprit != v.provider}
        trial.liars = tuple(sorted(names[culprit] for culprit in liars))
        # Whoever lost something and is no other trial's newcomer: it is counted in each trial of the round.
        trial.slashed = tuple(sorted(lost - (corrupt - {newcomer.name})))
        trial.exact = trial.convicted == trial.slashed == (newcomer.name,) and corrupt.issuperset(trial.liars)
    for newcomer in newcomers:
        await market.remove_provider(newcomer.name)


async def _one(
    market: Market,
    trial: Trial,
    seats: dict[str, Provider],
    newcomer: Provider,
    alone: Sequence[np.ndarray],
    which: int,
) -> str:
    """A job to its verdicts, which the customer presents to the bond holder; the request's id, "" if there was none."""
    others = [provider.public for task, provider in seats.items() if task != trial.task]
    async with market.customer(f"of-{newcomer.name}") as customer:
        trusting = customer.terms.model_copy(update={"trusted": tuple(sorted([newcomer.public, *others]))})
        try:
            async with asyncio.timeout(CALL_S):
                if trial.cheat == "stale":  # there must be an answer before
                    await _call(market, customer, trusting, (which + 1) % len(alone))
                sampled = trusting.model_copy(update={"verify": "sampled"})
                vectors = await _call(market, customer, sampled, which)
                trial.spoilt = not np.allclose(vectors, alone[which], atol=1e-5)
                bought = customer.purchases[-1]
                for certificate in await _certificates(market, bought.request.id):
                    await customer.session.holder.present(certificate, bought.request)
                return bought.request.id
        except (NodewireError, TimeoutError) as error:
            trial.error = f"{type(error).__name__}: {error}"[:200]
            return customer.last.get("request", "")


async def _certificates(market: Market, request: str) -> list[Event]:
    """The verdicts on all of a job's tasks, one each, or those that there are after `VERDICT_EPOCHS`."""
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": frozenset({request})})
    found: dict[tuple[str, ...], Event] = {}
    for _ in range(2 * VERDICT_EPOCHS):
        await asyncio.sleep(market.epoch_s / 2)
        for event in await market.events(about):
            if (said := Verdict.read(event)) is not None:
                found.setdefault((said.task, said.provider), event)
        if len(found) >= dag.TASKS:
            break
    return list(found.values())


async def _call(market: Market, customer: Customer, terms: Any, which: int) -> np.ndarray:
    return await customer.embed(market.models[MODEL]["address"], list(dag.SENTENCES[which]), terms=terms)
