"""Who answers a relay's challenge, as NIP-42 states it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadEvent, BadTag, NodewireError
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip42

KEYS = Keys(b"\x01" * 32)
URL, NOW_S = "wss://relay.example.com/", 1_800_000_000
ANSWER = nip42.build(KEYS, relay_url=URL, challenge="c", now_s=NOW_S)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_what_is_built_passes_the_check(challenge):
    answer = nip42.build(KEYS, relay_url=URL, challenge=challenge, now_s=NOW_S)
    nip42.check(events.parse(answer.to_json()), relay_url=URL, challenge=challenge, now_s=NOW_S)


@pytest.mark.parametrize("url", ["wss://relay.example.com", "wss://RELAY.example.com:443/path"])
def test_of_the_relays_url_only_host_and_port_count(url):
    nip42.check(ANSWER, relay_url=url, challenge="c", now_s=NOW_S)


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"challenge": "d"}, BadTag, "challenge"),
        ({"relay_url": "wss://other.example.com/"}, BadTag, "relay"),
        ({"relay_url": "wss://relay.example.com:444/"}, BadTag, "relay"),
        ({"now_s": NOW_S + 601}, BadEvent, "created_at"),
        ({"now_s": NOW_S - 601}, BadEvent, "created_at"),
    ],
)
def test_an_answer_to_something_else_is_refused(changes, error, field):
    with pytest.raises(error) as raised:
        nip42.check(ANSWER, **{"relay_url": URL, "challenge": "c", "now_s": NOW_S, **changes})
    assert raised.value.field == field


@pytest.mark.parametrize("kind", [1, 22_243])
def test_another_kind_is_refused(kind):
    event = events.sign(KEYS, kind, created_at=NOW_S, tags=ANSWER.tags)
    with pytest.raises(BadEvent, match="kind"):
        nip42.check(event, relay_url=URL, challenge="c", now_s=NOW_S)


@given(
    st.sampled_from(["", "wss://[", "https://relay.example.com", "wss://"])
    | st.text(st.characters(exclude_categories=["Cs"]))
)
def test_a_garbage_relay_tag_gives_only_typed_errors(url):
    event = events.sign(KEYS, 22_242, created_at=NOW_S, tags=[["relay", url], ["challenge", "c"]])
    with pytest.raises(NodewireError):
        nip42.check(event, relay_url=URL, challenge="c", now_s=NOW_S)
