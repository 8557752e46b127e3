"""What a customer's data folder holds, seen from outside: files, sizes and safetensors headers, no tensor is read.

Enough to price a training, and to say what is wrong with a folder before a worker reads it
(`nodewire.training.engine.sample_files`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadData
from nodewire.protocol.model.families import Decoder, Encoder
from nodewire.store import folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nodewire.training.protocol.recipe import Recipe

_MAX_HEADER_BYTES = 8 * 2**20
_SHOWN = 3
_CHARS_A_TOKEN = 3
"""Few, so that what is said of a text's tokens is rather too much."""
_WANTED = {
    "arrays": "one .safetensors file with x (rows of numbers) and y (a class for each row)",
    "bytes": "any files, taken as they are",
    "tokens": ".safetensors files with ids",
    "texts": "UTF-8 text files",
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """`rows` of arrays and pairs, bytes, or tokens; `is_exact` is False where only a tokenizer could count them."""

    files: int
    bytes: int
    rows: int
    row_bytes: int
    is_exact: bool

    def shard_bytes(self, recipe: Recipe, shards: int) -> int:
        """Tensor bytes of the largest of so many shards. Raises BadData: there are too few blocks for them."""
        block = recipe.data.block if isinstance(recipe.family, Decoder) else 1
        blocks = -(-self.rows // block)
        kept = blocks - (blocks + recipe.data.held_out - recipe.data.held_out // 2 - 1) // recipe.data.held_out
        if self.is_exact and (kept < shards or kept == blocks):
            what = f"{blocks} blocks of {block}" if block > 1 else f"{blocks} rows"
            raise BadData(
                "--data", f"{what} are too few for {shards} shards and every {recipe.data.held_out}th held out"
            )
        return min(self.rows, -(-kept // shards) * block) * self.row_bytes


def look(recipe: Recipe, path: Path) -> Dataset:
    """What stands at `path`, a file or a folder (hidden files left out), if it can be what the recipe's layout says.

    Raises:
        NotFound: nothing is there.
        TooLarge: more than 100,000 files or 32 GiB.
        BadData: empty, or of another layout; says what was found.

    """
    files, size = folder.listed(path, "--data")
    if not size:
        raise BadData("--data", f"nothing to train on in {path}: {len(files)} files, all empty" if files else "empty")
    match recipe.data.layout:
        case "arrays":
            return _arrays(recipe, files, size)
        case "bytes":
            return Dataset(len(files), size, size, 1, True)
        case "tokens":
            headers = [_header(recipe, files, file) for file in files]
            rows = sum(prod(_shape(recipe, files, header, "ids")) for header in headers)
            return Dataset(len(files), size, rows, 4, True)
        case "texts" if isinstance(recipe.family, Encoder):
            return Dataset(len(files), size, sum(map(_lines, files)), 8 * recipe.data.window, True)
        case _:
            return Dataset(len(files), size, -(-size // _CHARS_A_TOKEN), 4, False)


def _arrays(recipe: Recipe, files: Sequence[Path], size: int) -> Dataset:
    assert not isinstance(recipe.family, Decoder | Encoder)
    if len(files) != 1:
        raise _other(recipe, files)
    header = _header(recipe, files, files[0])
    x, y = _shape(recipe, files, header, "x"), _shape(recipe, files, header, "y")
    inputs = recipe.family.inputs
    if len(x) < 2 or prod(x[1:]) != inputs:
        raise BadData(
            "--data", f"x in {files[0].name} is {list(x)}, the recipe's family takes rows of {inputs} numbers"
        )
    squared = recipe.loss == "squared_error"
    if len(y) != 1 + squared or y[0] != x[0]:
        wanted = [x[0], recipe.family.classes] if squared else [x[0]]
        raise BadData("--data", f"y in {files[0].name} is {list(y)}, {recipe.loss} takes {wanted}")
    return Dataset(1, size, x[0], 4 * inputs + (4 * recipe.family.classes if squared else 8), True)


def _header(recipe: Recipe, files: Sequence[Path], file: Path) -> dict[str, Any]:
    """The header of a safetensors file. Raises BadData: it is none."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        text = opened.read(length) if 2 <= length <= _MAX_HEADER_BYTES else b""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _other(recipe, files) from error
    if not isinstance(header, dict):
        raise _other(recipe, files)
    return header


def _shape(recipe: Recipe, files: Sequence[Path], header: dict[str, Any], name: str) -> tuple[int, ...]:
    match header.get(name):
        case {"shape": list(shape)} if all(type(size) is int and size >= 0 for size in shape):
            return tuple(shape)
    has = ", ".join(sorted(one for one in header if one != "__metadata__"))[:80]
    raise _other(recipe, files, f"; no tensor {name} in it, but {has or 'none'}")


def _other(recipe: Recipe, files: Sequence[Path], more: str = "") -> BadData:
    """What was found where the layout wants something else."""
    names = ", ".join(f"{file.name[:40]} ({file.stat().st_size:,} bytes)" for file in files[:_SHOWN])
    rest = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    layout = recipe.data.layout
    return BadData("--data", f"found {names}{rest}{more}; data.layout = {layout!r} is {_WANTED[layout]}")


def _lines(file: Path) -> int:
    with file.open("rb") as opened:
        return sum(1 for line in opened if line.strip())
