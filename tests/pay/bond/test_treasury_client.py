"""What is due is pulled in amounts that the payee's own wallet takes, and no malformed answer is a number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import LinkLost, NotFound
from nodewire.pay.bond.bond_holder import ClaimPayment
from nodewire.pay.bond.treasury.client import TreasuryClient
from nodewire.pay.lightning.wallet import ABILITIES, WalletInfo


class Wallet:
    """Takes from 2 to 50 whole satoshis at once."""

    def __init__(self):
        self.asked_msat = []

    async def info(self):
        return WalletInfo("w", "bcrt", 1_000, 2_000, 50_000, ABILITIES)

    async def invoice(self, amount_msat, *, description, expiry_s):
        self.asked_msat.append(amount_msat)
        return SimpleNamespace(bolt11="ln", payment_hash="ab" * 32)


class Treasury:
    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    async def __call__(self, method, path, body=None, keys=None):
        self.asked.append((method, path, body))
        if not self.answers:
            raise NotFound("treasury", "none here")
        return self.answers


@pytest.mark.parametrize(
    ("payable_msat", "asked_msat"),
    [(0, []), (999, []), (1_999, []), (2_000, [2_000]), (7_999, [7_000]), (80_000, [50_000])],
)
async def test_what_is_due_is_pulled_in_whole_units_between_the_wallets_least_and_most(payable_msat, asked_msat):
    wallet, treasury = Wallet(), Treasury(payable_msat=payable_msat, amount_msat=5, is_paid=True)
    paid = await TreasuryClient(treasury, wallet).collect(bm.PROVIDER)
    assert wallet.asked_msat == asked_msat
    assert paid == (ClaimPayment(5, "ab" * 32, True) if asked_msat else None)
    assert len(treasury.asked) == 1 + len(asked_msat)


async def test_a_holder_without_a_treasury_owes_nothing():
    assert await TreasuryClient(Treasury(), Wallet()).collect(bm.PROVIDER) is None


@pytest.mark.parametrize("is_paid", [None, 1, "yes", False])
async def test_a_payout_is_paid_only_where_that_is_what_the_answer_says(is_paid):
    treasury = Treasury(payable_msat=2_000, amount_msat=2_000, is_paid=is_paid)
    assert not (await TreasuryClient(treasury, Wallet()).collect(bm.PROVIDER)).is_paid


@pytest.mark.parametrize("value", [None, -1, 2**63, 1.0, "1", True])
async def test_an_amount_that_is_no_number_is_a_lost_link(value):
    names = ("ahead_msat", "received_msat", "left_msat", "came_msat", "amount_msat", "payable_msat")
    client = TreasuryClient(Treasury(**dict.fromkeys(names, value)), Wallet())
    for asked, name in (
        (client.book_shares(bm.statement(0)), "ahead_msat"),
        (client.treasury(bm.REQUEST.id), "received_msat"),
        (client.share_msat(bm.REQUEST.id, bm.CUSTOMER.public, 0, 1), "came_msat"),
        (client.claim(bm.PROVIDER, "ab"), "amount_msat"),
        (client.collect(bm.PROVIDER), "payable_msat"),
    ):
        with pytest.raises(LinkLost) as refused:
            await asked
        assert refused.value.reason == f"its answer lacks {name}"
