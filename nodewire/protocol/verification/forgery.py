"""A sketch that is not of the bytes whose hash stands beside it. nips/19-judging.md.

A hash binds its author to bytes, and a sketch to nothing. So a sketch is recomputed before anything is compared by it.
Where it is not that of the bytes, the signed root contradicts them: one such leaf convicts, and no work is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nodewire.protocol.tensors.fingerprint import distance_ppm, is_float

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.protocol.job.chunk import Leaf, LeafTensor

ROUNDING_PPM = 50
"""How far two machines' sketches of the same bytes may be apart: of float32 sums, measured up to 4."""


def forged(committed: Iterable[Leaf], true: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """The committed leaves that have a sketch which is not that of their bytes. `true`: leaves recomputed from frames.

    A tensor whose bytes are not among the true ones is passed over.
    """
    known = {(leaf.edge, leaf.seq): leaf for leaf in true}
    return tuple(
        leaf
        for leaf in committed
        if (own := known.get((leaf.edge, leaf.seq))) is not None
        and any(_is_forged(*pair) for pair in zip(leaf.tensors, own.tensors, strict=False))
    )


def _is_forged(committed: LeafTensor, true: LeafTensor) -> bool:
    if (committed.dtype, committed.shape, committed.sha256) != (true.dtype, true.shape, true.sha256):
        return False
    if committed.sketch == true.sketch:
        return False
    if is_float(true.dtype) and not np.isfinite(np.frombuffer(true.sketch, "<f4")).all():
        return False  # no machine's sketch of such numbers need be another's, and none passes
    return distance_ppm(true.dtype, true.sketch, committed.sketch) > ROUNDING_PPM
