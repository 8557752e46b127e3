"""A tiny random Llama in a folder, made with transformers; its actors, loaded."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from nodewire.kind import Limits
from nodewire.llm import entry

torch.set_num_threads(1)
ROOM = Limits(memory_bytes=50_000_000)


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


def load(registration) -> dict:
    """Every task's actor, in this process."""
    files = registration.blobs
    return {
        task.name: entry.load(
            task.engine, files[task.program.sha256].read_bytes(), [files[w.sha256] for w in task.weights], ROOM
        )
        for task in registration.manifest.tasks
    }
