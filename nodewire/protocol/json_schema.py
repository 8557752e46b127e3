"""What a JSON schema may be that binds a generation's text: bounds that can be checked without making its grammar.

What a schema admits is said by the grammar that the driver makes of it (NIPS.md, "Task programs").
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
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "enum", "type")
ANY_OBJECT = '{"type":"object"}'


def check(text: Any) -> str:
    """The schema, if it keeps the bounds.

    Raises:
        BadInput: it is no text, or no JSON object, is too long, too deep, or has too many alternatives.
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
    return text


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
