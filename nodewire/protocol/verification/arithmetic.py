"""Narrower arithmetic sold as a wider one: how far results are from a reference in float32. nips/19-judging.md.

Two honest results in bfloat16 are equally far from a float32 reference: both are off by their rounding. Weights or a
cache of 8 bits add an error of their own. So the ratio of the two distances tells, whatever the model and its depth,
where a bound on the distance between two results cannot: it grows with the depth of a task.

    excess = sqrt( sum |theirs - reference|^2 / sum |own - reference|^2 )      over the rows of a chunk, each relative

Honest excesses of a chunk were 0.86 to 1.21, those of 8-bit weights 1.38 to 2.46
(docs/reference/measurement-history.md).
"""

from __future__ import annotations

from math import sqrt
from statistics import median
from typing import TYPE_CHECKING

from nodewire.protocol.tensors.fingerprint import MILLION, row_distances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.protocol.job.chunk import Leaf
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.verification.comparison import Outcome

_ORDER: tuple[Outcome, ...] = ("pass", "grey", "fail")
ROUNDED = frozenset({"bfloat16", "float16"})
"""Dtypes in which a result is off by its rounding, so that a narrower one could hide."""
LEAST_ROWS = 8
"""Fewer rows say nothing of a result."""
PASS_PPM, FAIL_PPM = 1_250_000, 1_330_000
"""An excess up to the first is honest, from the second on it is not."""
SUSPECT_PPM = 6_500
"""A median row further than this from another's may be narrower arithmetic, or an honest result of a deep task."""


def has_reference(manifest: Manifest, task: str) -> bool:
    """Whether a task's results are rounded, and can be computed in float32 as well."""
    dtypes = {tensor.dtype for edge in manifest.outputs(task) for tensor in edge.tensors}
    return manifest.task(task).engine == "decoder.stage" and not ROUNDED.isdisjoint(dtypes)


def outcome(ppm: int) -> Outcome:
    """What an excess says of the result."""
    return "pass" if ppm <= PASS_PPM else "fail" if ppm >= FAIL_PPM else "grey"


def worse_outcome(distance: Outcome, ppm: int) -> Outcome:
    """What a result is by its distance from another and by its excess: the worse of the two."""
    return max(distance, outcome(ppm), key=_ORDER.index)


def is_suspect(mine: Sequence[Leaf], theirs: Sequence[Leaf]) -> bool:
    """Whether two results in rounded numbers are so far apart that a float32 reference should tell which is wrong.

    `mine` and `theirs` are leaves of the same frames in the same order.
    """
    gaps = _gaps(mine, theirs)
    return len(gaps) >= LEAST_ROWS and median(gaps) * MILLION > SUSPECT_PPM


def excess_ppm(reference: Sequence[Leaf], own: Sequence[Leaf], theirs: Sequence[Leaf]) -> int | None:
    """How much further from the reference `theirs` is than `own`, in millionths; None where the rows say nothing.

    All three are leaves of the same frames in the same order; the reference's tensors are float32.
    """
    far, near = _gaps(theirs, reference), _gaps(own, reference)
    if not LEAST_ROWS <= len(near) == len(far):
        return None
    noise = sum(gap * gap for gap in near)
    if not noise:
        return None
    return min(int(sqrt(sum(gap * gap for gap in far) / noise) * MILLION), 1_000 * MILLION)


def _gaps(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> list[float]:
    """The relative distance of each row of rounded numbers from the other's; empty where they are not of one form."""
    if [(leaf.edge, leaf.seq) for leaf in leaves] != [(leaf.edge, leaf.seq) for leaf in others]:
        return []
    found: list[float] = []
    for one, other in zip(leaves, others, strict=True):
        if [tensor.shape for tensor in one.tensors] != [tensor.shape for tensor in other.tensors]:
            return []
        for mine, theirs in zip(one.tensors, other.tensors, strict=True):
            if mine.dtype in ROUNDED:
                gaps = row_distances(theirs.sketch, mine.sketch)
                if gaps is None:
                    return []
                found += gaps
    return found
