"""NIP-44 by its official vectors, its properties, and nostr-sdk on the other side."""

import base64
import hashlib
import json
from pathlib import Path

import nostr_sdk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadCiphertext, BadInput, BadVersion, NodewireError, TooLarge
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44

FILE = Path(__file__).parents[2] / "vectors" / "nip44.vectors.json"
VECTORS = json.loads(FILE.read_text())["v2"]
VALID, INVALID = VECTORS["valid"], VECTORS["invalid"]
ONE, OTHER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
KEY = nip44.derive_key(ONE, OTHER.public)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_vectors_are_those_that_the_nip_names():
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert digest == "269ed0f69e4c192512cc779e78c555090cebc7c785b609e338a62afc3ce25040"


@pytest.mark.parametrize("vector", VALID["get_conversation_key"])
def test_conversation_keys(vector):
    keys = Keys(bytes.fromhex(vector["sec1"]))
    assert nip44.conversation_key(keys, vector["pub2"]).hex() == vector["conversation_key"]


@pytest.mark.parametrize("vector", VALID["get_message_keys"]["keys"])
def test_message_keys(vector):
    key = bytes.fromhex(VALID["get_message_keys"]["conversation_key"])
    made = nip44.message_keys(key, bytes.fromhex(vector["nonce"]))
    assert made.chacha_key.hex() == vector["chacha_key"]
    assert made.chacha_nonce.hex() == vector["chacha_nonce"]
    assert made.hmac_key.hex() == vector["hmac_key"]


@pytest.mark.parametrize(("length", "padded"), VALID["calc_padded_len"])
def test_padded_lengths(length, padded):
    assert nip44.padded_bytes(length) == padded


@pytest.mark.parametrize("vector", VALID["encrypt_decrypt"])
def test_conversations(vector):
    one, other = Keys(bytes.fromhex(vector["sec1"])), Keys(bytes.fromhex(vector["sec2"]))
    key = nip44.conversation_key(one, other.public)
    assert key.hex() == vector["conversation_key"]
    assert nip44.encrypt(vector["plaintext"], key, nonce=bytes.fromhex(vector["nonce"])) == vector["payload"]
    assert nip44.decrypt(vector["payload"], nip44.conversation_key(other, one.public)) == vector["plaintext"]


@pytest.mark.parametrize("vector", VALID["encrypt_decrypt_long_msg"])
def test_long_messages_under_a_larger_cap(vector):
    key, plaintext = bytes.fromhex(vector["conversation_key"]), vector["pattern"] * vector["repeat"]
    assert sha256(plaintext) == vector["plaintext_sha256"]
    payload = nip44.encrypt(plaintext, key, nonce=bytes.fromhex(vector["nonce"]), max_bytes=1 << 20)
    assert sha256(payload) == vector["payload_sha256"]
    assert nip44.decrypt(payload, key, max_bytes=1 << 20) == plaintext


@pytest.mark.parametrize(
    ("length", "payload_sha256"),
    [
        (65_535, "6d8c2810d1e870fbaa1f0a0937126cca837a15f9260e27060c331d70a3c0bc84"),
        (65_536, "b7b4edb36ba92e267d322d56d9aebc22e7fa96ff52e3c12adc07f07a43cbc616"),
        (65_537, "eeb7c7c5373894ea2c1547cfd3ccb15d5a0b2d619da852e5c79df792dcc9e435"),
    ],
)
def test_the_extended_length_prefix(length, payload_sha256):
    key = bytes.fromhex("c41c775356fd92eadc63ff5a0dc1da211b268cbea22316767095b2871ea1412d")
    payload = nip44.encrypt("a" * length, key, nonce=bytes(31) + b"\x01", max_bytes=1 << 17)
    assert sha256(payload) == payload_sha256
    assert nip44.decrypt(payload, key, max_bytes=1 << 17) == "a" * length


@pytest.mark.parametrize("length", INVALID["encrypt_msg_lengths"])
def test_lengths_that_are_not_encrypted(length):
    with pytest.raises((BadInput, TooLarge)):
        nip44.encrypt("a" * length, KEY)


@pytest.mark.parametrize("vector", INVALID["get_conversation_key"])
def test_keys_that_have_no_conversation(vector):
    with pytest.raises(BadInput):
        nip44.conversation_key(Keys(bytes.fromhex(vector["sec1"])), vector["pub2"])


@pytest.mark.parametrize("vector", INVALID["decrypt"], ids=lambda vector: vector["note"])
def test_payloads_that_are_not_decrypted(vector):
    with pytest.raises(BadVersion if "version" in vector["note"] else BadCiphertext):
        nip44.decrypt(vector["payload"], bytes.fromhex(vector["conversation_key"]))


@given(texts)
def test_what_is_encrypted_is_decrypted(plaintext):
    assert nip44.decrypt(nip44.encrypt(plaintext, KEY), KEY) == plaintext


@given(
    st.text(max_size=200) | st.binary(min_size=99, max_size=200).map(lambda b: base64.b64encode(b"\x02" + b).decode())
)
def test_garbage_gives_only_typed_errors(payload):
    with pytest.raises(NodewireError):
        nip44.decrypt(payload, KEY)


@given(texts, st.data())
@settings(max_examples=50)
def test_a_payload_with_any_bit_flipped_is_refused(plaintext, data):
    raw = bytearray(base64.b64decode(nip44.encrypt(plaintext, KEY)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises((BadCiphertext, BadVersion)):
        nip44.decrypt(base64.b64encode(raw).decode(), KEY)


def test_our_cap_is_checked_before_anything_is_decoded():
    largest = nip44.encrypt("a" * nip44.MAX_PLAINTEXT_BYTES, KEY)
    assert nip44.decrypt(largest, KEY) == "a" * nip44.MAX_PLAINTEXT_BYTES
    with pytest.raises(TooLarge):
        nip44.encrypt("a" * (nip44.MAX_PLAINTEXT_BYTES + 1), KEY)
    with pytest.raises(TooLarge):
        nip44.decrypt("!" * (len(largest) + 4), KEY)


@pytest.mark.parametrize("bad", ["", "\ud800"])
def test_what_is_empty_or_no_unicode_is_not_encrypted(bad):
    with pytest.raises(BadInput):
        nip44.encrypt(bad, KEY)


@given(texts)
@settings(max_examples=20)
def test_nostr_sdk_reads_ours_and_we_read_its(plaintext):
    secret, public = nostr_sdk.SecretKey.parse(OTHER.secret.hex()), nostr_sdk.PublicKey.parse(ONE.public)
    assert nostr_sdk.nip44_decrypt(secret, public, nip44.encrypt(plaintext, KEY)) == plaintext
    theirs = nostr_sdk.nip44_encrypt(secret, public, plaintext, nostr_sdk.Nip44Version.V2)
    assert nip44.decrypt(theirs, nip44.conversation_key(ONE, OTHER.public)) == plaintext
