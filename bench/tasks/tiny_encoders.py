"""Tiny random sentence encoders of every family, made with transformers, as the directories that people have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

VOCABULARY = 320
TEXTS = ["w20 w21 w22", "w23", "w24 w25 w26 w27 w28 w29 w30 w31 w32 w33", "w300 w20 w301 w21"]
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_AFTER_PADDING = {"pad_token_id": 1, "max_position_embeddings": 26}
ENCODERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", {}, "mean"),
    "roberta": ("Roberta", _AFTER_PADDING, "mean"),
    "xlm-roberta, mean": ("XLMRoberta", _AFTER_PADDING, "mean"),
    "xlm-roberta, first token": ("XLMRoberta", _AFTER_PADDING, "cls"),
    "mpnet": ("MPNet", _AFTER_PADDING, "mean"),
    "modernbert": (
        "ModernBert",
        {"local_attention": 6, "cls_token_id": 2, "sep_token_id": 3, "global_attn_every_n_layers": 2},
        "cls",
    ),
    "nomic_bert": ("NomicBert", {}, "mean"),
}
"""The class's stem in transformers, what its configuration says besides, and how it pools."""


def make_encoder(folder: Path, name: str) -> Path:
    stem, particular, pooling = ENCODERS[name]
    torch.manual_seed(7)
    config = getattr(transformers, f"{stem}Config")(**_SIZES | particular)
    how = {} if stem == "ModernBert" else {"add_pooling_layer": False}
    model = getattr(transformers, f"{stem}Model")(config, **how)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            is_scale = parameter_name.lower().endswith("norm.weight")
            parameter.normal_(float(is_scale), 0.3)
    model.save_pretrained(folder)
    (folder / "modules.json").write_text(json.dumps(_modules()))
    (folder / "1_Pooling").mkdir()
    chosen = {f"pooling_mode_{kind}": kind.startswith(pooling) for kind in ("mean_tokens", "cls_token", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **chosen}))
    _tokenizer(config.pad_token_id).save(str(folder / "tokenizer.json"))
    return folder


def eager(folder: Path, name: str, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What the library's own class and sentence-transformers' layers make of a batch, float32 [texts, width]."""
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask[..., None].float()
    pooled = hidden[:, 0] if ENCODERS[name][2] == "cls" else (hidden * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(pooled, dim=-1)


def batch(name: str, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and a mask whose first row is full, padded as the family pads."""
    pad = {**_SIZES, **ENCODERS[name][1]}["pad_token_id"]
    generator = torch.Generator().manual_seed(rows * 1_000 + length)
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, length - row % length :] = 0
    return torch.where(mask == 1, ids, pad), mask


def _modules() -> list[dict[str, Any]]:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    return [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]


def _tokenizer(pad: int) -> Tokenizer:
    names = ["<a>", "<b>", "<s>", "</s>", "<unk>"]
    names[pad] = "<pad>"
    vocabulary = {word: number for number, word in enumerate(names)} | {f"w{n}": n for n in range(5, VOCABULARY)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    return made
