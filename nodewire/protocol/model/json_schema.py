"""What a JSON schema may be that binds a generation's text: bounds that can be checked without making its grammar.

What a schema admits is said by the grammar that the driver makes of it (nips/28-generation.md).
"""

from __future__ import annotations

from typing import Any

import orjson

from nodewire.errors import BadInput

FIELD = "json_schema"
MAX_BYTES = 8_192
"""Of the schema's text as a JSON string, with its quotes and escapes: so it travels, in a ticket."""
MAX_DEPTH = 32
MAX_ALTERNATIVES = 512
"""All entries of these lists together."""
MAX_PATTERNS_AT_ONCE = 2
"""Different patterns and formats of a schema that can ask for several at once: what it takes to see whether a text may
have k of them grows as 2^k, and faster."""
_REFERS = ("$ref", "anyOf", "oneOf", "allOf")
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated"}
)
"""What asks nothing of a text."""
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "enum", "type")
ANY_OBJECT = '{"type":"object"}'


def check(text: Any) -> str:
    """The schema, if it keeps the bounds.

    Raises:
        BadInput: it is no text, or no JSON object, is too long, too deep, or has too many alternatives, or too
            many patterns at once.

    """
    if not isinstance(text, str):
        raise BadInput(FIELD, "not a text")
    try:
        size = len(orjson.dumps(text))
        schema = orjson.loads(text) if size <= MAX_BYTES else None
    except orjson.JSONEncodeError as error:
        raise BadInput(FIELD, "not UTF-8") from error
    except orjson.JSONDecodeError as error:
        raise BadInput(FIELD, f"not JSON: {str(error)[:80]}") from error
    if size > MAX_BYTES:
        raise BadInput(FIELD, f"{size} bytes when written as a JSON string, at most {MAX_BYTES}")
    if not isinstance(schema, dict):
        raise BadInput(FIELD, "not a JSON object")
    if (alternatives := _counted(schema, MAX_DEPTH)) > MAX_ALTERNATIVES:
        raise BadInput(FIELD, f"{alternatives} alternatives, at most {MAX_ALTERNATIVES}")
    patterns = _patterns(schema)
    if len(patterns) > MAX_PATTERNS_AT_ONCE and _intersects(schema):
        most = f"at most {MAX_PATTERNS_AT_ONCE} where $ref, anyOf, oneOf or allOf stand beside something else"
        raise BadInput(FIELD, f"{len(patterns)} patterns and formats, {most}")
    return text


def _parts(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []


def _patterns(node: Any) -> set[str]:
    found = set().union(*map(_patterns, _parts(node)))
    if isinstance(node, dict):
        found.update(node[name] for name in ("pattern", "format") if isinstance(node.get(name), str))
        named = node.get("patternProperties")
        found.update(named if isinstance(named, dict) else ())
    return found


def _intersects(node: Any) -> bool:
    """Whether any part of a schema asks for what two others ask for."""
    if isinstance(node, dict):
        refers = sum(name in node for name in _REFERS)
        several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
        if several or (refers and len(node.keys() - _NOTES) > 1):
            return True
    return any(map(_intersects, _parts(node)))


def _counted(node: Any, depth: int) -> int:
    """The alternatives in a part of a schema that may be `depth` deep."""
    if not isinstance(node, dict | list):
        return 0
    if not depth:
        raise BadInput(FIELD, f"nested more than {MAX_DEPTH} deep")
    if isinstance(node, list):
        return sum(_counted(one, depth - 1) for one in node)
    own = sum(len(node[name]) for name in _ALTERNATIVES if isinstance(node.get(name), list))
    return own + sum(_counted(one, depth - 1) for one in node.values())
