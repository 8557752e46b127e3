"""Small recipes of every family, and data and starts for them, drawn from fixed seeds."""

from __future__ import annotations

import torch

from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.engine.families import initial
from nodewire.training.protocol.recipe import Recipe

torch.set_num_threads(1)

_BLOB = {"sha256": "00" * 32, "bytes": 1_000}
_DECODER = {
    "name": "decoder",
    "tokens": "byte",
    "width": 32,
    "inner": 48,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "positions": 32,
}
_ENCODER = {
    "name": "encoder",
    "vocabulary": 64,
    "width": 32,
    "inner": 48,
    "layers": 2,
    "heads": 4,
    "positions": 32,
    "start": _BLOB,
    "tokenizer": _BLOB,
}
_SGD = {"optimizer": "sgd", "lr": "0.1", "momentum": "0.9"}
_ADAMW = {"optimizer": "adamw", "lr": "0.005", "clip": "1.0", "schedule": "cosine", "warmup": 3, "weight_decay": "0.1"}
_MUON = {"optimizer": "muon", "lr": "0.02", "rest_lr": "0.005", "momentum": "0.95", "nesterov": True}
_ARRAYS = {"layout": "arrays"}
_BYTES = {"layout": "bytes", "window": 16, "block": 64}
_TEXTS = {"layout": "texts", "window": 8}

_RECIPES = {
    "linear": ({"name": "linear", "inputs": 16, "classes": 4}, "cross_entropy", _ARRAYS, _SGD),
    "regression": ({"name": "linear", "inputs": 16, "classes": 4}, "squared_error", _ARRAYS, _SGD | {"lr": "0.05"}),
    "mlp": ({"name": "mlp", "inputs": 16, "hidden": [24, 12], "classes": 4}, "cross_entropy", _ARRAYS, _SGD),
    "cnn": (
        {"name": "cnn", "channels": 1, "height": 4, "width": 4, "filters": [8, 8], "pool": True, "classes": 4},
        "cross_entropy",
        _ARRAYS,
        _ADAMW,
    ),
    "decoder": (_DECODER, "next_token", _BYTES, _ADAMW),
    "decoder-muon": (_DECODER | {"tied": False}, "next_token", _BYTES, _MUON),
    "decoder-bpe": (
        _DECODER | {"tokens": "bpe", "vocabulary": 300, "tokenizer": _BLOB},
        "next_token",
        _BYTES | {"layout": "tokens"},
        _ADAMW,
    ),
    "decoder-bf16": (_DECODER, "next_token", _BYTES, _ADAMW),
    "decoder-lora": (_DECODER | {"start": _BLOB}, "next_token", _BYTES, _ADAMW | {"lr": "0.03"}),
    "encoder": (_ENCODER, "contrastive", _TEXTS, _ADAMW),
    "encoder-lora": (_ENCODER, "contrastive", _TEXTS, _ADAMW | {"lr": "0.03"}),
}
NAMES = tuple(_RECIPES)


def recipe(
    name: str, *, steps: int = 10, outer: dict | None = None, compression: dict | None = None, **inner
) -> Recipe:
    """The recipe of that name, with other inner settings."""
    family, loss, layout, optimizer = _RECIPES[name]
    document = {
        "v": 1,
        "name": name,
        "family": family,
        "loss": loss,
        "data": layout,
        "inner": optimizer | inner,
        "outer": outer or {},
        "compression": compression or {},
        "steps": steps,
        "batch": 16,
        "rounds": 4,
        "audit": {"segment": 4},
        "precision": "bf16" if name.endswith("bf16") else "f32",
    }
    if name.endswith("lora"):
        targets = ["q_proj", "v_proj", "down_proj"] if family["name"] == "decoder" else ["query", "value"]
        document["adapter"] = {"rank": 4, "alpha": 8, "targets": targets}
    return Recipe.from_document(document)


def made(of: Recipe) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor] | None]:
    """A data set that the recipe can learn, and the tensors that it starts from, if it starts from any."""
    generator = torch.Generator().manual_seed(1)
    family, start = of.family, None
    if getattr(family, "start", None) is not None:
        start = initial(of.model_copy(update={"adapter": None, "family": family.model_copy(update={"start": None})}))
    match family.name:
        case "decoder":
            words = torch.randint(97, 123, (20, 5), generator=generator)
            ids = words[torch.randint(20, (400,), generator=generator)].flatten()
            return {"ids": ids.to(torch.uint8 if family.tokens == "byte" else torch.int32)}, start
        case "encoder":
            first = torch.randint(1, 64, (300, of.data.window), generator=generator).int()
            first[::3, 5:] = 0
            return {"first": first, "second": first.roll(1, 1).clamp(min=1)}, start
        case _:
            x = torch.randn(400, 16, generator=generator)
            scores = x @ torch.randn(16, 4, generator=generator)
            return {"x": x, "y": scores if of.loss == "squared_error" else scores.argmax(1)}, start


def blob(data: bytes) -> BlobRef:
    import hashlib

    return BlobRef(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
