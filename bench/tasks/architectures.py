"""Small models of every architecture family that registers, with random weights, as the directories that people have.

Each is wide and deep enough to be cut several times: two layers of width 64.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nodewire.errors import OverMemory
from nodewire.graph.families import encoder_directory
from nodewire.graph.families.builder import build
from nodewire.graph.families.inputs import IMAGES, SEQUENCE, TARGET, Largest
from nodewire.graph.registration.directory_splitter import compared, parts_of, trace_built
from nodewire.graph.registration.register import TaskOptions, split, volume
from nodewire.graph.trace.examples import BATCH, Signature
from nodewire.graph.trace.reader import TracedModel
from nodewire.kind import Registration
from nodewire.weights.directory import stored_tensors

VOCABULARY = 320
_POSITIONS = 64
_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": _POSITIONS,
    "pad_token_id": 0,
}
_DECODER = {**_BERT, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "architectures": ["BertModel"], **_BERT},
    "roberta": {"model_type": "roberta", "architectures": ["RobertaModel"], **_BERT, "max_position_embeddings": 65},
    "clip": {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": 32,
        "text_config": {**_BERT, "eos_token_id": 2},
        "vision_config": _VISION,
    },
    "vit": {"model_type": "vit", "architectures": ["ViTModel"], **_VISION},
    "resnet": {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "embedding_size": 16,
        "hidden_sizes": [16, 32],
        "depths": [1, 2],
        "layer_type": "basic",
        "image_size": 64,
        "num_labels": 10,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": VOCABULARY,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "n_positions": _POSITIONS,
        "decoder_start_token_id": 0,
    },
    "whisper": {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": VOCABULARY,
        "num_mel_bins": 20,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "max_source_positions": 32,
        "max_target_positions": _POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_DECODER},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **_DECODER, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **_DECODER, "head_dim": 16},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **_DECODER},
    "phi3": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **_DECODER},
    "gemma": {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], **_DECODER, "head_dim": 16},
    "gemma2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        **_DECODER,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
    },
    "mixtral": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **_DECODER, "num_local_experts": 4},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        **_DECODER,
        **_EXPERTS,
        "shared_expert_intermediate_size": 64,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCABULARY,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": _POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "cohere2": {"model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], **_DECODER, "sliding_window": 8},
    "mpnet": {
        "model_type": "mpnet",
        "architectures": ["MPNetModel"],
        **_BERT,
        "max_position_embeddings": 66,
        "pad_token_id": 1,
    },
    "modernbert": {"model_type": "modernbert", "architectures": ["ModernBertModel"], **_BERT, "local_attention": 8},
    "nomic_bert": {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], **_BERT},
    "siglip_vision": {"model_type": "siglip_vision_model", "architectures": ["SiglipVisionModel"], **_VISION},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **_DECODER,
        **_EXPERTS,
        "head_dim": 16,
    },
    "swin": {
        "model_type": "swin",
        "architectures": ["SwinForImageClassification"],
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "num_labels": 10,
    },
    "swinv2": {
        "model_type": "swinv2",
        "architectures": ["Swinv2Model"],
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    },
    "segformer": {
        "model_type": "segformer",
        "architectures": ["SegformerForSemanticSegmentation"],
        "image_size": 64,
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "sr_ratios": [2, 1],
        "hidden_sizes": [16, 32],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 32,
        "num_labels": 5,
    },
    "deberta-v2": {
        "model_type": "deberta-v2",
        "architectures": ["DebertaV2ForSequenceClassification"],
        **_BERT,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "type_vocab_size": 0,
        "num_labels": 3,
    },
    "siglip": {
        "model_type": "siglip",
        "architectures": ["SiglipModel"],
        "text_config": {**_BERT, "projection_size": 64},
        "vision_config": _VISION,
    },
    "dpt": {
        "model_type": "dpt",
        "architectures": ["DPTForDepthEstimation"],
        **_VISION,
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [8, 16, 32, 32],
        "fusion_hidden_size": 16,
        "is_hybrid": False,
    },
}
"""config.json by family."""
APPROXIMATE = {"t5", "mixtral", "qwen2_moe", "qwen3_moe", "siglip_vision", "siglip"}
"""Where the order of additions is not the eager model's; equal up to rounding."""


def make(name: str, folder: Path) -> torch.nn.Module:
    """Save a model of a family with random weights in `folder`; the model itself, as its authors run it."""
    import transformers

    torch.manual_seed(7)
    settings = transformers.AutoConfig.for_model(**CONFIGS[name])
    cls = getattr(transformers, CONFIGS[name]["architectures"][0])
    model: Any = cls._from_config(settings, **({"attn_implementation": "eager"} if name == "gemma2" else {}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)  # far from what an initialization makes alike, such as norms of 1
    model.eval()
    model.save_pretrained(folder)
    # As the test's configuration says it, not as the class was: its own defaults are dropped by some, added by others.
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return model


@dataclass(frozen=True, slots=True)
class Cut:
    """A directory's model as tasks: how it is called, its whole program, the registration, seconds that it took,
    and how its tasks compare with the module itself."""

    called: Signature
    traced: TracedModel
    made: Registration
    export_s: float
    split_s: float
    compared: str


def cut(folder: Path, out: Path, largest: Largest, *, parts: int = 3) -> Cut:
    """Registered for calls up to `largest`, under a target of its weights' bytes over `parts`, or the next larger."""
    built = build(encoder_directory.config_of(folder), largest)
    called = replace(built.called, least=volume(built.called))
    began = time.monotonic()
    traced = trace_built(built)
    exported = time.monotonic()
    weights = parts_of(built, traced, stored_tensors(folder))
    target = sum(w.nbytes for w in traced.program.weights) // parts
    while True:
        try:
            made = split(traced, called, weights, target, out, name=folder.name, options=TaskOptions(slots=1))
            taken = time.monotonic() - exported
            return Cut(called, traced, made, exported - began, taken, compared(made, built, traced, weights))
        except OverMemory:
            target += target // 4


def sizes(called: Signature, batch: int, length: int) -> dict[str, int]:
    """A size for each dim, all different where the model has them apart."""
    named = {BATCH: batch, SEQUENCE: length, TARGET: length - 3, IMAGES: batch + 1}
    return {dim: named[dim] for dim in called.dims}


def inputs(called: Signature, at: Mapping[str, int], vocabulary: int, seed: int = 1) -> dict[str, torch.Tensor]:
    """Random inputs of these sizes: ids, a mask whose first row is full and the others shorter, normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for declared in called.inputs:
        shape = [at[d] if isinstance(d, str) else d for d in declared.shape]
        if declared.name == "attention_mask":
            mask = torch.ones(shape, dtype=torch.int64)
            for row in range(1, shape[0]):
                mask[row, shape[1] - row % shape[1] :] = 0
            found[declared.name] = mask
        elif declared.name == "token_type_ids":
            found[declared.name] = torch.randint(0, 2, shape, generator=generator)
        elif declared.dtype == torch.int64:
            found[declared.name] = torch.randint(3, vocabulary, shape, generator=generator)
        else:
            found[declared.name] = torch.randn(shape, generator=generator)
    return found
