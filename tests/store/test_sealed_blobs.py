"""Sealed blobs: opened by their key, whole, or not at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadCiphertext, BadInput
from nodewire.store import sealed_blobs

KEY, OTHER = sealed_blobs.new_key(), sealed_blobs.new_key()
SIZES = [
    0,
    1,
    sealed_blobs.SEGMENT_BYTES - 1,
    sealed_blobs.SEGMENT_BYTES,
    sealed_blobs.SEGMENT_BYTES + 1,
    2 * sealed_blobs.SEGMENT_BYTES,
]


def ciphertext(plain: bytes, key: str = KEY) -> bytes:
    return b"".join(sealed_blobs.seal([plain], key))


def opened(tmp_path, data: bytes, key: str = KEY) -> bytes:
    path = tmp_path / "blob"
    path.write_bytes(data)
    return b"".join(sealed_blobs.unseal(path, key))


@pytest.mark.parametrize("size", SIZES)
def test_what_was_sealed_opens_to_the_same_bytes(tmp_path, size):
    plain = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    data = ciphertext(plain)
    assert len(data) == sealed_blobs.sealed_bytes(size)
    assert opened(tmp_path, data) == plain


@given(st.lists(st.binary(max_size=400_000), max_size=8))
@settings(max_examples=10)
def test_how_it_came_in_pieces_changes_nothing(pieces):
    assert b"".join(sealed_blobs.seal(pieces, KEY)) == ciphertext(b"".join(pieces))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[: sealed_blobs.SEGMENT_BYTES + 16],
        lambda data: data[sealed_blobs.SEGMENT_BYTES + 16 :],
        lambda data: data + b"x",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: b"",
    ],
    ids=["cut", "without its end", "without its start", "longer", "altered", "empty"],
)
def test_what_was_changed_does_not_open(tmp_path, change):
    data = ciphertext(bytes(sealed_blobs.SEGMENT_BYTES + 100))
    with pytest.raises(BadCiphertext):
        opened(tmp_path, change(data))


def test_another_key_opens_nothing_and_a_bad_one_is_refused(tmp_path):
    with pytest.raises(BadCiphertext):
        opened(tmp_path, ciphertext(b"secret"), OTHER)
    with pytest.raises(BadInput, match="key"):
        opened(tmp_path, ciphertext(b"secret"), "no hex")
