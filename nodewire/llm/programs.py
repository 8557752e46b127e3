"""The programs of decoder tasks: what a driver or a stage needs to know besides its weights. NIPS.md, "Engines"."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadInput, BadTask
from nodewire.llm.config import DecoderConfig
from nodewire.llm.layers import layer_shapes
from nodewire.protocol.schema import Name, Schema

MAX_SLOTS = 4_096
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Dtype = Literal["float32", "bfloat16", "float16"]
Tokenizer = Annotated[str, Field(max_length=16_000_000)]

EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class _Program(Schema):
    MAX_BYTES: ClassVar[int] = 33_554_432
    ERROR: ClassVar[type[BadInput]] = BadTask

    v: Literal[1] = 1
    config: DecoderConfig
    stored: Dtype
    """The weights' dtype in their file."""
    compute: Dtype
    """What they are cast to when loaded, and the dtype of hidden states on edges."""
    slots: int = Field(ge=1, le=MAX_SLOTS)
    positions: int = Field(ge=1, le=16_777_216)
    """Most positions of one session."""


class StageProgram(_Program):
    """Layers `first` to `last` - 1 and their KV caches. With `tail`, only the last position's hidden state goes out."""

    TAG: ClassVar[str] = "nodewire/stage/1"

    engine: Literal["decoder.stage"] = "decoder.stage"
    first: int = Field(ge=0)
    last: int = Field(ge=1)
    tail: bool
    input: Name
    output: Name

    def model_post_init(self, context: object) -> None:
        if not self.first < self.last <= self.config.layers:
            raise ValueError("last: the layers are not a range of the model's")
        if self.positions > self.config.context:
            raise ValueError("positions: more than the model's context")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights' tensors and their shapes."""
        return {
            name: shape for i in range(self.first, self.last) for name, shape in layer_shapes(self.config, i).items()
        }

    def memory_bytes(self) -> int:
        """Predicted peak: weights, every slot's caches, rotary tables, the activations of one full prefill."""
        c, item = self.config, DTYPE_BYTES[self.compute]
        kv = 2 * c.kv_heads * c.head_dim * self.positions * item * (self.last - self.first)
        return weights_bytes(self.shapes(), item) + self.slots * kv + activation_bytes(c, self.positions, item)


class DriverProgram(_Program):
    """Tokenizer, embedding, final norm, head and sampling. `tokenizer` is tokenizer.json as text."""

    TAG: ClassVar[str] = "nodewire/driver/1"

    engine: Literal["decoder.driver"] = "decoder.driver"
    chunk: int = Field(ge=1, le=4_096)
    tokenizer: Tokenizer
    prompt: Name
    hidden: Name
    back: Name
    tokens: Name

    def shapes(self) -> dict[str, tuple[int, ...]]:
        c = self.config
        shapes: dict[str, tuple[int, ...]] = {EMBED: (c.vocab, c.hidden), NORM: (c.hidden,)}
        return shapes if c.tied else {**shapes, HEAD: (c.vocab, c.hidden)}

    def memory_bytes(self) -> int:
        item = DTYPE_BYTES[self.compute]
        logits = self.config.vocab * 4 * 4
        return weights_bytes(self.shapes(), item) + self.positions * self.config.hidden * item + logits


def weights_bytes(shapes: dict[str, tuple[int, ...]], item: int) -> int:
    total = 0
    for shape in shapes.values():
        count = item
        for n in shape:
            count *= n
        total += count
    return total


def activation_bytes(config: DecoderConfig, n: int, item: int) -> int:
    """Peak of one layer's activations over n positions: residual, norm, and the wider of attention and MLP."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim * n * item + n * n
    mlp = 3 * config.intermediate * n * item
    rotary = 2 * config.head_dim * n * item
    return 4 * config.hidden * n * item + max(attention, mlp) + rotary
