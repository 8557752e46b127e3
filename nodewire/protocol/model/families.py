"""What can be trained: the model families, each with the names and shapes of its tensors and what a sample costs.

Pure: a customer quotes, a provider refuses and a validator checks a result by these numbers, without torch. The
names of a decoder's tensors are those of `transformers`' LlamaForCausalLM, an encoder's those of BertModel.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from nodewire.protocol.encoding.schema import Schema
from nodewire.protocol.encoding.validation_errors import shaped
from nodewire.protocol.model.manifest import BlobRef

Shapes = dict[str, tuple[int, ...]]
"""Names and shapes in the family's order, which is that of every State."""

MAX_LAYERS = 256
HEADER_BYTES = 512
"""Of a safetensors header, at most: for each tensor, its name included, and once for what surrounds them."""
MAX_LARGEST = 1e12
READING_TOML = {"numbers": True}
"""The validation context in which bare numbers are taken for Real fields."""


def real(value: float) -> str:
    """The shortest decimal string that reads back as `value`: how a document holds a real number."""
    return repr(float(value))


def _from_number(value: object, info: ValidationInfo) -> object:
    if info.context is READING_TOML and isinstance(value, int | float) and not isinstance(value, bool):
        return real(value) if abs(value) <= MAX_LARGEST else "too large"
    return value


def _is_real(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a decimal number") from None
    if real(value) != text or not abs(value) <= MAX_LARGEST:
        raise ValueError("not the shortest form of a finite number up to 1e12")
    return text


Real = Annotated[str, Field(max_length=32), BeforeValidator(_from_number), AfterValidator(_is_real)]
"""A real number as a string: documents hold no floats."""


def between(least: float, most: float, *, open_below: bool = False) -> AfterValidator:
    """A bound of a Real field; without `least` itself if `open_below`.

    It stands in an annotation: `Annotated[Real, between(0, 1)]`.
    """

    def check(text: str) -> str:
        value = float(text)
        if not least <= value <= most or (open_below and value == least):
            raise ValueError(
                f"not {'above' if open_below else 'from'} {real(least)} {'up ' * open_below}to {real(most)}"
            )
        return text

    return AfterValidator(check)


Size = Annotated[int, Field(ge=1, le=2**20)]
Activation = Literal["relu", "gelu", "tanh"]


class Linear(Schema):
    """y = W x + b. Tensors: weight [classes, inputs], bias [classes]."""

    name: Literal["linear"]
    inputs: Size
    classes: Size

    def shapes(self) -> Shapes:
        return {"weight": (self.classes, self.inputs), "bias": (self.classes,)}

    def flops_per_sample(self, window: int) -> int:
        """Forward, 2 per weight."""
        return 2 * self.inputs * self.classes

    def activations_per_sample(self, window: int) -> int:
        """Numbers kept for the backward pass: inputs, outputs and their softmax."""
        return self.inputs + 3 * self.classes


class Mlp(Schema):
    """Linear layers with an activation between: layers.N.weight [out, in], layers.N.bias [out]."""

    name: Literal["mlp"]
    inputs: Size
    hidden: tuple[Size, ...] = Field(min_length=1, max_length=64)
    classes: Size
    activation: Activation = "relu"

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.inputs, *self.hidden, self.classes)

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for i, (wide, out) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            shapes[f"layers.{i}.weight"] = (out, wide)
            shapes[f"layers.{i}.bias"] = (out,)
        return shapes

    def flops_per_sample(self, window: int) -> int:
        """Forward, 2 per weight."""
        return sum(2 * a * b for a, b in zip(self.widths, self.widths[1:], strict=False))

    def activations_per_sample(self, window: int) -> int:
        """Numbers kept for the backward pass: each layer's input, before and after its activation."""
        return self.inputs + 2 * sum(self.hidden) + 3 * self.classes


class Cnn(Schema):
    """Same-padded convolutions with ReLU, each followed by 2x2 max pooling if `pool`, then one linear layer.

    Tensors: convolutions.N.weight [filters, channels, kernel, kernel], convolutions.N.bias, head.weight, head.bias.
    Samples are [channels * height * width] in that order.
    """

    name: Literal["cnn"]
    channels: int = Field(ge=1, le=1_024)
    height: int = Field(ge=1, le=4_096)
    width: int = Field(ge=1, le=4_096)
    filters: tuple[Annotated[int, Field(ge=1, le=4_096)], ...] = Field(min_length=1, max_length=32)
    kernel: Literal[1, 3, 5, 7] = 3
    pool: bool = False
    classes: Size

    @model_validator(mode="after")
    def _is_not_pooled_away(self) -> Self:
        if self.pool and min(self.height, self.width) < 2 ** len(self.filters):
            raise ValueError("pool: halves the image to nothing")
        return self

    @property
    def inputs(self) -> int:
        return self.channels * self.height * self.width

    def _sizes(self) -> list[tuple[int, int, int]]:
        """(channels in, filters, pixels) of every convolution, and last what the head gets."""
        channels, height, width = self.channels, self.height, self.width
        sizes = []
        for filters in self.filters:
            sizes.append((channels, filters, height * width))
            channels = filters
            if self.pool:
                height, width = height // 2, width // 2
        return [*sizes, (channels, self.classes, height * width)]

    def shapes(self) -> Shapes:
        *convolutions, (channels, classes, pixels) = self._sizes()
        shapes: Shapes = {}
        for i, (wide, filters, _) in enumerate(convolutions):
            shapes[f"convolutions.{i}.weight"] = (filters, wide, self.kernel, self.kernel)
            shapes[f"convolutions.{i}.bias"] = (filters,)
        return shapes | {"head.weight": (classes, channels * pixels), "head.bias": (classes,)}

    def flops_per_sample(self, window: int) -> int:
        """Forward, 2 per weight and pixel."""
        *convolutions, (channels, classes, pixels) = self._sizes()
        head = 2 * channels * pixels * classes
        return head + sum(2 * wide * filters * self.kernel**2 * area for wide, filters, area in convolutions)

    def activations_per_sample(self, window: int) -> int:
        """Numbers kept for the backward pass: before and after each activation, and pooling's places (as two)."""
        *convolutions, (channels, classes, pixels) = self._sizes()
        kept = sum((4 if self.pool else 2) * filters * area for _, filters, area in convolutions)
        return self.inputs + kept + channels * pixels + 3 * classes


class RopeScaling(Schema):
    """Llama 3's stretching of long wavelengths."""

    factor: Annotated[Real, between(1e-6, 1e6)]
    low_freq_factor: Annotated[Real, between(1e-6, 1e6)]
    high_freq_factor: Annotated[Real, between(1e-6, 1e6)]
    original_max_position_embeddings: int = Field(ge=1, le=2**21)

    @model_validator(mode="after")
    def _orders_its_factors(self) -> Self:
        if float(self.low_freq_factor) >= float(self.high_freq_factor):
            raise ValueError("low_freq_factor: not below high_freq_factor")
        return self


class Decoder(Schema):
    """A decoder in Llama's layout: RMSNorm, rotary positions, grouped attention, gated MLP.

    `tokens` "byte": an id is a byte (and no tokenizer is needed). `start` is a safetensors file with all tensors of
    these shapes to start from, in place of `initial` random ones.
    """

    name: Literal["decoder"]
    tokens: Literal["byte", "bpe"]
    vocabulary: int = Field(default=256, ge=2, le=2**20)
    width: int = Field(ge=2, le=2**16)
    inner: int = Field(ge=1, le=2**18)
    layers: int = Field(ge=1, le=MAX_LAYERS)
    heads: int = Field(ge=1, le=1_024)
    kv_heads: int = Field(ge=1, le=1_024)
    head_dim: int = Field(ge=2, le=1_024, multiple_of=2)
    positions: int = Field(ge=2, le=2**20)
    norm_eps: Annotated[Real, between(1e-12, 1)] = "1e-05"
    rope_theta: Annotated[Real, between(1e-6, 1e12)] = "10000.0"
    rope_scaling: RopeScaling | None = None
    tied: bool = True
    ends: tuple[Annotated[int, Field(ge=0, lt=2**20)], ...] = Field(default=(), max_length=32)
    """Token ids that end a generation."""
    start: BlobRef | None = None
    tokenizer: BlobRef | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError("kv_heads: does not divide heads")
        if self.heads * self.head_dim > 2**17:
            raise ValueError("head_dim: the heads together are wider than 131072")
        if any(token >= self.vocabulary for token in self.ends):
            raise ValueError("ends: out of the vocabulary")
        if self.tokens == "byte" and (self.vocabulary < 256 or self.tokenizer is not None):
            raise ValueError("vocabulary: a byte decoder has at least 256 ids and no tokenizer")
        if self.tokens == "bpe" and self.tokenizer is None:
            raise ValueError("tokenizer: missing")
        return self

    def shapes(self) -> Shapes:
        width, inner = self.width, self.inner
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: Shapes = {"model.embed_tokens.weight": (self.vocabulary, width)}
        for i in range(self.layers):
            at = f"model.layers.{i}"
            shapes |= {
                f"{at}.self_attn.q_proj.weight": (queries, width),
                f"{at}.self_attn.k_proj.weight": (keys, width),
                f"{at}.self_attn.v_proj.weight": (keys, width),
                f"{at}.self_attn.o_proj.weight": (width, queries),
                f"{at}.mlp.gate_proj.weight": (inner, width),
                f"{at}.mlp.up_proj.weight": (inner, width),
                f"{at}.mlp.down_proj.weight": (width, inner),
                f"{at}.input_layernorm.weight": (width,),
                f"{at}.post_attention_layernorm.weight": (width,),
            }
        shapes["model.norm.weight"] = (width,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, width)
        return shapes

    def flops_per_sample(self, window: int) -> int:
        """Forward over a window of T positions: T x (2 per matrix weight, head included, + 2 T heads head_dim layers).

        The last term is causal attention: queries x keys and weights x values over half of the T x T pairs.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.width * (2 * queries + 2 * keys + 3 * self.inner)
        matrices = self.layers * layer + self.vocabulary * self.width
        return window * (2 * matrices + 2 * self.layers * queries * window)

    def activations_per_sample(self, window: int) -> int:
        """Numbers kept for the backward pass over a window: a layer's 8 widths, 6 queries and keys, 5 inners; logits.

        Logits count three times: themselves, their log-softmax and its gradient.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = 8 * self.width + 6 * queries + 6 * keys + 5 * self.inner + self.heads
        return window * (self.layers * layer + 4 * self.width + 3 * self.vocabulary)


class Encoder(Schema):
    """A sentence encoder in BERT's layout (MiniLM): mean over the tokens of the last layer, normalized.

    Fine-tuned on pairs of texts that belong together, against the other texts of the batch. `start` is a safetensors
    file with all tensors of these shapes; `tokenizer` its tokenizer.json.
    """

    name: Literal["encoder"]
    vocabulary: int = Field(ge=2, le=2**20)
    width: int = Field(ge=2, le=2**14)
    inner: int = Field(ge=1, le=2**16)
    layers: int = Field(ge=1, le=MAX_LAYERS)
    heads: int = Field(ge=1, le=1_024)
    positions: int = Field(ge=2, le=8_192)
    types: int = Field(default=2, ge=1, le=16)
    norm_eps: Annotated[Real, between(1e-15, 1)] = "1e-12"
    pad: int = Field(default=0, ge=0, lt=2**20)
    temperature: Annotated[Real, between(1e-4, 100)] = "0.05"
    start: BlobRef | None = None
    tokenizer: BlobRef

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.width % self.heads:
            raise ValueError("heads: do not divide width")
        if self.pad >= self.vocabulary:
            raise ValueError("pad: out of the vocabulary")
        return self

    def shapes(self) -> Shapes:
        width, inner = self.width, self.inner
        shapes: Shapes = {
            "embeddings.word_embeddings.weight": (self.vocabulary, width),
            "embeddings.position_embeddings.weight": (self.positions, width),
            "embeddings.token_type_embeddings.weight": (self.types, width),
            "embeddings.LayerNorm.weight": (width,),
            "embeddings.LayerNorm.bias": (width,),
        }
        for i in range(self.layers):
            at = f"encoder.layer.{i}"
            for name, out, wide in (
                ("attention.self.query", width, width),
                ("attention.self.key", width, width),
                ("attention.self.value", width, width),
                ("attention.output.dense", width, width),
                ("attention.output.LayerNorm", width, 0),
                ("intermediate.dense", inner, width),
                ("output.dense", width, inner),
                ("output.LayerNorm", width, 0),
            ):
                shapes[f"{at}.{name}.weight"] = (out, wide) if wide else (out,)
                shapes[f"{at}.{name}.bias"] = (out,)
        return shapes

    def flops_per_sample(self, window: int) -> int:
        """Forward over a pair of texts of T tokens: 2 T x (2 per matrix weight + 4 T width layers)."""
        matrices = self.layers * self.width * (4 * self.width + 2 * self.inner)
        return 2 * window * (2 * matrices + 4 * self.layers * self.width * window)

    def activations_per_sample(self, window: int) -> int:
        """Numbers kept for the backward pass over a pair: a layer's 12 widths, 3 inners and a row of every head."""
        layer = 12 * self.width + 3 * self.inner + self.heads * window
        return 2 * window * (self.layers * layer + 6 * self.width)


Family = Annotated[Linear | Mlp | Cnn | Decoder | Encoder, Field(discriminator="name")]


_LastName = Annotated[str, shaped(r"^[a-z0-9_]{1,32}$", "a module's last name: 1 to 32 of a-z, 0-9 and _")]


class Lora(Schema):
    """Low-rank adapters beside frozen matrices: W x + (alpha / rank) B A x.

    `targets` are the last names of the modules, such as q_proj or query. Tensors: MODULE.lora_a [rank, in] and
    MODULE.lora_b [out, rank], in the modules' order. They are all that is trained.
    """

    rank: int = Field(ge=1, le=1_024)
    alpha: int = Field(ge=1, le=65_536)
    targets: tuple[_LastName, ...] = Field(min_length=1, max_length=16)

    def adapted(self, whole: Shapes) -> Shapes:
        """The matrices of `whole` that get an adapter."""
        found: Shapes = {}
        for name, shape in whole.items():
            module, _, kind = name.rpartition(".")
            if kind == "weight" and len(shape) == 2 and module.rpartition(".")[2] in self.targets:
                found[name] = shape
        return found

    def shapes(self, whole: Shapes) -> Shapes:
        """What is trained beside the frozen tensors `whole`."""
        shapes: Shapes = {}
        for name, (out, wide) in self.adapted(whole).items():
            module = name.removesuffix(".weight")
            shapes[f"{module}.lora_a"] = (self.rank, wide)
            shapes[f"{module}.lora_b"] = (out, self.rank)
        return shapes


def count(shapes: Shapes) -> int:
    """How many numbers tensors of these shapes hold."""
    return sum(math.prod(shape) for shape in shapes.values())
