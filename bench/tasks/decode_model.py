"""The decoder of `bench.decode`: a Llama of 8 layers, 512 wide, random weights, a tokenizer of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 512
WIDTH, INNER = 2_048, 5_632
LAYER_WEIGHTS = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER


def write_model(folder: Path, layers: int = 8) -> None:
    """As a Hugging Face directory, float32."""
    numbers = {
        "vocab_size": VOCABULARY,
        "hidden_size": 512,
        "intermediate_size": 1_536,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    }
    write_llama(folder, numbers, torch.float32)


def write_llama(folder: Path, numbers: Mapping[str, Any], dtype: torch.dtype) -> None:
    """A random one of a config.json's `numbers`, as a Hugging Face directory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        max_position_embeddings=2_048, bos_token_id=None, eos_token_id=None, pad_token_id=None, **numbers
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    _write_tokenizer(folder)


def write_large(folder: Path, layers: int) -> None:
    """The same 2048 wide, bfloat16, of 51 million weights a layer."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    shapes = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH)}
    shapes |= {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "kv"}
    shapes |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
    tensors = {"model.norm.weight": torch.ones(WIDTH, dtype=torch.bfloat16)}
    for name in ("model.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = torch.randn(VOCABULARY, WIDTH).mul_(0.02).bfloat16()
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(WIDTH, dtype=torch.bfloat16)
        for name, shape in shapes.items():
            tensors[f"{at}.{name}.weight"] = torch.randn(shape).mul_(0.02).bfloat16()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 2_048,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    """One token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
