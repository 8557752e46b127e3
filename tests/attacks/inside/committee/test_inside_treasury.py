"""Providers, verifiers, an oracle, customers' keys in one hand: more out of bonds and pool than was paid in."""

from __future__ import annotations

from collections import Counter

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadQuorum, BadSignature, Busy, NotAllowed, PaymentFailed
from nodewire.nostr import event as events
from nodewire.pay.bond.settlement import WITHHELD_TIMES
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.job.share_statement import ShareStatement
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.verdict import Certificate
from simnet import shares
from simnet.shares import QUOTE_S
from tests.pay.accounts.test_treasurer import BOND_MSAT, RULES, World
from tests.pay.bond_market import CUSTOMER, PRICE_MSAT, PROVIDER, REQUEST, SHARE_MSAT, VERIFIERS


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "simnet.db")
    yield world
    world.check()
    world.simnet.close()


def drawn_s(world) -> None:
    """The last second before it can be known what is drawn."""
    world.clock.now_s = bm.GENESIS_S + (bm.EPOCH + 1) * 2 - 1


async def fill_pool(world):
    for chunk in range(8):
        await world.share(chunk, request=bm.request(salt="others"))


async def test_a_customer_that_states_otherwise_after_the_draw_does_not_take_the_insurance_from_its_verifiers(world):
    """Nobody gains but spite: the share had come in time, and still the honest verifier went unpaid."""
    await fill_pool(world)
    drawn_s(world)
    await world.share(0)
    world.clock.now_s += 10
    await world.lump(1, amount_msat=10 * SHARE_MSAT)
    for msat in (1, SHARE_MSAT - 1, SHARE_MSAT + 1):  # a statement that falls, or rises
        with pytest.raises(NotAllowed, match="was stated with"):
            world.treasurer.book_shares(bm.statement(0, msat))
    world.treasurer.book_shares(bm.statement(0))  # replayed
    world.clock.now_s += 2 * QUOTE_S  # all pots are closed
    case = world.present(bm.verdict_of()).case
    assert world.claim(VERIFIERS[0], case).state == "paid"
    assert world.treasurer.ahead_msat(CUSTOMER.public) == 10 * SHARE_MSAT


async def test_what_is_stated_after_the_draw_insures_nothing(world):
    """Lumps that were there in time do not count: the share was not stated."""
    await fill_pool(world)
    drawn_s(world)
    await world.lump(amount_msat=10 * SHARE_MSAT)
    await world.share(0, amount_msat=SHARE_MSAT // 10)
    world.clock.now_s += 10
    world.treasurer.book_shares(bm.statement(1, SHARE_MSAT))
    world.clock.now_s += 100 * RULES.delay_s  # the pot is closed
    case = world.present(bm.verdict_of()).case
    due_msat = SHARE_MSAT // 10 * 9 // 10 * bm.PRICE_MSAT // SHARE_MSAT * 2
    assert world.treasurer.case_due_msat(case, VERIFIERS[0].public) == due_msat
    late = world.present(bm.verdict_of(chunk=1)).case
    assert world.treasurer.case_due_msat(late, VERIFIERS[0].public) == 0
    with pytest.raises(PaymentFailed, match="covers"):
        world.treasurer.claim(VERIFIERS[0].public, late)


async def test_nobody_states_more_than_was_paid_ahead_and_nothing_is_booked_by_half(world):
    await world.lump(amount_msat=3 * SHARE_MSAT)
    with pytest.raises(PaymentFailed, match="3000 msat are paid ahead, and 4000 msat"):
        world.treasurer.book_shares(bm.statement(0, *[SHARE_MSAT] * 4))
    assert world.treasurer.pot(REQUEST.id) == (0, 0)
    world.treasurer.book_shares(bm.statement(0, *[SHARE_MSAT] * 3))
    with pytest.raises(PaymentFailed):
        world.treasurer.book_shares(bm.statement(3))
    with pytest.raises(PaymentFailed):  # another's lump pays nothing of it
        world.treasurer.book_shares(bm.statement(4, sender=bm.STRANGER))
    assert world.treasurer.ahead_msat(CUSTOMER.public) == 0


async def test_a_lump_pays_two_racing_statements_once(world):
    """Of two jobs that state the same balance the second is refused, in whatever order and how often they come."""
    other = bm.request(salt="second")
    await world.lump(amount_msat=SHARE_MSAT)
    said = bm.statement(0), bm.statement(0, request=other)
    world.treasurer.book_shares(said[0])
    for _ in range(3):
        world.reopen()  # between the booking and the answer
        assert world.treasurer.book_shares(said[0]) == 0
        with pytest.raises(PaymentFailed):
            world.treasurer.book_shares(said[1])
    assert (world.treasurer.pot(REQUEST.id)[0], world.treasurer.pot(other.id)[0]) == (SHARE_MSAT * 9 // 10, 0)


async def test_a_statement_that_its_customer_did_not_sign_or_that_is_for_another_holder_books_nothing(world):
    await world.lump(amount_msat=9 * SHARE_MSAT)
    said = bm.statement(0)
    theirs = bm.statement(0, sender=bm.STRANGER)
    changed = [
        {"shares": [2 * SHARE_MSAT]},
        {"request": bm.request(salt="another").id},
        {"chunk": 1},
        {"customer": bm.STRANGER.public},
        {"sig": theirs.sig},
    ]
    for changes in changed:
        with pytest.raises(BadSignature):
            world.treasurer.book_shares(ShareStatement.from_document({**said.document(), **changes}))
    with pytest.raises(NotAllowed, match="another"):
        world.treasurer.book_shares(bm.statement(0, holder=bm.OTHER))
    assert world.treasurer.ahead_msat(CUSTOMER.public) == 9 * SHARE_MSAT


async def test_a_share_that_somebody_else_states_for_a_request_is_not_its_customers(world):
    await world.share(0, sender=bm.STRANGER)
    case = world.present(bm.verdict_of()).case
    assert world.treasurer.case_due_msat(case, VERIFIERS[0].public) == 0


async def test_a_cheater_that_is_its_own_customer_verifiers_and_an_oracle_gets_back_half_at_most(world):
    """It drives the price up, zaps a hundred shares just before it presents the verdict, and takes every role."""
    world.lock()
    dear = bm.request(price_msat=50 * PRICE_MSAT)
    before = world.balance("provider")
    for chunk in range(1, 8):
        await world.share(chunk, request=dear, amount_msat=50 * SHARE_MSAT)
    case = world.present(bm.failed(dear, agreed=(0, 1, 2)), dear)
    hand = {CUSTOMER.public, *(v.public for v in VERIFIERS), bm.ORACLES[0].public}
    got_msat = sum(amount for payee, amount in case.payouts.items() if payee in hand)
    assert got_msat <= BOND_MSAT // 2
    again = bm.request(price_msat=50 * PRICE_MSAT, salt="again")
    more = world.present(bm.failed(again, agreed=(0, 1, 2)), again)
    assert got_msat + sum(more.payouts.values()) <= BOND_MSAT // 2
    world.clock.now_s += 10 * RULES.delay_s
    world.treasurer.sweep()
    assert world.treasurer.bond(PROVIDER.public).bond.state == "burnt"
    assert world.balance("provider") == before


async def test_shares_for_chunks_that_never_were_take_nothing_from_a_bond_that_others_wait_for(world):
    """Who knew of the verdict zapped a share for each of many chunks, and had their prices: all that payees get."""
    world.lock()
    drawn_s(world)
    await world.share(1)
    await world.share(2)
    world.clock.now_s += 10
    for chunk in range(3, 2 + BOND_MSAT // PRICE_MSAT):
        world.clock.now_s += QUOTE_S
        await world.share(chunk)
    first = world.present(bm.failed())
    assert first.payouts[CUSTOMER.public] == 3 * PRICE_MSAT
    other = bm.request(salt="another's")
    assert world.present(bm.failed(other), other).payouts[CUSTOMER.public] == PRICE_MSAT


async def ask(world, chunk, origin, sender):
    request = bm.zap(chunk, request=bm.request(salt=f"{chunk}"), sender=sender)
    return await world.treasurer.shares.quote(request.to_json(), SHARE_MSAT, origin)


async def test_one_address_that_asks_for_invoices_and_pays_none_keeps_nobody_from_paying_shares(world, monkeypatch):
    """Ten thousand zap requests of free keys, and no customer could pay a share for the next five minutes."""
    monkeypatch.setattr(shares, "MAX_OPEN_QUOTES", 20)
    monkeypatch.setattr(shares, "MAX_OF_ORIGIN", 15)
    got = Counter()
    for n in range(30):
        for origin in ("192.0.2.1", "192.0.2.2"):
            try:
                await ask(world, n, origin, bm.keys(f"free/{n}/{origin}"))
                got[origin] += 1
            except Busy:
                continue
    assert got.total() <= 20 + 2
    for n in range(3):
        invoice = await ask(world, n, "192.0.2.3", CUSTOMER)
        world.simnet.pay(world.nodes["customer"], invoice.bolt11, 10_000)
    with pytest.raises(Busy):
        await ask(world, 99, "192.0.2.1", bm.keys("free"))


async def test_a_customer_that_pays_its_shares_at_once_may_pay_many_for_one_job(world):
    """Invoices that are paid are not open: the ninth within five minutes was refused."""
    for chunk in range(3 * shares.MAX_QUOTES):
        await world.share(chunk)


def test_showing_nothing_when_drawn_costs_more_than_all_that_was_paid_for_the_cheated_chunks(world):
    """Who cheats always and withholds what is drawn is paid for 1 / rate chunks between two that are drawn."""
    world.lock(amount_msat=900_000)
    world.present(bm.verdict_of(outcome="withheld", verifiers=()))
    lost_msat = 900_000 - world.treasurer.bond(PROVIDER.public).bond.remainder_msat
    earned_msat = PRICE_MSAT * 1_000_000 // bm.RATE_PPM
    assert lost_msat >= WITHHELD_TIMES * earned_msat > earned_msat


def test_a_verdict_is_not_presented_with_another_job_nor_twice_nor_in_another_committees_name(world):
    world.lock()
    said = bm.failed()
    other = bm.request(price_msat=100 * PRICE_MSAT, salt="dearer")
    with pytest.raises(BadInput):
        world.treasurer.present(bm.certificate(said), other)
    first = world.present(said)
    again = world.present(said, voters=tuple(bm.ORACLES[1:4]))  # other votes for the same
    assert again == first
    with pytest.raises(NotAllowed):
        world.present(bm.verdict_of(agreed=(0, 1, 2)))  # the conviction undone
    with pytest.raises(NotAllowed):
        world.present(bm.verdict_of(outcome="withheld", verifiers=()))  # or made milder
    bond = world.treasurer.bond(PROVIDER.public).bond
    assert bond.state == "slashed"
    assert len(bond.judged) == 1


def test_an_altered_request_with_the_same_id_is_no_event(world):
    forged = REQUEST.as_dict() | {"content": REQUEST.content.replace(f'"price_msat":{PRICE_MSAT}', '"price_msat":1')}
    with pytest.raises(BadInput):
        events.parse(forged)


@pytest.mark.parametrize("voters", [[0, 0, 0], [0, 1], [0, 1, 1]])
def test_one_oracles_vote_three_times_is_one_vote(world, voters):
    world.lock()
    with pytest.raises(BadQuorum):
        world.present(bm.failed(), voters=tuple(bm.ORACLES[n] for n in voters))


def test_votes_in_two_ballots_are_not_added_up(world):
    world.lock()
    said = bm.failed()
    first = bm.certificate(said, voters=tuple(bm.ORACLES[:2]))
    votes = verdict.parse(first).votes
    topic = verdict.topic(verdict.second(said.key))
    late = oracle_round.build_vote(bm.ORACLES[2], said.committee, topic, said.digest(), created_at=7)
    mixed = verdict.build(bm.STRANGER, Certificate(said, (*votes, late)), created_at=8)
    with pytest.raises(BadQuorum):
        world.treasurer.present(mixed, REQUEST)


def test_a_bond_that_is_released_at_once_still_answers_for_work_under_its_last_statement(world):
    """A provider has the statement renewed, asks for its bond in the same second, works, cheats, and waits."""
    world.lock()
    world.treasurer.statement(PROVIDER.public)
    world.treasurer.release(world.nodes["provider"], PROVIDER.public)
    until_s = world.clock.now_s + RULES.statement_s
    world.clock.now_s = until_s + RULES.delay_s - 1
    world.treasurer.sweep()
    assert world.present(bm.failed()).refused == ""
    assert world.treasurer.bond(PROVIDER.public).bond.state == "slashed"


def test_a_convicted_key_comes_back_neither_with_a_new_bond_nor_by_another_account(world):
    world.lock()
    world.present(bm.failed())
    world.clock.now_s += 100 * RULES.delay_s
    world.treasurer.sweep()
    for account in ("provider", "customer"):
        with pytest.raises(NotAllowed, match="convicted"):
            world.treasurer.lock(
                world.nodes[account], PROVIDER.public, f"new/{account}", BOND_MSAT, int(world.clock()) + 99
            )


def test_one_claim_is_paid_once_though_an_oracle_and_a_verifier_are_the_same_key(world):
    """In two roles it gets both, in one payout."""
    world.lock()
    both = bm.ORACLES[0]
    said = bm.failed(verifiers=((both.public, True),))
    judged = world.present(said)
    assert judged.payouts[both.public] == 2 * PRICE_MSAT
    assert world.claim(both, judged.case).state == "paid"
    with pytest.raises(PaymentFailed):
        world.claim(both, judged.case)
    assert world.balance("payee") == 1_000_000 + 2 * PRICE_MSAT
