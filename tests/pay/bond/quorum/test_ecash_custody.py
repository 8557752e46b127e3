"""Ecash of bonds where the mint or the wallet fails in the middle, and what a custody refuses; the mint is in here."""

from __future__ import annotations

import contextlib

import pytest

from nodewire.errors import BadInput, LinkLost, NoQuorum, NotAllowed, NotFound, PaymentFailed, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.pay.bond.quorum.custody import Closing
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.bond.quorum.terms import POOL, Payment, terms_of
from nodewire.pay.ecash.mint import Mint, MintRefused
from nodewire.pay.ecash.proofs import parse_proof
from tests.pay.bond.quorum.market import COMMITTEE, ORACLES
from tests.pay.bond.quorum.mint_service import ISSUED, SPENT, PlannedWallet, serve
from tests.pay.bond_market import CUSTOMER, STRANGER

PROVIDER = Keys.generate()
TERMS = terms_of(COMMITTEE, PROVIDER.public, 1_900_000_000, "first")
LONG_AGO = terms_of(COMMITTEE, PROVIDER.public, 500_000_000, "first")
SAT = 100


@pytest.fixture
async def mint():
    async with serve() as mint:
        yield mint


@pytest.fixture
def wallet(mint):
    return PlannedWallet(mint)


@pytest.fixture
async def open_custody(mint):
    async with contextlib.AsyncExitStack() as stack:

        def open_one(wallet=None):
            custody = EcashCustody(Mint(mint.url), wallet)
            stack.push_async_callback(custody.close)
            return custody

        yield open_one


@pytest.fixture
def custody(open_custody, wallet):
    return open_custody(wallet)


# Coins


async def test_coins_are_locked_once_for_a_key_and_worth_what_was_paid(custody, wallet):
    coins = await custody.fund(TERMS, SAT, "first")
    assert await custody.fund(TERMS, SAT, "first") == coins
    assert await custody.worth_sat(TERMS, coins) == SAT
    assert len(wallet.paid) == 2  # a satoshi tried the mint
    with pytest.raises(BadInput, match="another lock"):
        await custody.worth_sat(LONG_AGO, coins)


@pytest.mark.parametrize("nuts", [{}, None, {"11": True}, {"11": {"supported": "yes"}}])
async def test_a_mint_that_does_not_say_that_it_enforces_locks_gets_nothing(nuts, custody, mint, wallet):
    mint.nuts = nuts
    with pytest.raises(NotAllowed, match="NUT-11") as refused:
        await custody.fund(TERMS, SAT, "first")
    assert (refused.value.field, wallet.paid) == ("mint", [])


async def test_more_than_the_cap_is_not_locked(custody, wallet):
    with pytest.raises(NotAllowed, match="at most 100000 sat") as refused:
        await custody.fund(TERMS, 100_001, "first")
    assert (refused.value.field, wallet.paid) == ("cap", [])


async def test_without_a_wallet_nothing_is_locked(open_custody, mint):
    with pytest.raises(PaymentFailed) as refused:
        await open_custody().fund(TERMS, SAT, "first")
    assert (refused.value.field, mint.quotes) == ("wallet", {})


async def test_a_payment_that_failed_is_made_anew_by_another_invoice(custody, wallet):
    wallet.states = ["settled", "failed"]
    with pytest.raises(PaymentFailed, match="no route"):
        await custody.fund(TERMS, SAT, "first")
    coins = await custody.fund(TERMS, SAT, "first")
    assert await custody.worth_sat(TERMS, coins) == SAT
    assert len(set(wallet.paid)) == 3


async def test_a_payment_that_is_pending_is_not_made_twice(custody, mint, wallet):
    wallet.states = ["settled", "pending"]
    with pytest.raises(PaymentFailed, match="pending; ask again"):
        await custody.fund(TERMS, SAT, "first")
    mint.paid(wallet.paid[-1])
    coins = await custody.fund(TERMS, SAT, "first")
    assert await custody.worth_sat(TERMS, coins) == SAT
    assert len(wallet.paid) == 2


async def test_ecash_whose_answer_was_lost_is_restored_and_paid_for_once(custody, mint, wallet):
    await custody.probe(TERMS.id)
    mint.faults["/v1/mint/bolt11"] = ["lost"]
    with pytest.raises(LinkLost):
        await custody.fund(TERMS, SAT, "first")
    coins = await custody.fund(TERMS, SAT, "first")
    assert await custody.worth_sat(TERMS, coins) == SAT
    assert len(wallet.paid) == 2


async def test_ecash_that_the_mint_signed_and_then_refuses_is_restored(custody, mint):
    await custody.probe(TERMS.id)
    mint.faults["/v1/mint/bolt11"] = [("acted", ISSUED)]
    assert await custody.worth_sat(TERMS, await custody.fund(TERMS, SAT, "first")) == SAT


async def test_a_mint_that_was_paid_and_refuses_is_asked_again_by_the_same_quote(custody, mint, wallet):
    await custody.probe(TERMS.id)
    mint.faults["/v1/mint/bolt11"] = [20001]
    with pytest.raises(MintRefused):
        await custody.fund(TERMS, SAT, "first")
    assert await custody.worth_sat(TERMS, await custody.fund(TERMS, SAT, "first")) == SAT
    assert len(wallet.paid) == 2


async def test_a_coin_of_an_amount_without_a_key_or_without_a_proof_is_no_coin(custody):
    coin, *_ = await custody.fund(TERMS, SAT, "first")
    for change, reason in (({"amount": 1 << 40}, "no key for"), ({"dleq": None}, "NUT-12")):
        with pytest.raises(BadInput, match=reason) as refused:
            await custody.worth_sat(TERMS, [{**coin, **change}])
        assert refused.value.field == "coins"


# Closings


async def closing_of(custody, terms=TERMS, **changes):
    coins = await custody.fund(terms, SAT, "first")
    fee_sat, means = await custody.propose(terms, coins, 2)
    payments = (Payment(CUSTOMER.public, 40), Payment(POOL, 60 - fee_sat))
    return Closing(terms, tuple(coins), payments, **{"fee_sat": fee_sat, "means": means, **changes})


async def signed(custody, closing, oracles=ORACLES[:3]):
    digests = await custody.digests(closing)
    return {one.public: [one.sign(digest) for digest in digests] for one in oracles}


@pytest.mark.parametrize("keyset", [None, "", "00", "zz" * 8, "AB" * 8])
async def test_means_that_name_no_keyset_are_not_signed(keyset, custody):
    with pytest.raises(BadInput, match="no keyset's id") as refused:
        await custody.check(await closing_of(custody, means={"keyset": keyset}))
    assert refused.value.field == "means"


async def test_a_keyset_that_the_mint_signs_by_no_more_is_not_signed(custody, open_custody, mint):
    closing = await closing_of(custody)
    await custody.check(closing)
    mint.is_active = False
    with pytest.raises(BadInput, match="signs by this keyset no more"):
        await open_custody().check(closing)


async def test_a_fee_that_the_mint_does_not_take_is_not_signed(custody, mint):
    mint.fee_ppk = 400  # three coins: two satoshis
    closing = await closing_of(custody)
    assert closing.fee_sat == 2
    await custody.check(closing)
    for fee_sat in (1, 3):
        with pytest.raises(BadInput, match="not what the mint takes") as refused:
            await custody.check(await closing_of(custody, fee_sat=fee_sat))
        assert refused.value.field == "fee_sat"


async def test_a_closing_needs_a_quorum_and_is_made_once(custody, mint):
    closing = await closing_of(custody)
    with pytest.raises(NoQuorum, match="2 of 3"):
        await custody.execute(closing, await signed(custody, closing, ORACLES[:2]))
    assert await custody.execute(closing, await signed(custody, closing)) == {"mint": mint.url}
    assert await custody.execute(closing, {}) == {"mint": mint.url}


@pytest.mark.parametrize("fault", ["lost", ("acted", SPENT)])
async def test_a_closing_whose_answer_was_lost_or_that_another_made_first_is_made(fault, custody, mint):
    closing = await closing_of(custody)
    signatures = await signed(custody, closing)
    mint.faults["/v1/swap"] = [fault]
    with contextlib.suppress(LinkLost):
        await custody.execute(closing, signatures)
    assert await custody.execute(closing, signatures) == {"mint": mint.url}
    with pytest.raises(NotFound, match="spent"):
        await custody.worth_sat(TERMS, closing.coins)


async def test_a_closing_that_the_mint_refuses_is_open_and_one_of_spent_coins_is_not_found(custody, mint):
    closing = await closing_of(custody)
    signatures = await signed(custody, closing)
    mint.faults["/v1/swap"] = [12_000]
    with pytest.raises(MintRefused):
        await custody.execute(closing, signatures)
    mint.spent.add(closing.coins[0]["secret"])
    with pytest.raises(NotFound, match="some of them are spent") as refused:
        await custody.execute(closing, signatures)
    assert refused.value.field == "coins"


# What comes back


async def executed(custody):
    closing = await closing_of(custody)
    return closing, await custody.execute(closing, await signed(custody, closing))


async def test_a_payee_takes_its_part_once_and_a_stranger_nothing(custody, wallet):
    closing, left = await executed(custody)
    with pytest.raises(NotFound, match="pays this key nothing"):
        await custody.collect(STRANGER, closing, left)
    first = await custody.collect(CUSTOMER, closing, left)
    assert first[0] == 40
    assert await custody.collect(CUSTOMER, closing, left) == first
    assert wallet.asked_msat == [40_000]


async def test_a_closing_that_the_mint_has_not_made_pays_nobody_yet(custody, wallet):
    closing = await closing_of(custody)
    with pytest.raises(PaymentFailed, match="has not made it yet") as refused:
        await custody.collect(CUSTOMER, closing, {})
    assert (refused.value.field, wallet.asked_msat) == ("closing", [])


async def test_a_payee_without_a_wallet_takes_nothing(custody, open_custody):
    closing, left = await executed(custody)
    with pytest.raises(PaymentFailed) as refused:
        await open_custody().collect(CUSTOMER, closing, left)
    assert refused.value.field == "wallet"


async def test_a_payees_part_bears_the_mints_fee_for_the_payment(custody, mint, wallet):
    closing, left = await executed(custody)
    mint.melt_fees_sat = [3, 1]
    assert (await custody.collect(CUSTOMER, closing, left))[0] == 37
    assert wallet.asked_msat == [40_000, 37_000]


async def test_a_fee_beyond_what_is_due_is_refused_and_spends_nothing(custody, mint):
    closing, left = await executed(custody)
    mint.melt_fees_sat = [40]
    with pytest.raises(PaymentFailed, match="more than the 40 sat that are due") as refused:
        await custody.collect(CUSTOMER, closing, left)
    assert refused.value.field == "mint"
    assert (await custody.collect(CUSTOMER, closing, left))[0] == 40


async def test_a_mint_that_could_not_pay_is_asked_again(custody, mint, wallet):
    closing, left = await executed(custody)
    mint.melt_state = "UNPAID"
    with pytest.raises(PaymentFailed, match="ask again"):
        await custody.collect(CUSTOMER, closing, left)
    mint.melt_state = "PAID"
    assert (await custody.collect(CUSTOMER, closing, left))[0] == 40
    assert len(wallet.asked_msat) == 2


async def test_a_payment_whose_answer_was_lost_is_told_as_it_was_and_not_made_twice(custody, mint, wallet):
    closing, left = await executed(custody)
    mint.faults["/v1/melt/bolt11"] = ["lost"]
    with pytest.raises(LinkLost):
        await custody.collect(CUSTOMER, closing, left)
    assert (await custody.collect(CUSTOMER, closing, left))[0] == 40
    assert wallet.asked_msat == [40_000]


async def test_a_payment_that_a_mint_tells_of_late_is_told_as_it_was(custody, mint):
    closing, left = await executed(custody)
    first = await custody.collect(CUSTOMER, closing, left)
    mint.state_of_all = "UNSPENT"
    assert await custody.collect(CUSTOMER, closing, left) == first


@pytest.mark.parametrize("code", [SPENT, 12_000])
async def test_ecash_that_the_mint_refuses_at_the_first_try_pays_nothing(code, custody, mint):
    closing, left = await executed(custody)
    mint.faults["/v1/melt/bolt11"] = [code]
    with pytest.raises(MintRefused) as refused:
        await custody.collect(CUSTOMER, closing, left)
    assert refused.value.number == code
    assert (await custody.collect(CUSTOMER, closing, left))[0] == 40


async def test_a_refund_is_the_providers_alone_and_not_before_its_own_time(custody, wallet):
    coins = await custody.fund(LONG_AGO, SAT, "first")
    with pytest.raises(MintRefused):
        await custody.refund(STRANGER, LONG_AGO, coins)
    with pytest.raises(NotAllowed, match="its own time is in"):
        await custody.refund(PROVIDER, TERMS, coins)
    assert wallet.asked_msat == []


@pytest.mark.parametrize("path", ["/v1/swap", "/v1/melt/bolt11"])
async def test_a_refund_whose_answer_was_lost_comes_once(path, custody, mint, wallet):
    coins = await custody.fund(LONG_AGO, SAT, "first")
    mint.faults[path] = ["lost"]
    with pytest.raises(LinkLost):
        await custody.refund(PROVIDER, LONG_AGO, coins)
    first = await custody.refund(PROVIDER, LONG_AGO, coins)
    assert first[0] == SAT
    assert await custody.refund(PROVIDER, LONG_AGO, coins) == first
    assert wallet.asked_msat == [SAT * 1_000]


async def test_a_refund_of_coins_that_the_oracles_spent_is_not_found(custody, mint, wallet):
    closing = await closing_of(custody, LONG_AGO)
    await custody.execute(closing, await signed(custody, closing))
    with pytest.raises(NotFound, match="some of them are spent"):
        await custody.refund(PROVIDER, LONG_AGO, closing.coins)
    assert wallet.asked_msat == []


async def test_a_refund_that_the_mint_has_under_way_has_not_come_and_may_be_asked_for_again(custody, mint, wallet):
    coins = await custody.fund(LONG_AGO, SAT, "first")
    mint.melt_state = "PENDING"
    with pytest.raises(TimedOut, match="may yet fail"):
        await custody.refund(PROVIDER, LONG_AGO, coins)
    with pytest.raises(TimedOut):
        await custody._melted(f"refund/{LONG_AGO.id}", await pending_proofs(custody, mint, coins), PROVIDER)
    mint.melt_state, mint.state_of_all = "PAID", ""  # it failed, and the next one does not
    assert (await custody.refund(PROVIDER, LONG_AGO, coins))[0] == SAT


async def pending_proofs(custody, mint, coins):
    """The ecash that the refund pays with, which the mint says is under way."""
    proofs = await custody._swapped(PROVIDER, f"refund/{LONG_AGO.id}", [parse_proof(one) for one in coins])
    mint.state_of_all = "PENDING"
    return proofs


async def test_a_lock_that_may_yet_be_paid_is_not_made_with_another_amount(custody, wallet):
    wallet.states = ["settled", "pending"]  # a satoshi tries the mint
    with pytest.raises(PaymentFailed, match="pending"):
        await custody.fund(TERMS, SAT, "first")
    with pytest.raises(NotAllowed, match=f"a lock of {SAT} sat is under way"):
        await custody.fund(TERMS, 20, "first")
    assert len(wallet.paid) == 2
    assert await custody.worth_sat(TERMS, await custody.fund(TERMS, SAT, "first")) == SAT
