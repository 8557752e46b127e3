"""What the frames' msgpack headers say: packed, and unpacked with every field checked; no I/O.

Nothing that a peer's header says is believed before it was checked here, and no memory is taken for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.tensors.frame import ITEM_BYTES, MAX_RANK, MAX_TENSORS, Array, Meta, bytes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HEADER_BYTES = 4_096
MAX_FRAME_BYTES = 256 * 2**20
FRAME_COST_BYTES, TENSOR_COST_BYTES, META_COST_BYTES = 1_024, 1_024, 256
"""What a frame, each of its tensors and each entry of its `meta` count against a window besides the tensors' bytes:
about what is kept of them, however few the bytes."""

Buffer = bytes | bytearray | memoryview

_PACKER = msgpack.Packer(use_bin_type=True)  # of the event loop's thread; to make one takes longer than to use it

_MAX_META = 64
_SCALARS = (int, str, bytes, bool, type(None))
_LIMITS: dict[str, int | bool] = {
    "raw": False,
    "strict_map_key": True,
    "max_str_len": MAX_HEADER_BYTES,
    "max_bin_len": MAX_HEADER_BYTES,
    "max_array_len": MAX_TENSORS,
    "max_map_len": _MAX_META,
    "max_ext_len": 0,
}


@dataclass(slots=True)  # frozen ones take thrice as long to make
class DataHeader:
    """What a DATA frame says of itself; `job` is the request's event id, `key` what plan.tensor_key names it."""

    job: str
    edge: str
    attempt: int
    seq: int
    key: bytes
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """dtype and shape of each."""
    meta: Meta
    nbytes: int
    """Of all tensors together."""

    @property
    def cost(self) -> int:
        """What the frame takes from its edge's window, in bytes."""
        return self.nbytes + FRAME_COST_BYTES + TENSOR_COST_BYTES * len(self.tensors) + META_COST_BYTES * len(self.meta)

    def arrays(self, buffer: memoryview) -> tuple[Array, ...]:
        """The tensors in `buffer`, not copied."""
        found, start = [], 0
        for dtype, shape in self.tensors:
            end = start + bytes_of(dtype, shape)
            found.append(Array(dtype, shape, buffer[start:end]))
            start = end
        return tuple(found)


def data_header(
    job: str, edge: str, attempt: int, seq: int, key: bytes, arrays: Sequence[Array], meta: Meta, max_bytes: int
) -> DataHeader:
    """The header of a frame that is to be sent.

    Raises:
        BadFrame, TooLarge: a tensor does not agree with itself, or all are over `max_bytes`.

    """
    if len(arrays) > MAX_TENSORS:
        raise TooLarge("tensors", f"{len(arrays)}, at most {MAX_TENSORS}")
    nbytes = 0
    for array in arrays:
        array.check(max_bytes)
        nbytes += len(array.data)
    if nbytes > max_bytes:
        raise TooLarge("frame", f"{nbytes} bytes, at most {max_bytes}")
    tensors = tuple([(array.dtype, tuple(array.shape)) for array in arrays])
    return DataHeader(job, edge, attempt, seq, key, tensors, meta, nbytes)


def pack_header(header: DataHeader) -> bytes:
    """The header's bytes.

    Raises:
        BadFrame, TooLarge: it is over 4 KiB, or holds what msgpack or the receiver would refuse.

    """
    meta = dict(header.meta)
    job = bytes.fromhex(header.job)
    # Our own mistakes are found here, not by the peer at the cost of the job.
    _check_place(job, header.edge, header.attempt)
    _check_meta(meta)
    return _pack([job, header.edge, header.attempt, header.seq, header.key, header.tensors, meta])


def pack_record(attempt: int, seq: int, arrays: Sequence[Array], meta: Meta) -> bytes:
    """What a frame says besides its edge, for where frames are kept. Raises BadFrame, TooLarge over 4 KiB."""
    return _pack([attempt, seq, [(array.dtype, array.shape) for array in arrays], dict(meta)])


def unpack_record(packed: Buffer) -> DataHeader:
    """The header in a record, without job, edge and key. Raises BadFrame, TooLarge: nothing in it is believed."""
    attempt, seq, tensors, meta = _unpack(packed, 4)
    if type(attempt) is not int or not 0 <= attempt < 2**16:
        raise BadFrame("attempt", "not a small count")
    return _header("", "", attempt, seq, b"", tensors, meta)


def unpack_header(packed: Buffer) -> DataHeader:
    """Raises BadFrame, TooLarge."""
    job, edge, attempt, seq, key, tensors, meta = _unpack(packed, 7)
    _check_place(job, edge, attempt)
    if not isinstance(key, bytes) or len(key) != 16:
        raise BadFrame("key", "not 16 bytes")
    return _header(job.hex(), edge, attempt, seq, key, tensors, meta)


def pack_credit(job: str, edge: str, attempt: int, limit: int) -> bytes:
    return _pack([bytes.fromhex(job), edge, attempt, limit])


def unpack_credit(packed: Buffer) -> tuple[str, str, int, int]:
    """Job, edge, attempt and limit. Raises BadFrame, TooLarge."""
    job, edge, attempt, limit = _unpack(packed, 4)
    _check_place(job, edge, attempt)
    if type(limit) is not int or not 0 <= limit < 2**63:
        raise BadFrame("limit", "not a count of bytes")
    return job.hex(), edge, attempt, limit


def _header(job: str, edge: str, attempt: int, seq: object, key: bytes, tensors: object, meta: Any) -> DataHeader:
    if type(seq) is not int or not 0 <= seq < 2**53:
        raise BadFrame("seq", "not a count")
    if not isinstance(tensors, list) or len(tensors) > MAX_TENSORS:
        raise BadFrame("tensors", "not an array")
    found = tuple([_parse_tensor(item) for item in tensors])
    _check_meta(meta)
    nbytes = 0
    for dtype, shape in found:
        nbytes += bytes_of(dtype, shape)
    if nbytes > MAX_FRAME_BYTES:
        raise TooLarge("frame", f"{nbytes} bytes, at most {MAX_FRAME_BYTES}")
    return DataHeader(job, edge, attempt, seq, key, found, meta, nbytes)


def _check_meta(meta: object) -> None:
    if not isinstance(meta, dict) or len(meta) > _MAX_META:
        raise BadFrame("meta", f"not a map of at most {_MAX_META} scalars")
    for name, value in meta.items():
        if type(name) is not str or type(value) not in _SCALARS:
            raise BadFrame("meta", "not a map of strings to scalars")


def _parse_tensor(item: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(item, list) or len(item) != 2:
        raise BadFrame("tensors", "an item is not [dtype, shape]")
    dtype, shape = item
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadFrame("dtype", f"{str(dtype)[:20]!r} is not one of {', '.join(ITEM_BYTES)}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise BadFrame("shape", f"not an array of at most {MAX_RANK} dimensions")
    for n in shape:
        if type(n) is not int or not 0 <= n < 2**40:
            raise BadFrame("shape", "a dimension is out of range")
    return dtype, tuple(shape)


def _check_place(job: object, edge: object, attempt: object) -> None:
    if not isinstance(job, bytes) or len(job) != 32:
        raise BadFrame("job", "not 32 bytes")
    if not isinstance(edge, str) or not 0 < len(edge) <= 64:
        raise BadFrame("edge", "not a name")
    if type(attempt) is not int or not 0 <= attempt < 2**16:
        raise BadFrame("attempt", "not a small count")


def _pack(fields: Sequence[Any]) -> bytes:
    try:
        packed = bytes(_PACKER.pack(fields))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFrame("header", "holds what msgpack cannot") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise TooLarge("header", f"{len(packed)} bytes, at most {MAX_HEADER_BYTES}")
    return packed


def _unpack(packed: Buffer, count: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(packed, **_LIMITS)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise BadFrame("header", "not msgpack within its limits") from error
    if not isinstance(fields, list) or len(fields) != count:
        raise BadFrame("header", f"not an array of {count} fields")
    return fields
