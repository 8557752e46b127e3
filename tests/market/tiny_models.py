"""The two models of the test market: a random Llama in a driver and three stages, a random BERT in a few tasks."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.kinds.llama import make_llama

LLAMA_TARGET = "1300000"
"""One layer and its caches fit a piece, two do not."""
BERT_TARGET = "100kB"
"""A driver and two graph tasks."""
CONTEXT = 400
TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "rain", "sun")


def make_decoder(folder: Path) -> Path:
    """Three layers and no end token, so that a generation is as long as its customer asks."""
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": "<s>"}))
    return make_llama(folder, max_position_embeddings=CONTEXT, seed=5, eos_token_id=None)


def make_encoder(folder: Path) -> Path:
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    folder.mkdir()
    config = BertConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
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
    vocabulary = {word: k for k, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
