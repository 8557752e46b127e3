"""Generations that lose a provider in mid-job: `python -m bench.market.chaos [--json] [--quick] [--seed N] [--lookahead
N]`.

A market of public commands; for each generation a seeded choice of victim (any provider of its plan, the driver's
included), signal (SIGKILL, or SIGSTOP: a black hole; `--kills`: the first alone) and moment (before the first token, or
after a random one). Afterwards the victim is started again, or continued, and the next generation waits until everybody
is back. With `--lookahead` every fifth is followed by one whose driver does not guess (arm `plain`). Then the same
without faults while both cores are kept busy: a job that is begun anew there is a false alarm.

`--minutes` bounds it, and `--onto DOCUMENT` goes on from what an earlier run of the same seed has printed (or, broken
off, left as `--keep`'s document.json), whose generations count. Fewer than were asked for are not ok.

Figures:
- identical: generations whose ids equal those of `nodewire generate --local`.
- stall_ms: the longest time without output that ends after the fault (before the first token: from when the request
  stood on the relay). A provider's death ends the job, and another goes on from the text so far.
- double_paid: dues that were paid twice, by the books of the customer and of every provider.
- false_alarms: how often generations without faults were begun anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.market.chaos_outcome import Fault, Normal, Outcome, Part, paid_twice, stall_ms
from bench.report import Report, percentile, run, spread
from bench.tools.jobs import PROMPTS, Generated, generate, references
from nodewire import Customer
from nodewire.protocol.job.request import Request
from processes.market import DECODER, Market, Provider, ProviderSetup
from processes.progress import say

PLAIN_MS = {95: 350.0}
GUESSING_MS = {50: 400.0, 95: 1_000.0, 100: 3_000.0}
"""By percentile, the longest stalls after a SIGKILL."""
SILENCE_MS = 1_500.0
"""Within which a node that is silent must be noticed: so much longer a stall may be after a SIGSTOP."""
PLAIN_EVERY = 5
JOB_S = 90.0
BACK_S = 90.0


class Trial:
    """One market and its customer; a customer whose job failed is replaced, so that no debt reaches the next job."""

    def __init__(self, market: Market, alone: dict[str, list[int]], tokens: int) -> None:
        self.market, self.alone, self.tokens = market, alone, tokens
        self.customers: list[str] = []
        self.payers: dict[str, str] = {}
        """By request, the customer's name."""
        self._stack = AsyncExitStack()
        self._customer: Customer | None = None
        self._requests: asyncio.Queue[Request] = asyncio.Queue()

    async def close(self) -> None:
        await self._stack.aclose()
        self._customer = None

    async def customer(self) -> Customer:
        if self._customer is None:
            self._stack = AsyncExitStack()
            name = f"customer-{len(self.customers)}"
            self._customer = await self._stack.enter_async_context(self.market.customer(name))
            public = self._customer.session.keys.public
            self._requests = await self._stack.enter_async_context(self.market.requests(public))
            self.customers.append(name)
        return self._customer

    async def undisturbed(self, prompt: str, lookahead: int) -> Generated:
        """`lookahead`: how far the driver may guess."""
        customer = await self.customer()
        done = await self._generate(customer, prompt, lookahead)
        while not self._requests.empty():
            self.payers[self._requests.get_nowait().id] = self.customers[-1]
        if done.error:
            await self.close()
        return done

    async def disturbed(self, prompt: str, lookahead: int, fault: Fault, normal: Normal) -> Outcome:
        customer = await self.customer()
        while not self._requests.empty():
            self._requests.get_nowait()
        outcome = Outcome(fault)
        pieces: asyncio.Queue[int] = asyncio.Queue()
        moments: dict[str, float] = {}

        async def strike() -> Provider:
            request = await self._requests.get()
            moments["stood"] = time.monotonic()
            if fault.after == 0:
                await asyncio.sleep(fault.delay * normal.first_ms / 1000)
            else:
                while await pieces.get() < fault.after:
                    pass
                await asyncio.sleep(fault.delay * normal.step_ms / 1000)
            while not self._requests.empty():  # it was drawn anew: a provider was busy
                request = self._requests.get_nowait()
            plan = request.plan
            public = plan.providers()[fault.victim % len(plan.providers())]
            victim = self.market.named(public)
            outcome.victim, outcome.request = victim.name, request.id
            outcome.tasks = tuple(a.task for a in plan.tasks if a.provider == public)
            self.payers[request.id] = self.customers[-1]
            moments["struck"] = time.monotonic()
            victim.signal(signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
            return victim

        striking = asyncio.create_task(strike())
        done = await self._generate(customer, prompt, lookahead, pieces.put_nowait)
        striking.cancel()
        victim = (await asyncio.gather(striking, return_exceptions=True))[0]
        while not self._requests.empty():  # a job that broke off goes on as another
            self.payers[self._requests.get_nowait().id] = self.customers[-1]
            outcome.anew += 1
        outcome.error, outcome.identical = done.error, done.ids == self.alone[prompt]
        ended = bool(done.moments) and not done.error
        outcome.missed = ended and moments.get("struck", math.inf) >= done.moments[-1]
        if isinstance(victim, Provider):
            if not done.error and not outcome.missed:
                outcome.stall_ms = stall_ms(done, moments["struck"], moments["stood"])
            await self._bring_back(victim, fault, outcome)
        elif not isinstance(victim, asyncio.CancelledError):
            raise victim
        if done.error:
            await self.close()
        return outcome

    async def _generate(
        self, customer: Customer, prompt: str, lookahead: int, on_piece: Any = lambda count: None
    ) -> Generated:
        model = self.market.models["pycoder"]["address"]
        terms = customer.terms.model_copy(update={"lookahead": lookahead})
        return await generate(customer, model, prompt, self.tokens, timeout_s=JOB_S, on_piece=on_piece, terms=terms)

    async def _bring_back(self, victim: Provider, fault: Fault, outcome: Outcome) -> None:
        began = time.monotonic()
        if fault.kind == "stop":
            victim.signal(signal.SIGCONT)
        else:
            await self.market.kill_provider(victim.name)
            await self.market.start_provider(victim.name)
        try:
            await self.market.healthy(timeout_s=BACK_S)
            outcome.back_s = round(time.monotonic() - began, 1)
        except TimeoutError:
            # A node that does not come back is an answer too; it is started anew, so that the next job has a market.
            await self.market.kill_provider(victim.name)
            await self.market.start_provider(victim.name)
            await self.market.healthy(timeout_s=BACK_S)

    async def double_paid(self) -> list[dict[str, Any]]:
        """Everything that was paid more than once, by the books of both sides."""
        found: list[dict[str, Any]] = []
        sql = "SELECT payee, chunk FROM debts WHERE job = ? AND state = 'paid'"
        for request, customer in self.payers.items():
            twice = paid_twice(self.market.rows(customer, sql, request))
            found += [{"request": request, "chunk": chunk, "payee": payee} for chunk, payee in twice]
        for name in self.market.providers:
            for row in self.market.rows(name, "SELECT customer, msat FROM balances WHERE msat > 0"):
                found.append({"customer": row["customer"], "payee": name, "over_msat": row["msat"]})
        return found


@asynccontextmanager
async def busy_cores() -> AsyncIterator[None]:
    """One process for each core that does nothing but compute."""
    loops = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
        await asyncio.gather(*(process.wait() for process in loops))


async def measure(report: Report, options: argparse.Namespace) -> None:
    count = options.runs or (10 if report.quick else 200)
    tokens = 96 if report.quick else 160
    parts = {"faults": Part(options.lookahead)}
    if options.lookahead > 1:
        parts["plain"] = Part(1)
    for document in options.onto:
        for arm, part in parts.items():
            part.add(document, arm, report.seed)
    with tempfile.TemporaryDirectory(prefix="nodewire-chaos-") as folder:
        lines = (f"lookahead = {options.lookahead}",)
        async with Market(
            Path(folder), providers=options.providers, setup=ProviderSetup(provider_lines=lambda provider: lines)
        ) as market:
            prompts = PROMPTS[: 3 if report.quick else None]
            say("the same prompts in one process, for comparison")
            alone = await references(market, DECODER, prompts, tokens)
            trial = Trial(market, alone, tokens)
            try:
                await _measure(report, trial, parts, prompts, count, options)
            finally:
                await trial.close()
                if options.keep:
                    say(f"books and logs: {_kept(Path(folder), options.keep)}")


async def _measure(
    report: Report,
    trial: Trial,
    parts: dict[str, Part],
    prompts: tuple[str, ...],
    count: int,
    options: argparse.Namespace,
) -> None:
    say("generations without faults")
    quiet: list[Generated] = []
    normal = {}
    for arm, part in parts.items():
        done = [await trial.undisturbed(prompt, part.lookahead) for prompt in (prompts[0], *prompts)]
        quiet += done
        report.arms[f"quiet_{arm}"] = _calm(done, trial)
        normal[arm] = _normal(done[1:])  # the first one warms everything up
        say(f"a step takes {normal[arm].step_ms:.1f} ms, the first token {normal[arm].first_ms:.0f} ms")

    until = time.monotonic() + options.minutes * 60
    main, first = parts["faults"], len(parts["faults"].outcomes)
    for number in range(first, count):
        if time.monotonic() > until:
            say(f"{options.minutes:g} minutes are over after {number} of {count}")
            break
        rng = random.Random(f"{report.seed}/{number}")  # so that it does not matter where a run was broken off
        prompt = rng.choice(prompts)
        fault = Fault.drawn(rng, len(trial.alone[prompt]), ("kill",) if options.kills else ("kill", "stop"))
        for arm, part in parts.items():
            if part is not main and number % PLAIN_EVERY:
                continue
            outcome = await trial.disturbed(prompt, part.lookahead, fault, normal[arm])
            part.outcomes.append(outcome)
            report.arms[arm] = part.document()
            if options.keep:
                _written(report, options.keep)
            say(f"{number + 1}/{count} {arm}: {_told(outcome)}")

    say("generations without faults, both cores busy")
    async with busy_cores():
        rng = random.Random(f"{report.seed}/busy")
        calm = options.calm if options.calm is not None else (2 if report.quick else 20)
        loaded = [await trial.undisturbed(rng.choice(prompts), main.lookahead) for _ in range(calm)]
    report.arms["busy"] = _calm(loaded, trial)

    await asyncio.sleep(3)  # payments that are on their way
    main.double_paid += await trial.double_paid()
    alarms = sum(int(d.said.get("begun_anew", 0)) for d in (*quiet, *loaded))
    for arm, part in parts.items():
        report.arms[arm] = {"normal": asdict(normal[arm]), **part.document()}
    report.line("runs", len(main.outcomes), ">=", count)
    if plain := parts.get("plain"):
        report.line("identical_plain", sum(o.identical for o in plain.outcomes), "==", len(plain.outcomes))
    _judge(report, main, alarms, [*quiet, *loaded], trial.alone)


def _normal(done: list[Generated]) -> Normal:
    going = [one for one in done if not one.error]
    if not going:
        raise RuntimeError(f"no generation succeeds even without faults: {done[-1].error}")
    return Normal(
        median(step * 1000 for one in going for step in one.steps_s),
        median(float(one.said["first_token_ms"]) for one in going),
    )


def _judge(
    report: Report,
    part: Part,
    alarms: int,
    calm: list[Generated],
    alone: dict[str, list[int]],
) -> None:
    outcomes = part.outcomes
    struck = [o for o in outcomes if o.victim and not o.missed]
    report.line("identical", sum(o.identical for o in outcomes), "==", len(outcomes))
    report.line("faults_that_struck", len(struck), ">=", len(outcomes) * 0.9)
    # A generation that did not go on has no end to its stall: it is not left out of the percentile, it is infinite.
    for kind, more_ms in (("kill", 0.0), ("stop", SILENCE_MS)):
        stalls = [math.inf if o.stall_ms is None else o.stall_ms for o in struck if o.fault.kind == kind]
        for share, bound_ms in (GUESSING_MS if part.lookahead > 1 else PLAIN_MS).items():
            if stalls:
                report.line(f"{kind}_stall_ms_p{share}", percentile(stalls, share), "<=", bound_ms + more_ms)
    report.line("double_paid", len(part.double_paid), "==", 0)
    report.line("false_alarms", alarms, "==", 0)
    report.line("identical_without_faults", sum(d.ids == alone[d.prompt] for d in calm), "==", len(calm))


def _calm(done: list[Generated], trial: Trial) -> dict[str, Any]:
    return {
        "generations": len(done),
        "identical": sum(d.ids == trial.alone[d.prompt] for d in done),
        "errors": [d.error for d in done if d.error],
        "begun_anew": sum(int(d.said.get("begun_anew", 0)) for d in done),
        "step_ms": spread([step * 1000 for d in done for step in d.steps_s]),
    }


def _told(outcome: Outcome) -> str:
    fault = outcome.fault
    where = f"{fault.kind} {outcome.victim or 'nobody'} ({', '.join(outcome.tasks)}) after {fault.after} tokens"
    if outcome.error:
        return f"{where}: {outcome.error[:120]}"
    stall = "" if outcome.stall_ms is None else f", stall {outcome.stall_ms:.0f} ms"
    stall += ", begun anew" * bool(outcome.anew)
    return f"{where}: {'identical' if outcome.identical else 'DIFFERENT'}{stall}"


def _written(report: Report, folder: Path) -> None:
    """What is known so far, for `--onto`, should the machine stop before the end."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "document.part"
    part.write_text(json.dumps(report.document()))
    part.replace(folder / "document.json")


def _kept(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target, dirs_exist_ok=True))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=0, help="generations with a fault; else 200, or 10 with --quick")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further one begins")
    parser.add_argument("--onto", type=Path, nargs="*", default=[], help="documents of earlier runs, to go on from")
    parser.add_argument("--kills", action="store_true", help="SIGKILL alone")
    parser.add_argument("--calm", type=int, help="generations without faults, instead of 20, or 2 with --quick")
    parser.add_argument("--providers", type=int, default=6)
    parser.add_argument("--lookahead", type=int, default=1, help="how far drivers may guess: 1, which is not, to 64")
    parser.add_argument("--keep", type=Path, help="write the document there as it grows; logs and books at the end")


if __name__ == "__main__":
    run("chaos", __doc__, measure, add=_options)
