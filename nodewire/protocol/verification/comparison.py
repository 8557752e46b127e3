"""Two openings of one chunk against each other: the same work, other work, or a doubt. nips/12-narrowed-edges.md."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Literal

from nodewire.protocol.tensors.fingerprint import MILLION, distance_ppm
from nodewire.protocol.tensors.frame import MXINT8

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nodewire.protocol.job.chunk import Leaf, Opening
    from nodewire.protocol.model.manifest import Manifest

Outcome = Literal["pass", "grey", "fail"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Up to `pass_ppm` two results are the same, from `fail_ppm` on they are not."""

    pass_ppm: int
    fail_ppm: int

    def outcome(self, ppm: int) -> Outcome:
        return "pass" if ppm <= self.pass_ppm else "fail" if ppm >= self.fail_ppm else "grey"


TOLERANCES = {
    "float32": Tolerance(100, 1_000),
    "float16": Tolerance(15_000, 35_000),
    "bfloat16": Tolerance(25_000, 35_000),
}
"""By dtype: the largest relative L2 distance of a row. Measured in docs/reference/measurement-history.md."""
NARROWED = {
    ("float32", "bfloat16"): Tolerance(10_000, 15_000),
    ("float32", MXINT8): Tolerance(20_000, 30_000),
    ("float16", MXINT8): Tolerance(30_000, 45_000),
    ("bfloat16", MXINT8): Tolerance(35_000, 50_000),
}
"""The same on narrowed edges, by the edge's own dtype and the one that travels: two honest nodes that differ in the
last bit may round a row's largest number apart, by 1/128 of it in bfloat16 and 1/64 in MXINT8."""
MEANS = {("float32", "bfloat16"): Tolerance(1_000, 3_000), ("float32", MXINT8): Tolerance(3_000, 8_000)}
"""Of the mean over a chunk's frames on a narrowed edge, where these are FEW or more: honest nodes seldom round a number
apart, another arithmetic does it in every frame."""
FEW = 8

_ORDER: dict[Outcome, int] = {"pass": 0, "grey": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Comparison:
    outcome: Outcome
    ppm: int
    """How far apart they are: the measure that decided."""
    where: str
    """Edge and seq of the frame that is furthest off; empty if none is."""


def compare(manifest: Manifest, task: str, mine: Opening, theirs: Opening) -> Comparison:
    """What `theirs` is beside `mine`, which was computed again from the same inputs."""
    if [(leaf.edge, leaf.seq) for leaf in mine.leaves] != [(leaf.edge, leaf.seq) for leaf in theirs.leaves]:
        return Comparison("fail", MILLION, "frames")
    own = _own(manifest)
    apart = [(_leaf_ppm(a, b), a, b) for a, b in zip(mine.leaves, theirs.leaves, strict=True)]
    if not apart:
        return Comparison("pass", 0, "")
    ppm, leaf, _ = max(apart, key=lambda one: (_ORDER[_tolerance(own, one[1]).outcome(one[0])], one[0]))
    farthest = Comparison(_tolerance(own, leaf).outcome(ppm), ppm, _where(leaf) if ppm else "")
    return max((farthest, *_means(own, apart)), key=lambda one: _ORDER[one.outcome])


def _means(own: Mapping[str, tuple[str, ...]], apart: list[tuple[int, Leaf, Leaf]]) -> Iterator[Comparison]:
    """By narrowed edge with enough frames, how far apart these are on average."""
    for edge in dict.fromkeys(leaf.edge for _, leaf, _ in apart):
        frames = [(ppm, leaf) for ppm, leaf, _ in apart if leaf.edge == edge]
        sent = {tensor.dtype for _, leaf in frames for tensor in leaf.tensors}
        tolerances = [MEANS[pair] for pair in product(own.get(edge, ()), sent) if pair in MEANS]
        if tolerances and len(frames) >= FEW:
            ppm = sum(ppm for ppm, _ in frames) // len(frames)
            tolerance = max(tolerances, key=lambda one: one.pass_ppm)
            yield Comparison(tolerance.outcome(ppm), ppm, _where(max(frames, key=lambda one: one[0])[1]))


def alike(manifest: Manifest, mine: Leaf, theirs: Leaf) -> bool:
    """Whether two frames of one number are the same work, whoever computed them."""
    return _tolerance(_own(manifest), mine).outcome(_leaf_ppm(mine, theirs)) == "pass"


def _own(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """By edge, its tensors' own dtypes."""
    return {edge.name: tuple(tensor.dtype for tensor in edge.tensors) for edge in manifest.edges}


def _leaf_ppm(mine: Leaf, theirs: Leaf) -> int:
    if [(t.dtype, t.shape) for t in mine.tensors] != [(t.dtype, t.shape) for t in theirs.tensors]:
        return MILLION
    return max(
        (
            0 if a.sha256 == b.sha256 else max(1, distance_ppm(a.dtype, a.sketch, b.sketch))
            for a, b in zip(mine.tensors, theirs.tensors, strict=True)
        ),
        default=0,
    )


def _tolerance(own: Mapping[str, tuple[str, ...]], leaf: Leaf) -> Tolerance:
    """That of the leaf's coarsest tensor; integers must be the same."""
    exact = Tolerance(0, 1)
    pairs = zip_longest(own.get(leaf.edge, ())[: len(leaf.tensors)], (tensor.dtype for tensor in leaf.tensors))
    found = [NARROWED.get((mine, sent)) or TOLERANCES.get(sent, exact) for mine, sent in pairs]
    return max(found, key=lambda one: one.pass_ppm, default=exact)


def _where(leaf: Leaf) -> str:
    return f"{leaf.edge}/{leaf.seq}"
