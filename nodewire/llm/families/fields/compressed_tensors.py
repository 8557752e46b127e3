"""A config.json's `quantization_config` of the compressed-tensors library, both ways.

https://github.com/vllm-project/compressed-tensors. A group says how matrices are stored and which: by class ("Linear"),
by a module's name, or by a regular expression ("re:"), names before the class; `ignore` says which are not. Read are
symmetric whole numbers of 4 and 8 bits in blocks or in rows, and NVFP4, whose activations stay as they are.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask, TooLarge
from nodewire.llm.families.fields.quantization_methods import INSTEAD
from nodewire.llm.spec.config import ROUNDING, Quantization

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodewire.llm.families.fields.tensor_names import Piece

METHOD = "compressed-tensors"
_FIELD = "quantization_config"
_MAX_PATTERNS = 4_096
_MAX_PATTERN_CHARS, _MAX_TURNS = 1_024, 24
"""An expression's length, and the power of two that stands for how often it may go back in a module's name."""
_MATCHING_S = 10.0
"""Seconds of CPU for all names and expressions."""
_ESCAPED = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\(\?(?:P?<[=!]|P?<\w+>|[:=!])", re.DOTALL)
_TURN = re.compile(r"\)?(?:[*+]|\{[^}]*\})[?+]?|\?[?+]?|\|")
_BITS = {"int8": 8, "int4": 4, "w8a8": 8, "w4a8": 4, "nvfp4": 4}
_FORMAT = {
    "int8": "pack-quantized",
    "int4": "pack-quantized",
    "w8a8": "int-quantized",
    "w4a8": "pack-quantized",
    "nvfp4": "nvfp4-pack-quantized",
}


def said_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a config.json says of this library's method, if it does."""
    said = config.get(_FIELD)
    return said if isinstance(said, dict) and said.get("quant_method") == METHOD else None


def parse(said: Mapping[str, Any], modules: Iterable[tuple[int, str, Sequence[Piece]]]) -> dict[str, Any]:
    """The fields of a Quantization, for what may be quantized: layer, parameter, its pieces.

    Raises:
        BadTask: another scheme than those read, or one that stores parts of a parameter in different ways.

    """
    groups = said.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(one, dict) for one in groups.values()):
        raise _bad("config_groups", "no objects by name")
    for field in ("kv_cache_scheme", "sparsity_config"):
        if said.get(field):
            raise _bad(field, f"is not supported: {INSTEAD}")
    kinds = {_scheme(said.get("format"), one) for one in groups.values()}
    schemes, sizes = {kind[0] for kind in kinds}, sorted((size for _, size in kinds), reverse=True)
    if len(schemes) > 1 or len(sizes) > 2 or (len(sizes) == 2 and 0 in sizes):
        raise _bad("config_groups", f"of different schemes, which are not supported: {INSTEAD}")
    how = Quantization.from_document(
        {"scheme": schemes.pop(), "group_size": sizes[0], "back_off": sizes[1] if len(sizes) > 1 else 0}
    )
    chosen = _GroupChoice(said, groups)
    plain, every = [], []
    for layer, role, pieces in modules:
        every.append((layer, role))
        found = {chosen.size(piece.stem) for piece in pieces}
        if found == {None}:
            plain.append((layer, role))
        elif found != {how.size(pieces[0].width) if how.group_size else 0}:
            raise _bad(
                "config_groups",
                f"{pieces[0].stem} is stored in blocks of {found}, which are not supported there: {INSTEAD}",
            )
    return how.document() | {"plain": named(plain, every)}


def named(plain: Iterable[tuple[int, str]], every: Iterable[tuple[int, str]]) -> list[str]:
    """A Quantization's `plain`, of `every` layer and parameter those.

    A parameter that is so in all of its layers is named once.
    """
    plain = list(plain)
    layers, own = (Counter(role for _, role in some) for some in (every, plain))
    everywhere = {role for role, count in own.items() if count == layers[role]}
    return [*sorted(everywhere), *(f"{layer}.{role}" for layer, role in plain if role not in everywhere)]


def document(how: Quantization, modules: Iterable[tuple[int, str, Sequence[Piece]]], others: Iterable[str]) -> Any:
    """A `quantization_config` of ours; `others` are modules beside those that may be quantized."""
    by_size: dict[int, set[str]] = {}
    for _, _, pieces in modules:
        for piece in pieces:
            by_size.setdefault(how.size(piece.width), set()).add(_pattern(piece.stem))
    groups = {"group_0": _group(how, how.group_size, ["Linear"])}
    if how.back_off in by_size:
        groups["group_1"] = _group(how, how.back_off, sorted(by_size[how.back_off]))
    return {
        "quant_method": METHOD,
        "format": _FORMAT[how.scheme],
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": sorted({*by_size.get(0, ()), *map(_pattern, others)}),
    }


def _group(how: Quantization, size: int, targets: Sequence[str]) -> dict[str, Any]:
    numbers = {"type": "int", "symmetric": True, "strategy": "group", "group_size": size}
    inputs = numbers | {"num_bits": 8, "dynamic": True}
    return {
        "targets": list(targets),
        "weights": numbers | {"num_bits": _BITS[how.scheme], "dynamic": False},
        "input_activations": inputs if how.scheme in ROUNDING else None,
        "output_activations": None,
    }


def _scheme(form: object, group: Mapping[str, Any]) -> tuple[str, int]:
    """A group's scheme, and its blocks' size or 0 for rows. Raises BadTask."""
    numbers, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(numbers, dict) or group.get("output_activations"):
        raise _bad("weights", f"no object, or outputs are quantized: {INSTEAD}")
    if (
        numbers.get("symmetric") is not True
        or numbers.get("dynamic")
        or numbers.get("actorder") not in (None, "static")
    ):
        raise _bad("weights", f"only symmetric and static ones, in the order of their columns: {INSTEAD}")
    strategy, size = numbers.get("strategy"), numbers.get("group_size")
    kind = (group.get("format") or form, numbers.get("type"), numbers.get("num_bits"))
    if kind == (_FORMAT["nvfp4"], "float", 4) and strategy == "tensor_group" and size == 16:
        return "nvfp4", 16
    if strategy == "channel":
        size = 0
    elif strategy != "group" or type(size) is not int or not 0 < size <= 2**18 or size % 8:
        raise _bad("weights", f"in blocks or rows only, whose sizes are multiples of 8: {INSTEAD}")
    if kind in ((_FORMAT["int4"], "int", 4), (_FORMAT["int8"], "int", 8)) and not inputs:
        return f"int{kind[2]}", size
    if isinstance(inputs, dict) and _follow(inputs, size):
        for scheme in ROUNDING:
            if kind == (_FORMAT[scheme], "int", _BITS[scheme]):
                return scheme, size
    raise _bad("format", f"{str(kind)[:80]} with such inputs is not supported: {INSTEAD}")


def _follow(inputs: Mapping[str, Any], size: int) -> bool:
    """Whether inputs are rounded as they come, in the weights' blocks."""
    said = (inputs.get("type"), inputs.get("num_bits"), inputs.get("symmetric"), inputs.get("dynamic"))
    in_blocks = (inputs.get("strategy"), inputs.get("group_size")) == ("group", size)
    return said == ("int", 8, True, True) and (in_blocks if size else inputs.get("strategy") == "token")


class _GroupChoice:
    """Which group a module belongs to."""

    def __init__(self, said: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
        self._ignored = list(_patterns(said.get("ignore") or (), "ignore"))
        self._named: list[tuple[re.Pattern[str], int]] = []
        self._linear: int | None = None
        self._began_s = time.process_time()
        for group in groups.values():
            targets = group.get("targets") or ()
            size = _scheme(said.get("format"), group)[1]
            if not isinstance(targets, list):
                raise _bad("targets", "no list")
            if "Linear" in targets:
                self._linear = size
            names = [target for target in targets if target != "Linear"]
            self._named += [(pattern, size) for pattern in _patterns(names, "targets")]

    def size(self, module: str) -> int | None:
        """Raises TooLarge: to look at names has taken too long."""
        if time.process_time() - self._began_s > _MATCHING_S:
            raise TooLarge(f"{_FIELD}.ignore", f"took over {_MATCHING_S:g} s, targets with it: name fewer expressions")
        if any(pattern.match(module) for pattern in self._ignored):
            return None
        return next((size for pattern, size in self._named if pattern.match(module)), self._linear)


def _patterns(said: object, field: str) -> Iterator[re.Pattern[str]]:
    if not isinstance(said, list | tuple) or len(said) > _MAX_PATTERNS or not all(isinstance(x, str) for x in said):
        raise _bad(field, f"no list of at most {_MAX_PATTERNS} names")
    for one in said:
        expression = one[3:] if one.startswith("re:") else re.escape(one) + r"\Z"
        if one.startswith("re:"):
            _check_expression(expression, field)
        try:
            yield re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise _bad(field, f"{one[:80]!r}: {error}") from error


def _check_expression(expression: str, field: str) -> None:
    """Raises BadTask: Python's `re` might go back in a name without end.

    No group is repeated; of what else may be there or not, or more than once, there is little.
    """
    turns = 0
    for found in _TURN.finditer(_ESCAPED.sub("x", expression)):
        said = found[0]
        turns += 1 if said[0] in "?|" else 4 if said[0] != ")" else _MAX_TURNS + 1
    if turns > _MAX_TURNS or len(expression) > _MAX_PATTERN_CHARS:
        raise _bad(
            field, f"{expression[:80]!r} repeats a group, or repeats too much, or is too long: name modules plainly"
        )


def _pattern(module: str) -> str:
    """Of the modules of this name in all layers; the name itself of one that is in none."""
    found = re.sub(r"(?<=\\.)\d+(?=\\.)", r"\\d+", re.escape(module))
    return module if found == re.escape(module) else f"re:^{found}$"


def _bad(field: str, reason: str) -> BadTask:
    return BadTask(f"{_FIELD}.{field}", reason)
