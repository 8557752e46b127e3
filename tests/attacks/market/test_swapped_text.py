"""A driver whose ids are the model's, and which says something else beside them than they mean.

Commitments cover ids alone: of what else is in a frame the customer takes nothing that does not follow from them.
"""

from __future__ import annotations

import json

import pytest

from nodewire.errors import BadFrame
from tests.customer.token_frames import EOS, PROMPT_TOKENS, frame, ids_of, read, reader

TEXT = "pay to bc1honest, please"
IDS = ids_of(TEXT)


def fault(reading, bad):
    with pytest.raises(BadFrame) as refused:
        reading.piece(bad)
    return refused.value.field


def test_the_text_is_that_of_the_ids_though_the_driver_says_none():
    pieces = read(reader(max_tokens=len(IDS)), IDS, reason="length")
    assert "".join(piece.text for piece in pieces) == TEXT
    assert (pieces[-1].end, pieces[-1].reason) == (True, "length")


@pytest.mark.parametrize("text", ["pay to bc1thief", "", 7, None])
def test_a_text_that_the_id_does_not_mean_is_the_drivers_fault(text):
    assert fault(reader(), frame(IDS[0], text="x" if text is None else text)) == "text"


def test_a_text_that_the_id_means_is_taken():
    true = read(reader(), IDS[:1])[0].text
    assert reader().piece(frame(IDS[0], text=true)).text == true


def test_an_end_that_nothing_calls_for_is_a_fault():
    assert fault(reader(), frame(IDS[0], end=True, reason="eos")) == "end"
    assert fault(reader(), frame(IDS[0], end=True, reason="length")) == "end"


def test_an_end_that_is_kept_back_is_a_fault():
    assert fault(reader(), frame(EOS)) == "end"
    assert fault(reader(max_tokens=1), frame(IDS[0])) == "end"
    assert fault(reader(positions=PROMPT_TOKENS + 1), frame(IDS[0])) == "end"
    stopping = reader(stop=["bc1"])
    with pytest.raises(BadFrame) as refused:
        read(stopping, IDS)
    assert refused.value.field == "end"


def test_nothing_follows_the_end():
    reading = reader(max_tokens=1)
    reading.piece(frame(IDS[0], end=True, reason="length"))
    assert fault(reading, frame(IDS[1], 1)) == "tokens"


@pytest.mark.parametrize("reason", ["eos", "", 7, "thief"])
def test_a_reason_is_derived_whatever_is_said(reason):
    assert reader(max_tokens=1).piece(frame(IDS[0], end=True, reason=reason)).reason == "length"


def test_an_end_token_ends_the_text_and_is_none_of_it():
    pieces = read(reader(), [*IDS, EOS], reason="eos")
    assert ("".join(piece.text for piece in pieces), pieces[-1].reason) == (TEXT, "eos")


def test_a_stop_string_is_the_customers_own_to_find():
    ids = ids_of(TEXT)
    made = len(ids)
    for made in range(1, len(ids) + 1):
        if "bc1" in "".join(piece.text for piece in read(reader(), ids[:made])):
            break
    pieces = read(reader(stop=["bc1"]), ids[:made], reason="stop")
    assert ("".join(piece.text for piece in pieces), pieces[-1].reason) == ("pay to ", "stop")


@pytest.mark.parametrize("pos", [-1, 0, 41, 2**40, None, "5", True])
def test_a_prompt_has_no_more_tokens_than_its_bytes_allow(pos):
    assert fault(reader(), frame(IDS[0], pos=pos)) == "pos"


def test_positions_follow_each_other():
    reading = reader()
    reading.piece(frame(IDS[0], 0))
    assert fault(reading, frame(IDS[1], 1, pos=PROMPT_TOKENS + 2)) == "pos"


@pytest.mark.parametrize("token", [-1, 2**40, 10**6])
def test_an_id_is_one_of_the_vocabulary(token):
    assert fault(reader(), frame(token)) == "tokens"


def test_a_text_under_a_schema_ends_where_the_driver_says_if_it_is_whole_there():
    said = json.dumps({"to": "bc1honest"})
    pieces = read(reader(json_object=True), ids_of(said), reason="stop")
    assert ("".join(piece.text for piece in pieces), pieces[-1].reason) == (said, "stop")


def test_a_text_under_a_schema_does_not_end_amid_it():
    with pytest.raises(BadFrame) as refused:
        read(reader(json_schema="{}"), ids_of('{"to": "bc1'), reason="stop")
    assert refused.value.field == "end"


def test_the_texts_beside_log_probabilities_are_those_of_their_ids():
    first, other = IDS[0], IDS[1]
    said = json.dumps([[first, -0.5, "thief"], [other, -1.5, "thief"]])
    likely = reader(logprobs=1).piece(frame(first, logprobs=said)).likely
    assert [one.id for one in likely] == [first, other]
    assert "thief" not in [one.text for one in likely]
    assert fault(reader(logprobs=1), frame(first)) == "logprobs"


def test_what_an_earlier_job_made_is_not_told_again_and_counts():
    half = len(IDS) // 2
    before = read(reader(), IDS[:half])
    after = read(reader(IDS[:half], max_tokens=len(IDS) - half), IDS[half:], history=half, reason="length")
    assert "".join(piece.text for piece in [*before, *after]) == TEXT
