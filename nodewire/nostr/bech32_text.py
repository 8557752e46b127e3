"""Octets as bech32 text and back: what people copy of NIP-19 (keys, events, addresses), and LNURLs (LUD-01)."""

from __future__ import annotations

from pynostr import bech32

from nodewire.errors import BadInput


def encode(prefix: str, octets: bytes) -> str:
    return str(bech32.bech32_encode(prefix, bech32.convertbits(octets, 8, 5), bech32.Encoding.BECH32))


def decode(text: str) -> tuple[str, bytes]:
    """The prefix and the octets.

    Raises:
        BadInput: it is no bech32 text.

    """
    prefix, words, encoding = bech32.bech32_decode(text)
    if encoding is not bech32.Encoding.BECH32:
        raise BadInput("bech32", "not a bech32 text, or its checksum is wrong")
    octets = bech32.convertbits(words, 5, 8, False)
    if octets is None:
        raise BadInput("bech32", "bits are left over")
    return prefix, bytes(octets)
