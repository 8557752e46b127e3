"""Which of a GGUF file's tensors, or of their rows, make up each tensor that Hugging Face's files of the model have.

Names are llama.cpp's (https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/tensor_mapping.py). What its
converter changes is changed back: Llama's rows of query and key that turn together, one added to Gemma's norms, all
experts' matrices in one tensor, gpt-oss's gate and up in two.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask, Unsupported
from nodewire.llm.families import end_tensors, modules_of, stage_tensors
from nodewire.llm.families.fields import compressed_tensors, tensor_names
from nodewire.llm.gguf.configuration import BESIDE, EMBEDDING, HEAD
from nodewire.llm.spec.config import DecoderConfig, Quantization
from nodewire.weights.gguf_rows import GROUP, KEPT, Form, Rows, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.gguf.header import TensorEntry
    from nodewire.gguf.model import Model
    from nodewire.llm.families.fields.tensor_names import Piece
    from nodewire.weights.tensorfile import StoredTensor

_ENDS = {tensor_names.EMBEDDING: EMBEDDING, tensor_names.FINAL_NORM: "output_norm.weight", tensor_names.HEAD: HEAD}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)", re.DOTALL)
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_MODULES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Of models that have norms after attention and MLP."""
_EXPERTS = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}
_WIDE = 16
"""Bits of a number that is in no block that is kept: a model in blocks computes in bfloat16."""
_SCALE = 16
"""Bits of the scale of a block."""
_PAIRED = ("attn_q", "attn_k")
_SINKS = "self_attn.sinks"
_WHOLE = {
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
    "mlp.experts.down_proj": ("ffn_down_exps.weight",),
}
"""What is no module's weight or bias."""


def stored_tensors(
    model: Model, config: DecoderConfig, *, in_blocks: bool
) -> tuple[DecoderConfig, Mapping[str, StoredTensor]]:
    """A model's tensors by Hugging Face's names, and its configuration, which says what is stored in blocks.

    Without `in_blocks` nothing is, and all is numbers. Nothing is read.

    Raises:
        BadTask: a tensor is missing, of another shape, or one that such a model has not.
        Unsupported: a tensor is of a type that is not read where it stands.

    """
    mapping = _RowSources(model, config)
    if in_blocks and (how := _quantization(mapping, config)) is not None:
        config = DecoderConfig.from_document(config.document() | {"quantization": how.document()})
    found: dict[str, StoredTensor] = {}
    for piece in chain(end_tensors(config), stage_tensors(config, 0, config.num_hidden_layers)):
        found |= _stored(piece, mapping.rows(piece))
    left = sorted(model.tensors.keys() - mapping.used - BESIDE)
    if left:
        more = f" nor {len(left) - 1} others" if len(left) > 1 else ""
        raise BadTask(
            f"gguf.tensor {left[0][:80]}", f"is none of a {config.family}{more}: it could change what is computed"
        )
    return config, found


def _quantization(mapping: _RowSources, config: DecoderConfig) -> Quantization | None:
    """The blocks that leave fewest bytes of the layers' matrices; None if there are no such blocks, or other ones.

    A matrix of wider blocks than those is widened.
    """
    if config.experts is not None and config.experts.stored != "each":
        return None
    bits, counts = dict[tuple[int, str], int](), dict[tuple[int, str], int]()
    for layer, role, pieces in modules_of(config):  # a layer at a time: a hostile configuration names millions
        bits[layer, role] = max(KEPT.get(mapping.type(piece), _WIDE) for piece in pieces)
        counts[layer, role] = sum(piece.count for piece in pieces)
    nbits = {
        most: sum(
            count * (GROUP * most + _SCALE if bits[at] <= most else GROUP * _WIDE) for at, count in counts.items()
        )
        for most in sorted(set(KEPT.values()))
    }
    most = min(nbits, key=lambda one: nbits[one])
    plain = [at for at, own in bits.items() if own > most]
    if len(plain) == len(bits):
        return None
    named = compressed_tensors.named(plain, bits)
    return Quantization.from_document({"scheme": f"int{most}", "group_size": GROUP, "back_off": 0, "plain": named})


class _RowSources:
    """From pieces of parameters to rows of the file. `used` are the tensors that have been asked for."""

    def __init__(self, model: Model, config: DecoderConfig) -> None:
        self._model, self._config = model, config
        self._modules = _MODULES | (_AROUND if config.sandwich_norms else {})
        if model.architecture == "gpt-oss":
            self._modules["post_attention_layernorm"] = "post_attention_norm"
        self.used: set[str] = set()

    def type(self, piece: Piece) -> str:
        """The name of the type that a piece is stored in."""
        return self.rows(piece).sources[0].type.name

    def rows(self, piece: Piece) -> Rows:
        """Raises BadTask: a tensor is missing, or not of the piece's shape."""
        stem, shape = piece.stem, piece.shape
        if piece.form == "mxfp4":
            stem, shape = stem.removesuffix("_blocks"), (*shape[:-2], shape[-2] * GROUP)
        if piece.name in _ENDS:
            return self._plain(_ENDS[piece.name], shape)
        found = _LAYER.fullmatch(stem)
        assert found is not None
        at, module = f"blk.{found[1]}", found[2]
        if expert := _EXPERT.fullmatch(f"{module}.weight"):
            return self._of_expert(at, int(expert[1]), _EXPERTS[expert[2]], shape)
        if module == _SINKS:
            return self._plain(f"{at}.attn_sinks.weight", shape)
        if (names := _WHOLE.get(module)) is not None:
            return self._in_turn([f"{at}.{name}" for name in names], shape)
        module, kind = (module.removesuffix(".bias"), "bias") if module.endswith(".bias") else (module, "weight")
        name = self._modules[module]
        paired = self._model.architecture == "llama" and name in _PAIRED
        return self._plain(f"{at}.{name}.{kind}", shape, head=self._config.head_dim if paired else 0)

    def _plain(self, name: str, shape: tuple[int, ...], head: int = 0) -> Rows:
        placed = self._placed(name)
        if placed.shape != shape and (1, *placed.shape) != shape:
            raise _shaped(name, placed, shape)
        width = 1 if head and len(shape) == 1 else shape[-1]
        less_one = self._config.norm_plus_one and name.endswith("norm.weight")
        return _rows(name, (placed,), width, head=head, less_one=less_one)

    def _of_expert(self, at: str, number: int, name: str, shape: tuple[int, ...]) -> Rows:
        """One of a mixture's, whose matrices are one tensor; or in older files each its own."""
        alone = f"{at}.{name}.{number}.weight"
        if alone in self._model.tensors:
            return self._plain(alone, shape)
        stacked = f"{at}.{name}_exps.weight"
        placed, mixture = self._placed(stacked), self._config.experts
        assert mixture is not None
        if placed.shape != (mixture.num_experts, *shape):
            raise _shaped(stacked, placed, (mixture.num_experts, *shape))
        return Rows((placed,), shape[-1], first=number * shape[0])

    def _in_turn(self, names: list[str], shape: tuple[int, ...]) -> Rows:
        """Rows of several tensors in turn; of biases each number is a row."""
        sources, turns = tuple(map(self._placed, names)), len(names)
        is_bias = names[0].endswith(".bias")
        each = (*shape[:-1], shape[-1] // turns) if is_bias else (*shape[:-2], shape[-2] // turns, shape[-1])
        for name, placed in zip(names, sources, strict=True):
            if placed.shape != each or placed.type != sources[0].type:
                raise _shaped(name, placed, each)
        return _rows(names[0], sources, 1 if is_bias and turns > 1 else shape[-1])

    def _placed(self, name: str) -> TensorEntry:
        placed = self._model.tensors.get(name)
        if placed is None:
            raise BadTask(f"gguf.tensor {name}", "missing: the file does not hold the whole model")
        self.used.add(name)
        return placed


def _rows(name: str, sources: tuple[TensorEntry, ...], width: int, **how: Any) -> Rows:
    """Raises Unsupported: what is taken apart lies in a block together."""
    if width % sources[0].type.size:
        raise Unsupported(f"gguf.tensor {name[:80]}", f"{sources[0].type.name}, where only plain numbers are read")
    return Rows(sources, width, **how)


def _shaped(name: str, placed: TensorEntry, shape: tuple[int, ...]) -> BadTask:
    return BadTask(f"gguf.tensor {name[:80]}", f"{placed.type.name} {list(placed.shape)}, not {list(shape)}")


def _stored(piece: Piece, rows: Rows) -> dict[str, StoredTensor]:
    """The tensors of a piece, as it has them."""
    forms: tuple[Form, Form]
    if piece.form == "mxfp4":
        if (kind := rows.sources[0].type.name) != "MXFP4":
            raise Unsupported(f"gguf.tensor of {piece.name[:80]}", f"{kind}, where only MXFP4 is read")
        forms = ("mxfp4", "mxfp4_scales")
    elif piece.blocks is not None:
        forms = ("int4" if piece.blocks.bits == 4 else "int8", "scales")
    else:
        return {piece.name: drawn(rows, piece.shape)}
    kept = piece.stored().items()
    return {name: drawn(replace(rows, form=form), made.shape) for (name, made), form in zip(kept, forms, strict=True)}
