"""A convicted provider that is convicted again and again, by itself: each time its bond was closed later."""

from __future__ import annotations

import tests.pay.bond_market as bm
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.bond_holder import ensure_bond
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.ecash.mint import Mint
from tests.pay.bond.quorum import mint_service
from tests.pay.bond.quorum.market import ORACLES, Bonds, convicted, request

PROVIDER, SAT, DELAY_S = Keys.generate(), 1_000, 32


async def test_further_convictions_do_not_keep_a_bond_open_until_its_owners_own_time(tmp_path):
    """Jobs in which it cheats itself: one verdict in sixteen epochs was enough, and all of its coins came back."""
    async with mint_service.serve() as mint:

        def custody(who):
            return EcashCustody(Mint(mint.url), mint_service.PlannedWallet(mint), tmp_path / f"{who}.ecash")

        async with Bonds(tmp_path, custody) as bonds:
            await ensure_bond(bonds.client("provider"), PROVIDER, SAT * 1_000, int(bonds.clock()) + 200)
            terms = bonds.registrar.deposit(PROVIDER.public).terms
            job = request(price_msat=1_000, driver=PROVIDER)
            for chunk in range((terms.refund_at_s - int(bonds.clock())) // (DELAY_S - 2)):
                bonds.registrar.present(bm.certificate(convicted(job, culprit=PROVIDER, chunk=chunk)), job)
                await bonds.cosign(ORACLES[:3])
                bonds.clock.ahead_s += DELAY_S - 2
            assert bonds.registrar.deposit(PROVIDER.public).bond.state == "burnt"
            assert len(bonds.book.evidence(terms.id)) < 10
