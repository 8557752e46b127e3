"""Runs a program: one operator after the other, each tensor freed at its last use.

The same loop runs on real tensors (here) and on the meta device (`liveness`), so that what was predicted is what runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from nodewire.errors import BadInput, BadTask, OverMemory, TooLarge
from nodewire.graph.program.format import DTYPES, MAX_SIZE, SOME, Input, Node, Output, Program, Shape, refs
from nodewire.graph.program.whitelist import (
    BITWISE,
    INDEXING,
    MAX_INT,
    MAX_LIST,
    OPS,
    REMAINDERS,
    SAME_FLOAT,
    SCATTER,
    SELECT,
    SLICE,
    SQUEEZE,
    Op,
    Ref,
)
from nodewire.graph.program.workspace import RELAID, as_on_cpu

BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"
POW = "aten.pow.Tensor_Scalar"
Value = Any
"""A tensor, an int, or the list of tensors that a split makes."""
After = Callable[[Node, Op, Mapping[str, Value], Value, Sequence[str]], None]
"""Called after each node with its arguments by formal name, its result, and the names of the values freed next."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A node made ready: constants in their places, and where the values that it refers to go."""

    node: Node
    op: Op
    args: tuple[Any, ...]
    flat: tuple[tuple[int, str], ...]
    nested: tuple[int, ...]
    kwargs: Mapping[str, Any]
    varying: tuple[str, ...]
    guarded: bool
    decided: bool
    last_used: tuple[str, ...]


class Interpreter:
    """A program with its weights, ready to run on `device`.

    `weights` maps every name of the program's table to a tensor on `device` of the declared dtype and shape.
    """

    def __init__(self, program: Program, weights: Mapping[str, torch.Tensor], device: str = "cpu") -> None:
        self.program = program
        self.device = torch.device(device)
        self._weights = dict(weights)
        self._steps = _schedule(program, self.device)

    def __call__(
        self, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int], after: After | None = None
    ) -> dict[str, torch.Tensor]:
        """The outputs by value name. The inputs are the caller's, and stay until it lets them go.

        Raises:
            BadTask: an operator refuses its arguments, or an output is not what is declared; the field is its name.
            BadInput: an index is outside what it indexes.

        """
        env: dict[str, Value] = {**dims, **self._weights, **inputs}
        with torch.no_grad():
            for step in self._steps:
                env[step.node.name] = self._run(step, env, after)
                for name in step.last_used:
                    del env[name]
        return {out.value: _checked(out, env[out.value], dims) for out in self.program.outputs}

    def _run(self, step: _Step, env: Mapping[str, Value], after: After | None) -> Value:
        args, kwargs = list(step.args), step.kwargs
        for at, name in step.flat:
            args[at] = env[name]
        for at in step.nested:
            args[at] = _resolve(args[at], env)
        if step.varying:
            kwargs = {**kwargs, **{key: _resolve(kwargs[key], env) for key in step.varying}}
        op = step.op
        try:
            if step.guarded:
                check_values(step.node, op, op.bound(args, kwargs))
            if step.decided:
                _check_decided(step.node, op, op.bound(args, kwargs))
            result = op.call(*args, **kwargs)
        except (BadTask, BadInput):
            raise
        except Exception as error:  # whatever torch raises: its meta kernels are written in Python, and assert
            raise _fault(step.node, op, error) from error
        if op.name in RELAID and self.device.type == "meta":
            result = as_on_cpu(op, op.bound(args, kwargs), result)
        if type(result) is tuple:
            result = list(result)
        else:
            _check_size(step.node, op, result)
        if after is not None:
            after(step.node, op, op.bound(args, kwargs), result, step.last_used)
        return result


def _is_out_of_memory(text: str) -> bool:
    return "allocate memory" in text or text.endswith("could not create a primitive")


def is_guarded(op: Op) -> bool:
    """Whether `check_values` has anything to say about an operator."""
    return (
        op.name in SAME_FLOAT
        or op.name in BITWISE
        or op.name in INDEXING
        or op.name.startswith(("py.", "aten.split.", "aten.unbind."))
        or op.name in REMAINDERS
        or op.name in (BATCH_NORM, POW)
    )


def _fault(node: Node, op: Op, error: Exception) -> BadTask | OverMemory:
    """What torch's `error` in an operator says of the task, or of the device's memory."""
    first = (str(error).splitlines() or [""])[0]
    # torch's CPU allocator and oneDNN have no error class of their own
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _is_out_of_memory(first):
        return OverMemory(node.name, f"{op.name}: the device has no memory left")
    return BadTask(node.name, f"{op.name}: {type(error).__name__}: {first[:160]}")


def _check_size(node: Node, op: Op, result: Value) -> None:
    """A whole number fits in 64 bits, and a tensor has no negative size."""
    kind = type(result)
    if kind is int and abs(result) > MAX_INT:
        raise BadTask(node.name, "a size beyond 64 bits")
    if kind is torch.Tensor and not result.numel() and min(result.shape, default=0) < 0:
        # Where another size is 0 some kernels make a negative one.
        raise BadTask(node.name, f"{op.name} of a negative size: {list(result.shape)}")


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
    elif op.name in SAME_FLOAT or op.name in BITWISE or op.name in REMAINDERS:
        _check_dtypes(node, op, given)
    elif op.name in INDEXING:
        _check_indices(node, op, given)
    elif op.name == POW:
        if isinstance(given["exponent"], bool):  # of which meta says another dtype than the kernel
            raise BadTask(node.name, f"{op.name} of a truth value")
    elif op.name.startswith(("aten.split.", "aten.unbind.")):
        tensor, size = given["self"], given.get("split_size", 1)
        dim = given.get("dim", 0)
        if type(size) is not int or size < 1 or tensor.shape[dim] > MAX_LIST * size:
            raise BadTask(node.name, f"{op.name} into more than {MAX_LIST} pieces")


def _check_dtypes(node: Node, op: Op, given: Mapping[str, Value]) -> None:
    """That the operator has a kernel for these dtypes: one float for all, no float, or a float among them."""
    if op.name in SAME_FLOAT:
        tensors = [v for k, v in given.items() if isinstance(v, torch.Tensor) and k != "attn_mask"]
        if len({t.dtype for t in tensors}) > 1 or not all(t.is_floating_point() for t in tensors):
            raise BadTask(node.name, f"{op.name} of {', '.join(str(t.dtype)[6:] for t in tensors)}")
    elif op.name in BITWISE:
        if any((isinstance(v, torch.Tensor) and v.is_floating_point()) or isinstance(v, float) for v in given.values()):
            raise BadTask(node.name, f"{op.name} of floats")
    elif not any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in given.values()):
        raise BadTask(node.name, f"{op.name} of whole numbers")


def _check_python(node: Node, op: Op, given: Mapping[str, Value]) -> None:
    """Python's operators take what they are given.

    A list times 10^12 is a list of 10^12, and a product of tensors has passed no check of ours.
    """
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


def decided_values(program: Program) -> set[str]:
    """Values of which data decide how many rows they have: as many as the meta device has of them, or fewer."""
    found = {i.name for i in program.inputs if SOME in i.shape}
    for node in program.nodes:
        used = refs(node.kwargs.get("chosen", node.args[1:2])) if node.op == SCATTER else node.refs()
        if node.op == SELECT or not found.isdisjoint(used):
            found.add(node.name)
    return found


def _check_decided(node: Node, op: Op, given: Mapping[str, Value]) -> None:
    """Where fewer rows would make more, what was verified with the most of them would not be the most."""
    if op.name == SQUEEZE:
        value: torch.Tensor = given["self"]
        if value.dim() and given["dim"] in (0, -value.dim()) and value.shape[0] != 1:
            raise BadTask(node.name, "takes rows' dimension away where data decide that there is one")
        return
    start, end = given.get("start"), given.get("end")
    if start is not None and end is not None and start < 0 <= end <= MAX_SIZE:
        raise BadTask(node.name, "from the last rows to one of the first, of as many as data decide")


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
            known = dims.setdefault(want, size) if isinstance(want, str) else want
            if size != known:
                what = want if isinstance(want, str) else declared.name  # of inputs that disagree either may be wrong
                raise BadInput(what, f"{size} in {declared.name} where {known} is meant")
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
    """Raises TooLarge, naming the dim.

    A dim may be 0: what comes on an empty edge, such as that to an expert which was not selected, is computed like the
    rest.
    """
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


def _schedule(program: Program, device: torch.device) -> list[_Step]:
    keep = {o.value for o in program.outputs} | {w.name for w in program.weights} | {i.name for i in program.inputs}
    keep |= set(program.dims)
    last: list[tuple[str, ...]] = []
    for node in reversed(program.nodes):
        dying = tuple(dict.fromkeys(name for name in (*node.refs(), node.name) if name not in keep))
        keep.update(dying)
        last.append(dying)
    decided = decided_values(program)
    return [_step(n, d, device, decided) for n, d in zip(program.nodes, reversed(last), strict=True)]


def _step(node: Node, last_used: tuple[str, ...], device: torch.device, decided: Set[str]) -> _Step:
    op = OPS[node.op]
    kwargs = {**node.kwargs, "device": device} if op.places else node.kwargs
    return _Step(
        node=node,
        op=op,
        args=node.args,
        flat=tuple((at, arg.name) for at, arg in enumerate(node.args) if isinstance(arg, Ref)),
        nested=tuple(at for at, arg in enumerate(node.args) if isinstance(arg, list | tuple)),
        kwargs=kwargs,
        varying=tuple(key for key, arg in node.kwargs.items() if isinstance(arg, Ref | list | tuple)),
        guarded=is_guarded(op),
        decided=op.name in (SLICE, SQUEEZE) and not decided.isdisjoint(node.refs()),
        last_used=last_used,
    )


def _resolve(arg: Any, env: Mapping[str, Value]) -> Value:
    if type(arg) is Ref:
        return env[arg.name]
    if isinstance(arg, list | tuple):
        return [_resolve(item, env) for item in arg]
    return arg


def _checked(out: Output, value: Value, dims: Mapping[str, int]) -> torch.Tensor:
    """An output as it was declared. Verification promised it for the sizes of the request; here it is seen."""
    if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES.values():
        raise BadTask(out.value, "is an output and not a tensor of a known dtype")
    if value.dtype != out.dtype or not is_shaped(value.shape, out.shape, dims):
        shape = [dims.get(size, size) if isinstance(size, str) else size for size in out.shape]
        raise BadTask(out.value, f"leaves as {value.dtype} {list(value.shape)}, declared {out.dtype} {shape}")
    return value
