"""A splice's ad, and what ends ask of it: each fault is refused by its field."""

import pytest

from nodewire.errors import BadPeer, BadTag, BadVersion
from nodewire.nostr.event import sign
from nodewire.protocol import kinds
from nodewire.protocol.market import splice_ad
from nodewire.protocol.market.splice_ad import Splice
from tests.protocol.committee.actors import digest, keys

NOW_S = 1_700_000_000
ADVERTISED = Splice(name="main", at=("example.com:7000",), bytes_per_s=10**6, most_bytes=10**9)
END, SPLICE = keys("end"), keys("splice").public


def test_an_ad_is_parsed_back():
    assert splice_ad.parse(splice_ad.build(END, ADVERTISED, created_at=NOW_S)) == ADVERTISED


@pytest.mark.parametrize(
    ("tag", "tags"),
    [
        ("d", [("d", "other"), ("k", str(kinds.SPLICE))]),
        ("k", [("d", "main"), ("k", "1")]),
        ("k", [("d", "main"), ("k", str(kinds.SPLICE)), ("k", "1")]),
    ],
)
def test_an_ad_whose_tags_contradict_its_document_is_refused(tag, tags):
    event = sign(END, kinds.AD, created_at=NOW_S, content=ADVERTISED.to_json(), tags=tags)
    with pytest.raises(BadTag) as raised:
        splice_ad.parse(event)
    assert raised.value.field == tag


def asked(**changes):
    return splice_ad.request(END, SPLICE, **{"salt": "s", "now_s": NOW_S, **changes}).to_json()


@pytest.mark.parametrize(("room", "port"), [(None, None), (digest("room"), None), (None, 7_000)])
def test_a_request_is_read_with_what_it_wants(room, port):
    found = splice_ad.check_request(asked(room=room, port=port), SPLICE, NOW_S + 59)
    assert (found.public, found.room, found.port) == (END.public, room, port)


@pytest.mark.parametrize(
    ("changes", "splice", "now_s", "field"),
    [
        ({}, keys("another").public, NOW_S, "p"),
        ({"port": 22}, SPLICE, NOW_S, "dial"),
        ({"port": 7_000, "room": digest("room")}, SPLICE, NOW_S, "dial"),
        ({"port": 70_000}, SPLICE, NOW_S, "dial"),
        ({"room": "short"}, SPLICE, NOW_S, "room"),
        ({}, SPLICE, NOW_S + 61, "created_at"),
        ({}, SPLICE, NOW_S - 61, "created_at"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_its_field(changes, splice, now_s, field):
    with pytest.raises(BadPeer) as raised:
        splice_ad.check_request(asked(**changes), splice, now_s)
    assert raised.value.field == field


def test_a_request_of_another_version_says_both():
    event = sign(END, kinds.SPLICE, created_at=NOW_S, tags=[("p", SPLICE), ("salt", "s"), ("v", "2")])
    with pytest.raises(BadVersion, match="2"):
        splice_ad.check_request(event.to_json(), SPLICE, NOW_S)
