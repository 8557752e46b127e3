"""What a config.json says of rotary positions, in its older form and its newer, as fields of a DecoderConfig."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.fields import Fields, as_real
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ORIGINAL = "original_max_position_embeddings"
_NAMELESS = frozenset({"rope_type", "type"})


def rope(fields: Fields, positions: Any, head_dim: Any, theta: float = 10_000.0, part: float = 1.0) -> dict[str, Any]:
    """`rope_theta`, `rope_scaling` and `rotary_dim`, from `rope_parameters` or the older fields beside each other.

    Raises:
        BadTask: another kind of scaling than the layers compute, or a field of it that they do not know.

    """
    said, older = fields.within("rope_parameters"), fields.within("rope_scaling")
    base, turning = fields.pop("rope_theta"), fields.pop("partial_rotary_factor")
    original = fields.pop(_ORIGINAL)
    if said and any(said.get(name) != value for name, value in older.items()):
        raise BadTask("rope_scaling", "not what rope_parameters say")
    document = {"rope_theta": base, "partial_rotary_factor": turning, **(said or older)}
    if original is not None:  # a Phi-3's own field goes before what stands within
        document[_ORIGINAL] = original
    return described(document, positions, head_dim, theta, part)


def described(
    document: dict[str, Any], positions: Any, head_dim: Any, theta: float, whole: float = 1.0
) -> dict[str, Any]:
    """As `rope`, of an object; `theta` and `whole`, the part that turns, are for one that does not say them."""
    kind = str(document.get("rope_type", document.get("type", "default")))
    inner = Fields(document, _NAMELESS)
    found: dict[str, Any] = {"rope_theta": inner.number("rope_theta", theta)}
    part = float(as_real("partial_rotary_factor", inner.pop("partial_rotary_factor", whole)))
    if part != 1.0 and type(head_dim) is int:
        if not 0 < part <= 1:
            raise BadTask("partial_rotary_factor", "not above 0 and at most 1")
        found["rotary_dim"] = int(head_dim * part)
    if kind == "default":
        found["rope_scaling"] = None
    elif kind in _SCALINGS:
        found["rope_scaling"] = _SCALINGS[kind](inner, positions)
    else:
        known = ", ".join(_SCALINGS)
        raise BadTask("rope_scaling", f"{kind[:40]} is not supported, only default, {known}")
    inner.pop(_ORIGINAL)  # which some files state where it changes nothing
    try:
        inner.end()
    except BadTask as error:
        raise BadTask(f"rope_scaling.{error.field}", error.reason) from None
    return found


def _linear(inner: Fields, positions: Any) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": inner.number("factor")}


def _llama3(inner: Fields, positions: Any) -> dict[str, Any]:
    factors = {field: inner.number(field) for field in ("factor", "low_freq_factor", "high_freq_factor")}
    return {"rope_type": "llama3", _ORIGINAL: inner.pop(_ORIGINAL, positions), **factors}


def _yarn(inner: Fields, positions: Any) -> dict[str, Any]:
    factor = inner.number("factor")
    mscale, all_dim = inner.optional("mscale"), inner.optional("mscale_all_dim")
    scale = inner.optional("attention_factor")
    if scale is None:
        both = mscale and all_dim and float(mscale) and float(all_dim)
        above = temperature(float(factor), float(mscale) if both and mscale else 1.0)
        scale = real(above / (temperature(float(factor), float(all_dim)) if both and all_dim else 1.0))
    return {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": inner.number("beta_fast", 32.0),
        "beta_slow": inner.number("beta_slow", 1.0),
        "truncate": inner.flag("truncate", True),
        "attention_factor": scale,
        _ORIGINAL: inner.pop(_ORIGINAL, positions),
    }


def temperature(factor: float, each: float) -> float:
    """YaRN's temperature of a context that is `factor` times as long: `each` is by how much it grows with that."""
    return 1.0 if factor <= 1 else 0.1 * each * math.log(factor) + 1.0


def _longrope(inner: Fields, positions: Any) -> dict[str, Any]:
    original = inner.pop(_ORIGINAL, positions)
    factor, scale = inner.optional("factor"), inner.optional("attention_factor")
    if type(original) is not int or type(positions) is not int or original < 2 or positions < 1:
        raise BadTask(_ORIGINAL, "not a whole number above 1")
    if scale is None:
        longer = float(factor) if factor is not None else positions / original
        scale = real(1.0 if longer <= 1 else math.sqrt(1 + math.log(longer) / math.log(original)))
    return {
        "rope_type": "longrope",
        "short_factor": inner.numbers("short_factor"),
        "long_factor": inner.numbers("long_factor"),
        "attention_factor": scale,
        _ORIGINAL: original,
    }


def _dynamic(inner: Fields, positions: Any) -> None:
    """Nothing within the first context, and sessions stay there: beyond it angles change while keys are cached."""
    inner.number("factor")
    first = inner.pop(_ORIGINAL, positions)
    if type(first) is not int or type(positions) is not int or first < 1:
        raise BadTask(_ORIGINAL, "not a whole number above 0")
    if first < positions:
        raise BadTask(
            "rope_scaling",
            f"dynamic is not supported beyond the first {first} positions: let max_position_embeddings be {first}",
        )


_SCALINGS: Mapping[str, Callable[[Fields, Any], dict[str, Any] | None]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "dynamic": _dynamic,
}
