"""A tiny random sentence encoder whose graph is cut into twelve tasks, made with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import torch

TASKS = 12
TARGET = "44kB"
LAYERS = 4
_WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "rain", "sun")
SENTENCES = (
    ("the cat sat on the mat", "a dog ran under the tree"),
    ("rain on the sun ran under", "the sun ran on a mat"),
    ("a mat under rain", "the dog sat on a cat"),
)
"""Calls of one form, so that one's answer can be given to another."""


def make(folder: Path) -> Path:
    """Weights, config.json and tokenizer.json of a BERT with `LAYERS` layers of width 32, in `folder`."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    folder.mkdir()
    config = BertConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
        pad_token_id=0,
    )
    torch.manual_seed(7)
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["BertModel"]}))
    # Over all rows, so that every piece of the embedding has some of them.
    vocabulary = {word: 26 * k for k, word in enumerate(["[PAD]", *_WORDS])}
    vocabulary |= {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
