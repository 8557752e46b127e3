"""What a test needs, read off what it uses: its marker, and whether its file loads an engine.

A test's marker is the dearest of what it and its fixtures reach: `interop`, `market`, `process`, else `unit`. Names are
followed through the functions and classes of this repository, not through attributes of objects. A test that starts a
process by such an attribute alone says `@pytest.mark.process` itself, and `make test-fast` fails until it does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
OURS = ("nodewire", "relay", "kinds", "simnet", "processes", "demo", "bench", "tests")
ENGINES = {"torch", "transformers", "onnx", "onnxruntime", "safetensors"}
STARTERS = {"subprocess", "multiprocessing", "create_subprocess_exec", "create_subprocess_shell", "fork", "posix_spawn"}
"""What the code that starts a process names."""

_EMPTY = CellType()
_START_NONE: set[object] = set()
"""Functions and classes that reach no code that starts a process."""
_LOAD_NONE: set[Path] = set()
"""Files whose import loads no engine."""
_IMPORT = re.compile(r"^(?:from ([\w.]+) )?import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def marker_of(item: pytest.Function) -> str:
    """By folder, by fixture, then by the code that the test and its fixtures reach."""
    if (folder := folder_of(item.path)) in ("interop", "market"):
        return folder
    if "market" in item.fixturenames:
        return "market"
    fixtures = (one.func for found in item._fixtureinfo.name2fixturedefs.values() for one in found)
    hypothesis = getattr(item.function, "hypothesis", None)
    test = item.function if hypothesis is None else hypothesis.inner_test
    return "process" if item.get_closest_marker("process") or _starts((test, *fixtures)) else "unit"


def folder_of(path: Path) -> str:
    """The folder of tests/ that it lies in; of a file of tests/ itself, its name."""
    return path.relative_to(TESTS).parts[0]


def loads_an_engine(path: Path) -> bool:
    """Whether the import of that test file, its folders' conftest.py before it, imports one of ENGINES."""
    settings = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(TESTS) and folder != TESTS]
    return _reaches([path, *settings], ENGINES, _imported, _LOAD_NONE)


def _starts(functions: Iterable[Callable[..., object]]) -> bool:
    return _reaches(functions, STARTERS, _named, _START_NONE)


def _reaches(
    starts: Iterable[Any], names: set[str], step: Callable[[Any], tuple[set[str], list[Any]]], free: set[Any]
) -> bool:
    """Whether `step`, from any of `starts` on, comes upon one of `names`. `free` keeps what came upon none."""
    waiting, seen = list(starts), set()
    while waiting:
        one = waiting.pop()
        if one in seen or one in free:
            continue
        seen.add(one)
        named, reached = step(one)
        if named & names:
            return True
        waiting += reached
    free |= seen
    return False


@cache
def _named(one: object) -> tuple[set[str], list[object]]:
    """The names in the code of a function or of a class's methods, and what of ours they stand for."""
    names: set[str] = set()
    reached: list[object] = []
    for function in _functions(one):
        code = _code_names(function.__code__)
        names |= code
        values = [function.__globals__.get(name, sys.modules.get(name)) for name in code]
        modules = [value for value in values if isinstance(value, ModuleType) and _is_ours(value.__name__)]
        values += [getattr(module, name, None) for module in modules for name in code]
        values += [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
        reached += [value for value in values if isinstance(value, FunctionType | type) and _is_ours(value.__module__)]
    return names, reached


def _functions(one: object) -> Iterator[FunctionType]:
    if isinstance(one, type):
        for value in vars(one).values():
            yield from _functions(getattr(value, "fget", None) or getattr(value, "__func__", value))
    elif isinstance(one, FunctionType):
        yield one


def _code_names(code: CodeType) -> set[str]:
    """Of the code itself and of the functions and loops inside it."""
    inner = (_code_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


@cache
def _is_ours(module: str) -> bool:
    """Tests import modules of their own folder by their bare names."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.split(".")[0] in OURS or Path(file or "/").is_relative_to(TESTS)


@cache
def _imported(file: Path) -> tuple[set[str], list[Path]]:
    """The packages, by first name, and our files that the file's import imports: by lines that begin with the word."""
    modules: list[str] = []
    for source, several, one in _IMPORT.findall(file.read_text() if file.exists() else ""):
        names = [name.split(" as ")[0].strip() for name in (several or one).split("#")[0].split(",")]
        modules += [f"{source}.{name}" if source else name for name in names if name]
    files = [path for module in modules for path in _files(file.parent, module)]
    return {module.split(".")[0] for module in modules}, files


@cache
def _files(folder: Path, module: str) -> list[Path]:
    """Our files that the import of a name runs: of its packages, and of itself if it is a module."""
    parts = module.split(".")
    starts = [folder] if parts[0] not in OURS else [ROOT]
    below = [starts[0].joinpath(*parts[: n + 1]) for n in range(len(parts))]
    return [file for path in below for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()]
