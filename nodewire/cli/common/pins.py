"""The names of models in a configuration file, written there and taken out again (`role_file`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nodewire.cli.common import role_file
from nodewire.config import ModelPin, line_of
from nodewire.errors import NotAllowed, NotFound

TABLE = "names"


def pin(path: Path, name: str, model: ModelPin, *, replace: bool = False) -> bool:
    """Have `name` stand for `model` in the file; False if it does already.

    Raises:
        NotAllowed: the name stands for another one, and that is not to be replaced.
        BadConfig: the file cannot be read or written, or not by a single line.

    """
    text, data = role_file.read(path)
    said = {"manifest": model.manifest} | ({"digest": model.digest} if model.digest else {})
    before = data.get(TABLE, {}).get(name)
    if before == said:
        return False
    if before is not None and not replace:
        raise NotAllowed(name, f"is pinned to {_words(before)} in {path}; --replace has it stand for {_words(said)}")
    fields = ", ".join(f"{field} = {json.dumps(value)}" for field, value in said.items())
    line = f"{json.dumps(name)} = {{ {fields} }}"
    end = role_file.line_end(text)
    lines = (text if not text or text.endswith("\n") else text + end).splitlines(keepends=True)
    if before is not None:
        at = line_of(name, TABLE, 0, text)
        lines[at - 1 : at] = [line + end]
    elif at := line_of(TABLE, "", 0, text):
        lines.insert(at, line + end)
    else:
        lines += [end, f"[{TABLE}]{end}", line + end]
    role_file.write(path, lines, {**data, TABLE: {**data.get(TABLE, {}), name: said}}, f"[{TABLE}] {line}")
    return True


def unpin(path: Path, name: str) -> None:
    """Raises NotFound: the name is not pinned; BadConfig: as `pin`."""
    text, data = role_file.read(path)
    if name not in data.get(TABLE, {}):
        raise NotFound(name, f"is not pinned in {path}")
    at = line_of(name, TABLE, 0, text)
    lines = text.splitlines(keepends=True)
    lines[at - 1 : at] = []
    left = {one: model for one, model in data[TABLE].items() if one != name}
    role_file.write(path, lines, {**data, TABLE: left}, f"no {name} in [{TABLE}]")


def _words(said: Any) -> str:
    if not isinstance(said, dict):
        return str(said)
    version = f", version {said['digest'][:12]}" if said.get("digest") else ""
    return f"{said.get('manifest')}{version}"
