"""Bonds in quorum-locked ecash through the port, at a real mint: lock, slash, claim, release, refund, the probe."""

from __future__ import annotations

import asyncio
import os

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, NoQuorum, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.bond_holder import ensure_bond
from nodewire.pay.bond.quorum.custody import Closing
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.bond.quorum.registrar import RegistrarRules
from nodewire.pay.bond.quorum.terms import POOL, Payment, terms_of
from nodewire.pay.ecash.mint import Mint, MintRefused
from nodewire.pay.ecash.proofs import parse_proof, sig_all_digest, witness
from nodewire.pay.wallets.cashu import CashuWallet
from nodewire.protocol.market import bond as statements
from tests.pay.bond.quorum.market import CLOSING_S, COMMITTEE, ORACLES, Bonds, convicted, request
from tests.pay.bond_market import CUSTOMER, VERIFIERS
from tests.pay.mint_process import OLD_PROGRAM, fund, needs_mint, run_mint

pytestmark = needs_mint
SAT, PRICE_MSAT, DELAY_S = 4_000, 100_000, 32


class Market:
    """A mint, wallets at it with play money, and a registrar of bonds in its ecash."""

    def __init__(self, mint, folder):
        self.mint, self.folder, self.wallets = mint, folder, {}

    async def wallet(self, who, sat=0):
        if who not in self.wallets:
            self.wallets[who] = CashuWallet(self.mint.url, self.folder / f"{who}.purse")
            await fund(self.mint, self.wallets[who], sat * 1_000)
        return self.wallets[who]

    def custody(self, who):
        return EcashCustody(Mint(self.mint.url), self.wallets.get(who), self.folder / f"{who}.ecash")


@pytest.fixture
async def market(mint, tmp_path):
    market = Market(mint, tmp_path)
    yield market
    for wallet in market.wallets.values():
        await wallet.close()


@pytest.fixture
async def bonds(market, tmp_path):
    rules = RegistrarRules(statement_s=60, closing_s=CLOSING_S, cap_sat=10_000)
    async with Bonds(tmp_path, market.custody, rules=rules) as bonds:
        yield bonds


@pytest.fixture
def provider():
    return Keys.generate()


async def lock(market, bonds, provider, sat=SAT, who="provider", seconds=1_000):
    await market.wallet(who, 8_192)
    holder = bonds.client(who)
    return holder, await ensure_bond(holder, provider, sat * 1_000, int(bonds.clock()) + seconds)


async def test_a_bond_is_locked_once_out_of_the_wallet_and_stated(market, bonds, provider):
    holder, event = await lock(market, bonds, provider)
    said = statements.parse(event)
    assert (said.holder, said.provider, said.amount_msat) == (bm.HOLDER.public, provider.public, SAT * 1_000)
    assert await ensure_bond(holder, provider, SAT * 1_000, int(bonds.clock()) + 9_000) == event
    wallet = await market.wallet("provider")
    assert await wallet.balance_msat() == (8_192 - SAT - 1) * 1_000  # one satoshi tried the mint
    assert "mint" in (await holder.holder()).custodian
    more = await ensure_bond(holder, provider, (SAT + 500) * 1_000, int(bonds.clock()))
    assert statements.parse(more).amount_msat == (SAT + 500) * 1_000


async def test_from_verdict_to_payout_over_lightning(market, bonds, provider):
    holder, _ = await lock(market, bonds, provider)
    await market.wallet("customer")
    customer, job = bonds.client("customer"), request(price_msat=PRICE_MSAT, driver=provider)
    settled = await customer.present(bm.certificate(convicted(job, culprit=provider)), job)
    assert settled.payouts[CUSTOMER.public] == PRICE_MSAT
    with pytest.raises(PaymentFailed, match="when its time is over"):
        await customer.claim(CUSTOMER, settled.case)
    bonds.clock.ahead_s += 120 + DELAY_S
    await bonds.cosign(ORACLES[:2])
    assert (await holder.bond(provider.public)).state == "slashed"
    await bonds.cosign(ORACLES[3:])
    assert (await holder.bond(provider.public)).state == "burnt"
    for _ in range(2):
        assert await customer.claim(CUSTOMER, settled.case) == PRICE_MSAT
    wallet = await market.wallet("customer")
    assert await wallet.balance_msat() == PRICE_MSAT
    await market.wallet("verifier")
    assert await bonds.client("verifier").claim(VERIFIERS[0], settled.case) == PRICE_MSAT
    with pytest.raises(NotAllowed):
        await customer.claim(Keys.generate(), settled.case)


async def test_a_release_comes_back_into_the_wallet(market, bonds, provider):
    holder, _ = await lock(market, bonds, provider)
    assert (await holder.release(provider)).state == "unbonding"
    bonds.clock.ahead_s += 120 + DELAY_S
    await bonds.cosign(ORACLES[:3])
    for _ in range(2):
        assert (await holder.release(provider)).state == "released"
    wallet = await market.wallet("provider")
    assert await wallet.balance_msat() == (8_192 - 1) * 1_000


async def test_what_a_mint_holds_is_capped_for_the_registrar_and_for_the_role(market, bonds, provider):
    await lock(market, bonds, provider, 7_000)
    with pytest.raises(NotAllowed, match="3000 sat are free"):
        await lock(market, bonds, Keys.generate(), 3_500, who="other")
    await market.wallet("rich", 200_000)
    with pytest.raises(NotAllowed, match="at most 100000 sat"):
        await ensure_bond(bonds.client("rich"), Keys.generate(), 150_000_000, int(bonds.clock()) + 1_000)


async def locked(market, until_s, provider, sat=64):
    await market.wallet("locker", 8_192)
    custody = market.custody("locker")
    terms = terms_of(COMMITTEE, provider.public, until_s, os.urandom(8).hex(), closing_s=1)
    return custody, terms, await custody.fund(terms, sat, "first")


async def test_two_f_signatures_cannot_spend_and_two_f_plus_one_only_to_what_they_signed(market, provider):
    custody, terms, coins = await locked(market, 1_900_000_000, provider)
    fee_sat, means = await custody.propose(terms, coins, 2)
    payments = (Payment(CUSTOMER.public, 20), Payment(POOL, 44 - fee_sat))
    closing = Closing(terms, tuple(coins), payments, fee_sat, means)
    (digest,) = await custody.digests(closing)
    signed = {one.public: [one.sign(digest)] for one in ORACLES}
    two = dict(list(signed.items())[:2])
    with pytest.raises(NoQuorum):
        await custody.execute(closing, two)
    other = Closing(terms, tuple(coins), (Payment(CUSTOMER.public, 40), Payment(POOL, 24 - fee_sat)), fee_sat, means)
    with pytest.raises(MintRefused):
        await custody.execute(other, signed)
    mint = Mint(market.mint.url)
    proofs = [parse_proof(one) for one in coins]
    from nodewire.pay.bond.quorum.ecash_custody import _outputs

    outputs = [one for part in _outputs(closing) for one in part]
    assert sig_all_digest(proofs, outputs) == digest
    for few in ([*two.values()], [*two.values(), *two.values()]):
        first = proofs[0].as_input(witness([sig for one in few for sig in one]))
        with pytest.raises(MintRefused):
            await mint.swap([first, *(one.as_input() for one in proofs[1:])], outputs)
    assert set(await mint.states(proofs)) == {"UNSPENT"}
    await custody.execute(closing, signed)
    await custody.execute(closing, signed)
    assert set(await mint.states(proofs)) == {"SPENT"}
    with pytest.raises(NotFound):
        await custody.worth_sat(terms, coins)
    await mint.close()
    await custody.close()


async def test_the_refund_is_the_providers_alone_and_only_from_t_on(market, provider):
    import time

    until_s = int(time.time()) - 2 * DELAY_S + 5
    custody, terms, coins = await locked(market, until_s, provider)
    with pytest.raises(NotAllowed, match="its own time is in"):
        await custody.refund(provider, terms, coins)
    wallet = await market.wallet("locker")
    before_msat = await wallet.balance_msat()
    while time.time() <= terms.refund_at_s + 1:
        await asyncio.sleep(0.2)
    for thief in (CUSTOMER, ORACLES[0]):
        with pytest.raises(MintRefused):
            await market.custody("thief").refund(thief, terms, coins)
    for _ in range(2):
        assert (await custody.refund(provider, terms, coins))[0] == 64
    assert await wallet.balance_msat() == before_msat + 64_000
    await custody.close()


async def test_ecash_of_another_lock_or_of_no_mint_is_no_bond(market, provider):
    custody, terms, coins = await locked(market, 1_900_000_000, provider)
    assert await custody.worth_sat(terms, coins) == 64
    others = terms_of(COMMITTEE, CUSTOMER.public, 1_900_000_000, "x", closing_s=1)
    for said, about in (
        (coins, others),
        ([*coins, *coins], terms),
        ([{**coins[0], "amount": 128}], terms),
        ([{**coins[0], "C": "02" + "11" * 32}], terms),
        ([{key: value for key, value in coins[0].items() if key != "dleq"}], terms),
        ([{**coins[0], "secret": "x"}], terms),
        ([], terms),
    ):
        with pytest.raises(BadInput):
            await custody.worth_sat(about, said)
    await custody.close()


@pytest.mark.skipif(not OLD_PROGRAM, reason="NODEWIRE_NUTSHELL_OLD names no mint of Nutshell 0.20")
async def test_a_mint_whose_locks_leave_amounts_open_is_found_out_by_a_satoshi(tmp_path, provider):
    with run_mint(tmp_path, OLD_PROGRAM, FAKEWALLET_BRR="FALSE") as old:
        market = Market(old, tmp_path)
        await market.wallet("locker", 100)
        custody = market.custody("locker")
        terms = terms_of(COMMITTEE, provider.public, 1_900_000_000, "k")
        with pytest.raises(NotAllowed, match="signatures that leave the amounts open: lock no bond there"):
            await custody.fund(terms, 64, "first")
        wallet = await market.wallet("locker")
        assert await wallet.balance_msat() == 99_000
        await custody.close()
        await wallet.close()


async def test_a_mint_that_takes_fees_holds_bonds_too(tmp_path, provider):
    with run_mint(tmp_path, MINT_INPUT_FEE_PPK="100", FAKEWALLET_BRR="FALSE") as dear:
        market = Market(dear, tmp_path)
        rules = RegistrarRules(statement_s=60, closing_s=CLOSING_S)
        async with Bonds(tmp_path, market.custody, rules=rules) as bonds:
            holder, _ = await lock(market, bonds, provider)
            await market.wallet("customer")
            customer, job = bonds.client("customer"), request(price_msat=PRICE_MSAT, driver=provider)
            settled = await customer.present(bm.certificate(convicted(job, culprit=provider)), job)
            bonds.clock.ahead_s += 120 + DELAY_S
            await bonds.cosign(ORACLES[:3])
            assert (await holder.bond(provider.public)).state == "burnt"
            paid_msat = await customer.claim(CUSTOMER, settled.case)
            assert PRICE_MSAT - 3_000 <= paid_msat < PRICE_MSAT
            assert await (await market.wallet("customer")).balance_msat() == paid_msat
        for wallet in market.wallets.values():
            await wallet.close()
