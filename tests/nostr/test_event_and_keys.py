"""Events and keys: ids, signatures and texts are those of every other implementation."""

import contextlib
import json

import nostr_sdk
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadConfig, BadEvent, BadInput, BadSignature, NodewireError, TooLarge
from nodewire.nostr import bech32_text, keys
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys

KEYS = Keys(b"\x01" * 32)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
json_values = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts | st.lists(texts) | st.lists(st.lists(texts))
)


@given(texts, st.lists(st.lists(texts, min_size=1, max_size=3), max_size=3), st.integers(0, 2**53 - 1))
def test_what_is_signed_is_parsed_back(content, tags, created_at):
    event = events.sign(KEYS, 1, created_at=created_at, content=content, tags=tags)
    assert events.parse(event.to_json()) == event
    assert events.parse(event.as_dict()) == event


def test_ids_are_those_of_nostr_sdk_for_every_control_character_and_around_the_edges_of_unicode():
    # NIP-01 wants control characters other than its seven verbatim; no implementation writes them so.
    public = nostr_sdk.PublicKey.parse(KEYS.public)
    for code in [*range(0xA1), 0x2028, 0x2029, 0xD7FF, 0xE000, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600, 0x10FFFF]:
        text = f"a{chr(code)}b"
        theirs = (
            nostr_sdk.EventBuilder(nostr_sdk.Kind(1), text)
            .tags([nostr_sdk.Tag.parse(["x", text])])
            .custom_created_at(nostr_sdk.Timestamp.from_secs(1_000))
            .finalize_unsigned(public)
            .ensure_id()
        )
        assert events.event_id(KEYS.public, 1_000, 1, [["x", text]], text) == theirs.id().to_hex(), hex(code)


def test_characters_are_escaped_as_json_stringify_does():
    # node -e 'console.log(JSON.stringify("\0\b\t\n\v\f\r\x1f\"\\/\x7f\u2028é"))'
    written = events.serialize("", 0, 1, [], '\0\b\t\n\v\f\r\x1f"\\/\x7f\u2028é').decode()
    assert written == '[0,"",0,1,[],"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f\\"\\\\/\x7f\u2028é"]'


@given(texts)
@settings(max_examples=25)
def test_nostr_sdk_verifies_ours_and_we_verify_its(content):
    ours = events.sign(KEYS, 1, created_at=1_000, content=content)
    assert nostr_sdk.Event.from_json(ours.to_json()).verify()
    theirs = nostr_sdk.EventBuilder(nostr_sdk.Kind(1), content).finalize(nostr_sdk.Keys.generate())
    assert events.parse(theirs.as_json()).content == content


EVENT = events.sign(KEYS, 1, created_at=1_000, content="x").as_dict()


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"content": "y"}, BadSignature, "id"),
        ({"sig": "0" * 128}, BadSignature, "sig"),
        ({"id": "ab"}, BadEvent, "id"),
        ({"pubkey": "A" * 64}, BadEvent, "pubkey"),
        ({"created_at": True}, BadEvent, "created_at"),
        ({"created_at": 1.5}, BadEvent, "created_at"),
        ({"created_at": -1}, BadEvent, "created_at"),
        ({"kind": 65_536}, BadEvent, "kind"),
        ({"content": None}, BadEvent, "content"),
        ({"tags": {}}, BadEvent, "tags"),
        ({"tags": [[]]}, BadEvent, "tags"),
        ({"tags": [["x", 1]]}, BadEvent, "tags"),
        ({"tags": [["x"]] * 2_001}, TooLarge, "tags"),
    ],
)
def test_a_wrong_event_is_refused_by_the_name_of_its_field(changes, error, field):
    with pytest.raises(error) as raised:
        events.parse({**EVENT, **changes})
    assert raised.value.field == field


def test_a_key_that_is_no_point_of_the_curve_signs_nothing():
    for public in ("f" * 64, "0" * 64):
        data = {**EVENT, "pubkey": public, "id": events.event_id(public, 1_000, 1, [], "x")}
        with pytest.raises(BadSignature, match="sig"):
            events.parse(data)
        with pytest.raises(BadInput, match="public key"):
            KEYS.shared_x(public)


def test_the_size_of_an_event_is_counted_in_bytes():
    text = json.dumps({**EVENT, "content": "é" * 40_000}, ensure_ascii=False)
    assert len(text) < events.MAX_BYTES
    with pytest.raises(TooLarge):
        events.parse(text)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(BadEvent):
        events.sign(KEYS, 1, created_at=1, content="\ud800")
    with pytest.raises(BadEvent):
        events.parse('{"content": "\\ud800"}')


@given(st.dictionaries(st.sampled_from([*EVENT]), json_values))
def test_garbage_gives_only_typed_errors(changes):
    for data in (changes, {**EVENT, **changes}):
        with contextlib.suppress(NodewireError):
            events.parse(orjson.dumps(data))


@pytest.mark.parametrize("text", ["", "nsec1x", "npub1x", "00" * 32, "ff" * 32, "ab", "zz" * 32])
def test_what_is_no_secret_key_is_refused(text):
    with pytest.raises(BadInput):
        Keys.from_text(text)


def test_keys_have_the_texts_of_nostr_sdk():
    theirs = nostr_sdk.Keys.parse(KEYS.secret.hex())
    assert KEYS.public == theirs.public_key().to_hex()
    assert KEYS.npub == theirs.public_key().to_bech32()
    assert KEYS.nsec == theirs.secret_key().to_bech32()
    assert Keys.from_text(KEYS.nsec).public == keys.from_npub(KEYS.npub) == keys.from_npub(KEYS.public) == KEYS.public
    assert KEYS.nsec not in repr(KEYS)
    for text in ("npub1x", KEYS.public.upper(), ""):
        with pytest.raises(BadInput):
            keys.from_npub(text)


@pytest.mark.parametrize("octets", [b"", bytes(31), bytes(33), b"\x07" * 64])
def test_a_key_in_bech32_has_32_bytes(octets):
    with pytest.raises(BadInput, match="not a valid npub of 32 bytes"):
        keys.from_npub(bech32_text.encode("npub", octets))
    with pytest.raises(BadInput, match="not a valid nsec of 32 bytes"):
        Keys.from_text(bech32_text.encode("nsec", octets))


def test_a_key_file_is_made_once_and_refused_when_others_may_read_it(tmp_path):
    path = tmp_path / "key"
    made = Keys.from_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Keys.from_file(path).public == made.public
    path.chmod(0o644)
    with pytest.raises(BadConfig, match="chmod 600"):
        Keys.from_file(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(BadConfig, match="nsec"):
        Keys.from_file(path)


def test_the_shared_x_is_the_same_from_either_side():
    other = Keys(b"\x02" * 32)
    assert KEYS.shared_x(other.public) == other.shared_x(KEYS.public)
