"""Models as Hugging Face directories: what training starts from, and what is registered and served afterwards.

Decoders are written as LlamaForCausalLM and encoders as BertModel, so `nodewire register` and `transformers` read
them; an adapter is merged into the matrices that it stands beside. Classifiers are their tensors and the recipe.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nodewire.errors import BadInput, BadTask, NotFound
from nodewire.gguf import model as gguf
from nodewire.graph.families import encoder_directory
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.spec.config import DecoderConfig, Llama3
from nodewire.protocol.model.families import Decoder, Encoder, RopeScaling, real
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.engine import state
from nodewire.training.engine.models import initial_weights as starts
from nodewire.training.engine.models import vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

WEIGHTS, CONFIG, TOKENIZER, RECIPE = "model.safetensors", "config.json", "tokenizer.json", "recipe.json"


class InitialModel(NamedTuple):
    """A model to start from: `tensors` and `tokenizer` are what `family` cites."""

    family: Decoder | Encoder
    tensors: State
    tokenizer: bytes


def family_of(directory: Path) -> Decoder | Encoder:
    """The family that a recipe names to start from the model in a directory: a decoder or an encoder.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: it does not hold a model that nodewire trains.

    """
    if not gguf.is_gguf(directory) and encoder_directory.config_of(directory).get("model_type") == "bert":
        return open_encoder(directory).family
    family = open_decoder(directory).family
    if family.tokenizer == _cited(vocabulary.of_bytes()):  # its ids are bytes
        family = family.model_copy(update={"tokens": "byte", "tokenizer": None})
    return family


def _trainable(config: DecoderConfig) -> Llama3 | None:
    """How a plain Llama's angles are scaled. Raises BadTask for what other decoders have and are not trained with."""
    if config.family != "llama":
        raise BadTask("architectures", f"decoders are trained in Llama's layout, not in that of {config.family}")
    if config.attention_bias:
        raise BadTask("attention_bias", "decoders are trained without")
    if config.rope_scaling is None or isinstance(config.rope_scaling, Llama3):
        return config.rope_scaling
    raise BadTask("rope_scaling", f"{config.rope_scaling.rope_type}: decoders are trained with llama3's or none")


def open_decoder(directory: Path) -> InitialModel:
    """The decoder in a directory, as a family to fine-tune.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: it does not hold a model that nodewire decodes.

    """
    checkpoint = open_checkpoint(directory, in_blocks=False)
    config = checkpoint.config
    scaling = _trainable(config)
    family = Decoder(
        name="decoder",
        tokens="bpe",
        vocabulary=config.vocab_size,
        width=config.hidden_size,
        inner=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        rope_scaling=RopeScaling(**scaling.model_dump(exclude={"rope_type"})) if scaling else None,
        tied=config.tie_word_embeddings,
        ends=config.eos_token_id,
        tokenizer=_cited(checkpoint.tokenizer),
    )
    return _opened(family, state.of_stored(checkpoint.tensors, family.shapes()), checkpoint.tokenizer)


def open_encoder(directory: Path) -> InitialModel:
    """The sentence encoder in a directory, as a family to fine-tune.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: it does not hold a BERT that is pooled by its mean and normalized.

    """
    found = encoder_directory.read(directory)
    if not found.weights.is_file():
        raise NotFound(found.weights.name, f"not in {directory.name}, whose weights are in several files")
    config = found.config
    for field, value, wanted in (
        ("model_type", config.get("model_type"), "bert"),
        ("hidden_act", config.get("hidden_act", "gelu"), "gelu"),
        ("position_embedding_type", config.get("position_embedding_type", "absolute"), "absolute"),
        ("pooling", found.pooling, "mean"),
        ("normalized", found.normalized, True),
    ):
        if value != wanted:
            raise BadInput(field, f"{str(value)[:40]} is not trained, only {wanted}")
    family = Encoder.from_document(
        {
            "name": "encoder",
            "vocabulary": config.get("vocab_size"),
            "width": config.get("hidden_size"),
            "inner": config.get("intermediate_size"),
            "layers": config.get("num_hidden_layers"),
            "heads": config.get("num_attention_heads"),
            "positions": config.get("max_position_embeddings"),
            "types": config.get("type_vocab_size", 2),
            "norm_eps": real(config.get("layer_norm_eps", 1e-12)),
            "pad": found.pad_id,
            "tokenizer": _cited(found.tokenizer).document(),
        }
    )
    return _opened(family, state.read(found.weights, family.shapes()), found.tokenizer)


def save(
    folder: Path, recipe: Recipe, theta: State, start: State | None = None, tokenizer: bytes | None = None
) -> None:
    """Write what was trained to `folder`: the `files`. Raises BadInput: a recipe's start or tokenizer was not given."""
    for name, data in files(recipe, theta, start, tokenizer).items():
        (folder / name).write_bytes(data)


def files(recipe: Recipe, theta: State, start: State | None = None, tokenizer: bytes | None = None) -> dict[str, bytes]:
    """What was trained, by file name: weights as the recipe stores them, configuration, tokenizer, and the recipe.

    Args:
        recipe: its family says how tensors are named there.
        theta: what was trained: the model, or adapters, which are merged.
        start: what the recipe's model started from; needed with an adapter only.
        tokenizer: the recipe's tokenizer.json; a byte decoder needs none.

    Raises:
        BadInput: a recipe's start or tokenizer was not given.

    """
    family, made = recipe.family, {}
    if isinstance(family, Decoder) and family.tokens == "byte":
        tokenizer = vocabulary.of_bytes()
    if isinstance(family, Decoder | Encoder):
        if tokenizer is None:
            raise BadInput("tokenizer", "missing")
        made[TOKENIZER] = tokenizer
        config = _llama(family, recipe.outer.stored) if isinstance(family, Decoder) else _bert(family)
        made[CONFIG] = (json.dumps(config, indent=1) + "\n").encode()
    made[RECIPE] = (recipe.to_json() + "\n").encode()
    whole = merged(recipe, theta, start)
    if recipe.outer.stored == "bf16":
        whole = {name: tensor.bfloat16() for name, tensor in whole.items()}
    made[WEIGHTS] = state.pack(whole)
    return made


def merged(recipe: Recipe, theta: State, start: State | None = None) -> State:
    """The whole model's tensors: theta, or W + (alpha / rank) B A for the adapted matrices of `start`, in float64."""
    if recipe.adapter is None:
        return theta
    if start is None:
        raise BadInput("start", "missing")
    whole, scale = dict(start), recipe.adapter.alpha / recipe.adapter.rank
    for name in recipe.adapter.adapted(recipe.family.shapes()):
        module = name.removesuffix(".weight")
        a, b = (theta[f"{module}.lora_{side}"].double() for side in "ab")
        whole[name] = (start[name].double() + scale * (b @ a)).float()
    return whole


def _llama(family: Decoder, stored: Literal["f32", "bf16"]) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(family.rope_theta)}
    if family.rope_scaling is not None:
        scaling = family.rope_scaling.model_dump()
        rope |= {"rope_type": "llama3", "original_max_position_embeddings": scaling.pop(_ORIGINAL)}
        rope |= {name: float(value) for name, value in scaling.items()}
    ends: Any = list(family.ends)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": family.vocabulary,
        "hidden_size": family.width,
        "intermediate_size": family.inner,
        "num_hidden_layers": family.layers,
        "num_attention_heads": family.heads,
        "num_key_value_heads": family.kv_heads,
        "head_dim": family.head_dim,
        "max_position_embeddings": family.positions,
        "rms_norm_eps": float(family.norm_eps),
        "rope_parameters": rope,
        "tie_word_embeddings": family.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "dtype": "float32" if stored == "f32" else "bfloat16",
    }


_ORIGINAL = "original_max_position_embeddings"


def _bert(family: Encoder) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": family.vocabulary,
        "hidden_size": family.width,
        "intermediate_size": family.inner,
        "num_hidden_layers": family.layers,
        "num_attention_heads": family.heads,
        "max_position_embeddings": family.positions,
        "type_vocab_size": family.types,
        "layer_norm_eps": float(family.norm_eps),
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "pad_token_id": family.pad,
        "dtype": "float32",
    }


def _opened(family: Decoder | Encoder, tensors: State, tokenizer: bytes) -> InitialModel:
    return InitialModel(family.model_copy(update={"start": starts.cited(tensors)}), tensors, tokenizer)


def _cited(data: bytes) -> BlobRef:
    return BlobRef(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
