"""Gift wraps: the NIP's own example, the checks a receiver must make, and nostr-sdk on the other side."""

import contextlib
import json
from pathlib import Path

import nostr_sdk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadCiphertext, BadEvent, BadSignature, NodewireError, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44, nip59

EXAMPLE = json.loads((Path(__file__).parents[2] / "vectors" / "nip59.example.json").read_text())
AUTHOR, RECIPIENT = (Keys(bytes.fromhex(EXAMPLE[f"{who}_secret"])) for who in ("author", "recipient"))
STRANGER = Keys(b"\x09" * 32)
NOW_S = 1_800_000_000
RUMOR = nip59.rumor(AUTHOR.public, 28_841, created_at=NOW_S, content="ticket", tags=[["x", "1"]])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def sealed_by_hand(content, keys=AUTHOR, kind=nip59.SEAL, tags=()):
    """A wrap for RECIPIENT around a seal that `nip59.seal` would not make."""
    encrypted = nip44.encrypt(content, nip44.derive_key(keys, RECIPIENT.public))
    return wrapped_by_hand(events.sign(keys, kind, created_at=1, content=encrypted, tags=tags).to_json())


def wrapped_by_hand(content):
    once = Keys.generate()
    encrypted = nip44.encrypt(content, nip44.derive_key(once, RECIPIENT.public))
    return events.sign(once, nip59.GIFT_WRAP, created_at=1, content=encrypted, tags=[["p", RECIPIENT.public]])


def test_the_example_of_the_nip_is_unwrapped():
    rumor = nip59.unwrap(events.parse(EXAMPLE["wrap"]), RECIPIENT)
    assert json.loads(rumor.to_json()) == EXAMPLE["rumor"]
    wrapper = Keys(bytes.fromhex(EXAMPLE["wrapper_secret"]))
    seal = nip44.decrypt(EXAMPLE["wrap"]["content"], nip44.derive_key(wrapper, RECIPIENT.public))
    assert json.loads(seal) == EXAMPLE["seal"]


@given(texts, st.lists(st.lists(texts, min_size=1, max_size=3), max_size=3), st.booleans())
@settings(max_examples=25)
def test_what_is_wrapped_is_unwrapped(content, tags, ephemeral):
    rumor = nip59.rumor(AUTHOR.public, 1, created_at=NOW_S, content=content, tags=tags)
    assert nip59.parse_rumor(rumor.to_json()) == rumor
    wrap = nip59.wrap(rumor, AUTHOR, RECIPIENT.public, now_s=NOW_S, ephemeral=ephemeral)
    assert nip59.unwrap(events.parse(wrap.to_json()), RECIPIENT) == rumor


def test_a_wrap_names_only_its_recipient_and_comes_from_a_new_key_each_time():
    wraps = [nip59.wrap(RUMOR, AUTHOR, RECIPIENT.public, now_s=NOW_S) for _ in range(2)]
    assert wraps[0].pubkey != wraps[1].pubkey
    for wrap in wraps:
        assert wrap.kind == 1_059
        assert wrap.tags == (("p", RECIPIENT.public),)
        assert AUTHOR.public not in wrap.to_json()
        assert NOW_S - 172_800 <= wrap.created_at <= NOW_S


def test_an_ephemeral_wrap_carries_its_true_time_and_the_tags_it_was_given():
    wrap = nip59.wrap(
        RUMOR, AUTHOR, RECIPIENT.public, now_s=NOW_S, ephemeral=True, tags=[["expiration", str(NOW_S + 60)]]
    )
    assert (wrap.kind, wrap.created_at) == (21_059, NOW_S)
    assert wrap.tag("expiration") == str(NOW_S + 60)


def test_a_rumor_in_anothers_name_is_refused():
    forged = nip59.rumor(STRANGER.public, 1, created_at=NOW_S, content="I owe you")
    with pytest.raises(BadSignature, match="pubkey"):
        nip59.unwrap(sealed_by_hand(forged.to_json()), RECIPIENT)
    with pytest.raises(BadEvent, match="pubkey"):
        nip59.seal(forged, AUTHOR, RECIPIENT.public, now_s=NOW_S)


def test_a_seal_that_is_not_signed_by_who_it_names_is_refused():
    seal = json.loads(nip59.seal(RUMOR, AUTHOR, RECIPIENT.public, now_s=NOW_S).to_json())
    with pytest.raises(BadSignature, match="sig"):
        nip59.unwrap(wrapped_by_hand(json.dumps({**seal, "sig": "0" * 128})), RECIPIENT)


def test_a_signed_rumor_is_refused():
    signed = events.sign(AUTHOR, 1, created_at=NOW_S)
    with pytest.raises(BadEvent, match="sig"):
        nip59.unwrap(sealed_by_hand(signed.to_json()), RECIPIENT)


def test_a_rumor_whose_id_is_not_its_hash_is_refused_and_one_without_id_is_not():
    data = json.loads(RUMOR.to_json())
    with pytest.raises(BadSignature, match="id"):
        nip59.unwrap(sealed_by_hand(json.dumps({**data, "id": "0" * 64})), RECIPIENT)
    del data["id"]
    assert nip59.unwrap(sealed_by_hand(json.dumps(data)), RECIPIENT) == RUMOR


@pytest.mark.parametrize(("kind", "tags"), [(1, []), (13, [["p", RECIPIENT.public]])])
def test_what_is_no_seal_or_has_tags_is_refused(kind, tags):
    with pytest.raises(BadEvent):
        nip59.unwrap(sealed_by_hand(RUMOR.to_json(), kind=kind, tags=tags), RECIPIENT)


def test_a_wrap_for_somebody_else_cannot_be_opened():
    with pytest.raises(BadCiphertext, match="mac"):
        nip59.unwrap(nip59.wrap(RUMOR, AUTHOR, RECIPIENT.public, now_s=NOW_S), STRANGER)
    with pytest.raises(BadEvent, match="kind"):
        nip59.unwrap(events.sign(AUTHOR, 1, created_at=1), RECIPIENT)


def test_the_largest_rumor_makes_an_event_under_64_kilobytes_and_a_larger_one_is_refused():
    empty = len(nip59.rumor(AUTHOR.public, 1, created_at=NOW_S).to_json())
    rumor = nip59.rumor(AUTHOR.public, 1, created_at=NOW_S, content="x" * (nip59.MAX_RUMOR_BYTES - empty))
    wrap = nip59.wrap(rumor, AUTHOR, RECIPIENT.public, now_s=NOW_S, ephemeral=True)
    assert len(wrap.to_json()) < 65_536
    assert nip59.unwrap(wrap, RECIPIENT) == rumor
    larger = nip59.rumor(AUTHOR.public, 1, created_at=NOW_S, content=rumor.content + "x")
    with pytest.raises(TooLarge):
        nip59.wrap(larger, AUTHOR, RECIPIENT.public, now_s=NOW_S)
    with pytest.raises(TooLarge):
        nip59.parse_rumor(larger.to_json())


@given(texts | st.dictionaries(st.sampled_from(["id", "pubkey", "kind", "tags", "content", "created_at"]), texts))
@settings(max_examples=50)
def test_a_seal_full_of_garbage_gives_only_typed_errors(garbage):
    with contextlib.suppress(NodewireError):
        nip59.unwrap(sealed_by_hand(json.dumps(garbage) or "x"), RECIPIENT)


def test_nostr_sdk_unwraps_ours():
    wrap = nip59.wrap(RUMOR, AUTHOR, RECIPIENT.public, now_s=NOW_S)
    theirs = nostr_sdk.UnwrappedGift.from_gift_wrap(
        nostr_sdk.Keys.parse(RECIPIENT.secret.hex()), nostr_sdk.Event.from_json(wrap.to_json())
    )
    assert theirs.sender().to_hex() == AUTHOR.public
    assert json.loads(theirs.rumor().as_json()) == json.loads(RUMOR.to_json())


def test_we_unwrap_those_of_nostr_sdk():
    keys = nostr_sdk.Keys.parse(AUTHOR.secret.hex())
    rumor = nostr_sdk.EventBuilder(nostr_sdk.Kind(14), "hello").finalize_unsigned(keys.public_key())
    wrap = nostr_sdk.nip59_make_gift_wrap(keys, nostr_sdk.PublicKey.parse(RECIPIENT.public), rumor)
    ours = nip59.unwrap(events.parse(wrap.as_json()), RECIPIENT)
    assert (ours.pubkey, ours.kind, ours.content) == (AUTHOR.public, 14, "hello")
