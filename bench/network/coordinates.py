"""How well network coordinates predict round trips: `python -m bench.network.coordinates [--json] [--quick]`.

Simulated: a hundred nodes, each of which dials eight others and learns where it is from the links that it has
(`nodewire.wire.measure.vivaldi`, with what is measured up to a few per cent too long). Judged are pairs that never met:
the median of |predicted - actual| / actual.

- `geometric`: points of a plane with heights, as coordinates would have it.
- `internet`: five continents with homes behind lines, where so many pairs take detours that 5, 10 or 20 % of all
  triangles have a side that is longer than the two others together.
- `shard`: Shard's seven machines. Seven round trips are measured ones (`bench.tools.wan`), the other fourteen lie on
  the straight line through these over the great circle's length. Each machine knows four others.

Of `geometric` and `internet` there is an arm in which every fifth node claims to be sure of another random place each
time; judged are the honest nodes. `live`: sixteen machines of `bench.tools.wan` with nodes of the wire on them, each of
which dials five others; skipped where the machine can have no network namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from bench.report import Report, percentile, run
from bench.tools.lines import said, tell
from bench.tools.wan import SHARD_MS, Host, Wan, unavailable
from nodewire.protocol.market.coordinates import Coordinates, rtt_us
from nodewire.wire.measure.vivaldi import Claim, Vivaldi
from processes.progress import say

NODES, QUICK_NODES, DIALS, ROUNDS, SEEDS = 100, 40, 8, 100, 3
NOISE, LIARS, LIE_US = 0.03, 0.2, 200_000
VIOLATIONS = (0.05, 0.10, 0.20)
LIVE_NODES, LIVE_DIALS, LIVE_PACE_S, LIVE_ROUNDS = 16, 5, 0.5, 80
_PORT = 4_000

SHARD_AT = {
    "WA": (47.6, -122.3), "NV": (36.2, -115.1), "TX": (32.8, -96.8), "WA2": (47.6, -122.3),
    "MN": (45.0, -93.3), "MO": (39.1, -94.6), "UT": (40.8, -111.9),
}  # fmt: skip
"""Latitude and longitude of the largest city of each machine's state."""
EARTH_KM = 6_371.0

Matrix = list[list[float]]
"""Round trips in microseconds."""
Pair = tuple[int, int]


def geometric(nodes: int, chance: random.Random) -> Matrix:
    return _matrix([(chance.uniform(0, 8e4), chance.uniform(0, 8e4), _height(chance)) for _ in range(nodes)])


def internet(nodes: int, chance: random.Random, violations: float) -> Matrix:
    """With so many detours that a share of about `violations` of the triangles is violated."""
    continents = [(chance.uniform(0, 1.5e5), chance.uniform(0, 1.5e5)) for _ in range(5)]
    points = []
    for _ in range(nodes):
        x, y = chance.choice(continents)
        points.append((chance.gauss(x, 1.2e4), chance.gauss(y, 1.2e4), _height(chance)))
    straight = _matrix(points)
    pairs = list(combinations(range(nodes), 2))
    chance.shuffle(pairs)
    detours = [(i, j, 1.2 + chance.expovariate(1.5)) for i, j in pairs]
    few, many = 0, len(detours)
    while many - few > len(detours) // 50:
        middle = (few + many) // 2
        few, many = (
            (few, middle) if violated(_longer(straight, detours[:middle]), chance) > violations else (middle, many)
        )
    return _longer(straight, detours[:few])


def shard() -> Matrix:
    names = list(SHARD_AT)
    line = linear_regression([_km(a, b) for a, b in SHARD_MS], list(SHARD_MS.values()))
    matrix = [[0.0] * len(names) for _ in names]
    for (i, a), (j, b) in combinations(enumerate(names), 2):
        ms = SHARD_MS.get((a, b)) or SHARD_MS.get((b, a)) or line.intercept + line.slope * _km(a, b)
        matrix[i][j] = matrix[j][i] = ms * 1_000
    return matrix


def violated(matrix: Matrix, chance: random.Random, tries: int = 4_000) -> float:
    """The share of triangles with a side that is longer than the other two."""
    found = 0
    for _ in range(tries):
        i, j, k = chance.sample(range(len(matrix)), 3)
        a, b, c = sorted((matrix[i][j], matrix[j][k], matrix[i][k]))
        found += c > a + b
    return found / tries


def met(nodes: int, dials: int, chance: random.Random) -> list[Pair]:
    """Who is linked: everybody dials so many others."""
    pairs = set()
    for i in range(nodes):
        others = [j for j in range(nodes) if j != i]
        pairs |= {(min(i, j), max(i, j)) for j in chance.sample(others, dials)}
    return sorted(pairs)


def learned(matrix: Matrix, pairs: Sequence[Pair], chance: random.Random, liars: set[int]) -> list[Coordinates]:
    """Where the nodes think that they are after so many rounds."""
    nodes = [Vivaldi(str(chance.random())) for _ in matrix]
    for _ in range(ROUNDS):
        claims = [_lie(chance) if i in liars else node.place.claim for i, node in enumerate(nodes)]
        for a, b in (*pairs, *((j, i) for i, j in pairs)):
            nodes[a].update(str(b), claims[b])
            nodes[a].measured(str(b), round(matrix[a][b] * (1 + chance.expovariate(2 / NOISE))))
    return [node.place.claim.at for node in nodes]


def errors(matrix: Matrix, at: Sequence[Coordinates], pairs: Sequence[Pair], liars: set[int]) -> list[float]:
    """Relative errors of the honest pairs that are not among `pairs`."""
    linked = set(pairs)
    return [
        abs(rtt_us(at[i], at[j]) - matrix[i][j]) / matrix[i][j]
        for i, j in combinations(range(len(matrix)), 2)
        if (i, j) not in linked and not liars & {i, j}
    ]


def _height(chance: random.Random) -> float:
    return 500 + chance.expovariate(1 / 5_000)


def _matrix(points: Sequence[tuple[float, float, float]]) -> Matrix:
    return [
        [0.0 if i == j else math.dist(a[:2], b[:2]) + a[2] + b[2] for j, b in enumerate(points)]
        for i, a in enumerate(points)
    ]


def _longer(matrix: Matrix, detours: Sequence[tuple[int, int, float]]) -> Matrix:
    out = [list(row) for row in matrix]
    for i, j, factor in detours:
        out[i][j] = out[j][i] = matrix[i][j] * factor
    return out


def _km(a: str, b: str) -> float:
    (north, east), (north2, east2) = (map(math.radians, SHARD_AT[name]) for name in (a, b))
    cosine = math.sin(north) * math.sin(north2) + math.cos(north) * math.cos(north2) * math.cos(east - east2)
    return EARTH_KM * math.acos(min(cosine, 1.0))


def _lie(chance: random.Random) -> Claim:
    x, y = (chance.randint(-LIE_US, LIE_US) for _ in range(2))
    return Claim((x, y, chance.randint(0, LIE_US)), 0)


def _said(found: Sequence[float]) -> dict[str, Any]:
    return {
        "pairs": len(found),
        "median_error": round(median(found), 4),
        "p90_error": round(percentile(found, 90) or 0.0, 4),
    }


async def measure(report: Report, options: argparse.Namespace) -> None:
    count, seeds = (QUICK_NODES, 1) if report.quick else (NODES, SEEDS)
    simulated = {"geometric": 0.0} | {f"internet_{share:.0%}": share for share in VIOLATIONS}
    for arm, share in simulated.items():
        honest: list[float] = []
        misled: list[float] = []
        shares = []
        for seed in range(seeds):
            chance = random.Random(f"{report.seed}/{arm}/{seed}")
            matrix = internet(count, chance, share) if share else geometric(count, chance)
            pairs = met(count, DIALS, chance)
            liars = set(chance.sample(range(count), round(LIARS * count)))
            shares.append(violated(matrix, chance))
            honest += errors(matrix, learned(matrix, pairs, chance, set()), pairs, set())
            misled += errors(matrix, learned(matrix, pairs, chance, liars), pairs, liars)
        report.arms[arm] = {"violated_triangles": round(median(shares), 3), **_said(honest)}
        report.arms[f"{arm}_liars"] = _said(misled)
        ratio = round(median(misled) / median(honest), 3)
        report.line(f"{arm}_liars_over_honest", ratio, "<=", 2)
        say(f"{arm}: median error {median(honest):.3f}, with liars {median(misled):.3f}")
    report.line("geometric_median_error", report.arms["geometric"]["median_error"], "<=", 0.15)
    found = []
    for seed in range(1 if report.quick else 10):
        chance, matrix = random.Random(f"{report.seed}/shard/{seed}"), shard()
        order = chance.sample(range(len(matrix)), len(matrix))
        pairs = [
            tuple(sorted((order[i], order[(i + step) % len(order)]))) for i in range(len(order)) for step in (1, 2)
        ]
        found += errors(matrix, learned(matrix, pairs, chance, set()), pairs, set())
    share = violated(shard(), random.Random(report.seed))
    report.arms["shard"] = {"violated_triangles": round(share, 3), **_said(found)}
    say(f"shard: median error {median(found):.3f}")
    if (why := unavailable()) is not None:
        report.skip(why)
        return
    report.arms["live"] = await live(random.Random(f"{report.seed}/live"), LIVE_ROUNDS // (2 if report.quick else 1))
    say(f"live: median error {report.arms['live']['median_error']:.3f}")
    report.line("live_median_error", report.arms["live"]["median_error"], "<=", 0.15)


async def live(chance: random.Random, rounds: int) -> dict[str, Any]:
    """Nodes of the wire on machines of their own: what their coordinates predict, and what their links measured."""
    names = [f"m{i}" for i in range(LIVE_NODES)]
    matrix = geometric(LIVE_NODES, chance)
    far = {(names[i], names[j]): matrix[i][j] / 1_000 for i, j in combinations(range(LIVE_NODES), 2)}
    pairs = met(LIVE_NODES, LIVE_DIALS, chance)
    with Wan({name: Host() for name in names}, far) as wan:
        nodes = [
            await wan.machine(name).start(
                [sys.executable, "-m", "bench.network.coordinates_node", f"{wan.ip[name]}:{_PORT}", str(LIVE_PACE_S)],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for name in names
        ]
        try:
            publics = [await said(node) for node in nodes]
            for i, node in enumerate(nodes):
                await tell(node, [[publics[b], f"{wan.ip[names[b]]}:{_PORT}"] for a, b in pairs if a == i])
            await asyncio.sleep(rounds * LIVE_PACE_S)
            for node in nodes:
                await tell(node, "where")
            reports = [await said(node) for node in nodes]
        finally:
            for node in nodes:
                if node.returncode is None:
                    node.kill()
                await node.wait()
    at = [tuple(one["at"]) for one in reports]
    linked = [
        abs(one["rtt_us"][publics[j]] - matrix[i][j]) / matrix[i][j]
        for i, one in enumerate(reports)
        for j in range(LIVE_NODES)
        if publics[j] in one["rtt_us"]
    ]
    return {
        **_said(errors(matrix, at, pairs, set())),
        "links": len(pairs),
        "measured_median_error": round(median(linked), 4),
    }


if __name__ == "__main__":
    run(Path(__file__).stem, __doc__, measure)
