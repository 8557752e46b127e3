"""TOML files, strict, with errors that name the file and the field."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from nodewire.errors import BadConfig
from nodewire.protocol.encoding.validation_errors import in_words


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(Section):
    """The content of one TOML file."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """The configuration in the TOML file `path`.

        Raises:
            BadConfig: the file cannot be read, is not TOML, or a field is wrong.

        """
        text = read_text(path)
        data = parse_toml(path, text)
        try:
            return cls.model_validate(_resolved(cls, data, path.parent.resolve()))
        except ValidationError as error:
            # An unknown field first: it is often the misspelt name of one that is said to be missing.
            first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            if first["type"] == "extra_forbidden":
                raise _unknown(path, text, first["loc"]) from error
            # Where a field may be of several types pydantic names the type beside it.
            where = ".".join(part for part in map(str, first["loc"]) if re.fullmatch(r"\w+", part))
            raise BadConfig(f"{path}: {where}", in_words(first)) from error


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is a table or tables, if it is one."""
    kinds = (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfig(str(path), "is not UTF-8 text") from error


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(str(path), f"is not TOML: {error}") from error


def _unknown(path: Path, text: str, where: tuple[int | str, ...]) -> BadConfig:
    """The error for a field that no model has; `where` are the keys and list indices that lead to it."""
    *outer, name = where
    section = ".".join(part for part in outer if isinstance(part, str))
    index = next((part for part in outer if isinstance(part, int)), None)
    line = line_of(str(name), section, index or 0, text)
    header = f"[{section}]" if index is None else f"[[{section}]] number {index + 1}"
    said = f"unknown field {str(name)!r}" + (f" in {header}" if section else "")
    return BadConfig(f"{path}, line {line}" if line else str(path), said)


def line_of(name: str, section: str, index: int, text: str) -> int:
    """The line of the field or table `name` in the `index`-th table `section`; 0 if it is written in another way."""
    here, seen = "", {"": 0}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([^\]]*?)\s*\]", line):
            here = header[2]
            seen[here] = seen.get(here, -1) + 1
            if here == (f"{section}.{name}" if section else name):
                return number
        elif (here, seen[here]) == (section, index) and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line):
            return number
    return 0


def _resolved(model: type[BaseModel], data: Any, folder: Path) -> Any:
    """`data` with the values of Path fields made absolute."""
    if not isinstance(data, dict):
        return data
    out = dict(data)
    for name, field in model.model_fields.items():
        if name not in out:
            continue
        if Path in (field.annotation, *get_args(field.annotation)) and isinstance(out[name], str):
            out[name] = folder / Path(out[name]).expanduser()
        elif section := section_of(field.annotation):
            out[name] = _resolved(section, out[name], folder)
    return out
