"""Where in a model something happened: the path of the module within it, its class, and the line of its code."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import FrameType

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
_PYTHON = str(Path(linecache.__file__).parent)
_INSTALLED = "-packages"
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_MOST_CODE = 80

Parts = Mapping[int, tuple[str, str]]
"""Path and class of each of a model's modules, by identity."""


@dataclass(frozen=True, slots=True)
class Place:
    """`path` is "" for the model itself; what is not known is "". `str()` is to stand behind a sentence."""

    path: str = ""
    kind: str = ""
    line: str = ""

    def __str__(self) -> str:
        said = ", ".join(one for one in (self.kind, self.line) if one)
        return f" ({said})" if said else ""


def parts_of(module: torch.nn.Module) -> Parts:
    return {id(part): (path, type(part).__name__) for path, part in module.named_modules()}


def raised(error: BaseException, parts: Parts) -> Place:
    """Where an error arose: in the innermost of the modules that were running."""
    places = [_among(traceback.walk_tb(one.__traceback__), parts) for one in _chain(error)]
    lines = (place for place in places if place.line)
    return next((place for place in places if place.kind), next(lines, Place()))


def call_place(parts: Parts) -> Place:
    """Where the caller is called from."""
    frames, frame = [], sys._getframe(1)
    while frame.f_back is not None:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _among(reversed(frames), parts)


def traced(fx: torch.fx.Node) -> Place:
    """Where a node was recorded, as export noted it."""
    stack = list((fx.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    name = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]
    lines = [(file, int(number)) for file, number in _FRAME.findall(fx.meta.get("stack_trace") or "") if _is_own(file)]
    return Place(own(str(path)), name if path else "", _line(*lines[-1]) if lines else "")


def own(target: str) -> str:
    """A name within the model: export sees it inside of a wrapper, as `model`."""
    return target.removeprefix("model.") if target != "model" else ""


def _among(frames: Iterable[tuple[FrameType, int]], parts: Parts) -> Place:
    """`frames` from the outermost to the innermost."""
    found, line = ("", ""), ""
    for frame, number in frames:
        found = parts.get(id(frame.f_locals.get("self")), found)
        if _is_own(frame.f_code.co_filename):
            line = _line(frame.f_code.co_filename, number)
    return Place(*found, line)


def _is_own(file: str) -> bool:
    """Whether it is code that somebody who registers a model may change."""
    return not (file.startswith(_LIBRARIES) or (file.startswith(_PYTHON) and _INSTALLED not in file))


def _line(file: str, number: int) -> str:
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()[:_MOST_CODE]}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it arose from, the first cause first."""
    chain: list[Any] = [error]
    seen = {id(error)}
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and id(before) not in seen:
        chain.append(before)
        seen.add(id(before))
    yield from reversed(chain)
