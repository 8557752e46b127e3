"""What a model is called with, read off examples: its tensors by name, and which of their sizes vary.

An example is the arguments of one call: a tensor, a tuple, a mapping of keywords, or (args, kwargs). Sizes that differ
between examples are dims; those that differ alike are one dim. What is no tensor belongs to the model, not to a call.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import chain, count, islice
from math import prod
from typing import Any

import torch

from nodewire.errors import BadInput, Unsupported
from nodewire.graph.program.format import DTYPES, MAX_SIZE, SOME, Input, Shape
from nodewire.taskgraph.program import MAX_DIMS

MAX_EXAMPLES = 256
BATCH = "batch"
_DIM = re.compile(r"[a-z0-9][a-z0-9._\-]{0,63}")
_STATIC = (bool, int, float, str, type(None), torch.dtype)

Axes = Mapping[str, Sequence[str | None]]
"""By a tensor's name, a dim's name for each axis, or None where the size is fixed."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where a tensor stands among the arguments."""

    input: Input


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's inputs, the largest size of each dim, and a call's arguments with a Leaf for every tensor.

    The first `positional` arguments go by position. Tasks admit calls whose dims' product is `least`, if no more.
    """

    inputs: tuple[Input, ...]
    dims: Mapping[str, int]
    arguments: Mapping[str, Any]
    positional: int
    least: int = 1

    def call(self, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What the model makes of tensors by name."""

        def fill(value: Any) -> Any:
            match value:
                case Leaf(one):
                    return tensors[one.name]
                case Mapping():
                    return {key: fill(item) for key, item in value.items()}
                case list() | tuple():
                    return _rebuilt(value, [fill(item) for item in value])
            return value

        given = [(name, fill(value)) for name, value in self.arguments.items()]
        return module(*(value for _, value in given[: self.positional]), **dict(given[self.positional :]))


def signature(
    module: torch.nn.Module, examples: Any, axes: Axes | None = None, most: Mapping[str, int] | None = None
) -> Signature:
    """The signature that `examples` (one, or an iterator or list of several) show of `module`.

    `axes` says which sizes vary where the examples do not; `most` raises a dim's largest size above theirs.

    Raises:
        BadInput: the examples are not alike but for sizes, or a name in `axes` or `most` is none of theirs.
        Unsupported: a tensor of a dtype that tasks do not know, or more independent sizes than a task may have.

    """
    calls = [_bound(module, one) for one in several(examples)]
    if not calls:
        raise BadInput("examples", "none")
    every = [named_tensors(call.arguments) for call in calls]
    for call, found in zip(calls, every, strict=True):
        for name in every[0].keys() ^ found.keys():
            raise BadInput(name, "is a tensor in some examples only")
        _check_alike(calls[0], call)
    if not every[0]:
        raise BadInput("examples", "no tensor is among them: a task computes with what comes to it")
    dims = _Dims(axes or {}, every)
    inputs = {name: Input(name, _dtype(name, tensor), dims.shape(name)) for name, tensor in every[0].items()}
    for name in (axes or {}).keys() - inputs.keys():
        raise BadInput("axes", f"{name[:80]!r} is no tensor of the examples: {', '.join(inputs)}")
    for name in (most or {}).keys() - dims.most.keys():
        raise BadInput("most", f"{name[:80]!r} is no size that varies: {', '.join(dims.most) or 'none does'}")
    if len(dims.most) > MAX_DIMS:
        raise Unsupported("examples", f"{', '.join(dims.most)} vary; at most {MAX_DIMS} sizes may: fix the others")
    largest = {dim: max(size, (most or {}).get(dim, 0)) for dim, size in dims.most.items()}
    for dim, size in largest.items():
        if dim in inputs or dim == SOME or not _DIM.fullmatch(dim):
            raise BadInput(
                "axes", f"{dim[:80]!r} cannot name a size: a-z, 0-9, _ and -, no input's name and not {SOME!r}"
            )
        if size > MAX_SIZE:
            raise BadInput(dim, f"{size}, and no size is above {MAX_SIZE}")
    arguments = {key: _leaves(value, inputs, key) for key, value in calls[0].arguments.items()}
    least = max(prod(dims.sizes(k).values()) for k in range(len(calls)))
    return Signature(tuple(inputs.values()), largest, arguments, calls[0].positional, least)


def tensors_of(module: torch.nn.Module, example: Any) -> dict[str, torch.Tensor]:
    """An example's tensors by the names of the signature's inputs."""
    return {name: tensor.detach().cpu() for name, tensor in named_tensors(_bound(module, example).arguments).items()}


def named_tensors(value: Any) -> dict[str, torch.Tensor]:
    """The tensors in nested mappings, sequences and dataclasses, by their paths; constants are left out.

    Raises:
        Unsupported: something else is among them; names its path.
        BadInput: two of them would have one name.

    """
    found: dict[str, torch.Tensor] = {}
    for path, tensor in _tensors(value, ""):
        name = _plain(path or "output")
        if name in found:
            raise BadInput(name, f"is what two tensors are called, {path[:80]!r} among them: rename one")
        found[name] = tensor
    return found


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, (*_STATIC, torch.SymInt)):
        return
    for key, item in _items(value, path or "output"):
        yield from _tensors(item, f"{path}.{key}".removeprefix("."))


def _items(value: Any, path: str) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, list | tuple):
        return enumerate(value)
    if is_dataclass(value) and not isinstance(value, type):
        return vars(value).items()
    kind = type(value).__name__
    raise Unsupported(path, f"a {kind} is neither a tensor nor made of tensors: leave it out (use_cache=False, say)")


@dataclass(frozen=True, slots=True)
class _Call:
    arguments: Mapping[str, Any]
    positional: int


def several(examples: Any) -> list[Any]:
    """One example or several as a list; an iterator gives its own once."""
    if isinstance(examples, Iterator | list):
        return list(islice(examples, MAX_EXAMPLES))
    return [examples]


def _bound(module: torch.nn.Module, example: Any) -> _Call:
    match example:
        case (tuple() | list() as given, Mapping() as named):
            args, kwargs = tuple(given), dict(named)
        case tuple():
            args, kwargs = example, {}
        case Mapping():
            args, kwargs = (), dict(example)
        case _:
            args, kwargs = (example,), {}
    try:
        declared = inspect.signature(module.forward)
        declared.bind(*args, **kwargs)
    except TypeError as error:
        raise BadInput("examples", f"{type(module).__name__}.forward: {error}") from error
    names: list[str] = []
    for parameter in declared.parameters.values():
        if parameter.kind == inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{k}" for k in range(len(args) - len(names))]
        elif parameter.kind != inspect.Parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    return _Call({**dict(zip(names, args, strict=False)), **kwargs}, len(args))


def _check_alike(one: _Call, other: _Call) -> None:
    """Raises BadInput: something that is no tensor differs between two examples."""
    left, right = (dict(_constants(call.arguments, "")) for call in (one, other))
    for name in left.keys() | right.keys():
        if name not in left or name not in right or left[name] != right[name]:
            raise BadInput(name, "differs between the examples and is no tensor: fix it, or make it a tensor")


def _constants(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        return
    if isinstance(value, _STATIC):
        yield path, (type(value), value)
        return
    for key, item in _items(value, path):
        yield from _constants(item, f"{path}.{key}".removeprefix("."))


def _leaves(value: Any, inputs: Mapping[str, Input], path: str) -> Any:
    match value:
        case torch.Tensor():
            return Leaf(inputs[_plain(path)])
        case Mapping():
            return {key: _leaves(item, inputs, f"{path}.{key}") for key, item in value.items()}
        case list() | tuple():
            return _rebuilt(value, [_leaves(item, inputs, f"{path}.{key}") for key, item in _items(value, path)])
    return value


def _rebuilt(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def _plain(path: str) -> str:
    """A path as a name on a manifest's edge: lower case, at most 64 characters."""
    return re.sub(r"[^a-z0-9_.\-]", "_", path.lower()).lstrip("_.-")[:64] or "value"


def _dtype(name: str, tensor: torch.Tensor) -> torch.dtype:
    if tensor.dtype not in DTYPES.values():
        known = ", ".join(DTYPES)
        raise Unsupported(name, f"{str(tensor.dtype)[6:]} is no dtype of tasks: {known}")
    return tensor.dtype


class _Dims:
    """Names for what varies: sizes that are alike in every example share one."""

    def __init__(self, axes: Axes, every: Sequence[Mapping[str, torch.Tensor]]) -> None:
        self.most: dict[str, int] = {}
        self._axes, self._every = axes, every
        self._seen: dict[tuple[int, ...], str] = {}
        self._shown: dict[str, tuple[int, ...]] = {}

    def sizes(self, example: int) -> dict[str, int]:
        """The dims' sizes in an example, once every shape is known."""
        return {dim: sizes[example] for dim, sizes in self._shown.items()}

    def shape(self, name: str) -> Shape:
        tensors = [found[name] for found in self._every]
        if len({t.dim() for t in tensors}) > 1 or len({t.dtype for t in tensors}) > 1:
            raise BadInput(name, "is of another rank or dtype in another example")
        given = self._axes.get(name)
        if given is not None and len(given) != tensors[0].dim():
            raise BadInput("axes", f"{name}: {len(given)} axes, the example has {tensors[0].dim()}")
        return tuple(
            self._size(name, axis, tuple(t.shape[axis] for t in tensors), given[axis] if given else None)
            for axis in range(tensors[0].dim())
        )

    def _size(self, name: str, axis: int, sizes: tuple[int, ...], given: str | None) -> int | str:
        if given is None and len(set(sizes)) == 1:
            return sizes[0]
        dim = given or self._seen.get(sizes) or self._fresh(name, axis)
        self._seen.setdefault(sizes, dim)
        self._shown[dim] = sizes
        self.most[dim] = max(self.most.get(dim, 1), *sizes)
        return dim

    def _fresh(self, name: str, axis: int) -> str:
        """A name that neither another dim nor an input has."""
        plain = re.sub(r"\W", "_", f"{name[:50]}_{axis}")
        wanted = (BATCH, plain) if axis == 0 else (plain,)
        more = (f"{plain}_{n}" for n in count(1))
        return next(one for one in chain(wanted, more) if one not in self.most and one not in self._every[0])
