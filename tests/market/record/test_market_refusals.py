"""What a provider does not work for: too little work, somebody else's ticket, a key that is in its debt."""

from __future__ import annotations

import asyncio
import time

import pytest

from nodewire.errors import PaymentFailed, PaymentRequired
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.lightning.funds import Funds
from tests.market.questions import answers, request_event, seal, send_tickets, the_request

WAITED_S = 120.0
"""More than a job without input has a slot."""


async def plan_of(market, name):
    """A request of a new customer's, that is done and paid."""
    async with market.customer(name) as customer:
        await customer.embed(market.encoder["address"], ["the cat"])
        return await the_request(market, customer.last["request"]), market.keys(name)


async def results_of(market, event):
    return await market.events(Filter(kinds=frozenset({6843}), tags={"e": frozenset({event.id})}))


async def _overdue(market, name):
    """Return when one of its providers counts a customer as in debt: its patience is over."""
    customer = market.keys(name).public
    ledgers = [market.ledger(one) for one in ("dan", "eve")]
    try:
        while not any(ledger.in_debt(customer, time.time()) for ledger in ledgers):
            await asyncio.sleep(0.1)
    finally:
        for ledger in ledgers:
            ledger.close()


async def test_a_request_without_enough_work_gets_neither_work_nor_an_answer(market):
    base, keys = await plan_of(market, "idler")
    async with market.pool() as pool:
        event = request_event(keys, base, base.plan, bits=0)
        await pool.publish(event)
        await send_tickets(pool, keys, event)
        well = request_event(keys, base, base.plan)  # providers read one after the other
        await pool.publish(well)
        await send_tickets(pool, keys, well)
        said = await answers(pool, [event, well], len(base.plan.providers()), timeout_s=WAITED_S)
    # Nobody sends an input: that one was opened says the end of its patience.
    assert {(answer.status, answer.text, answer.request) for answer in said} == {("error", "timed-out", well.id)}
    assert await results_of(market, event) == []


async def test_a_ticket_from_another_key_opens_nothing_and_keeps_the_customer_from_nothing(market):
    base, keys = await plan_of(market, "watched")
    thief = Keys.generate()
    async with market.pool() as pool:
        event = request_event(keys, base, base.plan)
        await send_tickets(pool, thief, event)
        await pool.publish(event)
        await send_tickets(pool, thief, event)
        with pytest.raises(TimeoutError):
            await answers(pool, [event], 1, timeout_s=0.5)
        await send_tickets(pool, keys, event)
        said = await answers(pool, [event], len(base.plan.providers()), timeout_s=WAITED_S)
    assert {(answer.status, answer.text) for answer in said} == {("error", "timed-out")}


async def test_a_customer_who_cannot_pay_gets_no_more_than_two_chunks_and_then_no_credit(market, monkeypatch):
    """It does not look into its own wallet first, as an honest one does."""

    async def blind(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(Funds, "check", blind)
    two = {"trusted": (market.public["dan"], market.public["eve"])}
    ids: list[int] = []
    async with market.customer("pauper", sats=0) as pauper:
        terms = pauper.terms.model_copy(update=two)

        async def buy():
            async for piece in pauper.generate(market.decoder["address"], "the cat", max_tokens=300, terms=terms):
                ids.extend(piece.ids)

        with pytest.raises((PaymentFailed, PaymentRequired)):
            await buy()
        got = len(ids)
        assert 0 < got <= 2 * 64
        await _overdue(market, "pauper")
        with pytest.raises(PaymentRequired) as refused:
            await buy()
        assert any(market.public[one][:8] in str(refused.value) for one in ("dan", "eve"))
        assert len(ids) == got


async def test_parameters_that_the_provider_does_not_take_are_refused_by_it(market):
    base, keys = await plan_of(market, "tinkerer")
    async with market.pool() as pool:
        event = request_event(keys, base, base.plan, ticket=seal(max_tokens=10))
        await pool.publish(event)
        await send_tickets(pool, keys, event, max_tokens=10)  # an encoder takes no parameters
        said = await answers(pool, [event], len(base.plan.providers()))
    assert {(answer.status, answer.text) for answer in said} == {("error", "bad-input")}
