"""Blind signatures of Cashu (NUT-00) and the mint's proof that it used its public key (NUT-12). Pure.

https://github.com/cashubtc/nuts/blob/main/00.md and 12.md. Points are compressed, as hex.
"""

from __future__ import annotations

import hashlib

from coincurve import PublicKey

from nodewire.errors import BadInput, BadSignature

_DOMAIN = b"Secp256k1_HashToCurve_Cashu_"
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def hash_to_curve(secret: bytes) -> str:
    """The point Y of a secret."""
    digest = hashlib.sha256(_DOMAIN + secret).digest()
    for counter in range(2**16):
        try:
            x = hashlib.sha256(digest + counter.to_bytes(4, "little")).digest()
            return PublicKey(b"\x02" + x).format().hex()
        except ValueError:
            continue
    raise BadInput("secret", "no point of the curve found")  # by chance once in 2 ** 65536


def blinded(secret: bytes, factor: bytes) -> str:
    """B_ = Y + rG: what the mint signs without knowing the secret."""
    return _point(hash_to_curve(secret)).add(factor).format().hex()


def unblinded(signature: str, factor: bytes, mint_key: str) -> str:
    """C = C_ - rK: the mint's signature on the secret itself. Raises BadInput: no points."""
    back = _negated(_point(mint_key).multiply(factor))
    try:
        return PublicKey.combine_keys([_point(signature), back]).format().hex()
    except ValueError as error:
        raise BadInput("C_", "the mint's signature is at infinity") from error


def check_dleq(message: str, signature: str, mint_key: str, e: str, s: str) -> None:
    """Check the mint's proof that `signature` (C_) on `message` (B_) is by the secret of `mint_key`.

    Raises:
        BadSignature: it is not, or the proof is malformed.

    """
    try:
        challenge, response = _scalar(e), _scalar(s)
        b, c, a = _point(message), _point(signature), _point(mint_key)
        r1 = PublicKey.combine_keys([PublicKey.from_secret(response), _negated(a.multiply(challenge))])
        r2 = PublicKey.combine_keys([b.multiply(response), _negated(c.multiply(challenge))])
    except ValueError as error:
        raise BadSignature("dleq", "the mint's proof is malformed") from error
    hashed = "".join(point.format(compressed=False).hex() for point in (r1, r2, a, c))
    if hashlib.sha256(hashed.encode()).digest() != challenge:
        raise BadSignature("dleq", "the mint signed by another key than the one that it publishes")


def check_proof(secret: bytes, c: str, factor: str, mint_key: str, e: str, s: str) -> None:
    """As `check_dleq`, of a proof that came from another user with its blinding factor. Raises BadSignature."""
    try:
        r = _scalar(factor)
        signature = PublicKey.combine_keys([_point(c), _point(mint_key).multiply(r)]).format().hex()
    except ValueError as error:
        raise BadSignature("dleq", "the proof's values are no points or scalars") from error
    check_dleq(blinded(secret, r), signature, mint_key, e, s)


def _negated(point: PublicKey) -> PublicKey:
    raw = point.format()
    return PublicKey(bytes([raw[0] ^ 1]) + raw[1:])


def _scalar(text: str) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != 32 or not 0 < int.from_bytes(raw, "big") < _ORDER:
        raise ValueError("no scalar")
    return raw


def _point(text: str) -> PublicKey:
    """Raises BadInput."""
    try:
        raw = bytes.fromhex(text)
        if len(raw) != 33:
            raise ValueError("not compressed")
        return PublicKey(raw)
    except (ValueError, TypeError) as error:
        raise BadInput("point", f"{str(text)[:70]!r} is no compressed point of secp256k1") from error
