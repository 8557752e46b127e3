"""Certificates that are nearly right, endpoints that point inwards, ads and blobs that name what they must not."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodewire.errors import BadInput, BadPeer, NodewireError, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.zaps import build_request
from nodewire.pay.lightning import lnurl
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.store.blobs import Blobs
from nodewire.wire.transport import identity

KEYS, OTHER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
NOW_S = 1_700_000_000


def certificate() -> bytes:
    made = identity.build(KEYS, ec.generate_private_key(ec.SECP256R1()), NOW_S, 3_600)
    return made.public_bytes(serialization.Encoding.DER)


def test_a_certificate_with_any_byte_of_its_signature_field_changed_is_refused():
    der = certificate()
    identity.check_certificate(der, KEYS.public, NOW_S)
    start = der.rindex(b"\x03", 0, -60)  # BIT STRING, length, unused bits, ECDSA signature
    for place in range(start, len(der)):
        for flip in (0x01, 0x07, 0x80):
            changed = bytearray(der)
            changed[place] ^= flip
            with pytest.raises(BadPeer):
                identity.check_certificate(bytes(changed), KEYS.public, NOW_S)


def test_the_byte_that_counts_unused_bits_is_part_of_the_signature():
    der = certificate()
    place = max(n for n in range(len(der) - 80, len(der) - 60) if der[n] == 0 and der[n - 2] == 3)
    for unused in range(1, 8):
        with pytest.raises(BadPeer):
            identity.check_certificate(der[:place] + bytes([unused]) + der[place + 1 :], KEYS.public, NOW_S)


@pytest.mark.parametrize("extra", [b"\0", b"\x30\x00", b"a" * 100])
def test_nothing_may_stand_behind_a_certificate(extra):
    with pytest.raises(BadPeer):
        identity.check_certificate(certificate() + extra, KEYS.public, NOW_S)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:1/",
        "https://127.0.0.1:1/",
        "https://[::1]:1/",
        "https://[::ffff:10.0.0.1]:1/",
        "https://[fe80::1]/",
        "https://localhost:1/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https://user:password@example.com/",
        "https:///nobody",
    ],
)
async def test_a_payment_endpoint_on_this_machine_or_beside_it_is_not_called(url):
    request = build_request(KEYS, Key("cd" * 32, OTHER.public, 0, 0), 100, relays=(), lnurl=None, created_at=1)
    with pytest.raises((NotAllowed, BadInput)):
        await lnurl.fetch_invoice(url, request, 100, nostr_pubkey=OTHER.public, network="bcrt")


@pytest.mark.parametrize("url", ["https://2130706433/", "https://0/"])
async def test_an_address_in_disguise_is_not_dialled_either(url):
    request = build_request(KEYS, Key("cd" * 32, OTHER.public, 0, 0), 100, relays=(), lnurl=None, created_at=1)
    with pytest.raises(NodewireError, match=r"canonical|public address"):
        await lnurl.fetch_invoice(url, request, 100, nostr_pubkey=OTHER.public, network="bcrt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lnurl", "file:///etc/passwd"),
        ("lnurl", "https://x/\x1b[2J"),
        ("lnurl", "javascript:alert(1)"),
        ("relays", ("http://127.0.0.1",)),
        ("relays", ("wss://a b",)),
        ("wire", ("example.com:99999",)),
        ("wire", ("/etc/passwd:1",)),
        ("wire", ("a\n:1",)),
        ("name", "../../etc"),
        ("pow_bits", -1),
        ("pow_bits", 10**9),
    ],
)
def test_an_ad_names_no_files_commands_or_impossible_places(field, value):
    offer = ManifestOffer(
        manifest="ab" * 32, tasks=(TaskOffer(task="t", price_msat=1, us_per_position=1),), slots=1
    ).document()
    document = {"v": 1, "name": "n", "manifests": (offer,), field: value}
    with pytest.raises(NodewireError):
        Ad.from_document(document)


@pytest.mark.parametrize("name", ["../../etc/passwd", "AB" * 32, "ab" * 31 + "a\n", "", "\0" * 64, "/" + "a" * 63])
async def test_a_blob_is_named_by_its_hash_and_nothing_else(tmp_path, name):
    async with Blobs([], tmp_path) as blobs:
        with pytest.raises(BadInput):
            await blobs.get(name)
        with pytest.raises(BadInput):
            await blobs.has(name)
