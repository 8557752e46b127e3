"""A task's program: an acyclic list of whitelisted operators over named tensors, as canonical msgpack.

It holds no weights, only their names and types; those come from safetensors files. It holds no code either: names of
operators, references, and constants. Since canonical msgpack has no floats, a float is `{"f64": 8 big-endian bytes}`.

    {v, slots, dims {name: most}, volume, inputs [{edge, tensor, dtype, shape, below}],
     weights [{name, dtype, shape, file}], nodes [[name, operator, args, kwargs]],
     outputs [{edge, tensor, dtype, shape, value}]}

A shape is a list of numbers and names of `dims`. `volume` bounds the product of all dims, so that one program takes
many short rows or few long ones. `below` bounds an integer input's values. nips/26-graph-programs.md.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nodewire.errors import BadInput, BadTask, BadVersion, TooLarge
from nodewire.graph.program.whitelist import Ref, check_call
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.manifest import MAX_WEIGHT_FILES
from nodewire.protocol.tensors.frame import MAX_RANK
from nodewire.taskgraph.program import MAX_BYTES, MAX_DIMS, MAX_NODES, MAX_PORTS, MAX_VALUES, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_SIZE = 2**40
MAX_ELEMENTS = 2**44
"""Of a shape, dims apart: no product of sizes that torch makes of it overflows."""
MAX_SLOTS = 4_096

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FORMATS = {"contiguous": torch.contiguous_format, "preserve": torch.preserve_format}
_FORMAT_NAMES = {v: k for k, v in _FORMATS.items()}

_NO_DIMS: Mapping[str, int] = {}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,159}")

Shape = tuple[int | str, ...]
"""Sizes, or names of dims."""
SOME = "some"
"""Where a tensor's first size has this name, the data decide it: each tensor has its own, from 0 to `volume`."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that arrives on `edge` under the name `tensor`; integers lie in [0, below) where `below` is not 0."""

    name: str
    dtype: torch.dtype
    shape: Shape
    edge: str = ""
    below: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """`name` = `op`(*args, **kwargs). Arguments are constants, Refs, or lists of them."""

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def refs(self) -> Iterator[str]:
        """Names of the values that it uses, with repetitions."""
        for value in (*self.args, *self.kwargs.values()):
            yield from refs(value)


@dataclass(frozen=True, slots=True)
class Output:
    """The value `value` leaves on `edge` under the name `name`."""

    name: str
    value: str
    dtype: torch.dtype
    shape: Shape
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """A whole model, or a task of it. Nodes stand in an order in which they can run."""

    dims: Mapping[str, int]
    volume: int
    inputs: tuple[Input, ...]
    weights: tuple[Weight, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    slots: int = 1

    @property
    def takes_some(self) -> bool:
        """Whether data decide how many rows of an input there are."""
        return any(SOME in i.shape for i in self.inputs)

    def encode(self) -> bytes:
        return canonical.encode(
            {
                "v": VERSION,
                "slots": self.slots,
                "dims": dict(self.dims),
                "volume": self.volume,
                "inputs": [
                    {"edge": i.edge, "tensor": i.name, "dtype": NAMES[i.dtype], "shape": i.shape, "below": i.below}
                    for i in self.inputs
                ],
                "weights": [
                    {"name": w.name, "dtype": NAMES[w.dtype], "shape": w.shape, "file": w.file} for w in self.weights
                ],
                "nodes": [
                    [n.name, n.op, [_pack(a) for a in n.args], {k: _pack(a) for k, a in n.kwargs.items()}]
                    for n in self.nodes
                ],
                "outputs": [
                    {"edge": o.edge, "tensor": o.name, "dtype": NAMES[o.dtype], "shape": o.shape, "value": o.value}
                    for o in self.outputs
                ],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Program:
        """The program in `data`, with every name, reference, operator and argument type checked; nothing has run.

        Raises:
            TooLarge: over 4 MiB, or 524,288 values.
            BadVersion: another format version.
            BadTask: any other fault; the field is the node's name where there is one.

        """
        try:
            document = canonical.decode(data, max_bytes=MAX_BYTES, max_values=MAX_VALUES)
        except TooLarge as error:
            raise TooLarge("program", error.reason) from error
        except BadInput as error:
            raise BadTask("program", error.reason) from error
        if not isinstance(document, dict):
            raise BadTask("program", "not a map")
        if document.get("v") != VERSION:
            raise BadVersion.from_versions(document.get("v"), VERSION)
        fields = {"v", "slots", "dims", "volume", "inputs", "weights", "nodes", "outputs"}
        if set(document) != fields:
            raise BadTask("program", f"its fields are not {', '.join(sorted(fields))}")
        dims = _dims(document["dims"])
        program = cls(
            dims=dims,
            volume=_count(document["volume"], "volume", 1, MAX_SIZE),
            slots=_count(document["slots"], "slots", 1, MAX_SLOTS),
            inputs=tuple(_input(i, dims) for i in _list(document["inputs"], "inputs", MAX_PORTS)),
            weights=tuple(_weight(w) for w in _list(document["weights"], "weights", MAX_NODES)),
            nodes=tuple(_node(n) for n in _list(document["nodes"], "nodes", MAX_NODES)),
            outputs=tuple(_output(o, dims) for o in _list(document["outputs"], "outputs", MAX_PORTS)),
        )
        program.check()
        return program

    def check(self) -> None:
        """Check that names are unique, references look back only, operators and argument types are allowed.

        Raises:
            BadTask: naming the node, input, weight or output.

        """
        known: set[str] = set()
        for name in (*self.dims, *(i.name for i in self.inputs), *(w.name for w in self.weights)):
            if name in known:
                raise BadTask(name, "defined twice")
            known.add(name)
        sized = {d for i in self.inputs for d in i.shape if isinstance(d, str) and d != SOME}
        if sized != set(self.dims):
            raise BadTask("dims", "not exactly the dimensions of the inputs")
        for node in self.nodes:
            check_call(node.name, node.op, node.args, node.kwargs)
            for ref in node.refs():
                if ref not in known:
                    raise BadTask(node.name, f"uses {ref!r}, which is not defined before it")
            if node.name in known:
                raise BadTask(node.name, "defined twice")
            known.add(node.name)
        values = known - set(self.dims)
        if not self.outputs:
            raise BadTask("outputs", "none")
        if len({(output.edge, output.name) for output in self.outputs}) < len(self.outputs):
            raise BadTask("outputs", "two of one name on an edge")
        for output in self.outputs:
            if output.value not in values:
                raise BadTask(output.value, "is an output and not defined")


def refs(value: Any) -> Iterator[str]:
    """Names that an argument refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from refs(item)


def replace_refs(value: Any, names: Mapping[str, str]) -> Any:
    """The argument with every reference renamed through `names` (identity where absent)."""
    if isinstance(value, Ref):
        return Ref(names.get(value.name, value.name))
    if isinstance(value, list | tuple):
        return [replace_refs(item, names) for item in value]
    return value


def _pack(value: Any) -> Any:
    match value:
        case Ref(name):
            return {"ref": name}
        case float():
            return {"f64": struct.pack(">d", value)}
        case torch.dtype():
            return {"dtype": NAMES[value]}
        case torch.memory_format():
            return {"format": _FORMAT_NAMES[value]}
        case list() | tuple():
            return [_pack(item) for item in value]
        case None | bool() | int() | str():
            return value
    raise BadTask("program", f"a constant of type {type(value).__name__} has no form")


def _unpack(value: Any, node: str, depth: int = 0) -> Any:
    if isinstance(value, list):
        if depth == 2:
            raise BadTask(node, "an argument is nested too deep")
        return [_unpack(item, node, depth + 1) for item in value]
    if isinstance(value, dict):
        match list(value.items()):
            case [("ref", str(name))]:
                if not _NAME.fullmatch(name):
                    raise BadTask(node, f"uses {name[:40]!r}, which is not a name")
                return Ref(name)
            case [("f64", bytes(raw))] if len(raw) == 8:
                return struct.unpack(">d", raw)[0]
            case [("dtype", str(name))] if name in DTYPES:
                return DTYPES[name]
            case [("format", str(name))] if name in _FORMATS:
                return _FORMATS[name]
        raise BadTask(node, "an argument is of no known form")
    if isinstance(value, bytes):
        raise BadTask(node, "an argument is of no known form")
    return value


def _node(raw: Any) -> Node:
    match raw:
        case [str(name), str(op), list(args), dict(kwargs)]:
            _named(name, "nodes")
            return Node(
                name, op, tuple(_unpack(a, name) for a in args), {k: _unpack(a, name) for k, a in kwargs.items()}
            )
    raise BadTask("nodes", "an entry is not [name, operator, args, kwargs]")


def _input(raw: Any, dims: Mapping[str, int]) -> Input:
    match raw:
        case {"edge": str(edge), "tensor": str(name), "dtype": dtype, "shape": list(shape), "below": below} if (
            len(raw) == 5
        ):
            _named(name, "inputs")
            _named(edge, "inputs")
            return Input(name, _dtype(dtype, name), _shape(shape, name, dims), edge, _count(below, name, 0, MAX_SIZE))
    raise BadTask("inputs", "an entry is not {edge, tensor, dtype, shape, below}")


def _weight(raw: Any) -> Weight:
    match raw:
        case {"name": str(name), "dtype": dtype, "shape": list(shape), "file": file} if len(raw) == 4:
            _named(name, "weights")
            sizes = tuple(s for s in _shape(shape, name, _NO_DIMS) if isinstance(s, int))
            return Weight(name, _dtype(dtype, name), sizes, _count(file, name, 0, MAX_WEIGHT_FILES - 1))
    raise BadTask("weights", "an entry is not {name, dtype, shape, file}")


def _output(raw: Any, dims: Mapping[str, int]) -> Output:
    match raw:
        case {"edge": str(edge), "tensor": str(name), "dtype": dtype, "shape": list(shape), "value": str(value)} if (
            len(raw) == 5
        ):
            for text in (name, edge, value):
                _named(text, "outputs")
            return Output(name, value, _dtype(dtype, name), _shape(shape, name, dims), edge)
    raise BadTask("outputs", "an entry is not {edge, tensor, dtype, shape, value}")


def _dims(raw: Any) -> dict[str, int]:
    if not isinstance(raw, dict) or len(raw) > MAX_DIMS:
        raise BadTask("dims", f"not a map of at most {MAX_DIMS}")
    if SOME in raw:
        raise BadTask("dims", f"{SOME!r} is what data decide")
    return {_named(name, "dims"): _count(most, name, 1, MAX_SIZE) for name, most in raw.items()}


def _shape(raw: list[Any], name: str, dims: Mapping[str, int]) -> Shape:
    if len(raw) > MAX_RANK:
        raise BadTask(name, f"rank {len(raw)}, at most {MAX_RANK}")
    for at, size in enumerate(raw):
        if not (isinstance(size, str) and (size in dims or (size == SOME and at == 0 and dims is not _NO_DIMS))):
            _count(size, name, 0, MAX_SIZE)
    if math.prod(max(size, 1) for size in raw if isinstance(size, int)) > MAX_ELEMENTS:
        raise BadTask(name, f"more than {MAX_ELEMENTS} elements")
    return tuple(raw)


def _dtype(raw: Any, name: str) -> torch.dtype:
    if not isinstance(raw, str) or raw not in DTYPES:
        raise BadTask(name, "of no known dtype")
    return DTYPES[raw]


def _named(name: str, where: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadTask(where, f"{name[:40]!r} is not a name")
    return name


def _list(raw: Any, where: str, most: int) -> list[Any]:
    if not isinstance(raw, list):
        raise BadTask(where, "not a list")
    if len(raw) > most:
        raise BadTask(where, f"{len(raw)} entries, at most {most}")
    return raw


def _count(raw: Any, where: str, least: int, most: int) -> int:
    if type(raw) is not int or not least <= raw <= most:
        raise BadTask(where, f"{str(raw)[:40]} is not a number from {least} to {most}")
    return raw
