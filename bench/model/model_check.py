"""Every run of a small generation: none loses or doubles a paid chunk, changes a token or waits for ever.

A customer buys two to four tokens of a driver and two stages (`bench.model`). Nodes die, links are lost, guesses are
wrong, zaps fail and the customer's process dies amid one. All states that this can lead to are searched. Then each rule
of the protocol is left out in its turn, and the search must find the run that it was there to prevent.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, fields
from multiprocessing import get_context

from bench.model.search import Found, search
from bench.model.state import Budget, Rules
from bench.report import Report, run
from processes.progress import say

ARMS: dict[str, tuple[Budget, int]] = {
    "undisturbed": (Budget(), 4),
    "wrong guess": (Budget(wrong_guesses=1), 4),
    "lost link": (Budget(losses=1), 4),
    "death": (Budget(deaths=1), 3),
    "payment": (Budget(failed_zaps=1, crashes=1), 3),
    "lost link, wrong guess": (Budget(losses=1, wrong_guesses=1), 3),
}
"""What may strike, and how many tokens are bought."""
LARGE_ARMS: dict[str, tuple[Budget, int]] = {
    "death, wrong guess": (Budget(deaths=1, wrong_guesses=1), 3),
    "two lost links": (Budget(losses=2), 3),
    "death, lost link": (Budget(deaths=1, losses=1), 3),
    "two deaths": (Budget(deaths=2), 2),
}
"""That the quick search leaves out."""
MUTANTS: dict[str, tuple[Budget, int]] = {
    "pauses": (Budget(losses=1), 3),
    "names_first_lacking": (Budget(losses=1), 3),
    "repeats_closes": (Budget(losses=1), 3),
    "checks_guesses": (Budget(wrong_guesses=1), 3),
    "overwrites_rows": (Budget(wrong_guesses=1), 3),
    "asks_presence": (Budget(losses=1), 3),
    "denies_lost_memory": (Budget(deaths=1), 3),
    "spares_restarted": (Budget(deaths=1), 3),
    "tells_neighbours": (Budget(deaths=1), 3),
    "pays_closed_alone": (Budget(deaths=1), 3),
    "asks_wallet": (Budget(crashes=1), 3),
    "goes_on_from_tokens": (Budget(deaths=1), 3),
    "waits_for_credit": (Budget(crashes=1), 4),
    "claims_closed": (Budget(), 3),
    "claims_carry_closes": (Budget(deaths=1), 2),
}
"""By rule that is left out, what must strike for it to be missed."""
MOST_STATES = 2_000_000
"""Of one arm: two at a time stay under 4 GB."""


def mutant(rule: str) -> Found:
    """The search without one rule."""
    budget, wanted = MUTANTS[rule]
    return search(Rules(**{rule: False}), budget, wanted=wanted)


def arm(name: str) -> Found:
    """The search by all rules."""
    budget, wanted = {**ARMS, **LARGE_ARMS}[name]
    return search(Rules(), budget, wanted=wanted, most=MOST_STATES)


async def measure(report: Report, options: argparse.Namespace) -> None:
    assert MUTANTS.keys() == {one.name for one in fields(Rules)}
    names = [*ARMS] if report.quick else [*LARGE_ARMS, *ARMS]
    # A process of its own each, since what a search holds goes with it.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        arms = _begun(pool, arm, names)
        mutants = _begun(pool, mutant, [*MUTANTS])
        for name, future in arms.items():
            found = await asyncio.wrap_future(future)
            say(f"{name}: {found.states} states, {found.cpu_s} s {found.fault}")
            report.arms[name] = {**asdict(found), "states_per_cpu_s": round(found.states / max(found.cpu_s, 0.01))}
        caught = {name: await asyncio.wrap_future(future) for name, future in mutants.items()}
    report.arms["mutants"] = {name: asdict(found) for name, found in caught.items()}
    done = [report.arms[name] for name in names]
    report.line("states", sum(one["states"] for one in done), ">=", 1)
    report.line("counterexamples", sum(bool(one["fault"]) for one in done), "==", 0)
    report.line("unfinished", sum(not one["is_whole"] for one in done), "==", 0)
    report.line("mutants_caught", sum(bool(found.fault) for found in caught.values()), "==", len(MUTANTS))


def _begun(pool: ProcessPoolExecutor, what: Callable[[str], Found], names: Sequence[str]) -> dict[str, Future[Found]]:
    return {name: pool.submit(what, name) for name in names}


if __name__ == "__main__":
    run("model_check", __doc__, measure)
