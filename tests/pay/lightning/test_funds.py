"""Whether the money is there is asked before a purchase; a wallet that does not tell is not held to be empty."""

from __future__ import annotations

import pytest

from nodewire.errors import NotAllowed, PaymentFailed
from nodewire.pay.lightning.funds import Funds
from nodewire.pay.lightning.wallet import ABILITIES, WalletInfo


class Purse:
    def __init__(self, held_msat):
        self.held_msat = held_msat

    async def info(self):
        can = ABILITIES if self.held_msat is not None else ABILITIES - {"balance"}
        return WalletInfo("purse", "bcrt", 1, 1, 10**9, can)

    async def balance_msat(self):
        if self.held_msat is None:
            raise NotAllowed("wallet", "RESTRICTED")
        return self.held_msat


@pytest.mark.parametrize(("held_msat", "least_msat"), [(5_000, 5_000), (5_000, 1), (0, 0), (None, 5_000)])
async def test_enough_is_enough_and_who_does_not_tell_may_try(held_msat, least_msat):
    async with Funds(Purse(held_msat)) as funds:
        await funds.check(least_msat)


async def test_too_little_is_told_with_both_amounts():
    async with Funds(Purse(4_999)) as funds:
        with pytest.raises(PaymentFailed, match=r"costs 5 sat or more, the wallet holds 4\.999 sat"):
            await funds.check(5_000)
