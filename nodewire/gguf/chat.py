"""The chat template in a GGUF file, and the texts of the special tokens that it may write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadTask

if TYPE_CHECKING:
    from nodewire.gguf.model import Model

TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""By the names that templates have for them, those of the file."""


def chat_of(model: Model) -> tuple[str, dict[str, str]]:
    """The template, empty if there is none, and the tokens by their names in it. Raises BadTask."""
    texts, tokens = model.texts("tokenizer.ggml.tokens"), {}
    for name, key in TOKENS.items():
        found = model.read_value(f"tokenizer.ggml.{key}_token_id", int, -1)
        if found >= len(texts):
            raise BadTask(f"gguf.tokenizer.ggml.{key}_token_id", f"{found} is none of {len(texts)} tokens")
        if found >= 0:
            tokens[name] = texts[found]
    return model.read_value("tokenizer.chat_template", str, ""), tokens
