"""Prices as people quote them, for a million tokens, and as the wire has them: whole msat for a chunk.

A chunk of 64 tokens at 1 msat is 15.625 sat for a million. A price between two such steps cannot be said on the wire.
"""

from __future__ import annotations

from fractions import Fraction

from nodewire.errors import BadInput

MILLION = 1_000_000


def per_million_msat(price_msat: int, chunk: int) -> Fraction:
    """What a million tokens cost where `chunk` of them cost `price_msat`."""
    return Fraction(price_msat * MILLION, chunk)


def chunk_price_msat(per_million: int, chunk: int) -> int:
    """What `chunk` tokens cost where a million of them cost `per_million` msat.

    Raises:
        BadInput: that is no whole number of msat; the two nearest prices are named.

    """
    price_msat, rest = divmod(per_million * chunk, MILLION)
    if rest:
        near = " and ".join(_sat(per_million_msat(whole, chunk)) for whole in (price_msat, price_msat + 1))
        exact = float(Fraction(per_million * chunk, MILLION))
        said = (
            f"{_sat(Fraction(per_million))} is {exact:g} msat a chunk of {chunk} tokens, and only whole msat are paid"
        )
        raise BadInput("price_per_million", f"{said}: the nearest prices are {near}")
    return price_msat


def _sat(msat: Fraction) -> str:
    """Sat for people, no digit lost that msat have."""
    return f"{float(msat) / 1000:.12g} sat"
