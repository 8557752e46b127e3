"""Certificates that are not what they must be, for `bench.fuzz.fuzz_wire`."""

from __future__ import annotations

import random
import ssl
import tempfile
import time
from datetime import timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bench.fuzz import mutations
from nodewire.nostr.keys import Keys
from nodewire.wire.transport import identity


class Certificates:
    """`private` is the key of those that are right."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self._others = (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65_537, 2_048))

    def right(self, keys: Keys) -> bytes:
        certificate = identity.build(keys, self.private, time.time(), 3_600)
        return certificate.public_bytes(serialization.Encoding.DER)

    def spoilt(self, rng: random.Random, keys: Keys) -> tuple[str, bytes, Any]:
        right = self.right(keys)
        match rng.randrange(4):
            case 0:
                return "bits", mutations.of_bits(rng, right), self.private
            case 1:
                changed = mutations.of_bytes(rng, right, [right])
                return ("stretches", changed, self.private) if changed != right else self.spoilt(rng, keys)
            case 2:
                return "signature", _with_signature(rng, right), self.private
        return self._rebuilt(rng, x509.load_der_x509_certificate(right), keys)

    def _rebuilt(self, rng: random.Random, right: x509.Certificate, keys: Keys) -> tuple[str, bytes, Any]:
        """A certificate that signs itself, and is not what it must be."""
        known = right.extensions[0].value
        assert isinstance(known, x509.UnrecognizedExtension)
        value, private, algorithm, oid = known.value, self.private, hashes.SHA256(), identity.OID
        begins, ends, extensions = right.not_valid_before_utc, right.not_valid_after_utc, 1
        kind = rng.choice(("expired", "early", "prolonged", "extension", "other key", "none", "two", "oid", "curve",
                           "rsa", "sha384"))  # fmt: skip
        match kind:
            case "expired":
                begins, ends = begins - timedelta(days=9), begins - timedelta(days=rng.randrange(1, 9))
            case "early":
                begins = begins + timedelta(hours=1, minutes=rng.randrange(5, 59))
            case "prolonged":
                ends += timedelta(seconds=rng.choice((1, 60, 10**6)))
            case "extension":
                value = mutations.of_bits(rng, value)
            case "other key":
                other = identity.build(rng.choice((keys, Keys.generate())), self._others[0], time.time(), 3_600)
                shown = other.extensions[0].value
                assert isinstance(shown, x509.UnrecognizedExtension)
                value = shown.value
            case "none" | "two":
                extensions = 0 if kind == "none" else 2
            case "oid":
                oid = x509.ObjectIdentifier("2.25.1")
            case "curve" | "rsa":
                private = self._others[kind == "rsa"]
            case "sha384":
                algorithm = hashes.SHA384()
        builder = (
            x509.CertificateBuilder()
            .subject_name(right.subject)
            .issuer_name(right.issuer)
            .public_key(private.public_key())
            .serial_number(1)
            .not_valid_before(begins)
            .not_valid_after(ends)
        )
        for number in range(extensions):
            named = oid if not number else x509.ObjectIdentifier("2.25.2")
            builder = builder.add_extension(x509.UnrecognizedExtension(named, value), critical=False)
        return kind, builder.sign(private, algorithm).public_bytes(serialization.Encoding.DER), private


def _with_signature(rng: random.Random, der: bytes) -> bytes:
    """The certificate with other bytes in place of its signature, of any length."""
    certificate = x509.load_der_x509_certificate(der)
    tail = len(certificate.signature) + 3
    inner = der[4 : len(der) - tail]
    signature = rng.randbytes(rng.choice((0, 1, 8, 70, 71, 72, 73, 126, 127, 128, 254, 255, 256, 400, 1_200)))
    inner += b"\x03" + _length(len(signature) + 1) + b"\x00" + signature
    return b"\x30" + _length(len(inner)) + inner


def _length(count: int) -> bytes:
    if count < 128:
        return bytes((count,))
    size = (count.bit_length() + 7) // 8
    return bytes((0x80 | size,)) + count.to_bytes(size, "big")


def showing(der: bytes, private: Any) -> ssl.SSLContext | None:
    """What shows a certificate; None if OpenSSL does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([identity.ALPN])
    key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(key + ssl.DER_cert_to_PEM_cert(der).encode())
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError):
            return None
    return context
