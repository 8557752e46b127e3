"""What a decoder is, in numbers: every field bounded, since each of them decides how much memory is taken.

The fields keep the names that Hugging Face's config.json gives them where it has one. Real numbers travel as decimal
strings, because documents hold no floats. `nodewire.llm.families` reads a config.json into this form; every default is
what a Llama has, so that a family says only what it does otherwise.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadInput, BadTask
from nodewire.protocol.encoding.schema import Schema
from nodewire.protocol.encoding.validation_errors import shaped
from nodewire.protocol.model.families import real

MAX_LAYERS = 1_024
MAX_POSITIONS = 2**21


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
Width = Annotated[int, Field(ge=1, le=2**18)]
Positions = Annotated[int, Field(ge=1, le=MAX_POSITIONS)]
LayerKind = Literal["full_attention", "sliding_attention"]
Activation = Literal["silu", "gelu", "gelu_pytorch_tanh", "clamped_swiglu"]
"""Of the gate. `clamped_swiglu` is gpt-oss's: gate and up alternate, both are clamped, up gains one."""


class Linear(Schema):
    """All positions closer together by `factor`."""

    rope_type: Literal["linear"]
    factor: Real


class Llama3(Schema):
    """Llama 3's stretching of long wavelengths, for contexts beyond the one trained first."""

    rope_type: Literal["llama3"]
    factor: Real
    low_freq_factor: Real
    high_freq_factor: Real
    original_max_position_embeddings: Positions

    @model_validator(mode="after")
    def _orders_its_factors(self) -> Self:
        if float(self.low_freq_factor) >= float(self.high_freq_factor):
            raise ValueError("low_freq_factor: not below high_freq_factor")
        return self


class Yarn(Schema):
    """YaRN, https://arxiv.org/abs/2309.00071: wavelengths slowed by how often they turn in the first context."""

    rope_type: Literal["yarn"]
    factor: Real
    beta_fast: Real
    beta_slow: Real
    truncate: bool
    """Whether the range between the two betas is widened to whole dimensions."""
    attention_factor: Real
    original_max_position_embeddings: Positions


class LongRope(Schema):
    """LongRoPE, https://arxiv.org/abs/2402.13753: a factor for each wavelength.

    A session that is opened for positions beyond the first context uses the long factors for all of them, any other the
    short ones: keys that are cached cannot change their angles in mid-session. So does transformers as long as a text
    stays within that context; its `generate` reads all of it again with the long ones at the first position beyond.
    """

    rope_type: Literal["longrope"]
    short_factor: tuple[Real, ...] = Field(min_length=1, max_length=512)
    long_factor: tuple[Real, ...] = Field(min_length=1, max_length=512)
    attention_factor: Real
    original_max_position_embeddings: Positions


RopeScaling = Annotated[Linear | Llama3 | Yarn | LongRope, Field(discriminator="rope_type")]


class Experts(Schema):
    """A mixture in the MLP's place: a router sends each position to a few experts, whose weighted outputs are added."""

    num_experts: int = Field(ge=1, le=1_024)
    num_experts_per_tok: int = Field(ge=1, le=64)
    moe_intermediate_size: Width
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """`sigmoid` chooses by scores plus a correction that is stored, and weighs without it (DeepSeek-V3, GLM-4)."""
    norm_topk_prob: bool = False
    """Whether the chosen experts' weights add up to one."""
    routed_scaling_factor: Real = "1.0"
    n_group: int = Field(default=1, ge=1, le=64)
    """Groups of experts, of which the best `topk_group` take part: by their best score, of sigmoids by the sum of
    their two best."""
    topk_group: int = Field(default=1, ge=1, le=64)
    shared_intermediate_size: int = Field(default=0, ge=0, le=2**18)
    """Width of the MLP that all positions go through beside their experts; 0 for none."""
    shared_gate: bool = False
    """Whether the shared MLP is weighed by a sigmoid of its own."""
    bias: bool = False
    """Of the router and of all the experts' projections."""
    stored: Literal["each", "stacked", "mxfp4"] = "each"
    """How the checkpoint holds them: tensors of each expert, one [experts, in, out], or that in blocks of MXFP4."""
    mlp_only_layers: tuple[Annotated[int, Field(ge=0, lt=MAX_LAYERS)], ...] = Field(default=(), max_length=MAX_LAYERS)
    """Layers that have a plain MLP after all."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError("num_experts_per_tok: more than num_experts")
        if self.num_experts % self.n_group:
            raise ValueError("n_group: does not divide num_experts")
        if (
            self.topk_group > self.n_group
            or self.num_experts_per_tok > self.num_experts // self.n_group * self.topk_group
        ):
            raise ValueError("topk_group: more than there are, or too few for num_experts_per_tok")
        if self.n_group > 1 and self.scoring == "sigmoid" and self.num_experts // self.n_group < 2:
            raise ValueError("n_group: of sigmoid scores each has two experts or more")
        if self.shared_gate and not self.shared_intermediate_size:
            raise ValueError("shared_gate: without a shared MLP")
        return self


class Latent(Schema):
    """Multi-head latent attention, https://arxiv.org/abs/2405.04434.

    A position keeps a key that turns and a latent of `kv_lora_rank` numbers, which all heads share. Keys that do not
    turn and values are each head's products of it.
    """

    q_lora_rank: Width | None
    """Width of the queries' own latent, if they have one."""
    kv_lora_rank: Width
    qk_nope_head_dim: int = Field(ge=1, le=1_024)
    qk_rope_head_dim: int = Field(ge=2, le=1_024, multiple_of=2)
    v_head_dim: int = Field(ge=1, le=1_024)
    interleaved: bool = True
    """Whether the checkpoint has the two dimensions that turn together beside each other."""


class Alibi(Schema):
    """ALiBi, https://arxiv.org/abs/2108.12409: scores fall with the distance, in each head by a slope of its own."""

    bias_max: Real = "8.0"
    """The least slope is two to its negative."""
    rounded: bool = False
    """Whether slopes, and their products with positions, are rounded to bfloat16 and scaled as scores are (Falcon)."""


Scheme = Literal["int8", "int4", "w8a8", "w4a8", "nvfp4"]
ROUNDING = frozenset(("w8a8", "w4a8"))
"""Schemes in which what a matrix is multiplied with is rounded to 8 bits."""
QUANTIZED = frozenset(
    ("qkv", "q_b", "o", "gate_up", "down", "experts_gate_up", "experts_down", "shared_gate_up", "shared_down")
)
"""The parameters (nodewire.llm.spec.parameters) that are stored in blocks where a model is quantized."""


PlainName = Annotated[str, shaped(r"^([0-9]{1,4}\.)?[a-z_]{1,32}$", "a parameter's name, a layer's number before it")]


class Blocks(NamedTuple):
    """Numbers of a row, `size` of them to a scale."""

    scheme: Scheme
    size: int

    @property
    def bits(self) -> int:
        return 8 if self.scheme in ("int8", "w8a8") else 4

    @property
    def rounds_inputs(self) -> bool:
        """Whether what a matrix is multiplied with is rounded to 8 bits first."""
        return self.scheme in ROUNDING


class Quantization(Schema):
    """How layers' matrices are stored: in blocks of numbers of a row that share a scale.

    `int8` and `int4` are whole numbers of so many bits. `w8a8` and `w4a8` are those of 8 and 4, and what a matrix is
    multiplied with is rounded to 8 bits, block by block, as it comes. `nvfp4` are numbers of
    E2M1 under scales of E4M3 and one float32.
    """

    scheme: Scheme
    group_size: int = Field(ge=0, le=2**18, multiple_of=8)
    """Numbers to a block; 0: a row is one."""
    back_off: int = Field(default=0, ge=0, le=2**18, multiple_of=8)
    """The same in rows that `group_size` does not divide; 0: they are stored as they are. As are those that neither
    divides."""
    plain: tuple[PlainName, ...] = Field(default=(), max_length=8 * MAX_LAYERS)
    """Parameters that are stored as they are: `o` in every layer, `3.o` in one."""

    def size(self, width: int) -> int:
        """Of the blocks in rows of `width`; 0 if there are none."""
        if not self.group_size:
            return 0 if width % 8 else width
        return next((size for size in (self.group_size, self.back_off) if size and width % size == 0), 0)


REORDERED = frozenset(("meta", "cohere", "cohere2", "falcon", "gpt2", "gpt_neox", "bloom"))
"""Families whose checkpoints hold a layer's rows in another order than they are kept."""
LATER = (
    "quantization",
    "norm",
    "norm_bias",
    "pre_norms",
    "qk_norm_of",
    "gated",
    "mlp_bias",
    "parallel",
    "nope_layers",
    "learned_positions",
    "residual_multiplier",
    "logit_scale",
    "latent",
    "alibi",
    "embedding_norm",
    "clip_qkv",
)
"""Fields that documents lack where they are as by default: those written before there were these keep their hash."""


class DecoderConfig(Schema):
    """A decoder-only transformer: grouped attention, positions that turn or are learned, an MLP or experts."""

    ERROR: ClassVar[type[BadInput]] = BadTask

    family: Literal[
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "phi3",
        "gemma",
        "gemma2",
        "gemma3",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "gpt_oss",
        "glm4_moe",
        "meta",
        "smollm3",
        "olmo2",
        "olmo3",
        "granite",
        "stablelm",
        "starcoder2",
        "cohere",
        "cohere2",
        "gpt_neox",
        "gpt2",
        "falcon",
        "deepseek_v2",
        "deepseek_v3",
        "bloom",
        "mpt",
    ]
    """Whose names the checkpoint's tensors have; what is computed is said by the other fields."""
    vocab_size: int = Field(ge=1, le=2**20)
    hidden_size: int = Field(ge=1, le=2**16)
    intermediate_size: Width
    num_hidden_layers: int = Field(ge=1, le=MAX_LAYERS)
    num_attention_heads: int = Field(ge=1, le=1_024)
    num_key_value_heads: int = Field(ge=1, le=1_024)
    head_dim: int = Field(ge=2, le=1_024, multiple_of=2)
    max_position_embeddings: Positions
    rms_norm_eps: Real
    """Of norms of either kind."""
    rope_theta: Real
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool
    eos_token_id: tuple[TokenId, ...] = Field(default=(), max_length=32)
    rotary_dim: int | None = Field(default=None, ge=2, le=1_024, multiple_of=2)
    """Dimensions of a head that turn, the first ones; all unless given."""
    rope_local_base_freq: Real | None = None
    """The base of the sliding layers' angles, which are not scaled; as the others' unless given."""
    sliding_window: Positions | None = None
    """Positions that a sliding layer attends to, its own included."""
    layer_types: tuple[LayerKind, ...] = Field(default=(), max_length=MAX_LAYERS)
    """One of each layer; all attend to everything if empty."""
    attention_bias: bool = False
    """Of query, key and value."""
    output_bias: bool = False
    """Of the attention's output."""
    qk_norm: bool = False
    """Whether each head's query and key pass an RMSNorm."""
    attention_sinks: bool = False
    """Whether each head has a logit that takes part in its softmax and attends to nothing."""
    query_pre_attn_scalar: Real | None = None
    """Scores are divided by its square root; by that of head_dim unless given."""
    attn_logit_softcapping: Real | None = None
    final_logit_softcapping: Real | None = None
    hidden_act: Activation = "silu"
    swiglu_limit: Real | None = None
    """Of a `clamped_swiglu`."""
    norm_plus_one: bool = False
    """Whether norms store their weights less one."""
    sandwich_norms: bool = False
    """Whether attention's and MLP's outputs pass a norm too before they are added."""
    embedding_scale: Real | None = None
    """Embeddings are multiplied by it."""
    experts: Experts | None = None
    quantization: Quantization | None = None
    norm: Literal["rms", "layer"] = "rms"
    """`layer`: numbers are less their mean first (LayerNorm)."""
    norm_bias: bool = False
    """Of LayerNorms, but for those of query and key."""
    pre_norms: bool = True
    """Whether attention and MLP have norms before them."""
    qk_norm_of: Literal["head", "each_head", "heads"] = "head"
    """The norm of query and key has weights that all heads share, weights of each head, or is one over all heads."""
    gated: bool = True
    """Whether the MLP has a gate; else it is down(act(up x))."""
    mlp_bias: bool = False
    """Of the MLP's projections."""
    parallel: Literal["two_norms", "one_norm"] | None = None
    """Attention and MLP take the same input, normed twice or once, and are added at once; else one after the other."""
    nope_layers: tuple[Annotated[int, Field(ge=0, lt=MAX_LAYERS)], ...] = Field(default=(), max_length=MAX_LAYERS)
    """Layers whose queries and keys do not turn."""
    learned_positions: bool = False
    """Whether each position has a row that is added to its embedding, before the first layer."""
    residual_multiplier: Real | None = None
    """Outputs of attention and MLP are multiplied by it before they are added."""
    logit_scale: Real | None = None
    """Logits are multiplied by it."""
    latent: Latent | None = None
    """Attention by latents: `head_dim` then counts the numbers that a position keeps, the key that turns before the
    latent, and `num_key_value_heads` is 1."""
    alibi: Alibi | None = None
    embedding_norm: bool = False
    """Whether what comes into the first layer passes a norm before."""
    clip_qkv: Real | None = None
    """Queries, keys and values are within both signs of it."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_key_value_heads: does not divide num_attention_heads")
        if self.num_attention_heads * self.head_dim > 2**17:
            raise ValueError("head_dim: the heads together are wider than 131072")
        if any(token >= self.vocab_size for token in self.eos_token_id):
            raise ValueError("eos_token_id: out of the vocabulary")
        self._check_rotation()
        self._check_windows()
        if (self.hidden_act == "clamped_swiglu") != (self.swiglu_limit is not None):
            raise ValueError("swiglu_limit: is a clamped_swiglu's")
        self._check_parts()
        self._check_quantization()
        return self

    def _check_rotation(self) -> None:
        if self.rotary > self.head_dim:
            raise ValueError("rotary_dim: more than head_dim")
        if isinstance(self.rope_scaling, LongRope):
            for factors in (self.rope_scaling.short_factor, self.rope_scaling.long_factor):
                if len(factors) != self.rotary // 2:
                    raise ValueError(f"rope_scaling: {len(factors)} factors for {self.rotary // 2} pairs of dimensions")

    def _check_windows(self) -> None:
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types: {len(self.layer_types)} of {self.num_hidden_layers} layers")
        if ("sliding_attention" in self.layer_types) != (self.sliding_window is not None):
            raise ValueError("sliding_window: given without a sliding layer, or the other way round")
        if self.rope_local_base_freq is not None and self.sliding_window is None:
            raise ValueError("rope_local_base_freq: without a sliding layer")

    def _check_quantization(self) -> None:
        quantization = self.quantization
        if quantization is None:
            return
        if self.family == "meta" or (self.family in REORDERED and quantization.scheme == "nvfp4"):
            raise ValueError(
                f"quantization: none such of {self.family}, whose rows are stored in another order: take it unquantized"
            )
        if self.experts is not None and self.experts.stored == "mxfp4":
            raise ValueError("quantization: of what is stored as mxfp4")
        if quantization.scheme == "nvfp4" and (quantization.group_size, quantization.back_off) != (
            16,
            0,
        ):
            raise ValueError("quantization: nvfp4 has blocks of 16")

    def _check_parts(self) -> None:
        """Raises ValueError: parts of layers that do not go together."""
        if self.norm_bias and self.norm != "layer":
            raise ValueError("norm_bias: is a LayerNorm's")
        if self.norm == "layer" and self.norm_plus_one:
            raise ValueError("norm_plus_one: is an RMSNorm's")
        if not self.pre_norms and (not self.sandwich_norms or self.parallel is not None):
            raise ValueError("pre_norms: without them attention and MLP have norms after them, one after the other")
        if self.parallel is not None and self.sandwich_norms:
            raise ValueError("parallel: attention and MLP that are added at once have no norms after them")
        if self.qk_norm_of != "head" and not self.qk_norm:
            raise ValueError("qk_norm_of: without a norm of query and key")
        if not self.gated and (self.experts is not None or self.hidden_act == "clamped_swiglu"):
            raise ValueError("gated: experts and clamped_swiglu have a gate")
        if any(layer >= self.num_hidden_layers for layer in self.nope_layers):
            raise ValueError(f"nope_layers: of {self.num_hidden_layers} layers")
        if self.alibi is not None and (self.attn_logit_softcapping is not None or self.attention_sinks):
            raise ValueError("alibi: of scores that are capped, or beside sinks")
        if self.latent is not None:
            self._check_latent(self.latent)

    def _check_latent(self, latent: Latent) -> None:
        if self.head_dim != latent.qk_rope_head_dim + latent.kv_lora_rank or self.num_key_value_heads != 1:
            raise ValueError("latent: head_dim is not qk_rope_head_dim and kv_lora_rank of one head")
        if self.rotary != latent.qk_rope_head_dim:
            raise ValueError("latent: rotary_dim is not qk_rope_head_dim")
        if self.num_attention_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim) > 2**18:
            raise ValueError("latent: the heads together are wider than 262144")
        if self.attention_bias or self.output_bias or self.qk_norm or self.clip_qkv is not None:
            raise ValueError("latent: without biases, norms of heads, and a bound of queries and keys")

    @model_serializer(mode="wrap")
    def _without_what_is_by_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        for name in LATER:
            if getattr(self, name) == type(self).model_fields[name].default:
                del document[name]
        return document

    @property
    def qkv_rows(self) -> int:
        """Rows of the query, key and value projections stacked.

        Of latents those that a layer's input is multiplied with.
        """
        if self.latent is not None:
            return (self.latent.q_lora_rank or self.q_rows) + self.head_dim
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def q_rows(self) -> int:
        """Rows of the query projection."""
        each = self.head_dim if self.latent is None else self.latent.qk_nope_head_dim + self.latent.qk_rope_head_dim
        return self.num_attention_heads * each

    @property
    def attended(self) -> int:
        """Numbers of a row that the heads' outputs have."""
        return self.num_attention_heads * (self.head_dim if self.latent is None else self.latent.v_head_dim)

    @property
    def sides(self) -> int:
        """How many rows a cell keeps: a key and a value, or one latent that is both."""
        return 2 if self.latent is None else 1

    @property
    def rotary(self) -> int:
        """Dimensions of a head that turn."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    def short_positions(self, positions: int) -> int:
        """Up to how many positions a session turns by LongRoPE's short factors.

        The task has `positions`, and its longer sessions turn by the long ones. 0 where all its sessions turn alike.
        """
        if not isinstance(self.rope_scaling, LongRope):
            return 0
        first = self.rope_scaling.original_max_position_embeddings
        return first if positions > first else 0

    def slides(self, layer: int) -> bool:
        """Whether a layer attends to the last `sliding_window` positions only."""
        return bool(self.layer_types) and self.layer_types[layer] == "sliding_attention"

    def turns(self, layer: int) -> bool:
        """Whether a layer's queries and keys turn."""
        return layer not in self.nope_layers

    def experts_of(self, layer: int) -> Experts | None:
        """The mixture in a layer, if it has one."""
        return None if self.experts is None or layer in self.experts.mlp_only_layers else self.experts

    def blocks_of(self, layer: int, role: str, width: int) -> Blocks | None:
        """How the rows, `width` numbers each, of a layer's parameter are stored, if in blocks."""
        how = self.quantization
        if how is None or role not in QUANTIZED or role in how.plain or f"{layer}.{role}" in how.plain:
            return None
        size = how.size(width)
        return Blocks(how.scheme, size) if size else None
