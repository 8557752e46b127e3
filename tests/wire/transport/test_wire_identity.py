"""A certificate or an AUTH event that is not exactly right proves nobody."""

import dataclasses
import json
import time
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadPeer, BadVersion
from nodewire.nostr import event as nostr_event
from nodewire.nostr.keys import Keys
from nodewire.wire.transport import identity

NOW = 1_800_000_000
KEYS = Keys.generate()
PRIVATE = ec.generate_private_key(ec.SECP256R1())
CERTIFICATE = identity.build(KEYS, PRIVATE, NOW, 3_600)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def rebuilt(private=PRIVATE, not_after=CERTIFICATE.not_valid_after_utc, extensions=None) -> bytes:
    """The certificate with parts changed, signed anew by `private`."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(CERTIFICATE.subject)
        .issuer_name(CERTIFICATE.issuer)
        .public_key(private.public_key())
        .serial_number(CERTIFICATE.serial_number)
        .not_valid_before(CERTIFICATE.not_valid_before_utc)
        .not_valid_after(not_after)
    )
    for extension in CERTIFICATE.extensions if extensions is None else extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return der(builder.sign(private, hashes.SHA256()))


def refused(field: str, certificate: bytes | None, expected: str = KEYS.public, now: float = NOW) -> None:
    with pytest.raises(BadPeer) as failed:
        identity.check_certificate(certificate, expected, now)
    assert failed.value.field == field, failed.value


def with_value(value: bytes) -> bytes:
    return rebuilt(extensions=[x509.Extension(identity.OID, False, x509.UnrecognizedExtension(identity.OID, value))])


VALUE = CERTIFICATE.extensions[0].value.value


def test_a_certificate_proves_its_nostr_key():
    identity.check_certificate(der(CERTIFICATE), KEYS.public, NOW)
    identity.check_certificate(rebuilt(), KEYS.public, NOW)
    identity.check_certificate(identity.make(KEYS, time.time()).certificate, KEYS.public, time.time())


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_every_flipped_bit_is_noticed():
    ends = set()
    while len(ends) < 3:  # signatures that end with no, one and two zero bits: parsers differ there
        good = der(identity.build(KEYS, PRIVATE, NOW, 3_600))
        zeros = 2 if good[-1] % 4 == 0 else 1 if good[-1] % 2 == 0 else 0
        if zeros in ends:
            continue
        ends.add(zeros)
        for bit in range(len(good) * 8):
            flipped = bytearray(good)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BadPeer):
                identity.check_certificate(bytes(flipped), KEYS.public, NOW)


@settings(deadline=None)
@given(st.binary(max_size=600))
def test_bytes_that_are_no_certificate_get_a_typed_error(data):
    refused("certificate", data)


def test_no_certificate_and_one_over_its_cap_are_refused():
    refused("certificate", None)
    refused("certificate", bytes(identity.MAX_CERTIFICATE_BYTES + 1))


def test_another_nostr_key_is_refused():
    refused("npub", der(CERTIFICATE), expected=Keys.generate().public)


@pytest.mark.parametrize("now", [NOW - 3_601, NOW + 3_601])
def test_a_certificate_counts_only_between_its_dates(now):
    refused("dates", der(CERTIFICATE), now=now)


def test_the_extension_must_be_there_and_alone():
    refused("extension", rebuilt(extensions=[]))
    basic = x509.Extension(x509.OID_BASIC_CONSTRAINTS, False, x509.BasicConstraints(False, None))
    refused("extension", rebuilt(extensions=[*CERTIFICATE.extensions, basic]))
    refused("extension", rebuilt(extensions=[basic]))


@pytest.mark.parametrize(
    "value", [b"", VALUE[:-1], VALUE + b"\0", b"\x31" + VALUE[1:], VALUE[:36] + b"\x05" + VALUE[37:]]
)
def test_the_extension_has_one_encoding(value):
    refused("extension", with_value(value))


def test_a_holder_of_the_tls_key_cannot_prolong_the_certificate():
    refused("signature", rebuilt(not_after=CERTIFICATE.not_valid_after_utc + timedelta(seconds=1)))


def test_an_extension_does_not_fit_another_tls_key():
    refused("signature", rebuilt(private=ec.generate_private_key(ec.SECP256R1())))


def test_a_tampered_nostr_signature_is_refused():
    refused("signature", with_value(VALUE[:-1] + bytes([VALUE[-1] ^ 1])))


def test_only_p256_is_read():
    refused("certificate", rebuilt(private=ec.generate_private_key(ec.SECP384R1())))


LISTENER = Keys.generate().public
CHANNEL = der(CERTIFICATE)


def auth_refused(error, field, text, listener=LISTENER, channel=CHANNEL, now=NOW):
    with pytest.raises(error) as failed:
        identity.check_auth(text, listener, channel, now)
    assert failed.value.field == field, failed.value


def test_an_auth_event_proves_the_dialler():
    text = identity.auth(KEYS, LISTENER, CHANNEL, NOW).to_json()
    assert identity.check_auth(text, LISTENER, CHANNEL, NOW + 60) == KEYS.public


def test_an_auth_event_counts_only_here_and_now():
    text = identity.auth(KEYS, LISTENER, CHANNEL, NOW).to_json()
    auth_refused(BadPeer, "p", text, listener=KEYS.public)
    auth_refused(BadPeer, "cert", text, channel=rebuilt())
    auth_refused(BadPeer, "created_at", text, now=NOW + 61)
    auth_refused(BadPeer, "created_at", text, now=NOW - 61)


def test_an_auth_event_must_be_signed_of_our_kind_and_version():
    event = identity.auth(KEYS, LISTENER, CHANNEL, NOW)
    auth_refused(BadPeer, "sig", dataclasses.replace(event, sig="00" * 64).to_json())
    auth_refused(BadPeer, "id", dataclasses.replace(event, created_at=NOW + 1).to_json())
    tags = event.tags
    auth_refused(BadPeer, "kind", nostr_event.sign(KEYS, 22242, created_at=NOW, tags=tags).to_json())
    kind = identity.KIND
    auth_refused(BadVersion, "v", nostr_event.sign(KEYS, kind, created_at=NOW, tags=[*tags[:2], ["v", "2"]]).to_json())
    two = nostr_event.sign(KEYS, kind, created_at=NOW, tags=[*tags, ["p", KEYS.public]])
    auth_refused(BadPeer, "p", two.to_json())
    auth_refused(BadPeer, "event", None)
    auth_refused(BadPeer, "event", " " * (identity.MAX_AUTH_BYTES + 1))


FIELDS = st.sampled_from(["id", "pubkey", "created_at", "kind", "tags", "content", "sig"])
VALUES = (
    st.none() | st.integers() | st.text(max_size=9) | st.lists(st.lists(st.text(max_size=3), max_size=2), max_size=2)
)


@settings(deadline=None, max_examples=50)
@given(VALUES | st.dictionaries(FIELDS, VALUES))
def test_json_that_is_no_event_gets_a_typed_error(document):
    with pytest.raises(BadPeer):
        identity.check_auth(json.dumps(document), LISTENER, CHANNEL, NOW)
