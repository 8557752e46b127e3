"""What a customer reads of a driver's program."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput, BadTask, BadVersion, TooLarge
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.text_rules import MAX_PROGRAM_BYTES, text_rules

FILE = {"sha256": "ab" * 32, "bytes": 7}
PROGRAM = {
    "v": 1,
    "config": {"vocab_size": 300, "eos_token_id": [0, 299], "family": "any"},
    "tokenizer": FILE,
    "more": 1,
}


def rules(**changes):
    return text_rules(canonical.encode(PROGRAM | changes))


def test_the_rest_of_a_program_is_not_read():
    found = rules()
    assert (found.tokenizer.sha256, found.ends, found.vocabulary) == ("ab" * 32, {0, 299}, 300)
    assert rules(config={"vocab_size": 1}).ends == frozenset()


@pytest.mark.parametrize(
    "changes",
    [
        {"config": 7},
        {"config": {}},
        {"config": {"vocab_size": 0}},
        {"config": {"vocab_size": True}},
        {"config": {"vocab_size": 2**40}},
        {"config": {"vocab_size": 300, "eos_token_id": 0}},
        {"config": {"vocab_size": 300, "eos_token_id": [300]}},
        {"config": {"vocab_size": 300, "eos_token_id": [-1]}},
        {"config": {"vocab_size": 300, "eos_token_id": ["0"]}},
        {"config": {"vocab_size": 300, "eos_token_id": [0] * 33}},
        {"tokenizer": None},
        {"tokenizer": {"sha256": "ab", "bytes": 7}},
        {"tokenizer": {"sha256": "ab" * 32, "bytes": -1}},
    ],
    ids=str,
)
def test_a_field_that_is_not_what_it_must_be_is_named(changes):
    with pytest.raises(BadTask, match=f"program.{next(iter(changes))}|not a driver's"):
        rules(**changes)


@pytest.mark.parametrize("program", [b"", b"\xff", canonical.encode([]), canonical.encode({}), b"\xc1"])
def test_what_is_no_program_is_refused(program):
    with pytest.raises(BadTask, match="program"):
        text_rules(program)


def test_another_version_is_refused():
    with pytest.raises(BadVersion):
        rules(v=2)


def test_a_program_over_its_caps_is_not_read():
    with pytest.raises(TooLarge):
        text_rules(bytes(MAX_PROGRAM_BYTES + 1))
    with pytest.raises(TooLarge):
        text_rules(canonical.encode({"v": 1, "config": [[]] * 100_000}))


def test_errors_are_typed_for_any_bytes():
    for size in range(40):
        with pytest.raises(BadInput):
            text_rules(bytes(range(size)))
