"""NIP-04 against nostr-sdk, and what is no such content."""

import base64

import nostr_sdk
import pytest

from nodewire.errors import BadCiphertext, BadInput, TooLarge
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip04

ONE, OTHER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
SECRET, PUBLIC = nostr_sdk.SecretKey.parse("02" * 32), nostr_sdk.PublicKey.parse(ONE.public)


@pytest.mark.parametrize("text", ["", "x", "sixteen bytes ok", "⚡" * 500])
def test_another_implementation_reads_what_is_written_and_is_read(text):
    assert nostr_sdk.nip04_decrypt(SECRET, PUBLIC, nip04.encrypt(text, ONE, OTHER.public)) == text
    written = nostr_sdk.nip04_encrypt(SECRET, PUBLIC, text)
    assert nip04.decrypt(written, ONE, OTHER.public, max_bytes=2_000) == text


def test_a_text_is_never_written_alike_twice():
    assert nip04.encrypt("x", ONE, OTHER.public) != nip04.encrypt("x", ONE, OTHER.public)


IV = base64.b64encode(bytes(16)).decode()


@pytest.mark.parametrize(
    "content",
    ["", "?iv=", f"?iv={IV}", f"AAAA?iv={IV}", f"{IV}?iv=AAAA", f"{IV}{IV}?iv={IV}", f"!?iv={IV}", f"{IV}?iv=!", IV],
)
def test_what_is_no_content_is_refused(content):
    with pytest.raises(BadCiphertext):
        nip04.decrypt(content, ONE, OTHER.public, max_bytes=1_000)


def test_what_was_written_for_others_is_not_read():
    third = Keys(b"\x03" * 32)
    for iv in range(8):  # without a MAC another key's padding is right once in 256 times
        content = nip04.encrypt("x" * 40, ONE, OTHER.public, iv=bytes([iv]) * 16)
        try:
            assert "x" * 8 not in nip04.decrypt(content, third, OTHER.public, max_bytes=1_000)
        except BadCiphertext:
            continue


def test_a_content_over_the_bound_is_not_decoded():
    with pytest.raises(TooLarge, match="more than 100 bytes"):
        nip04.decrypt("A" * 1_000, ONE, OTHER.public, max_bytes=100)


def test_a_key_that_is_no_point_is_refused():
    with pytest.raises(BadInput, match="secp256k1"):
        nip04.encrypt("x", ONE, "ff" * 32)
