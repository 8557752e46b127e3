"""The names of models in a configuration file, written there and taken out again.

A file is its owner's: what is not the one line stays as it is, letter by letter, and is parsed again before it is
written. Where that line would have to be found in another way of writing, its owner is told what to write.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from nodewire.config import ModelPin, line_of
from nodewire.errors import BadConfig, NotAllowed, NotFound

TABLE = "names"


def pin(path: Path, name: str, model: ModelPin, *, replace: bool = False) -> bool:
    """Have `name` stand for `model` in the file; False if it does already.

    Raises:
        NotAllowed: the name stands for another one, and that is not to be replaced.
        BadConfig: the file cannot be read or written, or not by a single line.

    """
    text, data = _read(path)
    said = {"manifest": model.manifest} | ({"digest": model.digest} if model.digest else {})
    before = data.get(TABLE, {}).get(name)
    if before == said:
        return False
    if before is not None and not replace:
        raise NotAllowed(name, f"is pinned to {_words(before)} in {path}; --replace has it stand for {_words(said)}")
    fields = ", ".join(f"{field} = {json.dumps(value)}" for field, value in said.items())
    line = f"{json.dumps(name)} = {{ {fields} }}"
    end = "\r\n" if "\r\n" in text else "\n"
    lines = (text if not text or text.endswith("\n") else text + end).splitlines(keepends=True)
    if before is not None:
        at = line_of(name, TABLE, 0, text)
        lines[at - 1 : at] = [line + end]
    elif at := line_of(TABLE, "", 0, text):
        lines.insert(at, line + end)
    else:
        lines += [end, f"[{TABLE}]{end}", line + end]
    _write(path, lines, {**data, TABLE: {**data.get(TABLE, {}), name: said}}, f"[{TABLE}] {line}")
    return True


def unpin(path: Path, name: str) -> None:
    """Raises NotFound: the name is not pinned; BadConfig: as `pin`."""
    text, data = _read(path)
    if name not in data.get(TABLE, {}):
        raise NotFound(name, f"is not pinned in {path}")
    at = line_of(name, TABLE, 0, text)
    lines = text.splitlines(keepends=True)
    lines[at - 1 : at] = []
    left = {one: model for one, model in data[TABLE].items() if one != name}
    _write(path, lines, {**data, TABLE: left}, f"no {name} in [{TABLE}]")


def _words(said: Any) -> str:
    if not isinstance(said, dict):
        return str(said)
    version = f", version {said['digest'][:12]}" if said.get("digest") else ""
    return f"{said.get('manifest')}{version}"


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadConfig(str(path), f"is not TOML: {error}") from error


def _write(path: Path, lines: list[str], data: dict[str, Any], by_hand: str) -> None:
    """The lines, if they say `data`; whole or as before, whatever happens meanwhile."""
    text = "".join(lines)
    try:
        is_right = tomllib.loads(text) == data
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise BadConfig(str(path), f"[{TABLE}] is written in a way that this command does not change: write {by_hand}")
    place = path.resolve()
    part: Path | None = None
    try:
        mode = place.stat().st_mode & 0o777
        with tempfile.NamedTemporaryFile("wb", dir=place.parent, prefix=f".{place.name}.", delete=False) as file:
            part = Path(file.name)
            file.write(text.encode())
        part.chmod(mode)
        part.replace(place)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise BadConfig(str(path), f"cannot be written: {error.strerror}") from error
