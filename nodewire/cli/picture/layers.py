"""Where the boxes of a DAG go: layers from top to bottom, few crossings, edges as straight as that allows. Pure.

After Sugiyama, Tagawa and Toda (1981): a node stands below all it depends on; an edge over several layers gets a place
in each of them; orders are swept by the mean of their neighbours, of which the one with the fewest crossings is kept;
then every layer is moved as near to its neighbours, and a little to the middle, as boxes that may not overlap can be,
by least squares (pool adjacent violators).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 24
RELAXATIONS = 40
GAP_X, GAP_Y = 26.0, 62.0
MAX_LANES = 8_192
"""Above, an edge over several layers goes straight from its source to its target: a picture is not worth hours."""
_LANE = 8.0
"""The width that a passing edge takes."""
_CENTRED = 0.25
"""How much the middle of the picture counts beside a neighbour: or what repeats one-sidedly would drift aside."""

Name = str
Edge = tuple[Name, Name]


@dataclass(frozen=True, slots=True)
class Box:
    """`x` and `y` are those of its middle."""

    x: float
    y: float
    width: float
    height: float
    layer: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`ways` has for every edge the points that it passes between its ends' boxes."""

    boxes: Mapping[Name, Box]
    ways: Mapping[Edge, Sequence[tuple[float, float]]]
    width: float
    height: float
    crossings: int


def layout(sizes: Mapping[Name, tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """`sizes` are the boxes' (width, height), in topological order; `edges` lead forward in it."""
    edges = list(dict.fromkeys(edges))
    layers = _layers(sizes, edges)
    widths = {name: width for name, (width, _) in sizes.items()}
    heights = [0.0] * (max(layers.values(), default=0) + 1)
    for name, (_, height) in sizes.items():
        heights[layers[name]] = max(heights[layers[name]], height)
    rows: list[list[Name]] = [[] for _ in heights]
    for name, layer in layers.items():
        rows[layer].append(name)
    chains, links = _chains(edges, layers, rows, widths)
    crossings = _order(rows, links)
    places = _places(rows, links, widths)
    left = min((places[name] - widths[name] / 2 for row in rows for name in row), default=0.0)
    right = max((places[name] + widths[name] / 2 for row in rows for name in row), default=0.0)
    tops = [sum(heights[:k]) + k * GAP_Y for k in range(len(heights))]
    middles = [top + height / 2 for top, height in zip(tops, heights, strict=True)]
    boxes = {name: Box(places[name] - left, middles[layers[name]], *size, layers[name]) for name, size in sizes.items()}
    ways = {
        edge: [(places[name] - left, middles[layers[edge[0]] + 1 + k]) for k, name in enumerate(chain)]
        for edge, chain in chains.items()
    }
    return Layout(boxes, ways, right - left, tops[-1] + heights[-1] if heights else 0.0, crossings)


def _layers(sizes: Mapping[Name, object], edges: Sequence[Edge]) -> dict[Name, int]:
    """As far from the top as what it depends on demands; what nothing stands above, as near as it can to its users."""
    before: dict[Name, list[Name]] = {name: [] for name in sizes}
    after: dict[Name, list[Name]] = {name: [] for name in sizes}
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    found: dict[Name, int] = {}
    for name in sizes:
        found[name] = max((found[one] + 1 for one in before[name]), default=0)
    for name in reversed(list(sizes)):
        if not before[name] and after[name]:
            found[name] = min(found[one] for one in after[name]) - 1
    return found


def _chains(
    edges: Sequence[Edge], layers: Mapping[Name, int], rows: list[list[Name]], widths: dict[Name, float]
) -> tuple[dict[Edge, list[Name]], list[Edge]]:
    """The lanes of every edge in the layers that it passes, which are added to `rows`; and all short links."""
    chains: dict[Edge, list[Name]] = {}
    links: list[Edge] = []
    left = MAX_LANES
    for number, (source, target) in enumerate(edges):
        lanes = layers[target] - layers[source] - 1
        if lanes > left:
            chains[source, target] = []
            continue
        left -= lanes
        chain = [f"\0{number}.{layer}" for layer in range(layers[source] + 1, layers[target])]
        for lane, layer in zip(chain, range(layers[source] + 1, layers[target]), strict=True):
            rows[layer].append(lane)
            widths[lane] = _LANE
        chains[source, target] = chain
        links += zip([source, *chain], [*chain, target], strict=True)
    return chains, links


def _order(rows: list[list[Name]], links: Sequence[Edge]) -> int:
    """Sort every row for few crossings; how many are left."""
    above: dict[Name, list[Name]] = {name: [] for row in rows for name in row}
    below: dict[Name, list[Name]] = {name: [] for row in rows for name in row}
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        near = above if down else below
        for k in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            rows[k] = _by_neighbours(rows[k], rows[k - 1 if down else k + 1], near)
        if (now := _crossings(rows, below)) < fewest:
            best, fewest = [list(row) for row in rows], now
    rows[:] = best
    return fewest


def _by_neighbours(row: Sequence[Name], other: Sequence[Name], near: Mapping[Name, Sequence[Name]]) -> list[Name]:
    """A row by where the neighbours in another stand on average; who has none stays about where it is."""
    at = {name: place for place, name in enumerate(other)}
    means = {
        name: sum(at[one] for one in near[name]) / len(near[name]) if near[name] else place
        for place, name in enumerate(row)
    }
    return sorted(row, key=means.__getitem__)


def _crossings(rows: Sequence[Sequence[Name]], below: Mapping[Name, Sequence[Name]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        at = {name: place for place, name in enumerate(lower)}
        seen: list[int] = []
        for name in upper:
            ends = sorted(at[one] for one in below[name])
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _places(rows: Sequence[Sequence[Name]], links: Sequence[Edge], widths: Mapping[Name, float]) -> dict[Name, float]:
    """The middle of every box and lane from left to right."""
    near: dict[Name, list[Name]] = {name: [] for row in rows for name in row}
    for source, target in links:
        near[source].append(target)
        near[target].append(source)
    places: dict[Name, float] = {}
    for row in rows:
        places |= _apart(row, [0.0] * len(row), widths)
    for turn in range(RELAXATIONS):
        for row in rows if turn % 2 == 0 else reversed(rows):
            wanted = [sum(places[one] for one in near[name]) / (len(near[name]) + _CENTRED) for name in row]
            places |= _apart(row, wanted, widths)
    return places


def _apart(row: Sequence[Name], wanted: Sequence[float], widths: Mapping[Name, float]) -> dict[Name, float]:
    """The places nearest to those wanted, by squares, at which the row's boxes keep order and distance."""
    offsets = [0.0]
    for one, other in pairwise(row):
        offsets.append(offsets[-1] + (widths[one] + widths[other]) / 2 + GAP_X)
    blocks: list[tuple[float, int]] = []
    for place, offset in zip(wanted, offsets, strict=False):
        mean, count = place - offset, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (mean * count + before * many) / (count + many), count + many
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return {name: mean + offset for name, mean, offset in zip(row, means, offsets, strict=False)}
