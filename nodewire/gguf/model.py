"""A model that is a GGUF file, or shards of one: NAME-00001-of-00003.gguf and the others beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nodewire.errors import BadTask, NotFound, TooLarge
from nodewire.gguf import header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodewire.gguf.header import TensorEntry

SUFFIX = ".gguf"
MAX_SHARDS = 1_000
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_OWN = frozenset({"split.no", "general.alignment"})
"""Keys that each shard has its own value of; of all others those that it has are the first one's."""
T = TypeVar("T", bool, int, float, str)


def is_gguf(path: Path) -> bool:
    """Whether `path` names a GGUF file.

    It is by its name, though it may not be there, or by how the file begins, whatever its name.
    """
    if path.suffix == SUFFIX:
        return not path.is_dir()
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(header.MAGIC)) == header.MAGIC


def name_of(path: Path) -> str:
    """The model's name as its file's has it, shards' numbers left out."""
    shard = _SHARD.fullmatch(path.name)
    return shard[1] if shard else path.stem


def files_of(path: Path) -> list[Path]:
    """The file, or all the shards that it is one of. Raises NotFound, TooLarge: one is missing, or too many."""
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        found = [path]
    else:
        count = int(shard[3])
        if count > MAX_SHARDS:
            raise TooLarge(path.name[:80], f"one of {count} shards, at most {MAX_SHARDS}")
        if not 1 <= int(shard[2]) <= count:
            raise BadTask(path.name[:80], f"no shard of {count} has such a number")
        found = [path.with_name(f"{shard[1]}-{number:05}-of-{shard[3]}.gguf") for number in range(1, count + 1)]
    missing = [one.name for one in found if not one.is_file()]
    if missing:
        others = f", and {len(missing) - 1} more shards" if len(missing) > 1 else ""
        raise NotFound(missing[0][:120], f"not in {path.parent}{others}")
    return found


@dataclass(frozen=True, slots=True)
class Model:
    """What the headers of its files say. `architecture` is llama.cpp's name of it."""

    path: Path
    architecture: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    def read_value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key. Raises BadTask: it is missing and has no default, or of another type."""
        value = self.metadata.get(key, default)
        if value is None:
            raise BadTask(f"gguf.{key}", "missing: the file does not say enough of its model; convert it anew")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise BadTask(f"gguf.{key}", f"a {type(value).__name__}, not a {kind.__name__}")
        return value

    def texts(self, key: str) -> list[str]:
        """An array of texts, empty if there is none. Raises BadTask."""
        found = self.metadata.get(key, [])
        if isinstance(found, np.ndarray) and not len(found):
            return []
        if not isinstance(found, list) or any(type(one) is not str for one in found[:1]):
            raise BadTask(f"gguf.{key}", "no array of texts")
        return found

    def numbers(self, key: str) -> np.ndarray[Any, Any] | None:
        """An array of numbers. Raises BadTask."""
        found = self.metadata.get(key)
        if found is not None and (not isinstance(found, np.ndarray) or found.dtype.kind == "b"):
            raise BadTask(f"gguf.{key}", "no array of numbers")
        return found


def open_model(path: Path) -> Model:
    """The model in a file, or in all the shards that the file is one of.

    Raises:
        NotFound: a file is missing.
        BadTask, Unsupported, TooLarge: a file is not one of GGUF that is read, or the shards are not of one model.
        OSError: a file cannot be read.

    """
    files = files_of(path)
    metadata: Mapping[str, Any] = {}
    tensors: dict[str, TensorEntry] = {}
    for number, file in enumerate(files):
        found = header.read(file)
        if not number:
            metadata = found.metadata
        _check_same(found.metadata, metadata, file.name)
        said = (_whole(found.metadata, "split.no", number), _whole(found.metadata, "split.count", len(files)))
        if said != (number, len(files)):
            raise BadTask(file.name[:80], f"says it is shard {said[0]} (from 0) of {said[1]}, its name says otherwise")
        for name, placed in found.tensors.items():
            if name in tensors:
                raise BadTask(f"gguf.tensor {name[:80]}", "in two shards")
            tensors[name] = placed
        if len(tensors) > header.MAX_TENSORS:
            raise TooLarge("gguf.tensor_count", f"over {header.MAX_TENSORS} in all shards")
    architecture = metadata.get("general.architecture")
    if type(architecture) is not str or not architecture:
        raise BadTask("gguf.general.architecture", "missing: the file holds no model, or a shard's metadata are gone")
    count = _whole(metadata, "split.tensors.count", len(tensors))
    if count != len(tensors):
        raise BadTask("gguf.split.tensors.count", f"{count}, the shards have {len(tensors)}")
    return Model(files[0], architecture, metadata, tensors)


def _check_same(said: Mapping[str, Any], first: Mapping[str, Any], name: str) -> None:
    """Raises BadTask: a shard says something else of its model than the first one."""
    for key, value in said.items():
        if key not in _OWN and not _is_same(value, first.get(key, value)):
            raise BadTask(f"gguf.{key[:80]}", f"another in {name[:80]} than in the first shard: take all of one model")


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _whole(metadata: Mapping[str, Any], key: str, default: int) -> int:
    found = metadata.get(key, default)
    if type(found) is not int:
        raise BadTask(f"gguf.{key}", f"a {type(found).__name__}, not a whole number")
    return found
