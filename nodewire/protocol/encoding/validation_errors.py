"""What is wrong with a value, in words: pydantic's errors as people and peers get them, without patterns.

A type that is a pattern says by `shaped` what it is; whoever writes a field of that type wrongly reads just that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import StringConstraints

if TYPE_CHECKING:
    import re

    from pydantic_core import ErrorDetails

_SHAPES: dict[str, str] = {}
"""What is meant, by pattern."""
_PLAIN = {
    "missing": "missing",
    "tuple_type": "not a list: [...]",
    "model_type": "not a table",
    "extra_forbidden": "unknown field",
}
_MOST_CHARS = 60


def shaped(pattern: str, words: str, *, max_length: int | None = None) -> StringConstraints:
    """The constraint of a string that matches `pattern`, which is what the words say: "host:port"."""
    if _SHAPES.setdefault(pattern, words) != words:
        raise ValueError(f"{pattern} is said in other words elsewhere: {_SHAPES[pattern]}")
    return StringConstraints(pattern=pattern, max_length=max_length)


def words_of(pattern: str | re.Pattern[str] | None) -> str:
    """The words for a pattern of `shaped`; empty for another one."""
    return _SHAPES.get(pattern, "") if isinstance(pattern, str) else ""


def in_words(error: ErrorDetails) -> str:
    """What is wrong, for one line; the field is in `error["loc"]`."""
    if error["type"] == "string_pattern_mismatch":
        shape = _SHAPES.get(error["ctx"]["pattern"], "what it must be")
        return f"{str(error['input'])[:_MOST_CHARS]!r} is not {shape}"
    if error["type"] in ("int_parsing", "int_from_float", "int_type"):
        is_amount = bool(error["loc"]) and str(error["loc"][-1]).endswith("_msat")
        unit = " of millisats: 15000 for 15 sat" if is_amount else ""
        return f"{str(error['input'])[:_MOST_CHARS]!r} is not a whole number{unit}"
    return _PLAIN.get(error["type"], error["msg"].removeprefix("Value error, "))
