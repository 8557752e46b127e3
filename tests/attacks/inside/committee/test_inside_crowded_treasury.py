"""Thirty-two addresses that ask a treasury for invoices and pay none: no new customer could pay a share any more."""

from __future__ import annotations

import pytest

from nodewire.errors import Busy
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.till import MAX_UNBILLED_EACH, Till
from nodewire.pay.treasurer.lumps import LumpLedger, LumpTill
from tests.pay.accounts.test_till import PROVIDER, Node, publish_nothing
from tests.pay.accounts.test_unbilled_payments import profile_zap

ADDRESSES, LUMP_MSAT = 32, 1_000


async def crowd(till):
    """As one who has an IPv6 network of 56 bits has them, eight times over."""
    for number in range(ADDRESSES):
        for again in range(MAX_UNBILLED_EACH):
            request = profile_zap(Keys.generate(), LUMP_MSAT, created_at=again)
            await till.quote(request.to_json(), LUMP_MSAT, f"2001:db8:0:{number:x}::/64")


@pytest.mark.parametrize("kind", [LumpTill, Till])
async def test_a_new_customers_first_lump_finds_room_beside_a_crowd_that_pays_nothing(kind):
    till = kind(PROVIDER, Node(), LumpLedger(":memory:"), publish_nothing)
    await crowd(till)
    first = profile_zap(Keys.generate(), LUMP_MSAT)
    if kind is Till:  # of a provider they are tips, which may wait
        with pytest.raises(Busy, match="too many are unpaid"):
            await till.quote(first.to_json(), LUMP_MSAT, "10.0.0.1")
        return
    assert (await till.quote(first.to_json(), LUMP_MSAT, "10.0.0.1")).amount_msat == LUMP_MSAT
