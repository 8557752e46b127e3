"""bech32 entities as NIP-19 states them, read by nostr-sdk too."""

import nostr_sdk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, NodewireError, TooLarge
from nodewire.nostr import keys
from nodewire.nostr.nips import nip19
from nodewire.nostr.nips.nip19 import Naddr, Nevent, Note

hex64 = st.binary(min_size=32, max_size=32).map(bytes.hex)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
relays = st.lists(texts, max_size=3).map(tuple)
entities = st.one_of(
    st.builds(Note, hex64),
    st.builds(Nevent, hex64, relays, st.none() | hex64, st.none() | st.integers(0, 65_535)),
    st.builds(Naddr, st.integers(0, 65_535), hex64, texts, relays),
)
ID, KEY = "5c" * 32, keys.Keys(b"\x01" * 32).public


@given(entities)
def test_what_is_built_is_parsed_back(entity):
    assert nip19.parse(nip19.build(entity)) == entity
    assert nip19.parse("nostr:" + nip19.build(entity)) == entity


def test_the_keys_of_the_nip():
    npub = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg"
    public = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
    assert (keys.from_npub(npub), keys.npub(public)) == (public, npub)
    nsec = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
    pair = keys.Keys.from_text(nsec)
    assert pair.secret.hex() == "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"
    assert pair.nsec == nsec


def test_nostr_sdk_reads_ours():
    sdk = nostr_sdk.Nip19Event.from_bech32(nip19.build(Nevent(ID, ("wss://r.x.com",), KEY, 8_843)))
    assert sdk.event_id().to_hex() == ID
    assert sdk.author().to_hex() == KEY
    assert sdk.kind().as_u16() == 8_843
    address = nostr_sdk.Nip19Coordinate.from_bech32(nip19.build(Naddr(38_840, KEY, "llama", ("wss://r.x.com",))))
    assert address.coordinate().identifier() == "llama"
    assert nostr_sdk.EventId.parse(nip19.build(Note(ID))).to_hex() == ID


def test_unknown_items_are_ignored():
    plain = nip19._tlv([(0, bytes.fromhex(ID)), (9, b"later")])
    assert nip19.parse(nip19._bech32("nevent", plain)) == Nevent(ID)


@pytest.mark.parametrize(
    ("prefix", "items"),
    [
        ("nevent", []),
        ("nevent", [(0, b"short")]),
        ("nevent", [(0, b"\x01" * 32), (3, b"\x01")]),
        ("naddr", [(0, b"d"), (3, b"\0\0\0\x01")]),
        ("naddr", [(0, b"d"), (2, b"\x01" * 32)]),
        ("naddr", [(0, b"\xff"), (2, b"\x01" * 32), (3, b"\0\0\0\x01")]),
        ("nprofile", [(0, b"\x01" * 32)]),
    ],
)
def test_what_names_no_event_is_refused(prefix, items):
    with pytest.raises(BadInput):
        nip19.parse(nip19._bech32(prefix, nip19._tlv(items)))


def test_a_cut_off_item_a_wrong_checksum_and_a_text_too_long_are_refused():
    with pytest.raises(BadInput, match="cut off"):
        nip19.parse(nip19._bech32("nevent", b"\x00\x20abc"))
    with pytest.raises(BadInput):
        nip19.parse(nip19.build(Note(ID))[:-1] + "q")
    with pytest.raises(TooLarge):
        nip19.parse("n" * 5_001)
    with pytest.raises(TooLarge):
        nip19.build(Nevent(ID, ("x" * 256,)))
    with pytest.raises(TooLarge):
        nip19.build(Nevent(ID, ("x" * 255,) * 20))


@given(
    texts | texts.map(lambda text: "nevent1" + text) | st.binary(max_size=80).map(lambda b: nip19._bech32("naddr", b))
)
def test_garbage_gives_only_typed_errors(text):
    try:
        nip19.parse(text)
    except NodewireError:
        return


@pytest.mark.parametrize("entity", [Note("zz"), Nevent(ID, kind=-1), Nevent(ID, author="A" * 64), Naddr(1, "", "d")])
def test_what_is_no_id_key_or_kind_is_not_built(entity):
    with pytest.raises(BadInput):
        nip19.build(entity)
