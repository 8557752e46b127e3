"""The language model of a checkpoint that also sees: its `text_config` and its tensors, without what it sees with.

Text alone goes through the same layers with it or without; images cannot be given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.rms_norm import gemma3, mistral

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODELS = {
    "Gemma3ForConditionalGeneration": ("gemma3_text", gemma3.ARCHITECTURE),
    "Mistral3ForConditionalGeneration": ("mistral", mistral.ARCHITECTURE),
}
"""By the class in `transformers`: what `text_config` must be of, and the class of that alone."""
ARCHITECTURES = frozenset(_MODELS)
_SHARED = ("quantization_config", "tie_word_embeddings", "eos_token_id", "dtype", "torch_dtype")
"""Fields that stand outside `text_config` and are the language model's too."""
_SEEING = frozenset(
    {
        *("vision_config", "image_token_index", "image_token_id", "boi_token_index", "boi_token_id"),
        *("eoi_token_index", "eoi_token_id", "mm_tokens_per_image", "multimodal_projector_bias"),
        *("projector_hidden_act", "spatial_merge_size", "vision_feature_layer"),
    }
)
_PREFIXES = {"language_model.": "", "model.language_model.": "model."}
"""What stands before a tensor's name in older files and in newer ones, and what it is called alone."""
_ENDS = ("lm_head.weight",)


def sees(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a model that is read without what it sees with."""
    found = config.get("architectures")
    return isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) and found[0] in ARCHITECTURES


def language(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the language model alone.

    Raises:
        BadTask: there is no `text_config` of the kind that the class has.

    """
    kind, architecture = _MODELS[config["architectures"][0]]
    said = config.get("text_config")
    if not isinstance(said, dict) or said.get("model_type") != kind:
        raise BadTask("text_config", f"no object of the model_type {kind}")
    shared = {name: config[name] for name in _SHARED if config.get(name) is not None}
    rest = {name: value for name, value in config.items() if name not in _SEEING and name not in _SHARED}
    return {**rest, **said, **shared, "text_config": None, "architectures": [architecture]}


def own_name(stored: str) -> str | None:
    """What a tensor of the checkpoint is called alone; None of one that is not the language model's."""
    for prefix, instead in _PREFIXES.items():
        if stored.startswith(prefix):
            return instead + stored.removeprefix(prefix)
    return stored if stored in _ENDS else None


def note(config: Mapping[str, Any]) -> str:
    """What a registration says of it."""
    return f"of {config['architectures'][0]} the language model alone: what it sees with is left out"
