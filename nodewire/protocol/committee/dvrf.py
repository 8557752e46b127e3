"""A threshold verifiable random function over secp256k1 (DDH-DVRF, Galindo et al., eprint 2020/096).

A group secret x is shared with Shamir's scheme over the curve's order N: oracle i (1-based) holds x_i, everybody knows
X_i = x_i*G and X = x*G. For an input alpha (32 bytes: the digest of an epoch's certified body):

    H        the first point 02 || H("nodewire/dvrf/h2c/1", alpha || counter byte), counter = 0, 1, ...
    partial  Gamma_i = x_i*H with a DLEQ proof (c, s) that log_G X_i = log_H Gamma_i:
             k = H("nodewire/dvrf/nonce/1", x_i || H || X_i) mod N,  A = k*G,  B = k*H,
             c = H("nodewire/dvrf/dleq/1", X_i || H || Gamma_i || A || B) mod N,  s = k + c*x_i mod N
             (points compressed to 33 bytes, scalars 32 bytes big-endian)
    verify   A = s*G - c*X_i, B = s*H - c*Gamma_i, and c is as above
    combine  Gamma = sum over any t verified partials of lambda_i*Gamma_i (Lagrange at 0); every t give the same point
    beacon   H("nodewire/beacon/1", Gamma)

The output is unique for a given input: whoever contributes cannot steer it, and fewer than t shares say nothing of it.
The nonce is derived, as in RFC 6979, so that proving needs no randomness. Point arithmetic is libsecp256k1's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from coincurve import PrivateKey, PublicKey

from nodewire.errors import BadInput, BadSignature
from nodewire.protocol.encoding.canonical import tagged_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@dataclass(frozen=True, slots=True)
class Partial:
    """One oracle's part of a beacon: `gamma` compressed (33 bytes), the DLEQ proof's `c` and `s` (32 bytes each)."""

    index: int
    gamma: bytes
    c: bytes
    s: bytes


@dataclass(frozen=True, slots=True)
class DealtShares:
    """What a dealer hands out: the group's public key, and secret (32 bytes) and public share by index from 1 to n."""

    group: bytes
    secrets: Mapping[int, bytes]
    publics: Mapping[int, bytes]


def deal(n: int, t: int, random: Callable[[int], bytes]) -> DealtShares:
    """Shares for `n` oracles of which any `t` combine. `random(count)` returns that many secret random bytes.

    The dealer knows the group's secret and must forget it; only a distributed key generation would do without.
    """
    if not 1 <= t <= n < 256:
        raise BadInput("threshold", f"{t} of {n}")
    # 48 bytes reduced mod N leave a bias below 2**-128
    coefficients = [int.from_bytes(random(48), "big") % (ORDER - 1) + 1 for _ in range(t)]
    shares = {i: sum(a * pow(i, power, ORDER) for power, a in enumerate(coefficients)) % ORDER for i in range(1, n + 1)}
    if 0 in shares.values():
        return deal(n, t, random)
    secrets = {i: share.to_bytes(32, "big") for i, share in shares.items()}
    return DealtShares(
        group=public_share(coefficients[0].to_bytes(32, "big")),
        secrets=secrets,
        publics={i: public_share(secret) for i, secret in secrets.items()},
    )


def public_share(secret: bytes) -> bytes:
    return bytes(PrivateKey(secret).public_key.format())


def prove(index: int, secret: bytes, alpha: bytes) -> Partial:
    """Oracle `index`'s partial for `alpha` (32 bytes)."""
    x = int.from_bytes(secret, "big")
    h, public = _hash_to_curve(alpha), public_share(secret)
    gamma = _times(h, x)
    k = _challenge("nodewire/dvrf/nonce/1", secret, h.format(), public)
    a, b = PrivateKey(_scalar(k)).public_key, _times(h, k)
    c = _challenge("nodewire/dvrf/dleq/1", public, h.format(), gamma.format(), a.format(), b.format())
    return Partial(index, bytes(gamma.format()), _scalar(c), _scalar((k + c * x) % ORDER))


def verify(partial: Partial, public: bytes, alpha: bytes) -> None:
    """Check a partial against its oracle's public share.

    Raises:
        BadSignature: malformed, or made with another share or for another input.

    """
    c, s = int.from_bytes(partial.c, "big"), int.from_bytes(partial.s, "big")
    if not (len(partial.c) == len(partial.s) == 32 and 0 < c < ORDER and 0 < s < ORDER):
        raise BadSignature("proof", "a scalar is out of range")
    try:
        x, gamma, h = PublicKey(public), PublicKey(partial.gamma), _hash_to_curve(alpha)
        a = _plus(PrivateKey(partial.s).public_key, _times(x, ORDER - c))
        b = _plus(_times(h, s), _times(gamma, ORDER - c))
    except ValueError as error:
        raise BadSignature("gamma", "not a point that proves anything") from error
    if len(partial.gamma) != 33 or c != _challenge(
        "nodewire/dvrf/dleq/1", public, h.format(), partial.gamma, a.format(), b.format()
    ):
        raise BadSignature("proof", f"not that of share {partial.index}")


def combine(partials: Sequence[Partial], t: int) -> bytes:
    """The beacon (32 bytes) from `t` or more verified partials of distinct oracles. Raises BadInput for fewer."""
    chosen = {p.index: p.gamma for p in sorted(partials, key=lambda p: p.index)}
    if len(chosen) < t:
        raise BadInput("partials", f"{len(chosen)} of distinct oracles, {t} needed")
    first = dict(list(chosen.items())[:t])
    return tagged_hash("nodewire/beacon/1", interpolate(first, 0))


def interpolate(points: Mapping[int, bytes], at: int) -> bytes:
    """The compressed point at `at` of the polynomial through `points` (index -> compressed point)."""
    terms = []
    for i, point in points.items():
        factor = 1
        for j in points:
            if j != i:
                factor = factor * (at - j) * pow(i - j, -1, ORDER) % ORDER
        terms.append(_times(PublicKey(point), factor))
    return bytes(PublicKey.combine_keys(terms).format())


@lru_cache(maxsize=64)
def _hash_to_curve(alpha: bytes) -> PublicKey:
    for counter in range(256):
        try:
            return PublicKey(b"\x02" + tagged_hash("nodewire/dvrf/h2c/1", alpha + bytes([counter])))
        except ValueError:  # half of all x have no point
            continue
    raise BadInput("alpha", "hashes to no point")  # probability 2**-256


def _challenge(tag: str, *parts: bytes) -> int:
    return int.from_bytes(tagged_hash(tag, b"".join(parts)), "big") % ORDER


def _times(point: PublicKey, factor: int) -> PublicKey:
    product: PublicKey = point.multiply(_scalar(factor % ORDER))
    return product


def _plus(one: PublicKey, other: PublicKey) -> PublicKey:
    total: PublicKey = PublicKey.combine_keys([one, other])
    return total


def _scalar(value: int) -> bytes:
    return value.to_bytes(32, "big")
