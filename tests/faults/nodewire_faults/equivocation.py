"""A provider's daemon that sends one thing, signs that it sent it, and commits to another: changed from outside.

What it commits to and keeps is its honest work; on the edges of its consumers go the same numbers with the other sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.tensors.frame import ITEM_BYTES, Array, Frame
from nodewire.protocol.verification.statement import hashed
from nodewire.provider.inference.job import JobRun
from nodewire.provider.inference.output_hasher import OutputHasher
from nodewire.wire.job.sender import Sender


def send_otherwise(tasks: Sequence[str]) -> None:
    """From now on every job of this process sends otherwise what `tasks` (all if empty) put out."""
    produced, hash_it, parcel = JobRun.produced, OutputHasher._hash, Sender.parcel
    edges: set[tuple[str, str]] = set()

    def otherwise(self: Any, task: str, chunk: int, frame: Frame[Array]) -> None:
        target = next(edge.target for edge in self._job.manifest.edges if edge.name == frame.edge)
        if target != CUSTOMER and (not tasks or task in tasks):
            edges.add((self.request.id, frame.edge))
        produced(self, task, chunk, frame)

    def signed_otherwise(self: Any, task: str, chunk: int, frame: Frame[Array]) -> None:
        hash_it(self, task, chunk, frame)
        if (self._context.request.id, frame.edge) in edges and self._stating is not None:
            self._stating.statements._signing._out[frame.edge, chunk][-1] = hashed(turned(frame))

    def turned_parcel(self: Any, outgoing: Any, frame: Frame[Array]) -> Any:
        lies = (self._request, frame.edge) in edges
        return parcel(self, outgoing, turned(frame) if lies else frame)

    JobRun.produced, OutputHasher._hash = otherwise, signed_otherwise  # type: ignore[method-assign]
    Sender.parcel = turned_parcel  # type: ignore[method-assign]


def turned(frame: Frame[Array]) -> Frame[Array]:
    """The frame with the sign of every floating-point number changed."""
    return replace(frame, tensors=tuple(_turned(array) for array in frame.tensors))


def _turned(array: Array) -> Array:
    if not array.dtype.endswith(("float32", "float16")):
        return array
    data, item = bytearray(array.data), ITEM_BYTES[array.dtype]
    data[item - 1 :: item] = bytes(byte ^ 0x80 for byte in data[item - 1 :: item])
    return Array(array.dtype, array.shape, data)
