"""What it costs that work goes from one task to the next: `python -m bench.network.transition [--json] [--quick]`.

A chain of ten tasks and three branches that join, each task held by a provider of its own: a node of the wire, a job's
desk with its commitments, and a worker, in processes of their own; links are TLS. A transition's overhead is the time
of a call, from the customer's frame to the customer's result, less what its tasks compute (measured alone) and, on a
WAN, half a round trip for each link, by the tasks on the longest path. All processes stand on this host, and then each
on a machine of its own, 40 ms from any other (`bench.tools.wan`).

Arms, interleaved: `ours` has the plan and the tensors' ways from the beginning. `relay` is SplitUp's v0: when a task is
done its provider says so in an event, a committee that follows a relay assigns the next task in another, and only then
producer and consumer know of each other; the tensor goes directly, events are ephemeral, the relay is ours, and who is
assigned is settled beforehand, which is all in its favour. On one host its events have no way to go.

Then a provider to whom several calls come at once, one of which begins a long path over another provider: `critical`
computes by the longest path, `fifo` in the order of arrival. And a short step, as of a decoder, beside long calls of
another customer: how long it waits, in long calls, with `shared` turns and by `arrival`.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.network.transition_jobs import BRANCHES, CHAIN, LONG, ROWS, SIDE, URGENT, WIDTH, Dag, given, write
from bench.network.transition_node import LOOPBACK, MEMORY_BYTES
from bench.report import Report, percentile, run
from bench.tools.lines import said, tell
from bench.tools.wan import Host, Wan, unavailable
from nodewire.graph import entry
from nodewire.kind import Limits, TaskSession, Turn
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.tensors.frame import Frame
from nodewire.worker.persistent_worker import maker
from processes.progress import say

PROVIDERS, QUICK_PROVIDERS = 10, 3
CALLS, WAN_CALLS, QUICK_CALLS, WARM, ROUNDS = 100, 20, 20, 5, 3
RTT_MS = 40.0
URGENT_CALLS, URGENT_TIMES, URGENT_ROWS = 8, 40, 64
FLOOD, FLOOD_TIMES, FLOOD_S, STEPS, QUICK_STEPS, STEP_PAUSE_S = 6, 400, 1.0, 60, 15, 0.137
_NODE = ("-m", "bench.network.transition_node")
_RELAY = ("-m", "nodewire.cli", "relay", "--port", "0", "--json")
_SHAPES: dict[str, Dag] = {"chain": CHAIN, "branches": BRANCHES, "urgent": URGENT}
_LONGEST = {"chain": 10, "branches": 5}
"""Tasks on the longest path."""


async def measure(report: Report, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shape, dag in _SHAPES.items():
            (folder / shape).mkdir()
            heavy = {"times": URGENT_TIMES, "rows": URGENT_ROWS} if shape == "urgent" else {}
            (folder / shape / "manifest.json").write_text(write(dag, folder / shape, **heavy).to_json())
        compute_s = {shape: _computed_s(folder / shape, _SHAPES[shape]) for shape in _LONGEST}
        report.arms["compute"] = {shape: {"task_ms": round(s * 1_000, 3)} for shape, s in compute_s.items()}
        here = await _transitions(report, "host", folder, compute_s, None)
        count = QUICK_PROVIDERS if report.quick else PROVIDERS
        if (why := unavailable()) is None:
            with Wan({n: Host() for n in Market.machines(count)}, default_rtt_ms=RTT_MS, seed=report.seed) as wan:
                apart = await _transitions(report, "wan", folder, compute_s, wan)
        else:
            report.skip(why)
            apart = {}
    for shape in _LONGEST:
        report.line(f"{shape}_transition_p50_ms", here[shape, "ours"], "<=", 2)
        ours, theirs = apart.get((shape, "ours")), apart.get((shape, "relay"))
        if not report.skipped:
            ratio = round(theirs / ours, 1) if ours and theirs else None
            report.line(f"{shape}_relay_over_ours_on_a_wan", ratio, ">=", 20)
        report.arms["host"][shape]["relay_over_ours"] = round(here[shape, "relay"] / here[shape, "ours"], 2)
    makespans = report.arms["host"]["urgent"]
    ratio = makespans["critical"]["call_p50_ms"] / makespans["fifo"]["call_p50_ms"]
    report.line("critical_path_over_fifo_makespan", round(ratio, 3), "<", 1)
    report.arms["ideal"] = {"critical_over_fifo": max(SIDE + 1, 2 + LONG) / max(SIDE + 1, SIDE // 2 + 1 + LONG)}
    report.arms["steps"] = steps = {}
    for arm, waited in (await _steps(QUICK_STEPS if report.quick else STEPS)).items():
        steps[arm] = {
            "waited_calls_p50": round(median(waited), 3),
            "waited_calls_p95": round(percentile(waited, 95) or 0.0, 3),
        }
    report.line("a_step_waits_long_calls_p95", steps["shared"]["waited_calls_p95"], "<=", 1.25)


async def _transitions(
    report: Report, where: str, folder: Path, compute_s: Mapping[str, float], wan: Wan | None
) -> dict[tuple[str, str], float]:
    """By shape and arm, a transition's overhead in ms; in the report also the urgent job's makespans, on one host."""
    calls, rounds = (QUICK_CALLS, 1) if report.quick else (CALLS if wan is None else WAN_CALLS, ROUNDS)
    plans = [(n, shape, arm) for n in range(rounds) for shape in _LONGEST for arm in ("ours", "relay")]
    if wan is None:
        plans += [(-1, "urgent", "fifo")]  # what the first takes longer is nobody's
        plans += [(n, "urgent", arm) for n in range(rounds) for arm in ("critical", "fifo")[:: (-1) ** n]]
    jobs = {secrets.token_hex(32): plan for plan in plans}
    took: dict[tuple[str, str], list[float]] = {}
    link_ms = 0.0
    async with AsyncExitStack() as stack:
        market = Market(stack, folder, QUICK_PROVIDERS if report.quick else PROVIDERS, wan)
        await market.start({job: shape for job, (_, shape, _) in jobs.items()})
        if wan is not None:
            link_ms = await _rtt_ms(wan) / 2
        for job, (number, shape, arm) in jobs.items():
            found = await market.calls(job, shape, arm, URGENT_CALLS if shape == "urgent" else calls)
            took.setdefault((shape, arm), []).extend(found if number >= 0 else ())
            say(f"{where}, round {number + 1}, {shape}, {arm}: {median(found) * 1_000:.2f} ms a call")
    overhead: dict[tuple[str, str], float] = {}
    said: dict[str, Any] = {"link_ms": round(link_ms, 3)}
    report.arms[where] = said
    for (shape, arm), seconds in took.items():
        row = said.setdefault(shape, {})[arm] = {"call_p50_ms": round(median(seconds) * 1_000, 3), "n": len(seconds)}
        if (tasks := _LONGEST.get(shape)) is not None:
            links = _links(_SHAPES[shape], QUICK_PROVIDERS if report.quick else PROVIDERS)
            spent_ms = tasks * compute_s[shape] * 1_000 + links * link_ms
            apiece = [(one * 1_000 - spent_ms) / tasks for one in seconds]
            overhead[shape, arm] = row["transition_p50_ms"] = round(median(apiece), 3)
            row["transition_p95_ms"] = round(percentile(apiece, 95) or 0.0, 3)
    return overhead


async def _rtt_ms(wan: Wan) -> float:
    """Between two machines, as a connection that is refused takes it."""
    words = [sys.executable, "-m", "bench.tools.wan", "--distance", wan.ip["customer"]]
    asked = await wan.machine("provider.0").start(words, stdout=asyncio.subprocess.PIPE)
    assert asked.stdout is not None
    text = await asked.stdout.read()
    await asked.wait()
    return float(text)


def _computed_s(folder: Path, dag: Dag) -> float:
    """What one task computes, in a process that does nothing else: the longest of the tasks' medians."""
    torch.set_num_threads(1)
    found = []
    for task in dag:
        program, weights = (folder / f"{task}.{what}" for what in ("program", "weights"))
        one = entry.load("graph", program.read_bytes(), [weights], Limits(10**8))
        one.open("s", {})
        x = torch.frombuffer(bytearray(given().data), dtype=torch.float32).reshape(ROWS, WIDTH)
        sources = [f"{source}.to.{task}" for source in dag[task]]
        took_s = []
        for seq in range(100):
            began_s = time.perf_counter()
            for edge in sources:
                one.receive("s", Frame(edge, seq, (x,)))
            took_s.append(time.perf_counter() - began_s)
        found.append(median(took_s))
    return max(found)


async def _steps(count: int) -> dict[str, list[float]]:
    """By arm, how long each of `count` steps took, in long calls; FLOOD of these are always asked for."""
    found: dict[str, list[float]] = {"shared": [], "arrival": []}
    dag: Dag = {"step": [CUSTOMER], **{f"long.{n}": [CUSTOMER] for n in range(FLOOD)}}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write(dag, folder, times=FLOOD_TIMES, rows=URGENT_ROWS)
        write({"step": [CUSTOMER]}, folder)
        worker = maker(stack, Limits(MEMORY_BYTES), folder)("kinds.k8843_worker")
        for task in dag:
            await worker.load(task, "graph", folder / f"{task}.program", [folder / f"{task}.weights"])
        for arm, steps in found.items():
            sessions = {}
            for task in dag:
                customer = "decoding" if task == "step" and arm == "shared" else "flooding"
                # by arrival: all calls are of one session
                sessions[task] = await worker.open(task, task if arm == "shared" else "s", {}, turn=Turn(customer))
            long_s: list[float] = []
            flood = [asyncio.create_task(_flood(sessions[task], task, long_s)) for task in dag if task != "step"]
            await asyncio.sleep(FLOOD_S)
            for seq in range(count):
                await asyncio.sleep(STEP_PAUSE_S)
                began_s = time.perf_counter()
                frame = Frame("customer.to.step", seq, (given(),))
                await sessions["step"].receive(frame)
                steps.append(time.perf_counter() - began_s)
            for one in flood:
                one.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            one_s = median(long_s) / FLOOD  # each waits for all the others
            found[arm] = [took_s / one_s for took_s in steps]
            say(f"a step beside long calls of {one_s * 1_000:.1f} ms, {arm}: waits {median(found[arm]):.2f} of them")
    return found


async def _flood(session: TaskSession, task: str, took_s: list[float]) -> None:
    seq, x = 0, given(URGENT_ROWS)
    while True:
        began_s = time.perf_counter()
        await session.receive(Frame(f"customer.to.{task}", seq, (x,)))
        took_s.append(time.perf_counter() - began_s)
        seq += 1


class Market:
    """Provider processes, a customer, a relay and v0's committee: on this host, or each on a machine of a WAN."""

    def __init__(self, stack: AsyncExitStack, folder: Path, count: int, wan: Wan | None) -> None:
        self._stack, self._folder, self._count, self._wan = stack, folder, count, wan
        self._providers: list[asyncio.subprocess.Process] = []
        self._publics: list[str] = []
        self._holders: dict[str, dict[str, str]] = {}
        self._customer: asyncio.subprocess.Process

    @staticmethod
    def machines(count: int) -> list[str]:
        return [*(f"provider.{k}" for k in range(count)), "customer", "relay", "committee"]

    async def start(self, jobs: Mapping[str, str]) -> None:
        """`jobs`: the shape of each."""
        folders = {shape: str(self._folder / shape) for shape in _SHAPES}
        host = self._host("relay")
        kept = ["--db", str(self._folder / f"{host}.db"), "--blobs", str(self._folder / f"{host}.blobs")]
        relay = await self._process("relay", *_RELAY, "--host", host, *kept)
        url = (await said(relay))["url"]
        names = self.machines(self._count)[: self._count]
        self._providers = [await self._process(name, *_NODE, "provider") for name in names]
        numbers = {shape: _placed(dag, self._count) for shape, dag in _SHAPES.items()}
        for k, process in enumerate(self._providers):
            mine = {shape: [task for task, at in of.items() if at == k] for shape, of in numbers.items()}
            what = {"folders": folders, "tasks": mine, "readable": str(self._folder), "host": self._host(names[k])}
            await tell(process, what)
        where = [await said(process) for process in self._providers]
        self._publics = [public for public, _ in where]
        say(f"{self._count} providers have loaded their tasks")
        self._customer = await self._process("customer", *_NODE, "customer")
        await tell(self._customer, {"folders": folders, "host": self._host("customer")})
        where.append(await said(self._customer))
        me = where[-1][0]
        self._holders = {shape: {t: where[k][0] for t, k in of.items()} for shape, of in numbers.items()}
        committee = await self._process("committee", *_NODE, "assigner")
        public = await said(committee)
        shapes = {
            shape: {"sources": dict(dag), "holders": {**self._holders[shape], CUSTOMER: me}}
            for shape, dag in _SHAPES.items()
        }
        await tell(committee, {"relay": url, "shapes": shapes, "jobs": dict(jobs)})
        await said(committee)
        addresses = dict(where)
        known = {
            "holders": self._holders, "addresses": addresses, "customer": me, "relay": url, "committee": public,
        }  # fmt: skip
        for process in (*self._providers, self._customer):
            await tell(process, known)
        for process in (*self._providers, self._customer):
            await said(process)

    async def calls(self, job: str, shape: str, arm: str, count: int) -> list[float]:
        """Seconds that each of `count` calls took, one after the other, after WARM more."""
        holders = set(self._holders[shape].values())
        taking = [p for p, public in zip(self._providers, self._publics, strict=True) if public in holders]
        what = {"job": job, "shape": shape, "arm": arm}
        for process in taking:
            await tell(process, what)
        size = [URGENT_ROWS if shape == "urgent" else ROWS, WIDTH]
        await tell(self._customer, {**what, "calls": WARM + count, "size": size})
        for process in (*taking, self._customer):
            await said(process)
        await tell(self._customer, "begin")
        took_s: list[float] = await said(self._customer)
        for process in taking:
            await said(process)
        await tell(self._customer, "end")
        await said(self._customer)
        return took_s[WARM:]

    def _host(self, name: str) -> str:
        return self._wan.ip[name] if self._wan else LOOPBACK

    async def _process(self, machine: str, *words: str) -> asyncio.subprocess.Process:
        pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "limit": 2**24}
        if self._wan is not None:
            process = await self._wan.machine(machine).start([sys.executable, *words], **pipes)
        else:
            process = await asyncio.create_subprocess_exec(sys.executable, *words, **pipes)
        self._stack.push_async_callback(_stopped, process)
        return process


def _placed(dag: Dag, count: int) -> dict[str, int]:
    """By task, the number of its provider: neighbours on different ones; what is urgent with what it stands beside."""
    if dag is URGENT:
        return {task: int(task.startswith("long")) for task in dag}
    return {task: k % count for k, task in enumerate(dag)}


def _links(dag: Dag, count: int) -> int:
    """Links between nodes on the longest path there and back, of who has no task of two neighbours."""
    at, far = {CUSTOMER: -1, **_placed(dag, count)}, {CUSTOMER: 0}
    for task, sources in dag.items():
        far[task] = max(far[source] + (at[source] != at[task]) for source in sources)
    return max(far.values()) + 1


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
    await process.wait()


if __name__ == "__main__":
    run("transition", __doc__, measure)
