"""What a model may be called, and which names look alike."""

import pytest
from pydantic import TypeAdapter, ValidationError

from nodewire.errors import BadInput
from nodewire.protocol.market.model_name import Alias, name_in, skeleton

ALIAS = TypeAdapter(Alias)


def test_capitals_are_written_small():
    assert name_in("SmolLM2-135M") == "smollm2-135m"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("smol lm", "SPACE"),
        ("smo\u217cm", "SMALL ROMAN NUMERAL FIFTY"),
        ("\u212aimi", "KELVIN SIGN"),
        ("a\x00b", "a control character"),
        ("-smollm2", "the first a-z or 0-9"),
        ("", "1 to 64 letters"),
        ("a" * 65, "1 to 64 letters"),
        ("naddr1abc", "begins as an address does"),
        ("NADDR1ABC", "begins as an address does"),
    ],
)
def test_a_text_that_is_no_name_is_refused_with_its_cause(text, reason):
    with pytest.raises(BadInput, match=reason) as raised:
        name_in(text, "the field")
    assert raised.value.field == "the field"


@pytest.mark.parametrize(
    ("one", "other"), [("smollm2", "smo1lm-2"), ("cl.d", "dd"), ("modern", "modem"), ("vv5", "w.s")]
)
def test_names_that_look_alike_have_one_skeleton(one, other):
    assert skeleton(one) == skeleton(other)


def test_names_that_read_differently_have_two():
    assert skeleton("smollm2") != skeleton("smollm3")


def test_an_alias_is_a_name_in_small_letters():
    assert ALIAS.validate_python("smollm2") == "smollm2"
    for text, reason in (("SmolLM2", "has capitals"), ("smol lm2", "SPACE")):
        with pytest.raises(ValidationError, match=reason):
            ALIAS.validate_python(text)
