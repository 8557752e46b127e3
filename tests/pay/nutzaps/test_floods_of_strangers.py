"""Strangers who publish nutzaps without end: each was read, and its points computed, before a customer's turn came."""

from __future__ import annotations

import pytest

from nodewire.errors import Busy
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip61
from nodewire.pay.nutzaps import claims as claims_
from tests.pay import nutzap_market as market
from tests.pay.nutzap_market import CUSTOMER
from tests.pay.nutzaps.test_money_beyond_counting import MINT, nutzap

FLOOD = 50


@pytest.fixture
def read(monkeypatch):
    """Nutzaps that were looked at."""
    found, parse = [], nip61.parse

    def noted(event):
        found.append(event.id)
        return parse(event)

    monkeypatch.setattr(nip61, "parse", noted)
    return found


async def flood(claims):
    for n in range(FLOOD):
        try:
            claims.enter(nutzap(*[1] * 32, sender=Keys((n + 1).to_bytes(32, "big"))), is_known=CUSTOMER.public.__eq__)
        except Busy:
            continue


@pytest.mark.parametrize(("most", "wait"), [(5, 256), (256, 5)])
async def test_most_of_a_flood_is_not_even_read_and_a_customers_nutzap_is(tmp_path, monkeypatch, read, most, wait):
    monkeypatch.setattr(claims_, "STRANGERS_BURST", float(most))
    monkeypatch.setattr(claims_, "STRANGERS_PER_S", 0.001)
    monkeypatch.setattr(claims_, "MAX_WAITING", wait)
    claims = market.claims(tmp_path, MINT)
    await flood(claims)
    assert len(read) == 5
    assert claims.enter(nutzap(21), is_known=CUSTOMER.public.__eq__) is not None
    await claims.close()
