"""The Llama family: LlamaForCausalLM as Hugging Face stores it (Llama 2 and 3, TinyLlama, SmolLM ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "LlamaForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    fields.only("mlp_bias", False)
    fields.only("rope_interleaved", False)
    biased = fields.flag("attention_bias", False)
    return sizes(fields, grouped=False) | {"attention_bias": biased, "output_bias": biased}
