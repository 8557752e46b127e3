"""A customer's files as a data set: a safetensors file of arrays, or a folder of bytes, ids or lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nodewire.errors import BadData
from nodewire.graph.encoder import padded
from nodewire.graph.encoder import tokenizer as text_tokenizer
from nodewire.graph.families.bert import IDS
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.protocol.model.families import Decoder, Encoder
from nodewire.store import folder
from nodewire.training.engine.data import Tensors, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from nodewire.training.protocol.recipe import Recipe

PIECE_CHARS = 2**20
"""Text is tokenized in pieces of about this length, cut after a line's end."""


def read(recipe: Recipe, path: Path, tokenizer: bytes | None = None) -> Tensors:
    """The data set at `path`, a file or a folder whose files (hidden ones left out) are taken in the order of names.

    arrays: one .safetensors with x [n, ...] and y [n] or [n, classes] of any number type. bytes: any files. tokens:
    .safetensors with ids [n]. texts: UTF-8 files, for an encoder with two texts a line, parted by a tab.

    Args:
        recipe: its layout says what the files are.
        path: a file, or a folder with all that is below it.
        tokenizer: the recipe's tokenizer.json, where its layout is texts.

    Raises:
        NotFound: nothing is at `path`.
        TooLarge: more than 100,000 files or 32 GiB; nothing was read.
        BadData: empty, or not what the recipe's layout says; the file or tensor is named.

    """
    files = _files(path)
    match recipe.data.layout:
        case "arrays":
            found = _arrays(recipe, files)
        case "bytes":
            found = {"ids": _bytes(files)}
        case "tokens":
            found = {"ids": torch.cat([_loaded(file, ("ids",))["ids"].flatten() for file in files])}
        case "texts":
            if tokenizer is None:
                raise BadData("tokenizer", "missing")
            found = _texts(recipe, files, tokenizer)
    if isinstance(recipe.family, Decoder) and recipe.family.tokens == "bpe":
        found = {"ids": _narrow(found["ids"])}
    return checked(recipe, found)


def texts(path: Path) -> Iterator[str]:
    """The texts of a file or folder, in pieces. Raises as `read`."""
    for file in _files(path):
        yield from _pieces(_text(file))


def _files(path: Path) -> list[Path]:
    files, size = folder.listed(path, "data")
    if not size:
        raise BadData("data", "empty")
    return files


def _arrays(recipe: Recipe, files: list[Path]) -> dict[str, Tensor]:
    if len(files) != 1:
        raise BadData("data", f"{len(files)} files, but arrays are one .safetensors")
    found = _loaded(files[0], ("x", "y"))
    x, y = found["x"], found["y"]
    if x.ndim < 2 or not len(x) or x[0].numel() != _inputs(recipe):
        raise BadData("x", f"{list(x.shape)}, not rows of {_inputs(recipe)}")
    squared = recipe.loss == "squared_error"
    if y.ndim != 1 + squared:
        raise BadData("y", f"{list(y.shape)}")
    if not squared and y.is_floating_point():
        raise BadData("y", "classes are whole numbers")
    return {"x": x.flatten(1).float().contiguous(), "y": y.float().contiguous() if squared else y.long().contiguous()}


def _inputs(recipe: Recipe) -> int:
    assert not isinstance(recipe.family, Decoder | Encoder)
    return recipe.family.inputs


def _bytes(files: list[Path]) -> Tensor:
    whole = np.empty(sum(file.stat().st_size for file in files), np.uint8)
    at = 0
    for file in files:
        data = np.fromfile(file, np.uint8)
        whole[at : at + len(data)] = data
        at += len(data)
    return torch.from_numpy(whole[:at])


def _texts(recipe: Recipe, files: list[Path], tokenizer: bytes) -> dict[str, Tensor]:
    if isinstance(recipe.family, Encoder):
        return _pairs(recipe, recipe.family, files, tokenizer)
    assert isinstance(recipe.family, Decoder)
    encoder, ends = Tokenizer(tokenizer), recipe.family.ends[:1]
    rows: list[np.ndarray] = []
    for file in files:
        rows += [np.array(encoder.encode(piece), np.int64) for piece in _pieces(_text(file))]
        rows.append(np.array(ends, np.int64))
    return {"ids": torch.from_numpy(np.concatenate(rows))}


def _pairs(recipe: Recipe, family: Encoder, files: list[Path], tokenizer: bytes) -> dict[str, Tensor]:
    encoder = text_tokenizer(tokenizer, recipe.data.window)
    columns: tuple[list[list[int]], list[list[int]]] = ([], [])
    for file in files:
        for number, line in enumerate(_text(file).splitlines(), 1):
            if not line.strip():
                continue
            texts = line.split("\t")
            if len(texts) != 2 or not all(text.strip() for text in texts):
                raise BadData(f"{file.name}:{number}"[:200], "not two texts parted by a tab")
            for column, text in zip(columns, texts, strict=True):
                column.append(encoder.encode(text).ids)
    if not columns[0]:
        raise BadData("data", "no pairs of texts")
    found = {}
    for name, column in zip(("first", "second"), columns, strict=True):
        ids = torch.full((len(column), recipe.data.window), family.pad, dtype=torch.int32)
        rows = padded(column, family.pad)[IDS]
        ids[:, : rows.shape[1]] = rows
        found[name] = ids
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(file.name[:80], "not UTF-8") from error


def _pieces(text: str) -> Iterable[str]:
    at = 0
    while at < len(text):
        end = text.find("\n", at + PIECE_CHARS) + 1 or len(text)
        yield text[at : min(end, at + 2 * PIECE_CHARS)]
        at = min(end, at + 2 * PIECE_CHARS)


def _loaded(file: Path, names: tuple[str, ...]) -> dict[str, Tensor]:
    try:
        found = load_file(file)
    except SafetensorError as error:
        raise BadData(file.name[:80], "not a safetensors file") from error
    for name in names:
        if name not in found:
            raise BadData(f"{file.name[:80]}.{name}", "missing")
    return found


def _narrow(ids: Tensor) -> Tensor:
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise BadData("ids", "not whole numbers")
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < 2**31):
        raise BadData("ids", "out of range")
    return ids.int()
