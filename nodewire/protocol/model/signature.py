"""What a call of a manifest in mode `run` takes and gives: named tensors. Pure. nips/26-graph-programs.md.

The names on edges from the customer are the model's inputs, and one that stands on several edges is sent on each; those
on edges to the customer are its outputs. A dim's name means one size in all inputs of a call, and in the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nodewire.errors import BadFrame, BadInput, BadManifest
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest, Tensor
from nodewire.protocol.tensors.frame import Array, Frame

MAX_FRAME_BYTES = 64 * 2**20
"""Of one frame: what a link takes of an edge."""
NO_DIMS: Mapping[str, int] = MappingProxyType({})

Call = Mapping[str, Array]
"""Inputs, or outputs, by name."""


@dataclass(frozen=True, slots=True)
class Signature:
    """`dims` has the largest size of every named dim of the inputs."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    dims: Mapping[str, int]
    sends: tuple[Edge, ...]
    gets: tuple[Edge, ...]

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Signature:
        """Raises BadManifest: nothing is taken or given, or one name has two types."""
        sends = tuple(edge for edge in manifest.edges if edge.source == CUSTOMER)
        gets = tuple(edge for edge in manifest.edges if edge.target == CUSTOMER)
        inputs, outputs = _typed(sends), _typed(gets)
        if not inputs or not outputs:
            raise BadManifest("edges", f"{manifest.name} takes no inputs, or puts out nothing")
        if len(outputs) < sum(len(edge.tensors) for edge in gets):
            raise BadManifest("edges", f"{manifest.name} puts out two tensors of one name")
        dims: dict[str, int] = {}
        for edge in sends:
            for name, most in edge.dims.items():
                dims[name] = min(most, dims.get(name, most))
        return cls(inputs, outputs, dims, sends, gets)

    def arrays(self, given: Mapping[str, Any], array_of: Callable[[Tensor, Any], Array]) -> dict[str, Array]:
        """What a caller gave, made arrays of by `array_of`. Raises BadInput: a name is missing or unknown."""
        if unknown := sorted(set(given) - set(self.inputs), key=str):
            raise BadInput(str(unknown[0])[:80], f"no input of the model, which takes {', '.join(self.inputs)}")
        for name, tensor in self.inputs.items():
            if name not in given:
                raise BadInput(name, f"is missing; the model takes {described(tensor)}")
        return {name: array_of(tensor, given[name]) for name, tensor in self.inputs.items()}

    def check(self, call: Call) -> dict[str, int]:
        """The sizes of the dims of a call that has every input; they may be above `dims`.

        Raises:
            BadInput: dtype, rank or a size is another; two sizes of a dim differ.

        """
        sizes: dict[str, int] = {}
        for name, tensor in self.inputs.items():
            _check(tensor, call[name], sizes)
        return sizes

    def largest_bytes(self, call: Call) -> int:
        """Of the frames that a call makes."""
        return max(sum(call[tensor.name].nbytes for tensor in edge.tensors) for edge in self.sends)

    def frames(self, calls: Sequence[Call]) -> list[Frame[Array]]:
        """What the customer sends: for every call, which is a chunk, a frame on each of its edges."""
        return [
            Frame(
                edge.name,
                chunk,
                tuple(call[tensor.name] for tensor in edge.tensors),
                {"chunk": chunk, "end": chunk == len(calls) - 1},
            )
            for chunk, call in enumerate(calls)
            for edge in self.sends
        ]

    def outputs_of(self, frame: Frame[Array], sizes: Mapping[str, int] = NO_DIMS) -> dict[str, Array]:
        """The outputs in a frame that came, of a call whose dims have these sizes.

        Raises:
            BadFrame: not on an edge to the customer, or not of the types that the edge has.

        """
        edge = next((one for one in self.gets if one.name == frame.edge), None)
        if edge is None or len(frame.tensors) != len(edge.tensors):
            raise BadFrame(frame.edge[:64], f"{len(frame.tensors)} tensors, which is not what the manifest says")
        known = dict(sizes)
        for tensor, array in zip(edge.tensors, frame.tensors, strict=True):
            try:
                _check(tensor, array, known)
            except BadInput as error:
                raise BadFrame(error.field, error.reason) from error
            for dim, size in zip(tensor.shape, array.shape, strict=True):
                if isinstance(dim, str) and dim not in sizes and size > edge.dims.get(dim, size):
                    raise BadFrame(tensor.name, f"{dim} is {size}, at most {edge.dims[dim]}")
            if array.dtype == "bool" and bytes(array.data).translate(None, b"\0\1"):
                raise BadFrame(tensor.name, "has bools that are neither 0 nor 1, which are undefined")
        return {tensor.name: array for tensor, array in zip(edge.tensors, frame.tensors, strict=True)}


def described(tensor: Tensor) -> str:
    """A tensor's type for people: "float32 [batch, 3, 224, 224]"."""
    return f"{tensor.dtype} [{', '.join(map(str, tensor.shape))}]"


def _typed(edges: Iterable[Edge]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for edge in edges:
        for tensor in edge.tensors:
            if found.setdefault(tensor.name, tensor) != tensor:
                raise BadManifest(
                    tensor.name, f"is {described(found[tensor.name])}, and {described(tensor)} on {edge.name}"
                )
    return found


def _check(tensor: Tensor, array: Array, sizes: dict[str, int]) -> None:
    """Take note of the sizes of named dims. Raises BadInput."""
    if array.dtype != tensor.dtype:
        raise BadInput(tensor.name, f"{array.dtype}, the model has {described(tensor)}")
    wrong = BadInput(tensor.name, f"of shape {list(array.shape)}, the model has {described(tensor)}")
    if len(array.shape) != len(tensor.shape):
        raise wrong
    for dim, size in zip(tensor.shape, array.shape, strict=True):
        if isinstance(dim, int):
            if size != dim:
                raise wrong
        elif sizes.setdefault(dim, size) != size:
            raise BadInput(tensor.name, f"has {size} as {dim}, another tensor has {sizes[dim]}")
