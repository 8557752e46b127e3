"""With a schema the text is an instance of it, however random the model, and the same in ring and reference."""

import json

import pytest

from nodewire.errors import BadInput, Busy
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.grammar import MAX_GRAMMARS
from nodewire.llm.tokens.sampling_params import parse_params

pytest.importorskip("llguidance")

PROMPT = "the quick brown fox"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
            "kind": {"enum": ["fox", "dog"]},
        },
        "required": ["name", "sizes", "kind"],
        "additionalProperties": False,
    }
)
HOT = {"temperature": 1.5, "seed": 4}


def check(text):
    found = json.loads(text)
    assert list(found) == ["name", "sizes", "kind"]
    assert isinstance(found["name"], str) and len(found["name"]) <= 8
    assert all(type(size) is int and 0 <= size < 100 for size in found["sizes"]) and len(found["sizes"]) <= 3
    assert found["kind"] in ("fox", "dog")


@pytest.mark.parametrize("seed", range(6))
def test_the_text_is_an_instance_of_the_schema_with_and_without_guesses(ring, whole, seed):
    params = {"json_schema": SCHEMA, "temperature": 1.5, "seed": seed, "max_tokens": 200}
    ids, text, reason = ring.generate(PROMPT, **params)
    assert reason in ("stop", "eos")
    check(text)
    assert "".join(whole.generate(PROMPT, parse_params(params, 256))) == text
    assert ring.generate(PROMPT, lookahead=12, **params) == (ids, text, reason)


def test_a_history_goes_on_within_its_schema(ring):
    params = {"json_schema": SCHEMA, **HOT}
    ids, text, reason = ring.generate(PROMPT, max_tokens=200, **params)
    for cut in (1, len(ids) // 2, len(ids) - 1):
        rest, later, why = ring.generate(PROMPT, history=ids[:cut], max_tokens=200 - cut, **params)
        assert (ids[:cut] + rest, why) == (ids, reason)
        assert text.endswith(later)


def test_any_object_will_do_where_only_that_is_asked(ring):
    _, text, reason = ring.generate(PROMPT, max_tokens=230, json_object=True, logit_bias={"93": 12}, **HOT)
    assert text.startswith("{")
    if reason != "length":
        assert isinstance(json.loads(text), dict)


def test_white_space_has_an_end(ring):
    """A model that would say nothing else comes to the point all the same."""
    white = {str(token): 100 for token in range(300) if ring_text(ring, token).strip() == ""}
    _, text, reason = ring.generate(PROMPT, max_tokens=240, json_schema='{"const":[7]}', logit_bias=white)
    assert reason == "stop" and json.loads(text) == [7] and 3 < len(text) <= 3 + 32 * 3


def ring_text(ring, token):
    return ring.actors["driver"]._tokenizer.decode([token]) or "no text"


@pytest.mark.parametrize(
    "schema",
    ["{", "[]", '{"type":"nope"}', '{"$ref":"http://example.com/x"}', '{"type":"string","pattern":"("}'],
)
def test_what_is_no_schema_is_refused_before_anything_is_taken(ring, schema):
    for _ in range(3):
        with pytest.raises(BadInput) as caught:
            ring.actors["driver"].open("s", {"json_schema": schema})
        assert caught.value.field == "json_schema"
    ring.actors["driver"].open("s", {})


def test_only_so_many_texts_under_schemas_are_under_way(plain):
    whole = LocalDecoder(plain)
    params = parse_params({"json_schema": SCHEMA}, 256)
    made = [whole.sampler(params) for _ in range(MAX_GRAMMARS)]
    with pytest.raises(Busy):
        whole.sampler(params)
    whole.sampler(parse_params({}, 256))
    made.pop()
    whole.sampler(params)


def test_a_history_that_is_none_of_the_schema_is_refused(ring):
    ring.open("s", json_schema=SCHEMA)
    with pytest.raises(BadInput) as caught:
        next(ring.frames("s", PROMPT, [7, 8, 9]))
    assert caught.value.field == "history"  # whoever made that is at fault, and not who wrote the schema


@pytest.mark.parametrize(
    "schema",
    [
        json.dumps({"type": "string", "pattern": "(" * 60 + "a{1,9}" + "){1,9}" * 60}),
        json.dumps({"type": "string", "pattern": "(x+x+)+y" * 200}),
        json.dumps({"anyOf": [{"type": "string", "pattern": f"[a-z]{{1,{n}}}{n}"} for n in range(1, 300)]}),
    ],
    ids=["nested", "ambiguous", "many"],
)
def test_a_schema_that_takes_too_much_ends_its_session_and_no_more(ring, schema):
    other = ring.generate(PROMPT, max_tokens=5)
    refused = "json_schema"
    try:
        ring.generate(PROMPT, max_tokens=30, json_schema=schema, **HOT)
    except BadInput as error:
        refused = error.field
    assert refused == "json_schema"
    assert ring.generate(PROMPT, max_tokens=5) == other
