"""What daemon and worker say to each other: length-prefixed msgpack; tensors only as places in an arena.

    daemon -> worker   {id, op: "load" | "unload" | "open" | "receive" | "close", ..., free?}   {op: "free", slabs}
    worker -> daemon   {hello}   {id, frame}*   {id, ok, frame?} or {id, error}

A frame travels as {edge, seq, meta, slab, tensors: [[dtype, shape, offset]]}; whoever reads it copies it out of the
slab and then answers (worker) or says which slabs are free, with its next call or before (daemon). A call's frames
share one slab. A "receive" has `frames`, and `with` further calls {id, session, frames} of its task, to be computed
with it and answered each by itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.tensors.frame import ITEM_BYTES, MAX_TENSORS, Array, Frame, bytes_of, check_shape
from nodewire.worker.ipc.arena import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PREFIX = struct.Struct("<I")
MAX_MESSAGE_BYTES = 2**20
MAX_META = 64
_SCALARS = (int, str, bytes, bool, type(None))

T = TypeVar("T")


def pack(message: dict[str, Any]) -> bytes:
    """`message` with its length before it.

    Raises:
        BadFrame: a value that msgpack does not know.
        TooLarge: over MAX_MESSAGE_BYTES.

    """
    try:
        body: bytes = msgpack.packb(message, use_bin_type=True, buf_size=4096)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFrame("message", str(error)[:100]) from error
    if len(body) > MAX_MESSAGE_BYTES:
        raise TooLarge("message", f"{len(body)} bytes, at most {MAX_MESSAGE_BYTES}")
    return PREFIX.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """How many bytes follow. Raises TooLarge before anything is read."""
    (length,) = PREFIX.unpack(prefix)
    if length > MAX_MESSAGE_BYTES:
        raise TooLarge("message", f"{length} bytes, at most {MAX_MESSAGE_BYTES}")
    return int(length)


def unpack(body: bytes) -> dict[str, Any]:
    """The message in `body`. Raises BadFrame."""
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise BadFrame("message", "not msgpack") from error
    if not isinstance(message, dict):
        raise BadFrame("message", "not a map")
    return message


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where tensors of these sizes lie in a slab, and how large it must be."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += aligned(size)
    return offsets, end


def put_frame(
    frame: Frame[Any], slab: int | None, tensors: Sequence[tuple[str, tuple[int, ...], int]]
) -> dict[str, Any]:
    """The wire form of `frame`, whose tensors lie at the given (dtype, shape, offset)."""
    return {
        "edge": frame.edge,
        "seq": frame.seq,
        "meta": dict(frame.meta),
        "slab": slab,
        "tensors": [[dtype, list(shape), offset] for dtype, shape, offset in tensors],
    }


def take_frame(fields: Any, arena: memoryview, copy: Callable[[Array], T]) -> Frame[T]:
    """The frame that `fields` describe; `copy` takes each tensor (still in the arena) out of it.

    Raises:
        BadFrame: a field has the wrong type, or a tensor lies outside of the arena.
        TooLarge: too many tensors or keys, or more bytes than the arena has.

    """
    if not isinstance(fields, dict):
        raise BadFrame("frame", "not a map")
    edge, seq, meta, tensors = fields.get("edge"), fields.get("seq"), fields.get("meta"), fields.get("tensors")
    if not isinstance(edge, str) or len(edge) > 64:
        raise BadFrame("edge", "not a short text")
    if type(seq) is not int or seq < 0:
        raise BadFrame("seq", "not a count")
    if not isinstance(meta, dict):
        raise BadFrame("meta", "not a map")
    for key, value in meta.items():
        if type(key) is not str or type(value) not in _SCALARS:
            raise BadFrame("meta", "not a map of plain values")
    if not isinstance(tensors, list):
        raise BadFrame("tensors", "not a list")
    if len(tensors) > MAX_TENSORS or len(meta) > MAX_META:
        raise TooLarge("frame", f"{len(tensors)} tensors and {len(meta)} keys, at most {MAX_TENSORS} and {MAX_META}")
    return Frame(edge, seq, tuple([copy(_array(tensor, arena)) for tensor in tensors]), meta)


def _array(tensor: Any, arena: memoryview) -> Array:
    if isinstance(tensor, list) and len(tensor) == 3:
        dtype, shape, offset = tensor
        if type(dtype) is str and dtype in ITEM_BYTES and type(shape) is list and type(offset) is int and offset >= 0:
            check_shape(shape)
            nbytes = bytes_of(dtype, shape)
            if offset + nbytes > len(arena):
                raise TooLarge("tensor", f"{nbytes} bytes at {offset}, the arena has {len(arena)}")
            return Array(dtype, tuple(shape), arena[offset : offset + nbytes])
    raise BadFrame("tensors", "a tensor is not [dtype, shape, offset]")
