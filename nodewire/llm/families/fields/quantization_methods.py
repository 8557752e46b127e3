"""A config.json's `quantization_config` of GPTQ, AWQ and FP8: how matrices lie that are made anew as they are read.

Which matrices are stored so is said by the files of weights (nodewire.llm.checkpoint.dequantization); what is said here
is how. Inputs that a file says are rounded as well stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.weights.groups import LAYOUTS, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELD = "quantization_config"
INSTEAD = "take the model unquantized, which `nodewire quantize` makes smaller"
"""The remedy where a method is not read."""
_MOST_BLOCK = 2**18
_MAX_NAMES = 4_096


@dataclass(frozen=True, slots=True)
class InGroups:
    """`bits`: of a code.

    `group`: numbers of a row to a scale; 0: a row has one. `symmetric`: all zeros are in the middle. `in_turn`: whether
    a group's numbers follow each other. `plain`: parts of the names of modules that are stored as they are.
    """

    method: str
    layout: Layout
    bits: int
    group: int
    symmetric: bool
    in_turn: bool
    plain: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fp8:
    """Floats of eight bits. `block`: rows and columns to a scale, where a matrix has more than its rows' or its own."""

    method: str
    block: tuple[int, int] | None


Method = InGroups | Fp8


def said_of(config: Mapping[str, Any]) -> Method | None:
    """What a config.json says of these; None where it says nothing of any.

    Raises:
        BadTask: a variant that is not read; the field is named.

    """
    said = config.get(_FIELD)
    if not isinstance(said, dict):
        return None
    method = said.get("quant_method")
    if method == "gptq":
        return _gptq(said)
    if method == "awq":
        return _awq(said)
    if method in ("fp8", "fbgemm_fp8"):
        _one_of(said, "fmt", ("e4m3", "float8_e4m3fn"))
        return Fp8(str(method), _block(said, "weight_block_size"))
    if method == "compressed-tensors" and said.get("format") in ("float-quantized", "naive-quantized"):
        return _compressed(said)
    return None


def _gptq(said: Mapping[str, Any]) -> InGroups:
    form = said.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise _bad("checkpoint_format", f"{str(form)[:40]} is not supported, only gptq or gptq_v2: {INSTEAD}")
    own = said.get("dynamic") or {}
    if not isinstance(own, dict) or not all(isinstance(name, str) and name.startswith("-:") for name in own):
        raise _bad("dynamic", f"modules of other bits or groups are not supported: {INSTEAD}")
    symmetric, turned = (_flag(said, name, default) for name, default in (("sym", True), ("desc_act", False)))
    return InGroups("gptq", LAYOUTS[form], _bits(said, 4, 8), _group(said), symmetric, not turned, ())


def _awq(said: Mapping[str, Any]) -> InGroups:
    version = said.get("version") or "gemm"
    if not isinstance(version, str) or version.lower() != "gemm":
        raise _bad("version", f"{str(version)[:40]} is not supported, only gemm: {INSTEAD}")
    if not _flag(said, "zero_point", True):
        raise _bad("zero_point", f"without zeros is not supported: {INSTEAD}")
    names = said.get("modules_to_not_convert") or []
    if not isinstance(names, list) or len(names) > _MAX_NAMES or not all(isinstance(name, str) for name in names):
        raise _bad("modules_to_not_convert", f"no list of at most {_MAX_NAMES} names")
    group = _group(said, *(("q_group_size",) if "q_group_size" in said else ()))
    return InGroups("awq", LAYOUTS["awq"], _bits(said, 4), group, False, True, tuple(names))


def _compressed(said: Mapping[str, Any]) -> Fp8:
    if said.get("kv_cache_scheme"):
        raise _bad("kv_cache_scheme", "is not supported: take it out, and keys and values stay as they are computed")
    groups = said.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _bad("config_groups", "no objects by name")
    blocks = set()
    for group in groups.values():
        numbers = group.get("weights") if isinstance(group, dict) else None
        kind = (numbers.get("type"), numbers.get("num_bits")) if isinstance(numbers, dict) else None
        if kind != ("float", 8) or not isinstance(numbers, dict) or numbers.get("symmetric") is False:
            raise _bad(
                "config_groups", f"{str(kind)[:40]} is not supported, only symmetric floats of 8 bits: {INSTEAD}"
            )
        blocks.add(_block(numbers, "block_structure"))
    if len(blocks) > 1:
        raise _bad("config_groups", f"of different blocks, which are not supported: {INSTEAD}")
    return Fp8("fp8", blocks.pop())


def _bits(said: Mapping[str, Any], *known: int) -> int:
    name = "w_bit" if "w_bit" in said else "bits"
    found = said.get(name)
    if type(found) is not int or found not in known:
        kinds = " or ".join(map(str, known))
        raise _bad(name, f"{str(found)[:40]} is not supported, only {kinds}: {INSTEAD}")
    return found


def _group(said: Mapping[str, Any], name: str = "group_size") -> int:
    found = said.get(name, 128)
    if type(found) is not int or not (found == -1 or 0 < found <= _MOST_BLOCK) or (found > 0 and found % 8):
        raise _bad(name, f"{str(found)[:40]} is neither -1 nor a multiple of 8 up to {_MOST_BLOCK}: {INSTEAD}")
    return max(found, 0)


def _block(said: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    found = said.get(name)
    if found is None:
        return None
    if isinstance(found, str):  # as "128x128"
        found = [int(part) if part.isdecimal() and len(part) < 8 else 0 for part in found.split("x")]
    if (
        not isinstance(found, list)
        or len(found) != 2
        or not all(type(n) is int and 0 < n <= _MOST_BLOCK for n in found)
    ):
        raise _bad(name, f"{str(found)[:40]} is not two numbers from 1 to {_MOST_BLOCK}: {INSTEAD}")
    return found[0], found[1]


def _flag(said: Mapping[str, Any], name: str, default: bool) -> bool:
    found = said.get(name)
    if found is not None and not isinstance(found, bool):
        raise _bad(name, "neither true nor false")
    return default if found is None else found


def _one_of(said: Mapping[str, Any], name: str, known: tuple[str, ...]) -> None:
    found = said.get(name)
    if found is not None and found not in known:
        raise _bad(name, f"{str(found)[:40]} is not supported, only {' or '.join(known)}: {INSTEAD}")


def _bad(field: str, reason: str) -> BadTask:
    return BadTask(f"{_FIELD}.{field}", reason)
