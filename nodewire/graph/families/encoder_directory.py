"""What a Hugging Face directory of a sentence encoder says: architecture, pooling, length, tokenizer, license.

Read as data: JSON with a size cap, never code. Layout: config.json, model.safetensors, tokenizer.json, and from
sentence-transformers (all optional) modules.json, N_Pooling/config.json, sentence_bert_config.json.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nodewire.errors import BadInput, NotFound
from nodewire.weights.directory import read_tokenizer, weight_files

MAX_JSON_BYTES = 32 * 2**20
_LONGEST = 512
AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""By `model_type`: those whose positions begin after the id that pads."""


@dataclass(frozen=True, slots=True)
class EncoderDirectory:
    """`positions` is the longest input in tokens, special ones included; `config` is config.json as it stands."""

    path: Path
    config: dict[str, Any]
    pooling: Literal["mean", "cls"]
    normalized: bool
    positions: int
    tokenizer: bytes
    pad_id: int
    name: str
    license: str

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"


def read(path: Path, *, is_dry: bool = False) -> EncoderDirectory:
    """What the directory at `path` says.

    For a dry run it may be without weights, and without a tokenizer, which is empty then.

    Raises:
        NotFound: a file is missing.
        BadInput: a file is not what it should be, or asks for a pooling other than mean or first token.

    """
    config = config_of(path)
    if not is_dry:
        weight_files(path)
    modules = _json(path, "modules.json", [])
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise BadInput("modules.json", "not a list of objects")
    kinds = [str(m.get("type", "")).rsplit(".", 1)[-1] for m in modules]
    pooling = _pooling(path, modules)
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise BadInput("modules.json", f"a {kind[:40]} layer is not supported")
    lengths = [
        _object(path, "sentence_bert_config.json", {}).get("max_seq_length"),
        _object(path, "tokenizer_config.json", {}).get("model_max_length"),
    ]
    pad_id = config.get("pad_token_id") or 0
    if type(pad_id) is not int or not 0 <= pad_id < 2**31:
        raise BadInput("pad_token_id", f"{str(pad_id)[:40]} is no token")
    most = config.get("max_position_embeddings")
    if type(most) is int:
        lengths.append(most - (pad_id + 1 if config.get("model_type") in AFTER_PADDING else 0))
    known = [n for n in lengths if type(n) is int and n > 0]
    named = str(config.get("_name_or_path") or path.resolve().name).rsplit("/", 1)[-1]
    return EncoderDirectory(
        path=path,
        config=config,
        pooling=pooling,
        normalized="Normalize" in kinds if kinds else True,
        positions=min([*known, _LONGEST]),
        tokenizer=b"" if is_dry and not (path / "tokenizer.json").exists() else read_tokenizer(path, MAX_JSON_BYTES),
        pad_id=pad_id,
        name=re.sub(r"[^a-z0-9._-]+", "-", named.lower()).strip("-._")[:48] or "encoder",
        license=license_of(path),
    )


def config_of(path: Path) -> dict[str, Any]:
    """The directory's config.json. Raises NotFound, BadInput: there is none that is an object."""
    return _object(path, "config.json")


def _pooling(path: Path, modules: list[Any]) -> Literal["mean", "cls"]:
    folder = next((m.get("path") for m in modules if str(m.get("type", "")).endswith("Pooling")), None)
    if folder is None:
        return "mean"
    inner = Path(str(folder)).name
    if inner in ("", ".."):
        raise BadInput("modules.json", f"{str(folder)[:40]!r} is not a folder of the model's")
    chosen = {k for k, v in _object(path / inner, "config.json").items() if k.startswith("pooling") and v}
    if chosen == {"pooling_mode_mean_tokens"}:
        return "mean"
    if chosen == {"pooling_mode_cls_token"}:
        return "cls"
    raise BadInput("pooling", f"{', '.join(sorted(chosen)) or 'none'} is not supported")


def license_of(path: Path) -> str:
    """The license that the model card's front matter names, or ""."""
    card = path / "README.md"
    if not card.is_file():
        return ""
    with card.open("rb") as file:
        head = file.read(4_096).decode(errors="replace")
    found = re.search(r"^license:\s*([\w.\-]{1,64})\s*$", head, re.MULTILINE) if head.startswith("---") else None
    return found[1] if found else ""


def _bytes(path: Path, name: str) -> bytes:
    file = path / name
    if not file.is_file():
        raise NotFound(name, f"not in {path.name}")
    if file.stat().st_size > MAX_JSON_BYTES:
        raise BadInput(name, f"over {MAX_JSON_BYTES} bytes")
    return file.read_bytes()


def _json(path: Path, name: str, default: Any = None) -> Any:
    if default is not None and not (path / name).is_file():
        return default
    try:
        return json.loads(_bytes(path, name))
    except (ValueError, RecursionError) as error:
        raise BadInput(name, "not JSON") from error


def _object(path: Path, name: str, default: Any = None) -> dict[str, Any]:
    found = _json(path, name, default)
    if not isinstance(found, dict):
        raise BadInput(name, "not an object")
    return found
