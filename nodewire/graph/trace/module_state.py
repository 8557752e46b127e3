"""What a model's modules hold besides tensors' values: a call that changes it is seen, and undone.

A program keeps nothing between calls: what a call leaves on `self` is frozen into a trace, and nothing says so. What is
only written (a map of attention to look at) changes no result, so what counts is whether the next call looks at it.
"""

from __future__ import annotations

import re
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from nodewire.errors import BadTask
from nodewire.graph.trace.places import Parts, call_place, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEPTH = 4
_MOST_ITEMS = 4_096
"""Of a container: larger ones are tables."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LEAVES = (*_PLAIN, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, torch.nn.Module, torch.Tensor)
_KEEPS = "is changed by a call and read by the next, and a task keeps nothing between calls: "
_INSTEAD = "make it an input and an output, or compute it in each call"
_REGISTERED = re.compile(r"\b_(parameters|buffers|modules)\.")
"""Where a module holds what it was told of."""
_WEIGHTS_AGAIN = re.compile(r"\b_flat_weight(s|_refs)$")
"""A recurrence's own lists of its weights."""
_Copy = list[Any] | dict[Any, Any] | set[Any]


class ModuleState:
    """The attributes of all modules, and what stands in their lists, maps and plain objects, as it was."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._kept: list[tuple[str, Any, _Copy]] = []
        self._seen: set[int] = set()
        for path, part in module.named_modules():
            self._keep(path, vars(part), _DEPTH)

    def changed(self) -> list[str]:
        """The paths of attributes that are not as they were."""
        found: dict[str, None] = {}
        for path, now, was in self._kept:
            for key in _differing(now, was):
                found[_attribute(self._module, _REGISTERED.sub("", f"{path}.{key}".removeprefix(".")))] = None
        return [name for name in found if not _WEIGHTS_AGAIN.search(name) and not self._is_cached(name)]

    def _is_cached(self, name: str) -> bool:
        """Whether it is a property that is computed once, whoever asks."""
        path, _, attribute = name.rpartition(".")
        return isinstance(getattr(type(self._module.get_submodule(path)), attribute, None), cached_property)

    def restore(self) -> None:
        for _, now, was in self._kept:
            if _differing(now, was):
                if isinstance(now, list):
                    now[:] = was
                else:
                    now.clear()
                    now.update(was)

    def _keep(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._seen or not depth:
            return
        self._seen.add(id(value))
        if isinstance(value, tuple):
            inside = dict(enumerate(value))
        elif isinstance(value, list | dict | set):
            if len(value) > _MOST_ITEMS:
                return
            self._kept.append((path, value, value.copy()))
            inside = value if isinstance(value, dict) else dict(enumerate(value))
        elif hasattr(value, "__dict__") and not type(value).__module__.startswith("torch"):
            self._keep(path, vars(value), depth)
            return
        else:
            return
        for key, item in list(inside.items()):
            self._keep(f"{path}.{key}".removeprefix("."), item, depth - 1)


class _LeftoverGuard:
    """Stands on a module for what a call left there: whoever looks at it is told off. It cannot be asked `is None`."""

    def __init__(self, name: str, parts: Parts) -> None:
        vars(self).update(name=name, parts=parts)

    def _looked(self, *_: object, **__: object) -> NoReturn:
        raise read_by_the_next(vars(self)["name"], str(call_place(vars(self)["parts"])))

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _looked
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __getitem__ = __iter__ = __len__ = _looked
    __getattr__ = _looked

    def append(self, *_: object) -> None:
        """That is written, not read; and so is an entry."""

    __setitem__ = append


def leave(module: torch.nn.Module, names: Sequence[str]) -> None:
    """Put something in the place of these attributes that a call which reads them cannot compute with."""
    parts = parts_of(module)
    for name in names:
        path, _, attribute = name.rpartition(".")
        vars(module.get_submodule(path))[attribute] = _LeftoverGuard(name, parts)


def read_by_the_next(name: str, place: str = "") -> BadTask:
    return BadTask(name, f"{_KEEPS}{_INSTEAD}{place}")


def _attribute(module: torch.nn.Module, path: str) -> str:
    """The path as far as the attribute of a module."""
    names = path.split(".")
    at: torch.nn.Module = module
    for k, name in enumerate(names):
        inner = at._modules.get(name)
        if inner is None:
            return ".".join(names[: k + 1])
        at = inner
    return path


def _differing(now: Any, was: Any) -> list[Any]:
    """Keys whose values are others; of a set or list that is longer or shorter, "" for the whole."""
    if isinstance(now, set):
        return [""] if now != was else []
    if isinstance(now, list):
        if len(now) != len(was):
            return [""]
        return [k for k, (a, b) in enumerate(zip(now, was, strict=True)) if not _same(a, b)]
    keys = {**was, **now}
    return [key for key in keys if key not in now or key not in was or not _same(now[key], was[key])]


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)
