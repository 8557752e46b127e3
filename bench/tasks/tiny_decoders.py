"""Tiny random models of every family, made with transformers, in the variants that differ in what is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_NULL = ("pad_token_id", "sliding_window")
"""What a model without it says; others that are None here are left out."""
WINDOW = 24
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
GEMMA = {"tie_word_embeddings": True, "query_pre_attn_scalar": 20, "sliding_window": WINDOW}
YARN = {"rope_type": "yarn", "rope_theta": 1_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}
OSS_ROPE = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "rope_theta": 150_000.0}
LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 10_000.0}

QUARTER = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
PLAIN_GPT2 = {"n_inner": 96, "head_dim": None, "num_key_value_heads": None, "intermediate_size": None}
FALCON = {"ffn_hidden_size": 96, "num_key_value_heads": None, "head_dim": None, "intermediate_size": None}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
DEEP_YARN = YARN | {"mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32.0, "beta_slow": 1.0}
PLAIN_BLOOM = {
    **dict.fromkeys(("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings")),
    "seq_length": 256,
    "tie_word_embeddings": True,
}
PLAIN_MPT = {
    **dict.fromkeys(("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings")),
    "max_seq_len": 256,
    "tie_word_embeddings": True,
}

FAMILIES: dict[str, tuple[str, dict]] = {
    "llama, biased, linear rope": ("Llama", {"attention_bias": True, "rope_parameters": LINEAR}),
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "llama, dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {}),
    "qwen3, biased, sliding": (
        "Qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "phi3, part turns": ("Phi3", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4}}),
    "phi3, longrope, short": (
        "Phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 256, "max_position_embeddings": 256},
    ),
    "phi3, longrope, long": ("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    "gemma": ("Gemma", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3", GEMMA | {"sliding_window_pattern": 2}),
    "gemma3, scaled": (
        "Gemma3",
        GEMMA
        | {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "mixtral, sliding": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}),
    "qwen2_moe": ("Qwen2Moe", MOE | {"shared_expert_intermediate_size": 80, "decoder_sparse_step": 2}),
    "qwen2_moe, normed, sliding": (
        "Qwen2Moe",
        MOE
        | {
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 3,
        },
    ),
    "qwen3_moe": ("Qwen3Moe", MOE | {"norm_topk_prob": True}),
    "qwen3_moe, sliding": ("Qwen3Moe", MOE | {"use_sliding_window": True, "sliding_window": WINDOW}),
    "gpt_oss": (
        "GptOss",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": WINDOW, "rope_parameters": OSS_ROPE},
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.7,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4},
        },
    ),
    "glm4_moe, one group": (
        "Glm4Moe",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "first_k_dense_replace": 2,
            "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4},
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 1, 0, 1], "tie_word_embeddings": True}),
    "smollm3, sliding": (
        "SmolLM3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 24},
    ),
    "olmo2": ("Olmo2", {"head_dim": None}),
    "olmo3": ("Olmo3", {"head_dim": None, "sliding_window": WINDOW}),
    "olmo3, scaled": (
        "Olmo3",
        {
            "head_dim": None,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": YARN | {"rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.09,
            "residual_multiplier": 0.22,
            "logits_scaling": 6.0,
            "mlp_bias": True,
            "attention_bias": True,
            "head_dim": None,
        },
    ),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "head_dim": None, "rope_parameters": QUARTER}),
    "stablelm, parallel, normed": (
        "StableLm",
        {"use_parallel_residual": True, "qk_layernorm": True, "head_dim": None, "rope_parameters": QUARTER},
    ),
    "starcoder2": ("Starcoder2", {"sliding_window": WINDOW}),
    "starcoder2, no biases": ("Starcoder2", {"use_bias": False, "sliding_window": None}),
    "cohere": ("Cohere", {"tie_word_embeddings": True, "logit_scale": 0.7, "head_dim": None}),
    "cohere, normed, biased": (
        "Cohere",
        {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.7, "head_dim": None},
    ),
    "cohere2": ("Cohere2", {"sliding_window": WINDOW, "logit_scale": 0.25}),
    "gpt_neox": ("GPTNeoX", {"rope_parameters": QUARTER, "num_key_value_heads": None, "head_dim": None}),
    "gpt_neox, in turn": (
        "GPTNeoX",
        {
            "use_parallel_residual": False,
            "hidden_act": "gelu_fast",
            "rope_parameters": QUARTER | {"partial_rotary_factor": 1.0},
            "num_key_value_heads": None,
            "head_dim": None,
        },
    ),
    "gpt2": ("GPT2", PLAIN_GPT2),
    "falcon, few keys": ("Falcon", FALCON),
    "falcon, in groups": ("Falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon, in groups, one norm": (
        "Falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon, in turn": ("Falcon", FALCON | {"parallel_attn": False, "multi_query": False}),
    "falcon, alibi": (
        "Falcon",
        FALCON | {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True, "num_attention_heads": 8},
    ),
    "falcon, alibi, few keys": ("Falcon", FALCON | {"alibi": True}),
    "deepseek_v2, lite": ("DeepseekV2", DEEPSEEK | {"q_lora_rank": None, "rope_parameters": DEEP_YARN}),
    "deepseek_v2": (
        "DeepseekV2",
        DEEPSEEK
        | {
            "q_lora_rank": 24,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "rope_parameters": DEEP_YARN | {"mscale": 1.0},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        DEEPSEEK
        | {
            "q_lora_rank": 24,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "rope_parameters": DEEP_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek_v3, one group, halves": (
        "DeepseekV3",
        DEEPSEEK
        | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_interleave": False, "first_k_dense_replace": 2},
    ),
    "bloom": ("Bloom", PLAIN_BLOOM),
    "mpt": ("Mpt", PLAIN_MPT),
    "mpt, bounded": ("Mpt", PLAIN_MPT | {"attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.2}}),
}
"""By what is particular: the class in transformers, and what its configuration says besides SIZES."""


_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 16,
    "image_size": 16,
    "patch_size": 4,
}
SEEING: dict[str, tuple[str, dict, dict]] = {
    "gemma3, seeing": (
        "Gemma3",
        GEMMA | {"model_type": "gemma3_text", "sliding_window_pattern": 2},
        {"vision_config": _VISION | {"model_type": "siglip_vision_model"}, "mm_tokens_per_image": 4},
    ),
    "mistral3, seeing": (
        "Mistral3",
        {"model_type": "mistral", "sliding_window": None},
        {"vision_config": _VISION | {"model_type": "pixtral"}, "tie_word_embeddings": False},
    ),
}
"""Models that also see: the class in transformers, what text_config says besides SIZES, and what stands beside it."""


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE: 256 bytes, one special token, and a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 4, "żółw 你好 你们 👋🏽 "], trainer)
    return tokenizer


def classes(stem: str) -> tuple[type, type]:
    config = getattr(transformers, "Gemma3TextConfig" if stem == "Gemma3" else f"{stem}Config")
    return config, getattr(transformers, "GPT2LMHeadModel" if stem == "GPT2" else f"{stem}ForCausalLM")


def make_family(folder: Path, name: str, dtype: torch.dtype = torch.float32, **changes) -> Path:
    """A random model of a family as a Hugging Face directory; what starts as zeros or ones is random too."""
    stem, particular = FAMILIES[name]
    torch.manual_seed(11)
    tokenizer = byte_tokenizer()
    config_class, model_class = classes(stem)
    said = SIZES | {"vocab_size": tokenizer.get_vocab_size()} | particular | changes
    config = config_class(**{name: value for name, value in said.items() if value is not None or name in _NULL})
    return _saved(folder, stem, model_class, config, tokenizer, dtype)


def make_seeing(folder: Path, name: str) -> Path:
    """As `make_family`, of SEEING."""
    stem, particular, beside = SEEING[name]
    torch.manual_seed(11)
    tokenizer = byte_tokenizer()
    said = SIZES | {"vocab_size": tokenizer.get_vocab_size()} | particular
    ids = {"image_token_index": 299} | {f"{which}_token_index": 298 for which in ("boi", "eoi") if stem == "Gemma3"}
    config = getattr(transformers, f"{stem}Config")(text_config=said, **beside, **ids)
    config.text_config.initializer_range = 0.2
    return _saved(folder, stem, seeing_class(name), config, tokenizer, torch.float32)


def seeing_class(name: str) -> type:
    return getattr(transformers, f"{SEEING[name][0]}ForConditionalGeneration")


def _saved(folder: Path, stem: str, model_class: type, config: Any, tokenizer: Tokenizer, dtype: torch.dtype) -> Path:
    config.initializer_range = 0.2
    model = model_class(config)
    with torch.no_grad():
        for tensor_name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "embeddings_layernorm" in tensor_name:
                tensor.add_(torch.randn_like(tensor) * 0.3).mul_(0.06)  # small, too, beside what the layers add
            elif "norm" in tensor_name or ".ln_" in tensor_name or "bias" in tensor_name or "sinks" in tensor_name:
                tensor.add_(torch.randn_like(tensor) * 0.3)
            elif ("embed_tokens" in tensor_name and "Gemma" in stem) or ".wte." in tensor_name:
                tensor.mul_(0.06)  # small beside what the layers add, or a tied head repeats its input
    model.to(dtype).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
