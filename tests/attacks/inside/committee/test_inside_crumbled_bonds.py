"""A bond in many small coins: its closing may cost a tenth of them, no node relays that, and its owner waits."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.bond.quorum.terms import MAX_COINS, terms_of
from nodewire.pay.bond.quorum.vault_custody import VaultCustody, vault_of
from nodewire.pay.ecash.mint import Mint
from tests.pay.bitcoin.rpc_node import serve
from tests.pay.bond.quorum import mint_service
from tests.pay.bond.quorum.market import CLOSING_S, COMMITTEE, Bonds

PROVIDER = Keys.generate()


def coins_at(rpc, terms, count, sat, first=0):
    found = [{"txid": f"{first + n:064x}", "index": 0, "amount_sat": sat} for n in range(count)]
    script = vault_of(terms).output.script_pubkey.hex()
    rpc.unspent |= {(coin["txid"], 0): (sat, script) for coin in found}
    return found


def terms_for(bonds):
    return terms_of(COMMITTEE, PROVIDER.public, int(bonds.clock()) + 1_000, "first", closing_s=CLOSING_S)


@pytest.mark.parametrize(("sat", "feerate_sat_vb"), [(1_000, 1), (40_000, 50)])
async def test_coins_whose_closing_no_block_would_take_are_no_bond(tmp_path, sat, feerate_sat_vb):
    async with serve() as rpc, Bonds(tmp_path, lambda who: VaultCustody(rpc.open(), 1)) as bonds:
        rpc.answers["estimatesmartfee"] = {"feerate": feerate_sat_vb / 100_000}
        terms = terms_for(bonds)
        with pytest.raises(BadInput, match="more than a tenth"):
            await bonds.registrar.lock(PROVIDER.public, terms, coins_at(rpc, terms, MAX_COINS, sat))
        one = coins_at(rpc, terms, 1, MAX_COINS * sat, first=MAX_COINS)
        assert (await bonds.registrar.lock(PROVIDER.public, terms, one)).bond.state == "locked"


async def test_a_good_bond_is_not_crumbled_by_what_is_added(tmp_path):
    async with serve() as rpc, Bonds(tmp_path, lambda who: VaultCustody(rpc.open(), 1)) as bonds:
        terms = terms_for(bonds)
        await bonds.registrar.lock(PROVIDER.public, terms, coins_at(rpc, terms, 1, 100_000))
        with pytest.raises(BadInput, match="more than a tenth"):
            crumbs = coins_at(rpc, terms, MAX_COINS - 1, 1_400, first=1)
            await bonds.registrar.top_up(PROVIDER.public, "more", crumbs)


async def test_ecash_that_the_mints_fee_would_take_is_no_bond(tmp_path):
    async with mint_service.serve() as mint:

        def custody(who):
            return EcashCustody(Mint(mint.url), mint_service.PlannedWallet(mint), tmp_path / f"{who}.ecash")

        async with Bonds(tmp_path, custody) as bonds:
            terms, own = terms_for(bonds), custody("own")
            coins = await own.fund(terms, 15, "first")
            mint.fee_ppk = 500
            with pytest.raises(BadInput, match="the mint takes 2 sat of 15 sat"):
                await bonds.registrar.lock(PROVIDER.public, terms, coins)
            await own.close()
