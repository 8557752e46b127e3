"""One call of a classifier: rows of numbers in, their scores out, in as many frames as it takes."""

from __future__ import annotations

import numpy as np

from nodewire.customer.embedding import Embedding
from nodewire.errors import BadInput
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import CUSTOMER, Edge

MAX_ROWS_BYTES = 64 * 2**20


class Scoring(Embedding):
    """`texts` are rows of numbers [n, inputs]; everything else is as with texts."""

    def frames(self) -> list[Frame[Array]]:
        """A frame for each chunk on every edge from the customer. Raises BadInput: not rows of the model's length."""
        edges = [edge for edge in self.manifest.edges if edge.source == CUSTOMER]
        rows = np.ascontiguousarray(self.texts, np.float32)
        inputs = _inputs(edges[0]) if edges else 0
        if rows.ndim < 2 or not len(rows) or rows[0].size != inputs:
            raise BadInput("rows", f"{list(rows.shape)}, the model takes rows of {inputs} numbers")
        if rows.nbytes > MAX_ROWS_BYTES or not np.isfinite(rows).all():
            raise BadInput("rows", f"over {MAX_ROWS_BYTES} bytes, or a number is not finite")
        rows = rows.reshape(len(rows), inputs)
        most = min(min(edge.dims.values(), default=len(rows)) for edge in edges)
        frames = []
        for chunk, first in enumerate(range(0, len(rows), most)):
            some = rows[first : first + most]
            meta = {"chunk": chunk, "end": first + most >= len(rows)}
            array = Array("float32", some.shape, some.tobytes())
            frames += [Frame(edge.name, chunk, (array,), dict(meta)) for edge in edges]
        return frames

    def positions(self) -> int:
        return len(self.texts)


def _inputs(edge: Edge) -> int:
    """Numbers in a row. Raises BadInput: the model takes something else."""
    shape = edge.tensors[0].shape if len(edge.tensors) == 1 else ()
    if len(shape) != 2 or not isinstance(shape[1], int) or edge.tensors[0].dtype != "float32":
        raise BadInput("model", f"its edge {edge.name} takes no rows of numbers")
    return shape[1]
