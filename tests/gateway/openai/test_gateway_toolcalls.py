"""Calls of tools are found in a text however it comes in pieces, and nothing of it is lost."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nodewire.gateway.openai.toolcalls import ToolCalls

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
PARTS = st.lists(
    st.sampled_from(
        [CALL, "<tool_call>", "</tool_call>", "<tool", " text ", "\n", "<", '<tool_call>{"name": 1}</tool_call>', "x"]
    ),
    max_size=8,
)


def read(pieces: list[str]) -> tuple[str, list[str]]:
    calls, text = ToolCalls(), ""
    for piece in pieces:
        text += calls.push(piece)[0]
    return text + calls.end(), [call["function"]["arguments"] for call in calls.found]


@given(PARTS, st.data())
def test_pieces_read_as_the_whole_does(parts, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == read([text])


@given(st.text(alphabet="<tool_calx> \n{}", max_size=60))
def test_a_text_without_a_call_stays_as_it_is_but_for_blanks_at_its_end(text):
    said, calls = read([text])
    assert calls == [] and said.rstrip() == text.rstrip()


def test_several_calls_are_numbered_and_their_arguments_are_json():
    calls = ToolCalls()
    text, found = calls.push(f"Both.\n{CALL}\n{CALL}")
    assert (text, calls.end(), [call["index"] for call in found]) == ("Both.", "", [0, 1])
    assert len({call["id"] for call in found}) == 2
    assert json.loads(found[0]["function"]["arguments"]) == {"at": 1}


def test_what_is_no_call_is_text():
    for wrong in ('{"name": 1}', "[]", "{", '{"name": "x", "arguments": "y"}', "[" * 3_000):
        text = f"<tool_call>{wrong}</tool_call>"
        assert read([text]) == (text, [])


def test_a_call_that_is_nested_too_deeply_to_be_told_stays_text():
    """A driver says what it likes: its words are no fault of the gateway's."""
    deep = '<tool_call>{"name": "look", "arguments": {"at": ' + "[" * 600 + "]" * 600 + "}}</tool_call>"
    assert read([deep]) == (deep, [])
