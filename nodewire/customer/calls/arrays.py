"""Tensors as a customer has them (numpy's arrays, torch's tensors, raw `Array`s), and as they travel.

torch is not imported here: who hands in its tensors has it. numpy has no bfloat16, so such an output comes as the
float32 of equal value; a bfloat16 input may be given so, if nothing is lost.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from nodewire.errors import BadInput
from nodewire.protocol.model.signature import described
from nodewire.protocol.tensors.frame import ITEM_BYTES, MXINT8, Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.protocol.model.manifest import Tensor

_NUMPY = {"float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4", "uint8": "|u1", "bool": "|b1"}
_ITEMS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def array_of(tensor: Tensor, value: Any) -> Array:
    """A value for the input `tensor`, as it travels.

    Raises:
        BadInput: not a tensor, or of another dtype (nothing is converted unasked); a bool that is neither 0 nor 1.

    """
    if isinstance(value, Array):
        found = value
        if value.dtype in ITEM_BYTES and value.dtype != MXINT8:
            value.check(2**40)
    elif tensor.dtype == "bfloat16" and getattr(value, "dtype", None) == np.float32:
        found = _narrowed(tensor, value)
    else:
        found = raw(tensor.name, value)
    if found.dtype != tensor.dtype:
        raise BadInput(tensor.name, f"{found.dtype}, the model takes {described(tensor)}: convert it first")
    if found.dtype == "bool" and np.frombuffer(found.data, np.uint8).max(initial=0) > 1:
        raise BadInput(tensor.name, "has bools that are neither 0 nor 1")
    return found


def raw(name: str, value: Any) -> Array:
    """A tensor of torch or numpy in its own dtype, as it travels. Raises BadInput: it is none."""
    if isinstance(value, Array):
        return value
    if _is_torch(value):
        return _from_torch(value)
    try:
        found = np.asarray(value)
    except ValueError as error:  # rows of unlike lengths
        raise BadInput(name[:80], "not a tensor") from error
    if found.dtype == object:
        raise BadInput(name[:80], "not a tensor")
    little = found.astype(found.dtype.newbyteorder("<"), copy=False)
    return Array(found.dtype.name, found.shape, np.ascontiguousarray(little).tobytes())


def numpy_of(array: Array) -> np.ndarray:
    """The array's values; bfloat16 becomes float32."""
    if array.dtype == "bfloat16":
        halves = np.frombuffer(array.data, "<u2").astype(np.uint32) << 16
        return halves.view(np.float32).reshape(array.shape)
    return np.frombuffer(array.data, _NUMPY[array.dtype]).reshape(array.shape)


def like(given: Mapping[str, Any], outputs: Mapping[str, Array]) -> dict[str, Any]:
    """Outputs in the form of the inputs `given`: torch's tensors, raw arrays, or numpy's."""
    if any(_is_torch(value) for value in given.values()):
        return {name: to_torch(array) for name, array in outputs.items()}
    if given and all(isinstance(value, Array) for value in given.values()):
        return dict(outputs)
    return {name: numpy_of(array) for name, array in outputs.items()}


def sliced(array: Array, axis: int, first: int, last: int) -> Array:
    """Rows [first, last) along `axis`, of whatever dtype."""
    items = np.frombuffer(array.data, _ITEMS[ITEM_BYTES[array.dtype]]).reshape(array.shape)
    part = np.ascontiguousarray(items[(slice(None),) * axis + (slice(first, last),)])
    return Array(array.dtype, part.shape, part.tobytes())


def joined(arrays: list[Array], axis: int) -> Array:
    """Arrays of one dtype one after the other along `axis`. Raises BadInput: they do not fit together."""
    first = arrays[0]
    item = _ITEMS[ITEM_BYTES[first.dtype]]
    try:
        whole = np.concatenate([np.frombuffer(one.data, item).reshape(one.shape) for one in arrays], axis)
    except ValueError as error:
        raise BadInput("outputs", "the parts of a batch do not fit together") from error
    return Array(first.dtype, whole.shape, whole.tobytes())


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _from_torch(value: Any) -> Array:
    tensor = value.detach().cpu().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype == "bfloat16":
        tensor = tensor.view(sys.modules["torch"].int16)
    return Array(dtype, tuple(tensor.shape), tensor.numpy().tobytes() if dtype in ITEM_BYTES else b"")


def to_torch(array: Array) -> Any:
    """The array as a torch tensor; the caller has imported torch."""
    torch = sys.modules["torch"]
    dtype = getattr(torch, array.dtype)
    if not array.nbytes:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)


def _narrowed(tensor: Tensor, values: np.ndarray) -> Array:
    words = np.ascontiguousarray(values).view(np.uint32)
    if (words & 0xFFFF).any():
        raise BadInput(tensor.name, "float32 that bfloat16 does not hold exactly: round it first")
    return Array("bfloat16", values.shape, (words >> 16).astype("<u2").tobytes())
