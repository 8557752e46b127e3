"""Who is at the other end of a channel: TLS 1.3 bound to Nostr keys, both ways.

The listener shows a self-signed P-256 certificate, made anew by every process, with one extension:

    OID          2.25.331049885473452711640222435708488784047
    value        DER SEQUENCE { OCTET STRING public key (32), OCTET STRING signature (64) }
    signature    BIP-340 over tagged_hash("nodewire/tls/1", SubjectPublicKeyInfo || notAfter)

with SubjectPublicKeyInfo in DER and notAfter as unix seconds in 8 big-endian bytes. TLS proves that the listener holds
the P-256 key, the extension that the Nostr key vouches for it until notAfter. This is libp2p-tls with Schnorr.

The dialler checks that before it sends anything, then proves itself inside the channel with an event of kind 28842
(never published): tags `p` (the listener), `cert` (SHA-256 of the listener's certificate) and `["v", "1"]`. The
certificate's hash keeps the listener from passing the event on to somebody else. Stock Python cannot ask a client for
a certificate that no authority signed (cpython #90935), hence the asymmetry.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, SignatureAlgorithmOID

from nodewire.errors import BadInput, BadPeer, BadVersion
from nodewire.nostr import event as nostr_event
from nodewire.nostr import keys as nostr_keys
from nodewire.protocol import kinds
from nodewire.protocol.encoding.canonical import tagged_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

OID = x509.ObjectIdentifier("2.25.331049885473452711640222435708488784047")
TAG = "nodewire/tls/1"
ALPN = "nodewire/1"
KIND = kinds.WIRE_AUTH
VERSION = "1"
LIFETIME_S = 7 * 86_400
CLOCK_SKEW_S = 60
MAX_CERTIFICATE_BYTES = 2_048
MAX_AUTH_BYTES = 2_048

_HEAD, _MIDDLE = b"\x30\x64\x04\x20", b"\x04\x40"  # SEQUENCE(100) { OCTET STRING(32) ..., OCTET STRING(64) ...
_VALUE_BYTES = 102
_MAX_SIGNATURE_BYTES = 72  # DER SEQUENCE of two INTEGERs of 256 bits


@dataclass(frozen=True, slots=True)
class Identity:
    """A process as others see it: its certificate and the TLS contexts that show and accept such certificates."""

    public: str
    certificate: bytes
    """DER."""
    begins_at_s: int
    expires_at_s: int
    server: ssl.SSLContext
    client: ssl.SSLContext


def make(keys: Keys, now_s: float, lifetime_s: int = LIFETIME_S) -> Identity:
    """A fresh P-256 key, its certificate for `keys`, valid from an hour ago for `lifetime_s`."""
    private = ec.generate_private_key(ec.SECP256R1())
    certificate = build(keys, private, now_s, lifetime_s)
    der = certificate.public_bytes(serialization.Encoding.DER)
    server = _context(ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0
    # `ssl` loads keys from files only: the file is encrypted with a password that never leaves this function.
    password = os.urandom(32).hex().encode()
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(pem + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        server.load_cert_chain(file.name, password=password)
    begins_at_s = int(certificate.not_valid_before_utc.timestamp())
    expires_at_s = int(certificate.not_valid_after_utc.timestamp())
    return Identity(keys.public, der, begins_at_s, expires_at_s, server, client_context())


def client_context() -> ssl.SSLContext:
    """What dials with: it shows nothing, so whoever has no key of ours can see who listens, too."""
    return _context(ssl.PROTOCOL_TLS_CLIENT)


def build(keys: Keys, private: ec.EllipticCurvePrivateKey, now_s: float, lifetime_s: int) -> x509.Certificate:
    """The certificate for `private`, vouched for by `keys`."""
    now = datetime.fromtimestamp(int(now_s), UTC)
    not_after = now + timedelta(seconds=lifetime_s)
    signature = keys.sign(_digest(private.public_key(), not_after))
    value = _HEAD + bytes.fromhex(keys.public) + _MIDDLE + signature
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodewire")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(not_after)
        .add_extension(x509.UnrecognizedExtension(OID, value), critical=False)
        .sign(private, hashes.SHA256())
    )


def _self_signed_key(
    der: bytes, certificate: x509.Certificate, public: CertificatePublicKeyTypes, algorithm: x509.ObjectIdentifier
) -> ec.EllipticCurvePublicKey:
    """The P-256 key of a certificate that is signed by it, and in one spelling alone."""
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise BadPeer("certificate", "its key is not on P-256")
    if algorithm != SignatureAlgorithmOID.ECDSA_WITH_SHA256:
        raise BadPeer("certificate", "not signed by ECDSA with SHA-256")
    if len(certificate.signature) > _MAX_SIGNATURE_BYTES:
        raise BadPeer("certificate", "its signature is none of P-256")
    if not der.endswith(bytes((3, len(certificate.signature) + 1, 0)) + certificate.signature):
        raise BadPeer("certificate", "its signature is not a whole number of bytes")  # the parser lets that pass
    try:
        public.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise BadPeer("certificate", "does not sign itself") from error
    return public


def _voucher(extensions: Sequence[x509.Extension[x509.ExtensionType]]) -> bytes:
    """The value of the one extension there is, which names a Nostr key and carries its signature."""
    if len(extensions) != 1 or extensions[0].oid != OID:
        raise BadPeer("extension", "not exactly the one that names a Nostr key")
    value = extensions[0].value
    raw = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
    if len(raw) != _VALUE_BYTES or not raw.startswith(_HEAD) or raw[36:38] != _MIDDLE:
        raise BadPeer("extension", "not SEQUENCE { OCTET STRING (32), OCTET STRING (64) }")
    return raw


def check_certificate(der: bytes | None, expected: str, now_s: float) -> None:
    """Check that the certificate `der` is a live one of the Nostr key `expected` (64 hex digits).

    Raises:
        BadPeer: naming what is wrong: certificate, dates, extension, npub, signature.

    """
    if not der or len(der) > MAX_CERTIFICATE_BYTES:
        raise BadPeer("certificate", f"absent or over {MAX_CERTIFICATE_BYTES} bytes")
    try:
        certificate = x509.load_der_x509_certificate(der)
        public = certificate.public_key()
        extensions = list(certificate.extensions)
        not_before, not_after = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        algorithm = certificate.signature_algorithm_oid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension) as error:
        raise BadPeer("certificate", "not an X.509 certificate that this software reads") from error
    key = _self_signed_key(der, certificate, public, algorithm)
    if not not_before.timestamp() <= now_s <= not_after.timestamp():
        raise BadPeer("dates", "the certificate is not valid now")
    raw = _voucher(extensions)
    npub = raw[4:36].hex()
    if npub != expected:
        raise BadPeer("npub", f"{npub} answers, {expected} was expected")
    if not nostr_keys.verify(npub, _digest(key, not_after), raw[38:]):
        raise BadPeer("signature", "the Nostr key does not vouch for this certificate and expiry")


def auth(keys: Keys, listener: str, certificate: bytes, now_s: float) -> Event:
    """The event by which `keys` prove themselves to `listener` over the channel that showed `certificate` (DER)."""
    tags = [["p", listener], ["cert", hashlib.sha256(certificate).hexdigest()], ["v", VERSION]]
    return nostr_event.sign(keys, KIND, created_at=int(now_s), tags=tags)


def check_auth(text: object, listener: str, certificate: bytes, now_s: float) -> str:
    """The dialler's public key, proven by the AUTH event in JSON `text`.

    Raises:
        BadVersion: its `v` is not ours.
        BadPeer: malformed, ill-signed, for another listener, over another channel, or over 60 s old or early.

    """
    if not isinstance(text, str):
        raise BadPeer("event", "not text")
    try:
        event = nostr_event.parse(text, max_bytes=MAX_AUTH_BYTES)
    except BadInput as error:
        raise BadPeer(error.field, error.reason) from error
    if event.kind != KIND:
        raise BadPeer("kind", f"{event.kind}, not {KIND}")
    if event.tag("v") != VERSION:
        raise BadVersion("v", f"{(event.tag('v') or '')[:20]!r}; this software speaks {VERSION}")
    if event.values("p") != [listener]:
        raise BadPeer("p", "made for another listener")
    if event.values("cert") != [hashlib.sha256(certificate).hexdigest()]:
        raise BadPeer("cert", "made for another channel")
    if abs(event.created_at - now_s) > CLOCK_SKEW_S:
        raise BadPeer("created_at", f"not within {CLOCK_SKEW_S} s of now")
    return event.pubkey


def _digest(public: ec.EllipticCurvePublicKey, not_after: datetime) -> bytes:
    spki = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return tagged_hash(TAG, spki + int(not_after.timestamp()).to_bytes(8, "big"))


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # no authority: check_certificate and check_auth decide
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])
    return context
