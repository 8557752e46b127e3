"""Small recipes of every family and every way to train it, with the files that they cite, for a market of tests."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from nodewire.training.engine import sample_files, state
from nodewire.training.engine.data import Tensors
from nodewire.training.engine.families import initial
from nodewire.training.engine.models import directory, vocabulary
from nodewire.training.engine.models import initial_weights as start
from nodewire.training.engine.state import State
from nodewire.training.protocol.recipe import Recipe

WORDS = ("green", "tea", "rain", "falls", "on", "old", "stone", "and", "grass", "grows")


@dataclass(frozen=True)
class Given:
    """A recipe and what its customer has. `tensors`: what the model starts from, as the bare loop takes it."""

    recipe: Recipe
    data: Path
    start: Path | None
    dataset: Tensors
    tensors: State | None


_COMMON: dict[str, Any] = {
    "v": 1,
    "steps": 3,
    "batch": 4,
    "rounds": 2,
    "seed": 5,
    "audit": {"segment": 2, "fraction": "0.5"},
    "inner": {"optimizer": "adamw", "lr": "0.01"},
    "validation": {"samples": 16, "own": "-100.0", "gain": "-100.0"},
}
_DECODER = {"name": "decoder", "width": 16, "inner": 24, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8}
_DECODER |= {"positions": 32}
_ENCODER = {"name": "encoder", "vocabulary": 16, "width": 16, "inner": 24, "layers": 1, "heads": 2, "positions": 16}
_TEXT = {"layout": "texts", "window": 8, "block": 16}


def classifier(folder: Path, family: dict[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(80, 16, generator=generator)
    y = (x @ torch.randn(16, 3, generator=generator)).argmax(1)
    (folder / "data" / "rows.safetensors").write_bytes(state.pack({"x": x, "y": y}))
    return {"family": family, "loss": "cross_entropy", "data": {"layout": "arrays"}}


def text(folder: Path) -> str:
    said = "".join(" ".join(WORDS[i * j % 10] for j in range(1, 7)) + ".\n" for i in range(1, 60))
    (folder / "data" / "text.txt").write_text(said)
    return said


def byte_decoder(folder: Path, **more: Any) -> dict[str, Any]:
    text(folder)
    family = {**_DECODER, "tokens": "byte", **more}
    return {"family": family, "loss": "next_token", "data": {"layout": "bytes", "window": 8, "block": 16}}


def bpe_decoder(folder: Path, **more: Any) -> dict[str, Any]:
    tokenizer = vocabulary.learned([text(folder)], 270)
    (folder / "start" / "tokenizer.json").write_bytes(tokenizer)
    family = {**_DECODER, "tokens": "bpe", "vocabulary": 270, "ends": [0], "tokenizer": cited(tokenizer), **more}
    return {"family": family, "loss": "next_token", "data": _TEXT}


def encoder(folder: Path) -> dict[str, Any]:
    pairs = itertools.islice(itertools.permutations(WORDS, 3), 60)
    (folder / "data" / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} {c}\n" for a, b, c in pairs))
    (folder / "start" / "tokenizer.json").write_bytes(tokenizer := wordpieces())
    family = {**_ENCODER, "tokenizer": cited(tokenizer)}
    return {"family": family, "loss": "contrastive", "data": {"layout": "texts", "window": 8}}


def wordpieces() -> bytes:
    """A tokenizer like BERT's, of WORDS only."""
    known = {word: id_ for id_, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    made = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made.to_str().encode()


def from_start(make: Callable[[Path], dict[str, Any]], adapter: list[str] | None = None):
    """The same, from weights that are in the folder; with an adapter beside these matrices of them."""

    def made(folder: Path) -> dict[str, Any]:
        document = make(folder)
        plain = Recipe.from_document({**_COMMON, "name": "before", **document, "seed": 11})
        tensors = initial(plain)
        directory.save(folder / "start", plain, tensors, tokenizer=tokenizer_in(folder / "start"))
        document["family"] = {**document["family"], "start": start.cited(tensors).document()}
        if adapter:
            document["adapter"] = {"rank": 2, "alpha": 4, "targets": adapter}
            document["inner"] = {"optimizer": "adamw", "lr": "0.05"}
        return document

    return made


def tokenizer_in(folder: Path) -> bytes | None:
    file = folder / "tokenizer.json"
    return file.read_bytes() if file.exists() else None


MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "linear": lambda folder: classifier(folder, {"name": "linear", "inputs": 16, "classes": 3}),
    "mlp": lambda folder: classifier(folder, {"name": "mlp", "inputs": 16, "hidden": [8], "classes": 3}),
    "cnn": lambda folder: classifier(
        folder, {"name": "cnn", "channels": 1, "height": 4, "width": 4, "filters": [4], "pool": True, "classes": 3}
    ),
    "byte-decoder": byte_decoder,
    "bpe-decoder": bpe_decoder,
    "byte-decoder-tuned": from_start(byte_decoder),
    "bpe-decoder-tuned": from_start(bpe_decoder),
    "bpe-decoder-lora": from_start(bpe_decoder, ["q_proj", "v_proj", "down_proj"]),
    "encoder-tuned": from_start(encoder),
    "encoder-lora": from_start(encoder, ["query", "value"]),
}


def given(name: str, folder: Path, **changes: Any) -> Given:
    """The recipe of that name with its files below `folder`; `changes` are of its document."""
    for part in ("data", "start"):
        (folder / part).mkdir(parents=True)
    recipe = Recipe.from_document({**_COMMON, "name": name, **MAKERS[name](folder), **changes})
    begun = folder / "start" if any((folder / "start").iterdir()) else None
    read = start.read(recipe, begun)
    return Given(
        recipe, folder / "data", begun, sample_files.read(recipe, folder / "data", read.tokenizer), read.tensors
    )


def cited(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
