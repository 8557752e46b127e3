"""A request is its signer's only with this URL, method and body, and only for a minute."""

import pytest

from nodewire.errors import NotAllowed
from nodewire.nostr.event import sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip98, nipb7
from nodewire.nostr.nips.nip98 import HttpRequest

KEYS = Keys(b"\x01" * 32)
NOW_S = 1_700_000_000
ASKED = HttpRequest("http://holder.example/v1/claims", "POST", b'{"case": "x"}')
HEADER = nip98.header(KEYS, ASKED, now_s=NOW_S)


def test_the_signer_of_a_request_is_known_by_its_header():
    assert nip98.check_header(HEADER, ASKED, now_s=NOW_S + 60) == KEYS.public
    get = HttpRequest(ASKED.url, "GET")
    assert nip98.check_header(nip98.header(KEYS, get, now_s=NOW_S), get, now_s=NOW_S - 60) == KEYS.public


@pytest.mark.parametrize(
    ("asked", "now_s", "field"),
    [
        (HttpRequest(ASKED.url + "?x", "POST", ASKED.body), NOW_S, "u"),
        (HttpRequest(ASKED.url, "PUT", ASKED.body), NOW_S, "method"),
        (HttpRequest(ASKED.url, "POST", b"{}"), NOW_S, "payload"),
        (HttpRequest(ASKED.url, "POST"), NOW_S, "payload"),
        (ASKED, NOW_S + 61, "created_at"),
        (ASKED, NOW_S - 61, "created_at"),
    ],
)
def test_a_signature_is_good_for_one_request(asked, now_s, field):
    with pytest.raises(NotAllowed) as caught:
        nip98.check_header(HEADER, asked, now_s=now_s)
    assert caught.value.field == field


def test_a_body_that_is_not_signed_is_refused():
    unsigned = nip98.header(KEYS, HttpRequest(ASKED.url, "POST"), now_s=NOW_S)
    with pytest.raises(NotAllowed, match="payload"):
        nip98.check_header(unsigned, ASKED, now_s=NOW_S)


@pytest.mark.parametrize("value", [None, "", "Bearer x", "Nostr !!!", "Nostr e30", HEADER[:-8]])
def test_what_is_no_signed_event_is_refused(value):
    with pytest.raises(NotAllowed):
        nip98.check_header(value, ASKED, now_s=NOW_S)


def test_an_event_of_another_kind_signs_nothing():
    tags = [("u", ASKED.url), ("method", "POST"), ("payload", ASKED.payload)]
    other = nipb7.to_header(sign(KEYS, 24_242, created_at=NOW_S, tags=tags))
    with pytest.raises(NotAllowed, match="kind"):
        nip98.check_header(other, ASKED, now_s=NOW_S)
