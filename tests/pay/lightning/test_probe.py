"""What `nodewire wallet test` finds: it pays nothing, trusts no claim that it can try, and says what follows."""

from __future__ import annotations

import dataclasses

import pytest

from nodewire.errors import NotAllowed
from nodewire.pay.lightning.probe import MEANING, probe
from nodewire.pay.lightning.wallet import ABILITIES, Transfer


class Odd:
    """A wallet of the simulated network with other methods than its own."""

    def __init__(self, wallet, **methods):
        self._wallet = wallet
        for name, method in methods.items():
            setattr(self, name, method)

    def __getattr__(self, name):
        return getattr(self._wallet, name)


async def states(wallet):
    return {one.ability: one for one in (await probe(wallet))[1]}


async def test_what_a_whole_wallet_can_is_tried_and_nothing_is_paid(open_wallet):
    wallet = await open_wallet(5_000)
    found = await states(wallet)
    assert {name for name, one in found.items() if one.state == "works"} == ABILITIES - {
        "pay",
        "fee-cap",
        "failures",
        "hold",
    }
    assert {one.state for one in found.values()} == {"works", "untried"}
    assert not any(one.means or one.said for one in found.values())
    assert await wallet.balance_msat() == 5_000


@pytest.mark.parametrize("ability", sorted(ABILITIES))
async def test_what_a_wallet_lacks_is_told_with_what_follows(open_wallet, ability):
    wallet = await open_wallet()
    info = await wallet.info()

    async def less():
        return dataclasses.replace(info, abilities=info.abilities - {ability})

    one = (await states(Odd(wallet, info=less)))[ability]
    assert (one.state, one.means) == ("lacks", MEANING[ability])


async def test_a_claim_that_does_not_hold_is_told_with_the_wallets_words(open_wallet):
    wallet = await open_wallet()

    async def refuse(*_, **__):
        raise NotAllowed("wallet", "the key may not do that")

    async def paid(payment_hash, direction):
        return Transfer(payment_hash, direction, "settled", 1, 0, "00" * 32, 1)

    async def ends(after=""):
        for one in ():
            yield one

    found = await states(Odd(wallet, balance_msat=refuse, invoice=refuse, lookup=paid, settled=ends))
    said = {name: one.said for name, one in found.items() if one.state == "fails"}
    assert set(said) == {"balance", "invoice", "lookup-in", "lookup-out", "settled"}
    assert said["invoice"] == "wallet: the key may not do that"
    assert said["lookup-out"] == "lookup: a payment that nobody made is settled"
    assert said["settled"] == "settled: it ends, and must not"
