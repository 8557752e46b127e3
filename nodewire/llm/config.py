"""What a decoder is, in numbers: every field bounded, since each of them decides how much memory is taken.

The fields keep the names that Hugging Face's config.json gives them. Real numbers travel as decimal strings, because
documents hold no floats. `nodewire.llm.families` reads a config.json into this form.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nodewire.errors import BadInput, BadTask
from nodewire.protocol.schema import Schema

MAX_LAYERS = 1_024
MAX_POSITIONS = 2**21


def real(value: float) -> str:
    """The shortest decimal string that reads back as `value`."""
    return repr(float(value))


def _is_real(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a decimal number") from None
    if real(value) != text or not (math.isfinite(value) and 1e-12 <= value <= 1e12):
        raise ValueError("not the shortest form of a number from 1e-12 to 1e12")
    return text


Real = Annotated[str, Field(max_length=32), AfterValidator(_is_real)]
TokenId = Annotated[int, Field(ge=0, lt=2**20)]


class RopeScaling(Schema):
    """Llama 3's stretching of long wavelengths, for contexts beyond the one trained first."""

    rope_type: Literal["llama3"]
    factor: Real
    low_freq_factor: Real
    high_freq_factor: Real
    original_max_position_embeddings: int = Field(ge=1, le=MAX_POSITIONS)

    @model_validator(mode="after")
    def _orders_its_factors(self) -> Self:
        if float(self.low_freq_factor) >= float(self.high_freq_factor):
            raise ValueError("low_freq_factor: not below high_freq_factor")
        return self


class DecoderConfig(Schema):
    """A decoder-only transformer with grouped attention, rotary positions and a gated MLP."""

    ERROR: ClassVar[type[BadInput]] = BadTask

    family: Literal["llama"]
    vocab_size: int = Field(ge=1, le=2**20)
    hidden_size: int = Field(ge=1, le=2**16)
    intermediate_size: int = Field(ge=1, le=2**18)
    num_hidden_layers: int = Field(ge=1, le=MAX_LAYERS)
    num_attention_heads: int = Field(ge=1, le=1_024)
    num_key_value_heads: int = Field(ge=1, le=1_024)
    head_dim: int = Field(ge=2, le=1_024, multiple_of=2)
    max_position_embeddings: int = Field(ge=1, le=MAX_POSITIONS)
    rms_norm_eps: Real
    rope_theta: Real
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool
    eos_token_id: tuple[TokenId, ...] = Field(default=(), max_length=32)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_key_value_heads: does not divide num_attention_heads")
        if self.num_attention_heads * self.head_dim > 2**17:
            raise ValueError("head_dim: the heads together are wider than 131072")
        if any(token >= self.vocab_size for token in self.eos_token_id):
            raise ValueError("eos_token_id: out of the vocabulary")
        return self

    @property
    def qkv_rows(self) -> int:
        """Rows of the query, key and value projections stacked."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
