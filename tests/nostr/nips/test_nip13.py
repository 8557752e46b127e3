"""Proof of work as NIP-13 states it."""

import contextlib

import nostr_sdk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadTag, NodewireError, TimedOut
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip13

KEYS = Keys(b"\x01" * 32)
EXAMPLE = {
    "id": "000006d8c378af1779d2feebc7603a125d99eca0ccf1085959b307f64e5dd358",
    "pubkey": "a48380f4cfcc1ad5378294fcac36439770f9c878dd880ffa94bb74ea54a6f243",
    "created_at": 1651794653,
    "kind": 1,
    "tags": [["nonce", "776797", "20"]],
    "content": "It's just me mining my own business",
    "sig": "284622fc0a3f4f1303455d5175f7ba962a3300d136085b9566801bc2e0699de0"
    "c7e31e44c81fb40ad9049173742e904713c3594a1da0fc5d2382a25c11aba977",
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("event_id", "bits"),
    [
        ("000000000e9d97a1ab09fc381030b346cdd7a142ad57e6df0b46dc9bef6c7e2d", 36),
        ("002f" + "0" * 60, 10),
        ("0" * 64, 256),
    ],
)
def test_difficulty_is_the_number_of_leading_zero_bits(event_id, bits):
    assert nip13.difficulty(event_id) == bits


def test_the_mined_note_of_the_nip():
    note = events.parse(EXAMPLE)
    assert (nip13.difficulty(note.id), nip13.committed_target(note)) == (21, 20)
    nip13.check(note, 20)
    with pytest.raises(BadTag, match="committed target 20 is less than 21"):
        nip13.check(note, 21)
    with pytest.raises(BadTag, match="difficulty 21 is less than 22"):
        nip13.check(note, 22)


@given(texts, st.lists(st.lists(texts, min_size=1, max_size=3), max_size=3), st.integers(0, 8))
@settings(max_examples=25)
def test_what_is_mined_passes_the_check(content, tags, target):
    mined = nip13.mine(KEYS.public, 1, target, created_at=1_000, content=content, tags=tags)
    event = events.sign(KEYS, 1, created_at=1_000, content=content, tags=mined)
    nip13.check(event, target)
    assert nip13.committed_target(event) == target
    assert nostr_sdk.Event.from_json(event.to_json()).verify()


def test_mining_again_replaces_the_old_nonce():
    once = nip13.mine(KEYS.public, 1, 4, created_at=1, tags=[["t", "x"]])
    assert [tag[0] for tag in nip13.mine(KEYS.public, 1, 8, created_at=1, tags=once)] == ["t", "nonce"]


def test_mining_is_bounded_and_goes_on_where_it_stopped():
    whole = nip13.mine(KEYS.public, 1, 10, created_at=1)
    found = int(whole[-1][1])
    with pytest.raises(TimedOut):
        nip13.mine(KEYS.public, 1, 10, created_at=1, max_attempts=found)
    assert nip13.mine(KEYS.public, 1, 10, created_at=1, first_nonce=found, max_attempts=1) == whole
    with pytest.raises(BadInput):
        nip13.mine(KEYS.public, 1, 65, created_at=1)


def test_luck_without_a_commitment_does_not_count():
    mined = nip13.mine(KEYS.public, 1, 8, created_at=1)
    lucky = events.sign(KEYS, 1, created_at=1, tags=[(*mined[0][:2], "1")])
    with pytest.raises(BadTag):
        nip13.check(lucky, 8)
    nip13.check(events.sign(KEYS, 1, created_at=1), 0)


@given(st.lists(texts, max_size=3))
def test_a_garbage_nonce_gives_only_typed_errors(rest):
    event = events.sign(KEYS, 1, created_at=1, tags=[["nonce", *rest]])
    with contextlib.suppress(NodewireError):
        assert 0 <= nip13.committed_target(event) <= 256
