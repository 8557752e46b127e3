"""A schema of a few kilobytes cannot keep a driver at work for ever."""

from __future__ import annotations

import json

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.model.json_schema import MAX_PATTERNS_AT_ONCE, check

PATTERNS = [{"type": "string", "pattern": f"(.*a.{{{n}}}b)*"} for n in range(40)]
"""A text that has all of these at once took llguidance 2.2 s for 20 of them, and twice that for each further one."""


def chained(patterns):
    """Each asks for the next beside its own, without allOf."""
    defs = {f"p{n}": {**one, "$ref": f"#/$defs/p{n + 1}"} for n, one in enumerate(patterns)}
    return {"$defs": {**defs, f"p{len(patterns)}": {}}, "$ref": "#/$defs/p0"}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": PATTERNS},
        {"properties": {"x": {"items": {"allOf": PATTERNS[:3]}}}},
        chained(PATTERNS),
        {"allOf": [{"allOf": [one]} for one in PATTERNS]},
        {**PATTERNS[0], "anyOf": [{**PATTERNS[1], "anyOf": [PATTERNS[2]]}]},
        {"allOf": [{"format": "date"}, {"format": "uuid"}, {"pattern": "a"}]},
        {"allOf": [{"patternProperties": {one["pattern"]: {}}} for one in PATTERNS]},
    ],
)
def test_a_text_is_not_asked_to_have_many_patterns_at_once(schema):
    with pytest.raises(BadInput, match="patterns"):
        check(json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"x{n}": one for n, one in enumerate(PATTERNS)}},
        {"anyOf": PATTERNS, "description": "any of them"},
        {"allOf": PATTERNS[:MAX_PATTERNS_AT_ONCE]},
        {"$defs": {"a": PATTERNS[0]}, "properties": {"x": {"$ref": "#/$defs/a", "title": "X"}}},
    ],
)
def test_patterns_of_different_parts_are_as_many_as_fit(schema):
    assert json.loads(check(json.dumps(schema))) == schema
