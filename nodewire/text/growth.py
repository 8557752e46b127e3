"""By how much a tokenizer.json may make a text longer before it is cut, and its ids more after.

The `tokenizers` library does what the file says: thirty replacements that double a text each are 2^30 of it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_GROWTH = 64
"""Characters of each character: what maps compatible characters to each other makes 18 of one."""
MAX_PARTS = 64
"""Normalizers, or post-processors, those in Sequences among them."""
MAX_PREFIX_CHARS = 4_096
MAX_SPECIALS = 4_096
"""Ids that are put around a text."""


def check(document: Mapping[str, Any]) -> None:
    """Look at a tokenizer.json's normalizers and post-processors. Raises BadTask: they make too much of a text."""
    growth = 1.0
    for one in _parts(document.get("normalizer"), "normalizer", "normalizers"):
        growth *= _growth(one)
        if growth > MAX_GROWTH:
            raise BadTask("tokenizer.normalizer", f"may make a text over {MAX_GROWTH} times as long: take it out")
    specials = 0
    for one in _parts(document.get("post_processor"), "post_processor", "processors"):
        specials += _specials(one)
        if specials > MAX_SPECIALS:
            raise BadTask("tokenizer.post_processor", f"puts over {MAX_SPECIALS} ids around a text: take it out")


def _parts(said: Any, field: str, inner: str) -> Iterator[dict[str, Any]]:
    """All that are no Sequence. Raises BadTask: too many, or it is not what the library reads."""
    left, waiting = MAX_PARTS, [said] if said is not None else []
    while waiting:
        one, left = waiting.pop(), left - 1
        if left < 0:
            raise BadTask(f"tokenizer.{field}", f"has more than {MAX_PARTS} parts: take some out")
        if not isinstance(one, dict):
            raise BadTask(f"tokenizer.{field}", "a part of it is no object")
        found = one.get(inner)
        if one.get("type") != "Sequence":
            yield one
        elif isinstance(found, list):
            waiting += found[: MAX_PARTS + 1]


def _growth(one: Mapping[str, Any]) -> float:
    """How many characters a normalizer may make of one."""
    match one:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new) / len(old))
        case {"type": "Replace", "content": str(new)}:  # of an expression, which may find nothing before each character
            return 1.0 + len(new)
        case {"type": "Prepend", "prepend": str(before)}:
            return 1.0 if len(before) <= MAX_PREFIX_CHARS else MAX_GROWTH + 1.0
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return float(_longest(table))
    return 1.0


def _longest(table: str) -> int:
    """Characters of the longest text in sentencepiece's table of replacements: the length of a trie, it, texts."""
    try:
        octets = base64.b64decode(table, validate=True)
    except ValueError:
        raise BadTask("tokenizer.normalizer", "its precompiled_charsmap is not base64") from None
    texts = octets[4 + int.from_bytes(octets[:4], "little") // 4 * 4 :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


def _specials(one: Mapping[str, Any]) -> int:
    """How many ids a post-processor puts around a text. Raises BadTask: it has the text itself twice."""
    if one.get("type") != "TemplateProcessing":
        return 2
    single, known = one.get("single"), one.get("special_tokens")
    if not isinstance(single, list) or not isinstance(known, dict):
        raise BadTask("tokenizer.post_processor", "a template of it has no list of parts, or no special tokens")
    found = texts = 0
    for part in single:
        match part:
            case {"SpecialToken": {"id": str(name)}}:
                ids = known.get(name, {}).get("ids", []) if isinstance(known.get(name), dict) else []
                found += len(ids) if isinstance(ids, list) else 0
            case _:
                texts += 1
    if texts > 1:
        raise BadTask("tokenizer.post_processor", "a template of it has the text itself more than once: take one out")
    return found
