"""Which schemas may bind a text, and that the longest of them fits a ticket that is wrapped."""

import json

import pytest

from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip59
from nodewire.protocol import kinds
from nodewire.protocol.job.request import Ticket
from nodewire.protocol.model.json_schema import MAX_ALTERNATIVES, MAX_BYTES, MAX_DEPTH, check

LONGEST = json.dumps({"description": '"' * ((MAX_BYTES - 30) // 4)}, separators=(",", ":"))


def nested(depth):
    return "[" * (depth - 1) + "]" * (depth - 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"object"}',
        "{}",
        LONGEST,
        '{"prefixItems":' + nested(MAX_DEPTH) + "}",
        json.dumps({"enum": list(range(MAX_ALTERNATIVES))}),
        '{"properties": {"enum": {"type": "string"}}}',  # a property of that name is no list of alternatives
    ],
    ids=lambda text: text[:30],
)
def test_what_keeps_the_bounds_is_taken_as_it_is(text):
    assert check(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (7, "not a text"),
        ({"type": "object"}, "not a text"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a": NaN}', "not JSON"),
        ("[]", "not a JSON object"),
        ("true", "not a JSON object"),
        ('"\ud800"', "not UTF-8"),
        ("[" * 1_000, "not JSON"),
        ("[" * 4_000_000, "bytes"),
        ('{"description": "' + "x" * MAX_BYTES + '"}', "bytes"),
        ('{"description": "' + "\\u0000" * (MAX_BYTES // 7) + '"}', "bytes"),
        ('{"prefixItems":' + nested(MAX_DEPTH + 1) + "}", "deep"),
        (json.dumps({"enum": list(range(MAX_ALTERNATIVES + 1))}), "alternatives"),
        (json.dumps({"anyOf": [{"type": ["null", "string"]}] * (MAX_ALTERNATIVES // 3 + 1)}), "alternatives"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_breaks_them_is_refused_by_name(text, why):
    with pytest.raises(BadInput, match=why) as refused:
        check(text)
    assert refused.value.field == "json_schema"


def test_a_ticket_of_the_longest_parameters_can_be_wrapped():
    """Quotes are escaped in the ticket, and again in the rumor around it."""
    assert MAX_BYTES - 16 < len(json.dumps(check(LONGEST))) <= MAX_BYTES
    params = {
        "max_tokens": 10**6,
        "stop": ["\x00" * 64] * 4,
        "logit_bias": {str(1_000_000 + n): -99.99999999999999 for n in range(213)},
        "json_schema": LONGEST,
        "logprobs": 20,
        "seed": 2**63 - 1,
    }
    inputs = (("prompt", 0, "ab" * 32), ("prompt", 1, "ab" * 32))
    ticket = Ticket(request="cd" * 32, params=params, salt="ef" * 32, inputs=inputs)
    assert len(ticket.to_json()) > Ticket.MAX_BYTES - 64
    assert Ticket.parse(ticket.to_json()).seal() == ticket.seal()
    sender, taker = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
    rumor = nip59.rumor(sender.public, kinds.TICKET, created_at=1, content=ticket.to_json())
    wrap = nip59.wrap(rumor, sender, taker.public, now_s=1, ephemeral=True)
    assert len(json.dumps(wrap.as_dict())) < 64_000
