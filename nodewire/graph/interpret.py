"""Runs a program: one operator after the other, each tensor freed at its last use.

The same loop runs on real tensors (here) and on the meta device (`liveness`), so that what was predicted is what runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from nodewire.errors import BadInput, BadTask, OverMemory, TooLarge
from nodewire.graph.format import DTYPES, MAX_SIZE, SOME, Input, Node, Output, Program, Shape, refs
from nodewire.graph.whitelist import BITWISE, INDEXING, MAX_INT, MAX_LIST, OPS, SAME_FLOAT, Op, Ref
from nodewire.graph.workspace import ATTENTION, as_on_cpu

BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"
Value = Any
"""A tensor, an int, or the list of tensors that a split makes."""
After = Callable[[Node, Op, Mapping[str, Value], Value, Sequence[str]], None]
"""Called after each node with its arguments by formal name, its result, and the names of the values freed next."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A node made ready: where its arguments stand among the values, where its result goes, and which go after it.

    `is_plain` where nothing is left to do but to call: no list and no keyword refers to a value, nothing is guarded.
    """

    node: Node
    op: Op
    call: Callable[..., Value]
    pick: Callable[[list[Value]], tuple[Value, ...]]
    kwargs: Mapping[str, Any]
    place: int
    freed: tuple[int, ...]
    is_plain: bool
    guarded: bool
    is_strided: bool
    nested: tuple[tuple[int, Any], ...]
    varying: tuple[tuple[str, Any], ...]
    last_used: tuple[str, ...]


class Interpreter:
    """A program with its weights, ready to run on `device`.

    `weights` maps every name of the program's table to a tensor on `device` of the declared dtype and shape.
    """

    def __init__(self, program: Program, weights: Mapping[str, torch.Tensor], device: str = "cpu") -> None:
        self.program = program
        self.device = torch.device(device)
        schedule = _Schedule(program, weights, self.device)
        self._values, self._places, self._steps = schedule.values, schedule.places, schedule.steps

    def __call__(
        self, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int], after: After | None = None
    ) -> dict[str, torch.Tensor]:
        """The outputs by value name. The inputs are the caller's, and stay until it lets them go.

        Raises:
            BadTask: an operator refuses its arguments, or an output is not what is declared; the field is its name.
            BadInput: an index is outside what it indexes.
        """
        with torch.no_grad():
            return self.recorded(inputs, dims, after)

    def recorded(
        self, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int], after: After | None = None
    ) -> dict[str, torch.Tensor]:
        """The same under the caller's autograd: weights and inputs that require gradients are leaves."""
        values, places = self._values.copy(), self._places
        for name in self.program.dims:
            values[places[name]] = dims[name]
        for declared in self.program.inputs:
            values[places[declared.name]] = inputs[declared.name]
        result: Value
        for step in self._steps:
            try:
                result = step.call(*step.pick(values), **step.kwargs) if step.is_plain else _called(step, values)
            except (BadTask, BadInput):
                raise
            except Exception as error:  # whatever torch raises: its meta kernels are written in Python, and assert
                raise _typed(step, error) from error
            if type(result) is not torch.Tensor or not result.numel():
                result = _plain(step, result)
            values[step.place] = result
            if after is not None:
                after(step.node, step.op, step.op.bound(*_given(step, values)), result, step.last_used)
            result = None  # the values alone hold it while the next node runs
            for place in step.freed:
                values[place] = None
        return {out.value: _checked(out, values[places[out.value]], dims) for out in self.program.outputs}


def _given(step: _Step, values: list[Value]) -> tuple[Sequence[Value], Mapping[str, Value]]:
    """A node's arguments, and those by keyword."""
    args: Sequence[Value] = step.pick(values)
    if step.nested:
        args = list(args)
        for at, arg in step.nested:
            args[at] = _resolve(arg, values)
    if step.varying:
        return args, {**step.kwargs, **{key: _resolve(arg, values) for key, arg in step.varying}}
    return args, step.kwargs


def _called(step: _Step, values: list[Value]) -> Value:
    args, kwargs = _given(step, values)
    if step.guarded:
        check_values(step.node, step.op, step.op.bound(args, kwargs))
    result = step.call(*args, **kwargs)
    return as_on_cpu(step.op, step.op.bound(args, kwargs), result) if step.is_strided else result


def _plain(step: _Step, result: Value) -> Value:
    """A result other than a tensor with elements, in the form that the values have."""
    kind = type(result)
    if kind is tuple:
        return list(result)
    if kind is int and abs(result) > MAX_INT:
        raise BadTask(step.node.name, "a size beyond 64 bits")
    if kind is torch.Tensor and min(result.shape, default=0) < 0:
        # Where another size is 0 some kernels make a negative one.
        raise BadTask(step.node.name, f"{step.op.name} of a negative size: {list(result.shape)}")
    return result


def _typed(step: _Step, error: Exception) -> BadTask | OverMemory:
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _is_out_of_memory(first):
        return OverMemory(step.node.name, f"{step.op.name}: the device has no memory left")
    return BadTask(step.node.name, f"{step.op.name}: {type(error).__name__}: {first[:160]}")


def _is_out_of_memory(text: str) -> bool:
    """torch's CPU allocator and oneDNN have no error class of their own."""
    return "allocate memory" in text or text.endswith("could not create a primitive")


def is_guarded(op: Op) -> bool:
    """Whether `check_values` has anything to say about an operator."""
    return (
        op.name in SAME_FLOAT
        or op.name in BITWISE
        or op.name in INDEXING
        or op.name.startswith(("py.", "aten.split.", "aten.unbind."))
        or op.name == BATCH_NORM
    )


def check_values(node: Node, op: Op, given: Mapping[str, Value]) -> None:
    """What must hold for arguments before a kernel sees them, beyond what torch's meta device checks.

    Raises:
        BadTask: dtypes that no kernel takes, more pieces than a split may make, arithmetic on anything but sizes.
        BadInput: an index out of bounds (not on the meta device, where there are no values).
    """
    if op.name.startswith("py."):
        _check_python(node, op, given)
    elif op.name == BATCH_NORM:
        _check_batch_norm(node, given)
    elif op.name in SAME_FLOAT:
        tensors = [v for k, v in given.items() if isinstance(v, torch.Tensor) and k != "attn_mask"]
        if len({t.dtype for t in tensors}) > 1 or not all(t.is_floating_point() for t in tensors):
            raise BadTask(node.name, f"{op.name} of {', '.join(str(t.dtype)[6:] for t in tensors)}")
    elif op.name in BITWISE:
        if any((isinstance(v, torch.Tensor) and v.is_floating_point()) or isinstance(v, float) for v in given.values()):
            raise BadTask(node.name, f"{op.name} of floats")
    elif op.name in INDEXING:
        _check_indices(node, op, given)
    elif op.name.startswith(("aten.split.", "aten.unbind.")):
        tensor, size = given["self"], given.get("split_size", 1)
        dim = given.get("dim", 0)
        if type(size) is not int or size < 1 or tensor.shape[dim] > MAX_LIST * size:
            raise BadTask(node.name, f"{op.name} into more than {MAX_LIST} pieces")


def _check_python(node: Node, op: Op, given: Mapping[str, Value]) -> None:
    """Python's operators take what they are given: a list times 10^12 is a list of 10^12, and a product of tensors has
    passed no check of ours."""
    if op.name == "py.getitem":
        if type(given["a0"]) is not list:
            raise BadTask(node.name, "takes a piece of what was not split")
    elif any(type(value) is not int for value in given.values()):
        raise BadTask(node.name, f"{op.name} of something else than sizes")


def _check_batch_norm(node: Node, given: Mapping[str, Value]) -> None:
    """The CPU's kernel reads as many of each as there are channels, however many there are."""
    channels = given["input"].shape[1]
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = given[name]
        if value is not None and tuple(value.shape) != (channels,):
            raise BadTask(node.name, f"{name} is not one for each of {channels} channels")


def _check_indices(node: Node, op: Op, given: Mapping[str, Value]) -> None:
    if op.name == "aten.index.Tensor":
        source: torch.Tensor = given["self"]
        for dim, index in enumerate(given["indices"]):
            if index is not None:
                _bound(node, index, source.shape[dim], least=-source.shape[dim])
        return
    table = given["weight"] if op.name == "aten.embedding.default" else given["self"]
    dim = given.get("dim", 0)
    index = given["indices"] if op.name == "aten.embedding.default" else given["index"]
    _bound(node, index, table.shape[dim], least=0)


def _bound(node: Node, index: Value, rows: int, least: int) -> None:
    if not isinstance(index, torch.Tensor) or index.dtype not in (torch.int64, torch.int32):
        raise BadTask(node.name, "an index is not a tensor of int64 or int32")
    if index.is_meta or index.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(index))
    if low < least or high >= rows:
        raise BadInput(node.name, f"index {low if low < least else high} of {rows} rows")


def bind(program: Program, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The dims that these inputs have.

    Raises:
        BadInput: an input is missing, of another dtype, rank or size than declared, or two inputs disagree on a dim, or
            an integer is outside [0, below).
        TooLarge: a dim, or the product of all, is above what the program admits.
    """
    dims: dict[str, int] = {}
    if set(inputs) != {i.name for i in program.inputs}:
        raise BadInput("inputs", "not exactly those of the program")
    for declared in program.inputs:
        tensor = inputs[declared.name]
        if tensor.dtype != declared.dtype or tensor.dim() != len(declared.shape):
            raise BadInput(declared.name, f"{str(tensor.dtype)[6:]} of rank {tensor.dim()}")
        for size, want in zip(tensor.shape, declared.shape, strict=True):
            if want == SOME:
                if size > program.volume:
                    raise TooLarge(declared.name, f"{size} rows, at most {program.volume}")
                continue
            if isinstance(want, str):
                want = dims.setdefault(want, size)
            if size != want:
                raise BadInput(declared.name, f"a dimension of {size} where {want} is meant")
    check_dims(program, dims)
    for declared in program.inputs:
        _check_range(declared, inputs[declared.name])
    return {**dims, SOME: program.volume} if program.takes_some else dims


def is_shaped(found: Sequence[int], declared: Shape, sizes: Mapping[str, int]) -> bool:
    """Whether a result has the declared shape; of what data decide, at most a row for each position of the call."""
    if len(found) != len(declared):
        return False
    most = max(sizes.get(SOME, 0), math.prod(size for name, size in sizes.items() if name != SOME))
    return all(
        have <= most if want == SOME else have == (sizes[want] if isinstance(want, str) else want)
        for have, want in zip(found, declared, strict=True)
    )


def check_dims(program: Program, dims: Mapping[str, int]) -> None:
    """Raises TooLarge, naming the dim. A dim may be 0: what comes on an empty edge, such as that to an expert which was
    not selected, is computed like the rest."""
    volume = 1
    for name, size in dims.items():
        if size > min(program.dims[name], MAX_SIZE):
            raise TooLarge(name, f"{size}, at most {program.dims[name]}")
        volume *= max(size, 1)
    if volume > program.volume:
        raise TooLarge(" x ".join(dims), f"{volume}, at most {program.volume}")


def _check_range(declared: Input, tensor: torch.Tensor) -> None:
    if declared.below and tensor.numel():
        low, high = (int(v) for v in torch.aminmax(tensor))
        if low < 0 or high >= declared.below:
            raise BadInput(declared.name, f"{low if low < 0 else high} is not in [0, {declared.below})")


@dataclass(frozen=True, slots=True)
class _At:
    """A reference made ready: where the value stands."""

    place: int


class _Schedule:
    """The steps of a program; `values` is what a run begins with: weights and constants, each in its place."""

    def __init__(self, program: Program, weights: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self.values: list[Value] = []
        self.places: dict[str, int] = {}
        self._device = device
        for name in (*program.dims, *(i.name for i in program.inputs)):
            self.places[name] = self._put(None)
        for name, tensor in weights.items():
            self.places[name] = self._put(tensor)
        for node in program.nodes:
            self.places[node.name] = self._put(None)
        self.steps = [self._step(node, dying) for node, dying in zip(program.nodes, _dying(program), strict=True)]

    def _put(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _step(self, node: Node, dying: tuple[str, ...]) -> _Step:
        op = OPS[node.op]
        nested: list[tuple[int, Any]] = []
        picked: list[int] = []
        for at, arg in enumerate(node.args):
            if type(arg) is Ref:
                picked.append(self.places[arg.name])
                continue
            if _refers(arg):
                nested.append((at, self._ready(arg)))
            picked.append(self._put(arg))
        kwargs = {**node.kwargs, "device": self._device} if op.places else node.kwargs
        varying = tuple((key, self._ready(arg)) for key, arg in kwargs.items() if _refers(arg))
        is_strided = op.name == ATTENTION and self._device.type == "meta"
        guarded = is_guarded(op)
        return _Step(
            node=node,
            op=op,
            call=op.call,
            pick=_picker(picked),
            kwargs=kwargs,
            place=self.places[node.name],
            freed=tuple(self.places[name] for name in dying),
            is_plain=not (nested or varying or guarded or is_strided),
            guarded=guarded,
            is_strided=is_strided,
            nested=tuple(nested),
            varying=varying,
            last_used=dying,
        )

    def _ready(self, arg: Any) -> Any:
        if type(arg) is Ref:
            return _At(self.places[arg.name])
        return [self._ready(item) for item in arg] if isinstance(arg, list | tuple) else arg


def _dying(program: Program) -> list[tuple[str, ...]]:
    """The names of the values that are used last by each node."""
    keep = {o.value for o in program.outputs} | {w.name for w in program.weights} | {i.name for i in program.inputs}
    keep |= set(program.dims)
    last: list[tuple[str, ...]] = []
    for node in reversed(program.nodes):
        dying = tuple(dict.fromkeys(name for name in (*node.refs(), node.name) if name not in keep))
        keep.update(dying)
        last.append(dying)
    return last[::-1]


def _refers(arg: Any) -> bool:
    return next(refs(arg), None) is not None


def _picker(places: Sequence[int]) -> Callable[[list[Value]], tuple[Value, ...]]:
    """From all values to those at `places`."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _resolve(arg: Any, values: list[Value]) -> Value:
    if type(arg) is _At:
        return values[arg.place]
    return [_resolve(item, values) for item in arg] if isinstance(arg, list) else arg


def _checked(out: Output, value: Value, dims: Mapping[str, int]) -> torch.Tensor:
    """An output as it was declared. Verification promised it for the sizes of the request; here it is seen."""
    if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES.values():
        raise BadTask(out.value, "is an output and not a tensor of a known dtype")
    if value.dtype != out.dtype or not is_shaped(value.shape, out.shape, dims):
        shape = [dims.get(size, size) if isinstance(size, str) else size for size in out.shape]
        raise BadTask(out.value, f"leaves as {value.dtype} {list(value.shape)}, declared {out.dtype} {shape}")
    return value
