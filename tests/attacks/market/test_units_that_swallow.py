"""A provider whose ad rounds what it is paid up to a fortune, which it then holds ahead and leaves with."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.market.ad import MAX_UNIT_MSAT, CreditOffer


def test_a_payment_is_rounded_up_to_a_satoshi_at_most_whatever_an_ad_says():
    assert MAX_UNIT_MSAT == 1_000
    said = {"first_msat": 0, "most_msat": 10**9, "unit_msat": MAX_UNIT_MSAT}
    assert CreditOffer.from_document(said).unit_msat == 1_000
    for unit_msat in (MAX_UNIT_MSAT + 1, 10**6, 10**12, 0, -1):
        with pytest.raises(BadInput):
            CreditOffer.from_document(said | {"unit_msat": unit_msat})
