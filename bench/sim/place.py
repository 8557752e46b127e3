"""Placement beside its baselines and bounds: `python -m bench.sim.place [--json] [--quick]`.

- `ring`: the exact planner on 12 nodes, unequal tasks; the search on the same, by how much it misses the optimum.
- `torchsplit`: the replication of TorchSplit's committed profile (A 2627, B 1728, C 4326 a second, 20 slices), and what
  its published allocation (9, 8, 3) gives on it.
- `replication`: 1000 nodes of 7 kinds, and 1000 that are all unlike, for 100 tasks, against the linear bound.
- `decoder`: advice for a decoder of 100 tasks and their driver on 1000 machines, as `nodewire place` gives it: seconds.
- `scale`: 2000 machines placed by chance, and 40 new sessions a second: every session is served to its end.
- `throughput`: the simulator, more sessions than anybody serves, 24 to 40 machines (`bench.sim.pools`): positions a
  second from the 40th to the 100th second. `latency`: new sessions at a quarter of the rate that our own planner
  predicts the pool to make: the p95 over sessions of the time from request to last position, divided by the
  positions. Each planner with its own routing; ratios are medians over seeds, of the same pool and trace.
- `predicted_over_simulated`: of our placements, tokens a second.
- `validation`: traces on machines that are processes of their own (`bench.sim.real`), beside the same simulated: by how
  much the mean and the p95 of the time per position differ. With other work on the machine they differ more.
"""

from __future__ import annotations

import argparse
import time
from math import inf
from random import Random
from statistics import mean, median
from typing import Any

from bench.report import Report, percentile, run
from bench.sim import pools
from bench.sim.arms import placed
from bench.sim.pools import LLAMA_70B_INT4, LLAMA_70B_INT8, lasting
from bench.sim.real import run_real
from bench.sim.simulator import Simulation
from bench.sim.traces import poisson
from nodewire.plan.place import fleet
from nodewire.plan.place.advice import Model, advise
from nodewire.plan.place.dag import Dag, Link
from nodewire.plan.place.model import CUSTOMER, Chain, Node, Objective, Pool, Task, Workload
from nodewire.plan.place.planners import OURS, PLANNERS
from nodewire.plan.place.replication import bound, replicate, served
from nodewire.plan.place.ring_search.ring import Instance, costs, exact
from nodewire.plan.place.ring_search.search import searched
from processes.progress import say

SEEDS, QUICK_SEEDS = 20, 2
GB = 10**9
PROFILE = {"A": 2_627, "B": 1_728, "C": 4_326}
PUBLISHED = (9, 8, 3)
VALIDATED, VALIDATED_S = ((3, 0.8), (3, 3.0), (5, 2.0)), 12.0
"""Seeds and rates of traces on real processes."""
SCALE_NODES, SCALE_PER_S, SCALE_S = 2_000, 40.0, 20.0
CROWD_PER_S, LOAD = 30.0, 0.25
MEAN_OUTPUT = 145
"""Of lognormal lengths about a median of 128."""
CROWD_S, LOAD_S = 100.0, 120.0
_KINDS = ((8, 1.0), (12, 1.6), (16, 2.2), (24, 4.0), (24, 6.0), (48, 7.0), (80, 20.0))
_SHARES = (0.25, 0.2, 0.15, 0.15, 0.15, 0.07, 0.03)


async def measure(report: Report, options: argparse.Namespace) -> None:
    seeds = range(report.seed, report.seed + (QUICK_SEEDS if report.quick else SEEDS))
    _rings(report, seeds)
    _torchsplit(report)
    _replication(report, seeds)
    _decoder(report)
    await _validated(report)
    _scaled(report)
    found = {objective: _simulated(objective, seeds) for objective in ("throughput", "latency")}
    for objective, by_arm in found.items():
        ours = by_arm[OURS]
        report.arms[objective] = {
            name: {"median": round(median(values), 2), "of_seeds": [round(value, 1) for value in values]}
            for name, values in by_arm.items()
            if name != "predicted"
        }
        for name in PLANNERS:
            if name == OURS:
                continue
            pairs = list(zip(ours, by_arm[name], strict=True))
            ratio = median(a / b if objective == "throughput" else b / a for a, b in pairs)
            report.line(f"{objective}_over_{name}", round(ratio, 3), ">", 1)
    predicted = [
        p / value for p, value in zip(found["throughput"]["predicted"], found["throughput"][OURS], strict=True)
    ]
    report.arms["predicted_over_simulated"] = {
        "median": round(median(predicted), 3),
        "of_seeds": [round(p, 3) for p in predicted],
    }


def _scaled(report: Report) -> None:
    """Thousands of nodes, placed by chance: how fast the simulator is, and that it ends."""
    decoder, chance = LLAMA_70B_INT4, Random(report.seed)
    pool, chain, workload = pools.spread(SCALE_NODES, chance), decoder.chain(), Workload(per_s=SCALE_PER_S)
    trace = poisson(SCALE_PER_S, SCALE_S, chance, prompt=64, output=16)
    placement, router = placed("random", pool, chain, workload, "throughput", report.seed)
    begun = time.perf_counter()
    result = Simulation(pool, chain, placement, router, workload).run(trace)
    seconds = time.perf_counter() - begun
    report.arms["scale"] = {
        "nodes": SCALE_NODES,
        "sessions": len(trace),
        "positions": len(result.made_ms),
        "s": round(seconds, 2),
    }
    say(f"scale: {len(trace)} sessions over {SCALE_NODES} nodes in {seconds:.1f} s")
    report.line("scale_sessions_unserved", len(trace) - len(result.finished), "==", 0)


async def _validated(report: Report) -> None:
    errors, means, p95s = [], [], []
    for seed, per_s in VALIDATED:
        decoder, workload = LLAMA_70B_INT4, Workload(prompt=128, output=24, per_s=per_s)
        pool, chain = lasting(8, seed, decoder), decoder.chain()
        trace = poisson(per_s, VALIDATED_S, Random(seed), prompt=128, output=24)
        placement, router = placed(OURS, pool, chain, workload, "throughput", seed)
        results = (
            Simulation(pool, chain, placement, router, workload).run(trace),
            await run_real(pool, chain, placement, router, workload, trace),
        )
        per_position = [sorted(ms / session.output for session, _, ms in result.finished) for result in results]
        (simulated, real), (slow, slow_real) = map(mean, per_position), (percentile(each, 95) for each in per_position)
        means.append(abs(real / simulated - 1))
        p95s.append(abs((slow_real or inf) / (slow or inf) - 1))
        errors.append(max(means[-1], p95s[-1]))
        say(f"validation {seed}, {per_s} a second: mean {means[-1]:.1%}, p95 {p95s[-1]:.1%} off")
    report.arms["validation"] = {"mean_off": [round(e, 4) for e in means], "p95_off": [round(e, 4) for e in p95s]}
    report.line("simulator_off", round(max(errors), 4), "<", 0.15)


def _rings(report: Report, seeds: range) -> None:
    seconds, gaps = [], []
    for seed in seeds:
        pool, chain = unequal(12, 48, seed)
        begun = time.perf_counter()
        found = costs(Instance(pool, chain))
        best = exact(found)
        seconds.append(time.perf_counter() - begun)
        gaps.append(searched(found).turn_ms / best.turn_ms - 1)
    report.arms["ring"] = {
        "exact_12_nodes_s": {"median": round(median(seconds), 4), "max": round(max(seconds), 4)},
        "search_gap": {
            "median": round(median(gaps), 5),
            "max": round(max(gaps), 5),
            "optimal": sum(g < 1e-9 for g in gaps),
        },
    }
    say(f"ring: exact {median(seconds):.3f} s, search {sum(g < 1e-9 for g in gaps)} of {len(gaps)} optimal")
    report.line("exact_12_nodes_s", round(median(seconds), 4), "<", 0.3)


def unequal(nodes: int, tasks: int, seed: int) -> tuple[Pool, Chain]:
    """Machines of four regions and a chain of unlike tasks, so scarce of memory that several are needed."""
    chance = Random(seed)
    base = ((5, 40, 90, 140), (40, 5, 110, 160), (90, 110, 5, 190), (140, 160, 190, 5))
    region = [chance.randrange(4) for _ in range(nodes + 1)]
    rtt = [[0.0] * (nodes + 1) for _ in range(nodes + 1)]
    for i in range(nodes + 1):
        for j in range(i):
            rtt[i][j] = rtt[j][i] = base[region[i]][region[j]] * chance.uniform(0.7, 1.4)
    machines = tuple(
        Node(
            f"n{i}",
            chance.choice((6, 9, 14, 22, 40)) * GB,
            speed=chance.choice((0.4, 0.6, 1.0, 1.6, 2.5, 4.0)),
            up=chance.uniform(2_000, 60_000),
        )
        for i in range(nodes)
    )
    chain = Chain(
        tuple(
            Task(
                f"t{k}",
                int(chance.uniform(0.5, 2.0) * GB),
                ((1, chance.uniform(0.5, 2.0)),),
                0,
                chance.randrange(4_000, 40_000),
            )
            for k in range(tasks)
        ),
        8_000,
    )
    return Pool(machines, tuple(map(tuple, rtt))), chain


def _torchsplit(report: Report) -> None:
    nodes = [Node(f"A100 {i}", 40 * GB, layouts=((8 * GB,) * 5,)) for i in range(4)]
    tasks = [Task(name, 6 * GB, ((1, 1_000 / per_s),)) for name, per_s in PROFILE.items()]
    found = replicate(nodes, tasks)
    counts = found.counts()
    published = served(nodes, tasks, dict(enumerate(PUBLISHED)))
    report.arms["torchsplit"] = {
        "ours_per_s": round(found.per_s, 3),
        "replicas": [counts[i] for i in range(len(tasks))],
        "published_per_s": round(published, 3),
        "is_optimal": found.is_optimal,
    }
    report.line("torchsplit_profile_per_s", round(found.per_s, 3), ">=", 15_762)
    report.line("torchsplit_published_per_s", round(published, 3), "==", 12_978)


def _replication(report: Report, seeds: range) -> None:
    for name, is_unlike in (("kinds", False), ("unlike", True)):
        ratios, seconds = [], []
        for seed in seeds:
            nodes, tasks = many(1_000, 100, seed, is_unlike=is_unlike)
            begun = time.perf_counter()
            found = replicate(nodes, tasks)
            seconds.append(time.perf_counter() - begun)
            ratios.append(found.per_s / bound(nodes, tasks))
        report.arms[f"replication_{name}"] = {
            "of_bound": {"median": round(median(ratios), 4), "min": round(min(ratios), 4)},
            "s": {"median": round(median(seconds), 3), "max": round(max(seconds), 3)},
        }
        say(f"replication, {name}: {median(ratios):.3f} of the bound in {median(seconds):.2f} s")
        report.line(f"replication_{name}_of_bound", round(min(ratios), 4), ">=", 0.95)
        report.line(f"replication_{name}_s", round(median(seconds), 3), "<", 2)


def many(count: int, tasks: int, seed: int, *, is_unlike: bool) -> tuple[list[Node], list[Task]]:
    chance = Random(seed)
    nodes = []
    for index in range(count):
        memory_gb, speed = chance.choices(_KINDS, _SHARES)[0]
        nodes.append(Node(f"n{index}", memory_gb * GB, speed=speed * (chance.uniform(0.9, 1.1) if is_unlike else 1.0)))
    sizes = [chance.uniform(2, 7) if chance.random() < 0.8 else chance.uniform(7, 11) for _ in range(tasks)]
    return nodes, [Task(f"t{k}", int(gb * GB), ((1, chance.uniform(0.5, 3)),)) for k, gb in enumerate(sizes)]


def _decoder(report: Report) -> None:
    pool, what = pools.spread(1_000, Random(report.seed)), ring_of(100)
    seconds = {}
    for objective in ("latency", "throughput"):
        begun = time.perf_counter()
        found = advise(pool, what, Workload(), objective, Random(report.seed))[0]
        seconds[objective] = round(time.perf_counter() - begun, 2)
        say(f"decoder, {objective}: {found.turn_ms:.0f} ms, {found.per_s:.0f} a second, in {seconds[objective]} s")
    report.arms["decoder_s"] = seconds


def ring_of(tasks: int) -> Model:
    """A decoder with the weights of `LLAMA_70B_INT4` in so many tasks that are alike, and their driver."""
    size, ms = 80 * LLAMA_70B_INT4.layer_bytes // tasks, ((1, 120 / tasks),)
    stages = (Task(f"stage.{i}", size, ms) for i in range(tasks))
    hidden = LLAMA_70B_INT4.hidden_bytes
    links = (Link(CUSTOMER, 0, 4), *(Link(i, i + 1, hidden) for i in range(tasks)), Link(tasks, 0, hidden, back=True))
    return Model(Dag((Task("driver", 2 * GB), *stages), (*links, Link(0, CUSTOMER, 8))), is_ring=True)


def _simulated(objective: Objective, seeds: range) -> dict[str, list[float]]:
    """By planner, a value for every seed: positions a second, or the p95 of ms per position."""
    found: dict[str, list[float]] = {name: [] for name in (*PLANNERS, "predicted")}
    for seed in seeds:
        said: dict[str, Any] = {}
        for name, value in one(objective, seed).items():
            found[name].append(value)
            said[name] = round(value)
        say(f"{objective} {seed}: {said}")
    return found


def one(objective: Objective, seed: int) -> dict[str, float]:
    """One pool, one trace, every planner."""
    chance = Random(seed)
    decoder = (LLAMA_70B_INT4, LLAMA_70B_INT8)[seed % 2]
    pool, chain = lasting(chance.randrange(24, 41), seed, decoder), decoder.chain()
    workload, per_s, seconds = Workload(), CROWD_PER_S, CROWD_S
    if objective == "latency":
        per_s = LOAD * fleet.plan(pool, chain, workload, "throughput").tokens_per_s / MEAN_OUTPUT
        workload, seconds = Workload(per_s=per_s), LOAD_S
    trace = poisson(per_s, seconds, Random(seed))
    values = {}
    for name in PLANNERS:
        placement, router = placed(name, pool, chain, workload, objective, seed)
        simulation = Simulation(pool, chain, placement, router, workload)
        if objective == "throughput":
            result = simulation.run(trace, until_ms=1_000 * seconds)
            values[name] = result.tokens_per_s(400 * seconds, 1_000 * seconds)
            if name == OURS:
                values["predicted"] = placement.tokens_per_s
        else:
            result = simulation.run(trace)
            values[name] = percentile([ms / session.output for session, _, ms in result.finished], 95) or float("inf")
    return values


if __name__ == "__main__":
    run("place", __doc__, measure)
