"""The holder's rules: who gets what of a verdict, once, and never more than is there."""

import json
import sqlite3
from dataclasses import fields

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadInvoice, BadQuorum, BadZap, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.bond.settlement import unit_share_msat, verifier_pay_msat
from nodewire.pay.bond.treasury.book import MAX_BOUND
from nodewire.pay.lightning import invoices
from nodewire.protocol.market import bond as statements
from simnet.service import Fees, Simnet
from simnet.shares import MAX_QUOTES, QUOTE_S
from simnet.treasurer import Rules, Treasurer
from tests.pay.bond_market import (
    COMMITTEE,
    CUSTOMER,
    OTHER,
    PRICE_MSAT,
    PROVIDER,
    REQUEST,
    SHARE_MSAT,
    STRANGER,
    VERIFIERS,
)

BOND_MSAT = 100_000
LOCKED_S = 100_000
RULES = Rules.for_committee(COMMITTEE, statement_s=60)


class Time:
    """Starts so that all that happens at first is before the draw of the epoch under judgement."""

    def __init__(self):
        self.now_s = float(bm.GENESIS_S + 1)

    def __call__(self):
        return self.now_s


class World:
    """A holder with one bonded provider; `account[name]` are nodes with play money."""

    def __init__(self, path, rules=RULES):
        self.clock = Time()
        self.rules = rules
        self.path = path
        self.open()
        self.nodes = {name: self.simnet.open_account(name, 1_000_000)[0] for name in ("provider", "customer", "payee")}
        self.until_s = int(self.clock()) + LOCKED_S

    def open(self):
        self.simnet = Simnet(self.path, Fees(10, 1_000), 1_000_000, self.clock)
        self.treasurer = Treasurer(self.simnet, bm.HOLDER, COMMITTEE, self.rules)

    def reopen(self):
        self.simnet.close()
        self.open()

    def lock(self, key="k", amount_msat=BOND_MSAT, provider=PROVIDER):
        return self.treasurer.lock(self.nodes["provider"], provider.public, key, amount_msat, self.until_s)

    def present(self, verdict, request=REQUEST, **options):
        return self.treasurer.present(bm.certificate(verdict, **options), request)

    def invoice(self, amount_msat, expiry_s=600):
        node = self.nodes["payee"]
        return self.simnet.make_invoice(node, amount_msat, expiry_s, description_hash=bm.HASH).bolt11

    def claim(self, payee, case, amount_msat=None):
        """Claims what the case gives, and has so much of what is due paid at once: all if nothing is said."""
        claimed_msat = self.treasurer.claim(payee.public, case)
        return self.payout(payee, claimed_msat if amount_msat is None else amount_msat)

    def payout(self, payee, amount_msat):
        return self.treasurer.pay_out(payee.public, self.invoice(amount_msat))

    async def lump(self, chunk=0, **options):
        request = bm.zap(chunk, **options)
        invoice = await self.treasurer.shares.quote(request.to_json(), int(request.tag("amount")))
        self.simnet.pay(self.nodes["customer"], invoice.bolt11, 10_000)
        return invoice

    async def share(self, chunk, amount_msat=SHARE_MSAT, **options):
        """A lump of one share, and its statement."""
        invoice = await self.lump(chunk, amount_msat=amount_msat, **options)
        self.treasurer.book_shares(bm.statement(chunk, amount_msat, **options))
        return invoice

    def balance(self, name):
        return self.simnet.balance_msat(self.nodes[name])

    def check(self):
        """Every msat of the holder's account is somebody's, and of the network's somewhere."""
        state, book = self.simnet.state, self.simnet.book
        in_flight = sum(i.amount_msat for i in state.invoices.values() if i.phase == "held" and i.payer == book.node)
        assert book.owed_msat() == state.balances[book.node] + in_flight
        assert sum(state.balances.values()) + state.held_msat() == state.issued_msat


def assert_same(one, other):
    for table in ("deposits", "cases", "quotes", "received", "lumps"):
        assert dict(getattr(one, table)) == dict(getattr(other, table))
    for table in fields(one.treasury):
        assert dict(getattr(one.treasury, table.name)) == dict(getattr(other.treasury, table.name)), table.name


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "simnet.db")
    yield world
    world.check()
    world.simnet.close()


# Locking, stating, releasing


def test_a_lock_takes_the_coins_once_however_often_it_is_asked_for(world):
    first = world.lock()
    assert world.lock() == first
    assert world.balance("provider") == 1_000_000 - BOND_MSAT
    world.reopen()
    assert world.lock() == first
    assert world.balance("provider") == 1_000_000 - BOND_MSAT


def test_one_key_stands_for_one_request(world):
    world.lock()
    with pytest.raises(NotAllowed, match="key"):
        world.lock(amount_msat=5)


def test_a_provider_has_one_bond_at_a_time_and_may_raise_it(world):
    world.lock()
    with pytest.raises(NotAllowed, match="raised"):
        world.lock(key="other")
    for _ in range(2):
        raised = world.treasurer.top_up(world.nodes["provider"], PROVIDER.public, "more", 5_000, world.until_s)
    assert raised.bond.amount_msat == BOND_MSAT + 5_000
    assert world.balance("provider") == 1_000_000 - BOND_MSAT - 5_000


def test_what_the_account_does_not_have_is_not_locked(world):
    with pytest.raises(PaymentFailed):
        world.lock(amount_msat=2_000_000)
    with pytest.raises(NotFound):
        world.treasurer.bond(PROVIDER.public)
    assert world.balance("provider") == 1_000_000


@pytest.mark.parametrize("until_s", [0, bm.GENESIS_S, bm.GENESIS_S + 10**9])
def test_a_bond_ends_in_the_future_but_not_beyond_all_bounds(world, until_s):
    world.until_s = until_s
    with pytest.raises(BadInput):
        world.lock()


def test_a_statement_is_renewed_before_it_expires_and_says_what_is_left(world):
    world.lock()
    first = world.treasurer.statement(PROVIDER.public)
    said = statements.parse(first)
    assert (said.holder, said.provider, said.amount_msat) == (bm.HOLDER.public, PROVIDER.public, BOND_MSAT)
    assert said.expires_at_s == int(world.clock()) + 60
    world.clock.now_s += 29
    assert world.treasurer.statement(PROVIDER.public) == first
    world.clock.now_s += 1
    assert statements.parse(world.treasurer.statement(PROVIDER.public)).expires_at_s == said.expires_at_s + 30
    world.present(bm.verdict_of(outcome="withheld"))
    assert statements.parse(world.treasurer.statement(PROVIDER.public)).amount_msat == BOND_MSAT - 16 * PRICE_MSAT


def test_nothing_is_stated_beyond_the_bonds_end(world):
    world.until_s = int(world.clock()) + 10
    world.lock()
    assert statements.parse(world.treasurer.statement(PROVIDER.public)).expires_at_s == world.until_s
    world.clock.now_s += 10
    with pytest.raises(NotAllowed, match="unbonding"):
        world.treasurer.statement(PROVIDER.public)


def test_a_release_waits_for_the_last_statement_and_the_verdicts_on_work_done_under_it(world):
    world.lock()
    stated_until_s = statements.parse(world.treasurer.statement(PROVIDER.public)).expires_at_s
    released = world.treasurer.release(world.nodes["provider"], PROVIDER.public)
    assert released.bond.frees_at_s == stated_until_s + RULES.delay_s
    world.clock.now_s = released.bond.frees_at_s - 1
    assert world.treasurer.bond(PROVIDER.public).bond.state == "unbonding"
    world.clock.now_s += 1
    assert world.treasurer.bond(PROVIDER.public).bond.state == "released"
    assert world.balance("provider") == 1_000_000
    world.lock(key="again")
    assert world.balance("provider") == 1_000_000 - BOND_MSAT


def test_a_bond_that_nobody_prolongs_goes_back_by_itself(world):
    world.lock()
    world.clock.now_s = world.until_s + RULES.delay_s
    world.treasurer.sweep()
    assert world.balance("provider") == 1_000_000


def test_only_the_account_that_locked_a_bond_raises_or_releases_it(world):
    world.lock()
    with pytest.raises(NotAllowed, match="another account"):
        world.treasurer.release(world.nodes["customer"], PROVIDER.public)
    with pytest.raises(NotAllowed, match="another account"):
        world.treasurer.top_up(world.nodes["customer"], PROVIDER.public, "k", 5, world.until_s)


def test_an_unbonding_delay_that_verdicts_outlive_is_refused():
    assert Rules.for_committee(COMMITTEE).delay_s == 32
    with pytest.raises(BadInput, match="unbonding_s"):
        Rules.for_committee(COMMITTEE, delay_s=31)


# Verdicts

PAY_MSAT = verifier_pay_msat(PRICE_MSAT, 2)


@pytest.mark.parametrize(("prompt_units", "pays_msat"), [(1, PAY_MSAT), (100, 6_300)])
async def test_a_verifier_is_paid_for_the_context_that_it_computes_as_shares_came_for_it(
    world, prompt_units, pays_msat
):
    """The last of 6,464 positions costs nine times what the first chunk does. It pays what its share covers: all of
    it where the share is three times the rate, and here, where it is twice the rate, 6,300 msat of 9,333."""
    world.lock()
    shares = [unit_share_msat(bm.SHARE_MSAT, number) for number in range(1, prompt_units + 2)]
    await world.share(0, amount_msat=sum(shares[:-1]))
    await world.share(1, amount_msat=shares[-1])
    world.clock.now_s += 1
    judged = world.present(bm.verdict_of(chunk=1))
    assert {world.treasurer.case_due_msat(judged.case, one) for one in judged.agreed} == {pays_msat}


async def test_a_fail_refunds_the_customer_pays_the_verifiers_and_the_oracles_and_burns_the_rest(world):
    world.lock()
    for chunk in range(4):
        await world.share(chunk)
    judged = world.present(bm.failed(chunk=1))
    assert (
        judged.payouts
        == {
            CUSTOMER.public: 3 * PRICE_MSAT,  # chunks 1, 2 and 3 of this task
            **{v.public: PAY_MSAT for v in VERIFIERS[:2]},  # who computed chunk 0, too
            **{o.public: PRICE_MSAT for o in bm.ORACLES},
        }
    )
    assert not judged.refused
    bond = world.treasurer.bond(PROVIDER.public).bond
    assert (bond.state, bond.remainder_msat) == ("slashed", BOND_MSAT - 7 * PRICE_MSAT - 2 * PAY_MSAT)
    world.clock.now_s = bond.frees_at_s
    assert world.treasurer.bond(PROVIDER.public).bond.state == "burnt"
    pot_msat = 4 * SHARE_MSAT * 9 // 10
    assert world.treasurer.pool_msat == BOND_MSAT - 7 * PRICE_MSAT - 2 * PAY_MSAT + pot_msat
    assert world.balance("provider") == 1_000_000 - BOND_MSAT


def test_payouts_never_take_more_than_half_of_a_bond_and_the_customer_comes_first(world):
    world.lock(amount_msat=3_000)
    assert world.present(bm.failed()).payouts == {CUSTOMER.public: PRICE_MSAT}
    assert world.treasurer.bond(PROVIDER.public).bond.remainder_msat == 2_000


def test_a_verifier_that_lied_is_slashed_and_the_customer_whose_work_was_good_gets_nothing(world):
    world.lock(provider=VERIFIERS[2])
    judged = world.present(bm.verdict_of(outcome="pass", culprit=VERIFIERS[2].public))
    assert CUSTOMER.public not in judged.payouts
    assert VERIFIERS[2].public not in judged.payouts
    assert world.treasurer.bond(VERIFIERS[2].public).bond.state == "slashed"


def test_a_producer_that_equivocated_pays_for_the_chunk_that_nobody_can_judge(world):
    world.treasurer.lock(world.nodes["provider"], bm.OTHER.public, "k", BOND_MSAT, world.until_s)
    lied = {"outcome": "unsure", "equivocated": ("hidden.0", 0), "verifiers": ()}
    judged = world.present(bm.verdict_of(culprit=bm.OTHER.public, **lied))
    assert (judged.culprit, judged.refused) == (bm.OTHER.public, "")
    assert judged.payouts[bm.CUSTOMER.public] == PRICE_MSAT
    assert world.treasurer.bond(bm.OTHER.public).bond.state == "slashed"
    with pytest.raises(BadInput, match="culprit"):
        world.present(bm.verdict_of(culprit=bm.STRANGER.public, chunk=1, **lied))


def test_what_was_withheld_is_refunded_and_not_slashed(world):
    world.lock()
    assert world.present(bm.verdict_of(outcome="withheld")).payouts == {CUSTOMER.public: PRICE_MSAT}
    bond = world.treasurer.bond(PROVIDER.public).bond
    # One chunk in four is drawn: this one stands for four, and costs four times that; the customer gets its own.
    assert (bond.state, bond.remainder_msat) == ("locked", BOND_MSAT - 16 * PRICE_MSAT)
    assert world.treasurer.pool_msat == 15 * PRICE_MSAT
    world.reopen()
    assert world.treasurer.pool_msat == 15 * PRICE_MSAT
    assert world.claim(CUSTOMER, world.present(bm.verdict_of(outcome="withheld")).case).state == "paid"


def test_a_claim_that_was_never_committed_to_costs_four_times_what_it_was(world):
    world.lock()
    claimed = {"outcome": "withheld", "claimed": bm.HASH, "claimed_msat": 700, "verifiers": ()}
    assert world.present(bm.verdict_of(**claimed)).payouts == {CUSTOMER.public: 700}
    bond = world.treasurer.bond(PROVIDER.public).bond
    assert (bond.state, bond.remainder_msat) == ("locked", BOND_MSAT - 4 * 700)
    assert world.treasurer.pool_msat == 3 * 700
    # What is drawn of the chunk later, since it was committed to too late, is a case of its own.
    assert world.present(bm.failed()).refused == ""
    assert world.treasurer.bond(PROVIDER.public).bond.state == "slashed"


def test_a_bond_forfeits_no_more_than_it_has_and_is_released_without_it(world):
    world.lock(amount_msat=3_000)
    for chunk in range(3):
        world.present(bm.verdict_of(outcome="withheld", chunk=chunk))
    bond = world.treasurer.bond(PROVIDER.public).bond
    assert (bond.payouts_msat, bond.forfeited_msat, bond.remainder_msat) == (PRICE_MSAT, 2_000, 0)


def test_an_accomplice_loses_all_of_its_bond_to_the_pool(world):
    world.lock()
    world.lock(provider=VERIFIERS[2])
    world.present(bm.failed(accomplices=(VERIFIERS[2].public,)))
    bond = world.treasurer.bond(VERIFIERS[2].public).bond
    assert (bond.state, bond.payouts) == ("slashed", ())
    pool_msat, world.clock.now_s = world.treasurer.pool_msat, bond.frees_at_s
    assert world.treasurer.bond(VERIFIERS[2].public).bond.state == "burnt"
    assert world.treasurer.pool_msat >= pool_msat + BOND_MSAT


@pytest.mark.parametrize("outcome", ["pass", "unsure"])
def test_in_doubt_no_bond_is_touched(world, outcome):
    world.lock()
    assert world.present(bm.verdict_of(outcome=outcome)).payouts == {}
    assert world.treasurer.bond(PROVIDER.public).bond.remainder_msat == BOND_MSAT


def test_a_verdict_presented_again_by_anyone_changes_nothing(world):
    world.lock()
    first = world.present(bm.failed())
    world.clock.now_s += 5
    assert world.present(bm.failed(), voters=tuple(bm.ORACLES[1:])) == first
    world.reopen()
    assert world.present(bm.failed()) == first
    assert len(world.treasurer.bond(PROVIDER.public).bond.judged) == 1


def test_the_first_verdict_on_a_sample_stands(world):
    world.lock()
    world.present(bm.verdict_of())
    with pytest.raises(NotAllowed, match="another verdict"):
        world.present(bm.failed())
    assert world.treasurer.bond(PROVIDER.public).bond.state == "locked"


def test_two_failed_samples_are_both_repaid_and_a_third_after_the_burning_is_refused(world):
    world.lock()
    world.present(bm.failed(chunk=0))
    second = world.present(bm.failed(chunk=3))
    assert second.payouts[CUSTOMER.public] == PRICE_MSAT
    world.clock.now_s = world.treasurer.bond(PROVIDER.public).bond.frees_at_s
    assert world.present(bm.failed(chunk=5)).refused.startswith("its bond is burnt")


def test_a_slash_reaches_a_bond_that_is_being_released(world):
    world.lock()
    freed_at_s = world.treasurer.release(world.nodes["provider"], PROVIDER.public).bond.frees_at_s
    world.clock.now_s = freed_at_s - 1
    assert world.present(bm.failed()).slashes
    world.clock.now_s = freed_at_s + 10 * RULES.delay_s
    world.treasurer.sweep()
    assert world.treasurer.bond(PROVIDER.public).bond.state == "burnt"
    assert world.balance("provider") == 1_000_000 - BOND_MSAT


async def test_a_slash_after_the_release_is_refused_aloud_and_the_verifiers_are_paid_all_the_same(world, caplog):
    world.lock()
    await world.share(0)
    freed_at_s = world.treasurer.release(world.nodes["provider"], PROVIDER.public).bond.frees_at_s
    world.clock.now_s = freed_at_s
    judged = world.present(bm.failed())
    assert (judged.payouts, judged.refused) == ({}, f"its bond is released since {freed_at_s}")
    assert "slash" in caplog.text and "refused" in caplog.text
    with pytest.raises(NotAllowed):
        world.claim(CUSTOMER, judged.case, PRICE_MSAT)


def test_a_slash_of_one_that_never_had_a_bond_is_refused_aloud(world):
    assert world.present(bm.failed()).refused == "it never had a bond here"


def test_a_convicted_key_gets_no_new_bond(world):
    world.lock()
    world.present(bm.failed())
    with pytest.raises(NotAllowed, match="convicted"):
        world.lock(key="again")


def test_a_verdict_reaches_nobody_elses_bond(world):
    world.lock()
    world.lock(key="other", provider=OTHER)
    world.present(bm.failed(culprit=OTHER, task="stage.0"))
    assert world.treasurer.bond(PROVIDER.public).bond.remainder_msat == BOND_MSAT
    assert world.treasurer.bond(OTHER.public).bond.state == "slashed"


# What is no certificate


OUTSIDERS, THEIR_ORACLES = bm.committee("others")


@pytest.mark.parametrize(
    ("voters", "digest"),
    [
        (bm.ORACLES[:2], None),
        ([bm.ORACLES[0]] * 3, None),
        ([*bm.ORACLES[:2], STRANGER], None),
        (THEIR_ORACLES[:3], None),
        (bm.ORACLES[:3], "00" * 32),
        ([], None),
    ],
    ids=["too few", "one thrice", "an outsider", "another committee's", "for something else", "none"],
)
def test_without_a_quorum_for_this_very_verdict_nothing_is_slashed(world, voters, digest):
    world.lock()
    with pytest.raises(BadQuorum):
        world.present(bm.failed(), voters=voters, digest=digest)
    assert world.treasurer.bond(PROVIDER.public).bond.state == "locked"


def test_another_committees_verdict_is_none_here(world):
    world.lock()
    request = bm.request(committee=OUTSIDERS)
    verdict = bm.failed(request, committee=OUTSIDERS)
    with pytest.raises(BadInput):
        world.present(verdict, request, voters=THEIR_ORACLES[:3])


def test_a_verdict_is_settled_by_the_prices_of_its_own_job(world):
    world.lock()
    dear = bm.request(price_msat=50 * PRICE_MSAT)
    with pytest.raises(BadInput, match="request"):
        world.present(bm.failed(), dear)
    with pytest.raises(BadInput, match="task"):
        world.present(bm.failed(task="stage.9"))


def test_a_root_that_somebody_else_than_the_plans_providers_committed_is_nobodys_claim(world):
    world.lock(provider=STRANGER)
    with pytest.raises(BadInput, match="task"):
        world.present(bm.failed(culprit=STRANGER))
    with pytest.raises(BadInput, match="task"):
        world.present(bm.failed(task="stage.0"))


# Claims


def test_a_payout_is_paid_once_however_often_it_is_claimed(world):
    world.lock()
    case = world.present(bm.failed()).case
    bolt11 = world.invoice(PRICE_MSAT)
    for _ in range(2):
        assert world.treasurer.claim(CUSTOMER.public, case) == PRICE_MSAT
        assert world.treasurer.pay_out(CUSTOMER.public, bolt11).state == "paid"
        world.reopen()
    with pytest.raises(PaymentFailed, match="0 msat are due"):
        world.claim(CUSTOMER, case)
    assert world.balance("payee") == 1_000_000 + PRICE_MSAT
    assert world.treasurer.case_due_msat(case, CUSTOMER.public) == 0


def test_strangers_and_those_that_did_not_agree_claim_nothing(world):
    world.lock()
    case = world.present(bm.failed()).case
    for key in (STRANGER, PROVIDER, VERIFIERS[2]):
        with pytest.raises(NotAllowed, match="payee"):
            world.claim(key, case, PRICE_MSAT)
    with pytest.raises(NotFound):
        world.claim(CUSTOMER, "00" * 32, PRICE_MSAT)


def test_what_is_due_adds_up_and_is_paid_in_parts_and_never_more_than_that(world):
    world.lock()
    for chunk in range(2):
        world.treasurer.claim(CUSTOMER.public, world.present(bm.failed(chunk=chunk)).case)
    assert world.treasurer.due_msat(CUSTOMER.public) == 2 * PRICE_MSAT
    with pytest.raises(PaymentFailed):
        world.payout(CUSTOMER, 2 * PRICE_MSAT + 1)
    assert world.payout(CUSTOMER, PRICE_MSAT + 1).state == "paid"
    assert world.treasurer.due_msat(CUSTOMER.public) == PRICE_MSAT - 1
    with pytest.raises(PaymentFailed):
        world.payout(CUSTOMER, PRICE_MSAT)


def test_of_what_is_due_whole_units_can_be_paid(world):
    world.lock()
    world.treasurer.claim(CUSTOMER.public, world.present(bm.failed()).case)
    world.simnet.unit_msat = 300
    assert (world.treasurer.due_msat(CUSTOMER.public), world.treasurer.payable_msat(CUSTOMER.public)) == (1_000, 900)


def test_one_invoice_serves_one_payout_and_foreign_ones_none(world):
    world.lock()
    case = world.present(bm.failed()).case
    for payee in (CUSTOMER, VERIFIERS[0]):
        world.treasurer.claim(payee.public, case)
    bolt11 = world.invoice(PRICE_MSAT)
    world.treasurer.pay_out(CUSTOMER.public, bolt11)
    with pytest.raises(NotAllowed, match="another payout"):
        world.treasurer.pay_out(VERIFIERS[0].public, bolt11)
    foreign = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=PRICE_MSAT,
        payment_hash="cd" * 32,
        created_at_s=int(world.clock()),
        expiry_s=600,
        description="x",
    )
    with pytest.raises(BadInvoice):
        world.treasurer.pay_out(VERIFIERS[0].public, foreign.bolt11)
    assert world.treasurer.due_msat(VERIFIERS[0].public) == PRICE_MSAT


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_hold_invoice_that_is_never_settled_gives_back_what_was_bound_to_it(world, how):
    world.lock()
    world.treasurer.claim(CUSTOMER.public, world.present(bm.failed()).case)
    hold = world.simnet.make_invoice(
        world.nodes["payee"],
        PRICE_MSAT,
        600,
        description_hash=bm.HASH,
        payment_hash=invoices.hash_of("11" * 32),
    )
    assert world.treasurer.pay_out(CUSTOMER.public, hold.bolt11).state == "bound"
    world.check()
    with pytest.raises(PaymentFailed, match="0 msat are due"):
        world.payout(CUSTOMER, PRICE_MSAT)
    if how == "cancelled":
        world.simnet.cancel(world.nodes["payee"], hold.payment_hash)
    else:
        world.reopen()
        world.clock.now_s += 2 * 86_400
    assert world.treasurer.due_msat(CUSTOMER.public) == PRICE_MSAT
    with pytest.raises(NotAllowed, match="failed before"):
        world.treasurer.pay_out(CUSTOMER.public, hold.bolt11)
    assert world.payout(CUSTOMER, PRICE_MSAT).state == "paid"
    assert world.balance("payee") == 1_000_000 + PRICE_MSAT


def test_a_payee_binds_no_more_hold_invoices_than_a_few(world):
    world.lock()
    world.treasurer.claim(CUSTOMER.public, world.present(bm.failed()).case)
    for n in range(MAX_BOUND + 1):
        hold = world.simnet.make_invoice(
            world.nodes["payee"], 1, 600, description_hash=bm.HASH, payment_hash=invoices.hash_of(f"{n:064x}")
        )
        if n == MAX_BOUND:
            with pytest.raises(NotAllowed, match="under way"):
                world.treasurer.pay_out(CUSTOMER.public, hold.bolt11)
        else:
            world.treasurer.pay_out(CUSTOMER.public, hold.bolt11)


# The treasury


async def test_a_share_is_split_into_the_requests_pot_and_the_committees_fee(world):
    await world.share(0)
    assert world.treasurer.pot(REQUEST.id) == (SHARE_MSAT * 9 // 10, SHARE_MSAT * 9 // 10)
    assert world.treasurer.due_msat(bm.ORACLES[0].public) == SHARE_MSAT // 10 // 4


async def test_of_shares_of_a_few_msat_the_committee_has_its_part_too(world):
    await world.lump(amount_msat=60)
    for chunk in range(20):
        world.treasurer.book_shares(bm.statement(chunk, 3))
    assert world.treasurer.pot(REQUEST.id) == (54, 54)
    assert world.treasurer.due_msat(bm.ORACLES[0].public) == 6 // 4


async def test_the_same_zap_request_has_the_same_invoice_and_is_counted_once(world):
    first = await world.share(0)
    assert await world.share(0) == first
    assert world.treasurer.pot(REQUEST.id)[0] == SHARE_MSAT * 9 // 10
    assert world.treasurer.shares.receipt(first.payment_hash).tag("bolt11") == first.bolt11


@pytest.mark.parametrize("outcome", ["pass", "unsure"])
async def test_a_verifier_is_paid_once_out_of_the_requests_pot(world, outcome):
    for chunk in range(2):
        await world.share(chunk)
    case = world.present(bm.verdict_of(outcome=outcome)).case
    assert world.claim(VERIFIERS[0], case).state == "paid"
    assert world.treasurer.claim(VERIFIERS[0].public, case) == PRICE_MSAT  # again
    assert world.treasurer.due_msat(VERIFIERS[0].public) == 0
    assert world.treasurer.pot(REQUEST.id)[1] == 2 * SHARE_MSAT * 9 // 10 - PRICE_MSAT
    assert world.balance("payee") == 1_000_000 + PRICE_MSAT


async def test_the_treasury_pays_no_more_than_it_holds(world):
    await world.share(0)
    case = world.present(bm.verdict_of()).case
    with pytest.raises(PaymentFailed):  # 900 msat are there
        world.claim(VERIFIERS[0], case, PRICE_MSAT)
    await world.share(1)
    assert world.claim(VERIFIERS[0], case).state == "paid"
    assert world.treasurer.claim(VERIFIERS[1].public, case) == 800


async def test_the_pool_insures_what_was_paid_before_the_draw(world):
    for chunk in range(8):
        await world.share(chunk, request=bm.request(salt="quiet"))
    world.clock.now_s = bm.GENESIS_S + (bm.EPOCH + 1) * 2 - 1  # the last second before the draw can be known
    await world.share(0)
    world.clock.now_s += 2 * QUOTE_S
    case = world.present(bm.verdict_of()).case
    assert world.treasurer.pool_msat == 9 * SHARE_MSAT * 9 // 10  # all pots are closed
    assert world.claim(VERIFIERS[0], case).state == "paid"
    assert world.treasurer.pool_msat == 9 * SHARE_MSAT * 9 // 10 - PRICE_MSAT
    assert world.treasurer.case_due_msat(case, VERIFIERS[1].public) == 9 * SHARE_MSAT // 10 * 2 - PRICE_MSAT


async def test_a_pot_closes_also_if_its_share_came_before_a_restart(world):
    await world.share(0)
    world.reopen()
    world.clock.now_s += RULES.delay_s
    assert world.treasurer.pot(REQUEST.id) == (SHARE_MSAT * 9 // 10, 0)
    assert world.treasurer.pool_msat == SHARE_MSAT * 9 // 10


async def test_a_share_that_comes_after_the_draw_insures_nothing(world):
    for chunk in range(8):
        await world.share(chunk, request=bm.request(salt="quiet"))
    world.clock.now_s += 100 * RULES.delay_s
    await world.share(0)
    case = world.present(bm.verdict_of()).case
    assert world.treasurer.case_due_msat(case, VERIFIERS[0].public) == 0
    with pytest.raises(PaymentFailed, match="covers"):
        world.claim(VERIFIERS[0], case, PRICE_MSAT)


async def test_the_pool_gives_no_more_than_the_share_over_the_rate(world):
    world.lock(amount_msat=900_000)
    world.present(bm.failed(bm.request(salt="fill the pool")), bm.request(salt="fill the pool"))
    dear = bm.request(price_msat=10 * PRICE_MSAT)
    await world.share(0, request=dear, amount_msat=4 * SHARE_MSAT)  # four tenths of what is due, half of it this task's
    world.clock.now_s += 100 * RULES.delay_s
    case = world.present(bm.verdict_of(dear), dear).case
    assert world.treasurer.pool_msat > 20 * PRICE_MSAT
    assert world.treasurer.case_due_msat(case, VERIFIERS[0].public) == 4 * SHARE_MSAT * 9 // 10 // 2 * 4


async def test_chunks_whose_share_another_paid_or_nobody_are_not_refunded(world):
    world.lock()
    for chunk in (0, 1, 3):
        await world.share(chunk)
    await world.share(2, sender=STRANGER)
    assert world.present(bm.failed(chunk=0)).payouts[CUSTOMER.public] == 2 * PRICE_MSAT


async def test_each_oracle_takes_its_part_of_the_fees_and_no_more(world):
    for chunk in range(4):
        await world.share(chunk)
    oracle, part_msat = bm.ORACLES[0], 4 * SHARE_MSAT // 10 // 4
    with pytest.raises(PaymentFailed):
        world.payout(oracle, part_msat + 1)
    bolt11 = world.invoice(part_msat)
    first = world.treasurer.pay_out(oracle.public, bolt11)
    assert first.state == "paid"
    assert world.treasurer.pay_out(oracle.public, bolt11) == first
    for key in (oracle, STRANGER):
        with pytest.raises(PaymentFailed):
            world.payout(key, 1)
    assert world.treasurer.due_msat(bm.ORACLES[1].public) == part_msat


async def test_a_zap_for_somebody_else_gets_no_invoice_and_any_other_is_a_lump(world):
    other = zaps.build_request(
        CUSTOMER, Key(REQUEST.id, PROVIDER.public, 0, 0), 5, relays=bm.RELAYS, lnurl=None, created_at=9
    )
    with pytest.raises(BadZap):
        await world.treasurer.shares.quote(other.to_json(), 5)
    plain = nip57.build_request(
        CUSTOMER, nip57.ZapTarget(bm.HOLDER.public), amount_msat=5, relays=bm.RELAYS, created_at=9
    )
    invoice = await world.treasurer.shares.quote(plain.to_json(), 5)
    assert world.treasurer.ahead_msat(CUSTOMER.public) == 0
    world.simnet.pay(world.nodes["customer"], invoice.bolt11, 10_000)
    assert world.treasurer.ahead_msat(CUSTOMER.public) == 5


async def test_open_invoices_are_bounded(world):
    for chunk in range(MAX_QUOTES):
        request = bm.zap(chunk)
        await world.treasurer.shares.quote(request.to_json(), SHARE_MSAT)
    with pytest.raises(NotAllowed):
        await world.treasurer.shares.quote(bm.zap(99).to_json(), SHARE_MSAT)
    world.clock.now_s += 301
    await world.treasurer.shares.quote(bm.zap(99).to_json(), SHARE_MSAT)


async def test_after_a_restart_everything_is_as_it_was(world):
    world.lock()
    for chunk in range(3):
        await world.share(chunk)
    case = world.present(bm.failed()).case
    world.claim(CUSTOMER, case)
    before = world.simnet.book
    world.reopen()
    after = world.simnet.book
    assert_same(before, after)


async def test_a_log_of_before_in_which_each_zap_was_a_share_and_each_claim_a_case_goes_on(world):
    """One claim was undone, and made again by another invoice. Another is bound, and paid when its payee settles it."""
    for chunk in range(2):
        await world.lump(chunk)
    case = world.present(bm.verdict_of()).case
    other = world.present(bm.verdict_of(task="stage.0", provider=OTHER.public)).case
    hold = world.simnet.make_invoice(
        world.nodes["payee"], 100, 600, description_hash=bm.HASH, payment_hash=invoices.hash_of("11" * 32)
    )
    bolt11 = {"paid": world.invoice(PRICE_MSAT), "undone": world.invoice(PRICE_MSAT), "bound": hold.bolt11}
    fee = world.invoice(SHARE_MSAT // 20)
    world.simnet.close()
    db = sqlite3.connect(world.path)

    def claimed(ref, payee, bolt11, tag="Claimed"):
        decoded = invoices.decode(bolt11)
        body = {"ref": ref, "payee": payee.public, "payment_hash": decoded.payment_hash}
        if tag == "Claimed":
            body |= {"bolt11": decoded.bolt11, "amount_msat": decoded.amount_msat}
        sql = "INSERT INTO events (type, payment_hash, body) VALUES (?, ?, ?)"
        db.execute(sql, (tag, decoded.payment_hash, json.dumps(body).encode()))
        return decoded.payment_hash

    nth = "(SELECT count(*) FROM events AS e WHERE e.type = 'Quoted' AND e.seq < events.seq)"
    quoted = f"$.request', '{REQUEST.id}', '$.fee_msat', {SHARE_MSAT // 10}, '$.chunk', {nth}"
    sql = f"UPDATE events SET body = CAST(json_set(CAST(body AS TEXT), '{quoted}) AS BLOB) WHERE type = 'Quoted'"
    assert db.execute(sql).rowcount == 2
    claimed(case, VERIFIERS[0], bolt11["undone"])
    claimed(case, VERIFIERS[0], bolt11["undone"], "Lapsed")
    claimed(case, VERIFIERS[0], bolt11["paid"])
    claimed(other, VERIFIERS[1], bolt11["bound"])
    claimed(f"fees/{invoices.decode(fee).payment_hash}", bm.ORACLES[0], fee)
    db.execute("PRAGMA user_version = 4")
    db.commit()
    db.close()
    world.open()  # which pays what was bound
    assert world.balance("payee") == 1_000_000 + PRICE_MSAT + SHARE_MSAT // 20
    world.check()
    world.simnet.settle(world.nodes["payee"], "11" * 32)
    book = world.simnet.book.treasury
    assert book.payouts[hold.payment_hash].state == "paid"
    assert world.treasurer.pot(REQUEST.id) == (1_800, 1_800 - PRICE_MSAT - 100)
    assert world.treasurer.ahead_msat(CUSTOMER.public) == 0
    assert {world.treasurer.share_msat(REQUEST.id, CUSTOMER.public, chunk) for chunk in range(2)} == {SHARE_MSAT}
    assert world.treasurer.claim(VERIFIERS[0].public, case) == PRICE_MSAT
    assert world.treasurer.due_msat(VERIFIERS[0].public) == 0
    await world.share(2)  # and the rules of today hold from here on


async def test_a_log_of_the_first_version_goes_on(world):
    """It says of every verdict whether its provider stood by for another."""
    world.lock()
    await world.share(0)
    case = world.present(bm.failed()).case
    before = world.simnet.book
    world.simnet.close()
    db = sqlite3.connect(world.path)
    second = "CAST(json_set(CAST(body AS TEXT), '$.is_second', json('false')) AS BLOB)"
    assert db.execute(f"UPDATE events SET body = {second} WHERE type = 'Judged'").rowcount == 1
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    world.open()
    assert dict(world.simnet.book.cases) == dict(before.cases)
    assert world.claim(CUSTOMER, case).state == "paid"


async def test_after_a_restart_claims_without_roots_are_settled_and_repaid_once_a_stages_too(world):
    request = bm.request(driver=OTHER, stage=PROVIDER)
    world.lock()
    withheld = {"outcome": "withheld", "verifiers": (), "task": "stage.0"}
    claims = [bm.verdict_of(request, claimed=f"{n:064x}", claimed_msat=700 + n, **withheld) for n in range(2)]
    drawn = bm.verdict_of(request, **withheld)  # of the same chunk: a case of its own
    cases = [world.present(said, request) for said in (*claims, drawn)]
    assert len({one.case for one in cases}) == 3
    assert [one.refused for one in cases] == [""] * 3
    assert world.claim(CUSTOMER, cases[0].case).state == "paid"
    before = world.simnet.book
    world.reopen()
    after = world.simnet.book
    assert_same(before, after)
    assert after.treasury.pool_msat == 3 * 700 + 3 * 701 + 15 * PRICE_MSAT
    assert [world.present(said, request) for said in (*claims, drawn)] == cases
    assert world.treasurer.case_due_msat(cases[0].case, CUSTOMER.public) == 0
    assert world.claim(CUSTOMER, cases[1].case).state == "paid"
    bond = world.treasurer.bond(PROVIDER.public).bond
    assert (bond.state, bond.remainder_msat) == ("locked", BOND_MSAT - 4 * 700 - 4 * 701 - 16 * PRICE_MSAT)
    assert world.simnet.balance_msat(world.simnet.book.node) == world.simnet.book.owed_msat()
    with pytest.raises(NotAllowed):  # about one claim there is one verdict
        world.present(bm.verdict_of(request, claimed=f"{0:064x}", claimed_msat=699, **withheld), request)


async def test_the_pool_insures_a_chunk_of_a_task_once_in_whatever_attempts(world):
    world.lock(amount_msat=900_000)
    world.present(bm.failed(bm.request(salt="fill the pool")), bm.request(salt="fill the pool"))
    await world.share(0)
    world.clock.now_s += 100 * RULES.delay_s
    cases = [world.present(bm.verdict_of(attempt=attempt)).case for attempt in range(2)]
    assert world.treasurer.pot(REQUEST.id)[1] == 0
    assert world.claim(VERIFIERS[0], cases[0]).state == "paid"
    assert world.treasurer.case_due_msat(cases[1], VERIFIERS[0].public) == 9 * SHARE_MSAT // 10 * 2 - PRICE_MSAT
