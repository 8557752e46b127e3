"""Generations whose ring changes under them: `python -m bench.market.resplit [--json] [--quick] [--runs N] [--minutes
N]`.

A market of public commands, in which every task has two holders. For each generation, in turn and at a random token:

- slows: the workers of one provider of its plan (the driver's too) get a small part of their time from then on, by
  SIGSTOP and SIGCONT from outside;
- joins: one of its plan was slow from the beginning; a quick provider of all tasks is started;
- leaves: one of its plan is killed. Others go on from the text so far (`bench.market.chaos` measures that).

Figures:
- identical: generations whose ids equal those of `nodewire generate --local`.
- moved: runs that slowed or were joined and went on over another ring; to_joiner: that of whom had joined, which has
  to start first, so that others may have been gone over to before.
- double_paid: (provider, chunk) of one job that were paid twice, and what a provider's own book says was overpaid.
- stall_ms: the longest time without a token from the purchase of the other job until it leads, less the longest that
  the ring had before, changed as it was: what the move adds. anew_ms: how long the job that was switched to took to its
  first token, for which none would have come, had the generation begun anew there instead, in the same run.
- gain: tokens/s of what came after the switch over those of the ring that was left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.report import Report, percentile, run, spread
from bench.tools.jobs import PROMPTS, Generated, generate, references
from nodewire import Customer
from processes.market import DECODER, Market, Provider
from processes.progress import say
from processes.slowdown import slowed

PROVIDERS, JOINER_US = 6, 300
TOKENS, QUICK_TOKENS = 320, 256
JOB_S, BACK_S = 120.0, 90.0
Change = Literal["slows", "joins", "leaves"]
CHANGES: tuple[Change, ...] = ("slows", "joins", "leaves")


@dataclass(slots=True)
class Run:
    """One generation: what was done to whom after how many tokens, and what came of it. Times in ms."""

    change: Change
    after: int
    victim: str = ""
    joiner: str = ""
    identical: bool = False
    error: str = ""
    moves: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    begun_anew: int = 0
    stall_ms: float | None = None
    anew_ms: float | None = None
    before_per_s: float | None = None
    after_per_s: float | None = None

    @property
    def moved(self) -> bool:
        return any(move["outcome"] == "moved" for move in self.moves)

    @property
    def went_to_joiner(self) -> bool:
        return any(move["outcome"] == "moved" and self.joiner in move["after"].values() for move in self.moves)


class Changing:
    """One generation after the other on one market."""

    def __init__(self, market: Market, customer: Customer, rng: random.Random, tokens: int) -> None:
        self._market, self._customer, self._rng, self._tokens = market, customer, rng, tokens
        self._joined = 0

    async def run(self, change: Change, prompt: str, alone: list[int]) -> Run:
        made = Run(change, self._rng.randrange(8, len(alone) // 3))
        count = asyncio.Queue[int]()
        async with AsyncExitStack() as stack:
            striking = asyncio.create_task(self._strike(made, count, stack))
            done = await generate(
                self._customer,
                self._market.models["pycoder"]["address"],
                prompt,
                self._tokens,
                timeout_s=JOB_S,
                on_piece=count.put_nowait,
            )
            striking.cancel()
            for found in await asyncio.gather(striking, return_exceptions=True):
                if isinstance(found, Exception):
                    raise found
        made.identical, made.error = done.ids == alone, done.error
        made.moves, made.begun_anew = list(done.said.get("moves", ())), int(done.said.get("begun_anew", 0))
        made.requests = list(done.said.get("requests", [done.said.get("request", "")]))
        _measure(made, done)
        await self._market.healthy(timeout_s=BACK_S)
        return made

    async def _strike(self, made: Run, count: asyncio.Queue[int], stack: AsyncExitStack) -> None:
        await count.get()
        plan = self._customer.purchases[-1].plan
        victim = self._market.named(self._rng.choice(plan.providers()))
        made.victim = victim.name
        if made.change == "joins":
            await stack.enter_async_context(slowed(victim.workers()))
        while await count.get() < made.after:
            pass
        if made.change == "slows":
            await stack.enter_async_context(slowed(victim.workers()))
        elif made.change == "joins":
            await self._join(made, stack)
        else:
            await self._market.kill_provider(victim.name)
            stack.push_async_callback(self._market.start_provider, victim.name)

    async def _join(self, made: Run, stack: AsyncExitStack) -> None:
        self._joined += 1
        tasks = [("pycoder", task["name"]) for task in self._market.models["pycoder"]["tasks"]]
        one = await self._market.add_provider(tasks, name=f"joiner-{self._joined}", us_per_position=JOINER_US)
        starting = asyncio.create_task(self._market.start_provider(one.name))
        stack.push_async_callback(self._gone, one, starting)
        made.joiner = (await asyncio.shield(starting)).public

    async def _gone(self, one: Provider, starting: asyncio.Task[Provider]) -> None:
        """Also if the generation was over before it had started."""
        await starting
        await self._market.remove_provider(one.name)
        await self._market.until(lambda s: s.node(one.public) is None, timeout_s=BACK_S)


def _measure(made: Run, done: Generated) -> None:
    at = next((m["overtook_at"] for m in made.moves if m["outcome"] == "moved"), None)
    if at is None or not 0 < at < len(done.moments) - 1:
        return
    move = next(m for m in made.moves if m["outcome"] == "moved")
    gaps_ms = [step_s * 1_000 for step_s in done.steps_s]  # of token n + 1 at n
    before = gaps_ms[made.after if made.change == "slows" else 0 : move["at"] - 1]
    made.stall_ms = round(max(0.0, max(gaps_ms[move["at"] - 1 : at]) - max(before, default=0.0)), 1)
    made.anew_ms = move["started_ms"]
    made.before_per_s = round(1_000 / move["step_ms"], 2)
    took_s = done.moments[-1] - done.moments[at]
    made.after_per_s = round((len(done.moments) - 1 - at) / took_s, 2) if took_s > 0 else None


def _double_paid(market: Market, requests: set[str]) -> list[dict[str, Any]]:
    """Everything that was paid more than once, by the books of both sides."""
    sql = "SELECT job, payee, chunk FROM debts WHERE state = 'paid'"
    paid = Counter(
        (row["job"], row["payee"], row["chunk"]) for row in market.rows("customer", sql) if row["job"] in requests
    )
    found = [{"request": key[0], "payee": key[1], "chunk": key[2]} for key, times in paid.items() if times > 1]
    for name in market.providers:
        rows = market.rows(name, "SELECT customer, msat FROM balances WHERE msat > 0")
        found += [{"payee": name, "customer": row["customer"], "over_msat": row["msat"]} for row in rows]
    return found


async def measure(report: Report, options: argparse.Namespace) -> None:
    count, tokens = options.runs or (3 if report.quick else 50), QUICK_TOKENS if report.quick else TOKENS
    rng, until_s = random.Random(report.seed), time.monotonic() + 60 * options.minutes
    made: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="nodewire-resplit-") as folder:
        async with Market(Path(folder), providers=PROVIDERS) as market:
            prompts = PROMPTS[: 2 if report.quick else None]
            say("the same prompts in one process, for comparison")
            alone = await references(market, DECODER, prompts, tokens)
            long = [prompt for prompt in prompts if len(alone[prompt]) == tokens]
            try:
                async with market.customer("customer") as customer:
                    changing = Changing(market, customer, rng, tokens)
                    while len(made) < count and time.monotonic() < until_s:
                        change, prompt = CHANGES[len(made) % len(CHANGES)], rng.choice(long)
                        made.append(await changing.run(change, prompt, alone[prompt]))
                        say(f"{len(made)}/{count} {_told(made[-1])}")
            finally:
                _judge(report, made, _double_paid(market, {request for one in made for request in one.requests}))


def _judge(report: Report, made: list[Run], double: list[dict[str, Any]]) -> None:
    for change in CHANGES:
        of = [one for one in made if one.change == change]
        figures = ("stall_ms", "anew_ms", "before_per_s", "after_per_s")
        report.arms[change] = {
            "runs": len(of),
            "moved": sum(one.moved for one in of),
            "to_joiner": sum(one.went_to_joiner for one in of),
            "outcomes": Counter(move["outcome"] for one in of for move in one.moves),
            "begun_anew": sum(one.begun_anew for one in of),
            **{name: spread([x for one in of if (x := getattr(one, name)) is not None]) for name in figures},
        }
    report.arms["generations"] = [asdict(one) for one in made]
    report.arms["double_paid"] = double
    ought = [one for one in made if one.change != "leaves"]
    moved = [one for one in made if one.stall_ms is not None]
    report.line("identical", sum(one.identical for one in made), "==", len(made))
    report.line("double_paid", len(double), "==", 0)
    report.line("moved", sum(one.moved for one in ought), ">=", 0.8 * len(ought))
    for percent in (50, 95):
        stall_ms = percentile([one.stall_ms for one in moved if one.stall_ms is not None], percent)
        anew_ms = percentile([one.anew_ms for one in moved if one.anew_ms is not None], percent)
        ratio = round(stall_ms / anew_ms, 3) if stall_ms is not None and anew_ms else None
        report.line(f"stall_over_beginning_anew_p{percent}", ratio, "<", 1)
    gains = [one.after_per_s / one.before_per_s for one in moved if one.after_per_s and one.before_per_s]
    report.line("gain_p50", spread(gains)["p50"], ">", 1.5)


def _told(one: Run) -> str:
    outcomes = ", ".join(str(move["outcome"]) for move in one.moves) or "no move"
    said = one.error[:120] or ("identical" if one.identical else "DIFFERENT")
    return f"{one.victim} {one.change} after {one.after} tokens: {said}, {outcomes}, begun anew {one.begun_anew} times"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=0, help="instead of 50, or 3 with --quick")
    parser.add_argument("--minutes", type=float, default=60, help="no further run is begun after these")


if __name__ == "__main__":
    run("resplit", __doc__, measure, add=_options)
