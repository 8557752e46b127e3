"""A mint signs no output twice. Who foresees one of a bond's closing has it signed first, and keeps the bond."""

from __future__ import annotations

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.bond_holder import ensure_bond
from nodewire.pay.bond.quorum.custody import Closing
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody, _outputs
from nodewire.pay.bond.quorum.terms import closing
from nodewire.pay.ecash.mint import Mint
from nodewire.pay.ecash.proofs import BlankOutput
from tests.pay.bond.quorum import mint_service
from tests.pay.bond.quorum.market import ORACLES, Bonds, convicted, request

PROVIDER, SAT, PRICE_MSAT, TIME_IS_OVER_S = Keys.generate(), 1_000, 100_000, 120 + 32


@pytest.fixture
async def mint():
    async with mint_service.serve() as mint:
        yield mint


@pytest.fixture
async def bonds(mint, tmp_path):
    """The provider is convicted, and nothing is proposed yet."""

    def custody(who):
        return EcashCustody(Mint(mint.url), mint_service.PlannedWallet(mint), tmp_path / f"{who}.ecash")

    async with Bonds(tmp_path, custody) as bonds:
        await ensure_bond(bonds.client("provider"), PROVIDER, SAT * 1_000, int(bonds.clock()) + 1_000)
        job = request(price_msat=PRICE_MSAT, driver=PROVIDER)
        await bonds.client("customer").present(bm.certificate(convicted(job, culprit=PROVIDER)), job)
        bonds.clock.ahead_s += TIME_IS_OVER_S
        yield bonds


def state(bonds):
    return bonds.registrar.deposit(PROVIDER.public).bond.state


async def spoil(mint, bonds, means):
    """Have the mint sign the last output of the closing as one satoshi."""
    deposit = bonds.registrar.deposit(PROVIDER.public)
    foreseen = Closing(deposit.terms, deposit.coins, tuple(closing(deposit.bond, 0, 1)), 0, means)
    last, own = _outputs(foreseen)[-1][-1], Mint(mint.url)
    quote = await own.mint_quote(1)
    mint.paid(quote.bolt11)
    (coin,) = await own.mint(quote.id, [BlankOutput(1, mint.id, "ab" * 32, b"\x05" * 32)])
    await own.swap([coin.as_input()], [BlankOutput(1, last.id, last.secret, last.r)])
    await own.close()


async def test_what_a_convicted_provider_foresees_is_not_what_its_bond_is_closed_by(mint, bonds):
    await spoil(mint, bonds, {"keyset": mint.id})
    await bonds.cosign(ORACLES[:3])
    assert state(bonds) == "burnt"


async def test_nobody_but_an_oracle_hears_of_a_closing_before_it_is_made(bonds):
    for keys in (PROVIDER, bm.STRANGER):
        with pytest.raises(NotAllowed, match="for oracles alone"):
            await bonds.client("thief")._ask("GET", "/v1/closings", None, keys)
    said = await bonds.client("oracle")._ask("GET", "/v1/closings", None, ORACLES[0])
    assert len(said["closings"][0]["means"]["salt"]) == 64


async def test_a_closing_that_an_oracle_betrayed_is_proposed_anew(mint, bonds):
    (said,) = await bonds.registrar.open_closings()
    await spoil(mint, bonds, said["means"])
    await bonds.cosign(ORACLES[:3])
    assert state(bonds) == "burnt"


@pytest.mark.parametrize("signed", [2, 3])
async def test_a_closing_whose_keyset_the_mint_has_retired_is_proposed_anew(mint, bonds, signed):
    """It was proposed once and for all, and the provider had its coins back."""
    if signed == 3:
        mint.faults["/v1/swap"] = [12_000]
    await bonds.cosign(ORACLES[:signed])
    assert state(bonds) == "slashed"
    mint.rotate()
    await bonds.registrar.sweep()
    await bonds.cosign(ORACLES[:3])
    assert state(bonds) == "burnt"
