"""What a chunk costs of which some had been computed before. nips/16-payment.md.

The rest is at the plan's price, and a unit that was found at the part of it that the provider's ad says.
"""

from __future__ import annotations

WHOLE_PPM = 1_000_000
"""What is found costs as much as what is computed: what an ad says that says nothing."""


def cached_msat(price_msat: int, cached_ppm: int) -> int:
    """A unit that was found, where one costs `price_msat`: rounded up, so never nothing where there is a price."""
    return -(-price_msat * cached_ppm // WHOLE_PPM)


def due_msat(price_msat: int, units: int, cached: int, cached_ppm: int) -> int:
    """`units` at a price, of which `cached` were found."""
    return (units - cached) * price_msat + cached * cached_msat(price_msat, cached_ppm)


def may_be_due(amount_msat: int, price_msat: int, units: int, cached: int) -> bool:
    """Whether that is an amount which some ad would make due."""
    return 0 < due_msat(price_msat, units, cached, 1) <= amount_msat <= units * price_msat and (
        cached > 0 or amount_msat == units * price_msat
    )
