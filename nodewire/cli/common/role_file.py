"""A role's configuration file, read and written again by commands that change a few lines of it.

A file is its owner's: what is not changed stays as it is, letter by letter, and all of it is parsed again before it is
written. Where it says something in another way than expected, its owner is told what to write.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodewire.errors import BadConfig

_HEADER = re.compile(r"\s*\[")


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """Its text, and what it says. Raises BadConfig."""
    try:
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadConfig(str(path), f"is not TOML: {error}") from error


def write(
    path: Path,
    lines: list[str],
    data: dict[str, Any],
    by_hand: str,
    check: Callable[[Path], object] = lambda path: None,
) -> None:
    """The lines, if they say `data`; whole or as before, whatever happens meanwhile.

    `check` reads the new file, before it has the place of the old one. Raises BadConfig, also as `check` does.
    """
    text = "".join(lines)
    try:
        is_right = tomllib.loads(text) == data
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise BadConfig(str(path), f"is written in a way that this command does not change: write {by_hand}")
    place = path.resolve()
    part: Path | None = None
    try:
        mode = place.stat().st_mode & 0o777
        with tempfile.NamedTemporaryFile("wb", dir=place.parent, prefix=f".{place.name}.", delete=False) as file:
            part = Path(file.name)
            file.write(text.encode())
        part.chmod(mode)
        check(part)
        part.replace(place)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be written: {error.strerror}") from error
    except BadConfig as error:
        raise BadConfig(error.field.replace(str(part), str(path)), error.reason) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def line_end(text: str) -> str:
    """The end of its lines."""
    return "\r\n" if "\r\n" in text else "\n"


def with_table(text: str, table: str, lines: list[str]) -> list[str]:
    """The lines of `text` with a table of just these fields, in the place of the one of this name if it has one.

    Comments of the old one stay. `lines` have no ends.
    """
    end = line_end(text)
    old = (text if not text or text.endswith("\n") else text + end).splitlines(keepends=True)
    made = [line + end for line in lines]
    heads = [at for at, line in enumerate(old) if re.match(rf"\s*\[\s*{re.escape(table)}\s*\]", line)]
    if len(heads) != 1:
        return [*old, *([end] if old else []), f"[{table}]{end}", *made]
    first = heads[0] + 1
    last = next((at for at in range(first, len(old)) if _HEADER.match(old[at])), len(old))
    kept = [line for line in old[first:last] if not line.strip() or line.lstrip().startswith("#")]
    return [*old[:first], *made, *kept, *old[last:]]
