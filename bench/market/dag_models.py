"""Models that are DAGs of tasks, as folders that `nodewire register` reads, and what one process makes of a call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

VOCABULARY = 512
_LENGTH = 24
CLIP: dict[str, Any] = {
    "model_type": "clip",
    "architectures": ["CLIPModel"],
    "projection_dim": 64,
    "text_config": {
        "vocab_size": VOCABULARY,
        "hidden_size": 384,
        "intermediate_size": 1_536,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "max_position_embeddings": _LENGTH,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    },
    "vision_config": {
        "hidden_size": 384,
        "intermediate_size": 1_536,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 16,
    },
}
EXPERTS: dict[str, Any] = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class Whole:
    """A model in one process: `sizes` are those of a call's dims, where it has them."""

    module: torch.nn.Module
    sizes: Mapping[str, int]

    def call(self, inputs: Mapping[str, tuple[str, tuple[int | str, ...]]], seed: int) -> dict[str, np.ndarray]:
        """Random inputs of these dtypes and shapes: ids whose last is the end's, full masks, normal numbers."""
        random = np.random.default_rng(seed)
        found: dict[str, np.ndarray] = {}
        for name, (dtype, shape) in inputs.items():
            sizes = [self.sizes[n] if isinstance(n, str) else n for n in shape]
            if "mask" in name:
                found[name] = np.ones(sizes, dtype)
            elif dtype == "int64":
                found[name] = random.integers(3, VOCABULARY, sizes)
                found[name][..., -1] = 2
            else:
                found[name] = random.standard_normal(sizes).astype(dtype)
        return found

    def outputs(self, call: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Those of the model's outputs that have these names, which are paths in what it returns."""
        with torch.no_grad():
            said: Any = self.module(**{name: torch.from_numpy(array) for name, array in call.items()})
        return {name: _at(said, name).numpy() for name in names}


def _at(value: Any, path: str) -> torch.Tensor:
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    return value


def clip(folder: Path) -> Whole:
    """Two branches, of images and of texts, and what joins them."""
    return Whole(_made(CLIP, folder), {"batch": 4, "images": 8, "sequence": _LENGTH})


def experts(folder: Path) -> Whole:
    """Two layers of four experts, of which every token is sent to two."""
    return Whole(_made(EXPERTS, folder), {"batch": 2, "sequence": 9})


MODELS: dict[str, tuple[Callable[[Path], Whole], str, float]] = {
    "clip": (clip, "36MB", 1e-5),
    "experts": (experts, "400kB", 5e-6),
}
"""By name: what makes the folder, the memory that a piece may need, how far outputs may be from the whole's."""


def _made(config: dict[str, Any], folder: Path) -> torch.nn.Module:
    import transformers

    torch.manual_seed(7)
    settings = transformers.AutoConfig.for_model(**config)
    model: Any = getattr(transformers, config["architectures"][0])._from_config(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)  # far from what an initialization makes alike, such as norms of 1
    model.eval()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model
