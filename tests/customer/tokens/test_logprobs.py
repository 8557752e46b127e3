"""What a driver says of log-probabilities is believed in form only, and never beyond what was asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.customer.tokens.logprobs import MAX_ROWS, Likely, likely_of
from nodewire.errors import BadFrame
from tests.customer.token_frames import frame, reader

ROW = st.tuples(st.integers(0, 2**31 - 1), st.floats(-9999, 0), st.text(max_size=8))


@given(st.lists(ROW, min_size=1, max_size=MAX_ROWS))
def test_rows_are_read_as_they_were_written(rows):
    found = likely_of(json.dumps(rows, ensure_ascii=False), rows[0][0])
    assert found == tuple(Likely(*row) for row in rows)


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        7,
        "",
        "[]",
        "{}",
        "[" * 2_000,
        '[[7,-1.0,"a"]' + " " * 5_000 + "]",
        "[7]",
        "[[7,-1.0]]",
        '[[7,-1.0,"a",1]]',
        '[["7",-1.0,"a"]]',
        '[[7,"-1.0","a"]]',
        '[[7,0.1,"a"]]',
        '[[7,-1e5,"a"]]',
        '[[7,NaN,"a"]]',
        '[[7,true,"a"]]',
        '[[true,-1.0,"a"]]',
        '[[-1,-1.0,"a"]]',
        '[[2147483648,-1.0,"a"]]',
        "[[7,-1.0,7]]",
        '[[8,-1.0,"a"]]',
        json.dumps([[7, -1.0, "a"]] * (MAX_ROWS + 1)),
    ],
    ids=lambda said: str(said)[:30],
)
def test_what_is_none_is_refused(said):
    with pytest.raises(BadFrame) as refused:
        likely_of(said, 7)
    assert refused.value.field == "logprobs"


def test_a_token_without_any_has_none_and_is_refused_where_they_were_asked_for():
    assert reader().piece(frame(7)).likely == ()
    with pytest.raises(BadFrame) as refused:
        reader(logprobs=2).piece(frame(7))
    assert refused.value.field == "logprobs"


def test_more_than_were_asked_for_are_refused():
    said = json.dumps([[7, -1.0, "a"], [8, -2.0, "b"], [9, -3.0, "c"]])
    assert len(reader(logprobs=2).piece(frame(7, logprobs=said)).likely) == 3
    with pytest.raises(BadFrame):
        reader(logprobs=1).piece(frame(7, logprobs=said))
