"""The fields that every family has, read alike: sizes, heads, norms, positions; and which layers slide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.rotary import rope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.llm.families.fields.fields import Fields

_COPIED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
FULL, SLIDING = "full_attention", "sliding_attention"


def sizes(
    fields: Fields,
    *,
    eps: float = 1e-6,
    theta: float = 10_000.0,
    tied: bool = False,
    head_dim: int | None = None,
    grouped: bool = True,
    rotary: bool = True,
    part: float = 1.0,
) -> dict[str, Any]:
    """The common fields of a DecoderConfig, unchecked.

    The defaults are those of the family's class in `transformers`, for files that leave them out; without `head_dim`
    the heads share the width. `grouped`: the file must say num_key_value_heads; else every head has its own by default.
    Without `rotary` the caller reads the angles; `part` is how much of a head turns.

    Raises:
        BadTask: a field is missing, or is no number.

    """
    found = {field: fields.needed(field) for field in _COPIED}
    heads, width = found["num_attention_heads"], found["hidden_size"]
    dim = fields.pop("head_dim", head_dim)
    if dim is None and type(heads) is int and type(width) is int and heads > 0:
        dim = width // heads
    found |= {
        "num_key_value_heads": fields.needed("num_key_value_heads")
        if grouped
        else fields.pop("num_key_value_heads", heads),
        "head_dim": dim,
        "rms_norm_eps": fields.number("rms_norm_eps", eps),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", tied),
    }
    return found | rope(fields, found["max_position_embeddings"], dim, theta, part) if rotary else found


def layer_kinds(
    fields: Fields, found: Mapping[str, Any], slides: Callable[[int], bool], window: int | None
) -> dict[str, Any]:
    """`layer_types` and `sliding_window`, from the file's own list or, without one, from `slides(layer)`.

    Raises:
        BadTask: the list is none of the two kinds for each layer.

    """
    said, count = fields.pop("layer_types"), fields.layers(found)
    kinds = [SLIDING if window and slides(layer) else FULL for layer in range(count)] if said is None else said
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise BadTask("layer_types", f"not {FULL} or {SLIDING} for each layer")
    if SLIDING not in kinds:
        return {}
    return {"layer_types": kinds, "sliding_window": window}
