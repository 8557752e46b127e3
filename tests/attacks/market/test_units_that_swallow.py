"""A payee that has what it is paid rounded up to a fortune, which it then holds ahead and leaves with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.market.ad import MAX_UNIT_MSAT, CreditOffer
from simnet.bond_holder import SimBondHolder
from tests.customer.payments.test_share_account import CountedWallet, Customer, whole_sats


def test_a_payment_is_rounded_up_to_a_satoshi_at_most_whatever_an_ad_says():
    assert MAX_UNIT_MSAT == 1_000
    said = {"first_msat": 0, "most_msat": 10**9, "unit_msat": MAX_UNIT_MSAT}
    assert CreditOffer.from_document(said).unit_msat == 1_000
    for unit_msat in (MAX_UNIT_MSAT + 1, 10**6, 10**12, 0, -1):
        with pytest.raises(BadInput):
            CreditOffer.from_document(said | {"unit_msat": unit_msat})


class Greedy(SimBondHolder):
    """A holder that says it is paid in wholes of a thousand satoshis."""

    async def holder(self):
        return replace(await super().holder(), unit_msat=1_000_000)


async def test_a_lump_for_shares_is_rounded_up_to_a_satoshi_at_most_whatever_their_holder_says(tmp_path):
    with whole_sats(tmp_path) as url:
        wallet, _ = await CountedWallet.open_account(url, "customer", 10_000_000)
        customer = Customer(wallet, tmp_path / "customer.db", Greedy)
        await customer.shares(range(1))
        assert wallet.paid == [1_000]
        await customer.account.close()
        await customer.kill()
        await wallet.close()
