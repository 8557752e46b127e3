"""A recipe's file as its author wrote it: what is wrong with it is said with its line."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from nodewire.errors import BadConfig, BadRecipe
from nodewire.protocol.encoding.validation_errors import in_words

if TYPE_CHECKING:
    from nodewire.training.protocol.recipe import Recipe


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file.

    Raises:
        BadConfig: it cannot be read.
        BadRecipe, BadVersion, TooLarge: it is none; names file, line and field.

    """
    from nodewire.training.protocol.recipe import Recipe

    try:
        text = path.read_text()
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfig(str(path), "is not UTF-8 text") from error
    try:
        return Recipe.from_toml(text)
    except BadRecipe as error:
        if not isinstance(error.__cause__, ValidationError):
            raise BadRecipe(str(path), f"{error.field}: {error.reason}") from error
        raise _placed(path, text, Recipe, error.__cause__) from error


def _placed(path: Path, text: str, model: type[BaseModel], cause: ValidationError) -> BadRecipe:
    # An unknown field first: it is often the misspelt name of one that is said to be missing.
    first = min(cause.errors(), key=lambda one: one["type"] != "extra_forbidden")
    tables = [model]
    where: list[str] = []
    for part in first["loc"]:
        known = [one for table in tables for one in _tables(table, str(part))]
        if any(str(part) in table.model_fields for table in tables):
            where.append(str(part))
            tables = known or tables
        elif named := [table for table in tables if _tag(table) == part]:
            tables = named  # the family's name stands for its table, not for a field in it
        else:
            where.append(str(part))
    message = in_words(first)
    if first["type"] == "extra_forbidden":
        close = get_close_matches(where[-1], [name for table in tables for name in table.model_fields], n=1)
        message = "unknown field" + (f"; did you mean {close[0]}?" if close else "")
    if not where and (found := re.match(r"([a-z_]+(?:\.[a-z_]+)*): ", message)):
        where, message = found[1].split("."), message[found.end() :]  # said by a check of fields that belong together
    line = line_of(where, text)
    return BadRecipe(
        f"{path}, line {line}" if line else str(path), f"{'.'.join(where)}: {message}" if where else message
    )


def line_of(where: list[str], text: str) -> int:
    """The line of a field, or else of the table that it is missing in; 0 if neither stands in the file."""
    while where:
        here = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := re.match(r"\s*\[\s*([^\[\]]*?)\s*\]", line):
                here = header[1]
                if here == ".".join(where):
                    return number
            name = re.match(r"\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*=", line)
            if name and f"{here}.{name[1]}".removeprefix(".") == ".".join(where):
                return number
        where = where[:-1]
    return 0


def _tables(table: type[BaseModel], name: str) -> list[type[BaseModel]]:
    """The tables that a field of `table` may be."""
    field = table.model_fields.get(name)
    found: list[type[BaseModel]] = []
    waiting: list[Any] = [field.annotation] if field else []
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel):
            found.append(one)
        waiting += get_args(one)
    return found


def _tag(table: type[BaseModel]) -> str:
    """The name that tells a family's table from another's."""
    field = table.model_fields.get("name")
    names = get_args(field.annotation) if field else ()
    return str(names[0]) if names else ""
