"""A tiny random Llama in a folder, made with transformers."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


def make_llama(folder: Path, *, dtype=torch.float32, seed=0, **changes) -> Path:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 160,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 299,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).to(dtype)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["the cat sat on the mat " * 20], trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))
