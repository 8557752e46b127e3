"""A liar downstream: who computed for it in vain bears that, but no customer more than three times in a day. What a
provider breaks off itself no customer bears."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from nodewire.customer.payments.rejected_frames import FrameRejection
from nodewire.errors import NodewireError, PaymentRequired
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts.dues import MAX_BROKEN
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from tests.market.market_process import ENCODER_MSAT, STALLS

pytestmark = pytest.mark.timeout(600)
TEXTS = ["a cat"]


@pytest.fixture
async def pair(market):
    """The public keys of ned, an honest graph.0 with little patience, and of ola, whose graph.1 leaves out a row."""
    market.spawn_dishonest("ola", "short", "graph.1")
    ned = (await asyncio.to_thread(market.start_provider, "ned"))["public"]
    ola = (await asyncio.to_thread(market.ready, "ola"))["public"]
    try:
        await market.until(lambda s: s.node(ned) is not None and s.node(ola) is not None)
        yield ned, ola
    finally:
        for name in ("ned", "ola"):
            await asyncio.to_thread(market.stop_one, name)


def with_own_ledger(market, name, read):
    ledger = market.ledger(name)
    try:
        return read(ledger)
    finally:
        ledger.close()


async def has_ended(market, provider, request):
    """A provider waits for its payment as long as its patience, and then says that it has not come."""
    wanted = Filter(kinds=frozenset({kinds.FEEDBACK}), authors=frozenset({provider}), tags={"e": frozenset({request})})
    async with asyncio.timeout(300):
        while not any(feedback.parse(said).status == "error" for said in await market.events(wanted)):
            await asyncio.sleep(0.1)


def settle_what_broke(market, ned, ola):
    """Nothing of it is owed; who wants to be served by this node before a day is over may pay it all the same."""
    settle = ["wallet", "settle", "--config", str(market.config_of("jinxed")), "--yes"]
    shown = market.run(*settle)
    assert b"need not be paid, yet may be" in shown.stdout + shown.stderr
    claims = market.command(*settle)["debts"]
    asked = {one: [c for c in claims if c["provider"] == one] for one in (ned, ola)}
    assert (len(asked[ned]), len(asked[ned]) + len(asked[ola])) == (MAX_BROKEN + 1, len(claims))
    assert not any(claim["paid"] or claim["owed"] for claim in claims)
    done = market.command(*settle, "--broken", ned)["debts"]
    assert {one["provider"] for one in done if one["paid"]} == {ned}


async def earned_msat(market, customer):
    """What ned and ola earned, where nobody was paid too much and the customer's wallet has what its ledger says."""
    spent = with_own_ledger(market, "jinxed", lambda ledger: ledger.spent())
    assert (await market.balances_msat("jinxed"))["jinxed"] == 100_000_000 - spent.paid_msat - spent.fees_msat
    for name in (*STALLS, "ned", "ola"):
        assert with_own_ledger(market, name, lambda ledger: ledger.balance_msat(customer)) == 0
    return sum(with_own_ledger(market, name, lambda ledger: ledger.earned_msat()) for name in ("ned", "ola"))


async def test_an_honest_node_serves_on_who_a_liar_behind_it_kept_from_paying_up_to_a_bound(market, pair):
    ned, ola = pair
    cyd, encoder = market.public["cyd"], market.encoder["address"]
    epoch = await market.until(lambda s: s.node(ned) is not None and s.node(ola) is not None)
    async with market.customer("jinxed") as jinxed:
        await jinxed.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        me = jinxed.session.keys.public
        terms = jinxed.terms.model_copy(update={"driver": "local"})
        lied_to, honest = (terms.model_copy(update={"trusted": (ned, one)}) for one in (ola, cyd))

        def unpaid():
            return with_own_ledger(market, "ned", lambda ledger: len(ledger.unpaid_dues(me)))

        async def broken_off(times):
            while unpaid() < times:  # who hears of the end before it has claimed anything is owed nothing
                with pytest.raises(FrameRejection):
                    await jinxed.embed(encoder, TEXTS, terms=lied_to)
                await has_ended(
                    market, ned, next(one for one in reversed(jinxed.purchases) if one.is_underway).request.id
                )
            assert unpaid() == times

        bought = 0
        for times in range(1, MAX_BROKEN + 1):
            await broken_off(times)
            if times in (1, MAX_BROKEN):
                await jinxed.embed(encoder, TEXTS, terms=honest)
                assert ned in jinxed.last["providers"]
                bought += 1
        await broken_off(MAX_BROKEN + 1)
        with pytest.raises(PaymentRequired) as refused:
            await jinxed.embed(encoder, TEXTS, terms=honest)
        assert ned[:8] in str(refused.value)
        assert jinxed.session.payer.unpaid() == []
        paid_msat = bought * ENCODER_MSAT
        await market.settled("jinxed", ned=ned, ola=ola)
        assert with_own_ledger(market, "ned", lambda ledger: ledger.earned_msat()) == paid_msat

        settle_what_broke(market, ned, ola)
        await market.settled("jinxed", ned=ned, ola=ola)
        assert unpaid() == 0
        await jinxed.embed(encoder, TEXTS, terms=honest)
        assert ned in jinxed.last["providers"]
    await market.settled("jinxed", ned=ned, ola=ola)
    assert await earned_msat(market, me) == paid_msat + (MAX_BROKEN + 2) * ENCODER_MSAT
    assert not with_own_ledger(market, "ned", lambda ledger: ledger.in_debt(me, time.time() + 10**6))


async def test_a_provider_killed_amid_four_calls_of_one_customer_serves_it_again_when_it_is_back(market):
    pam = (await asyncio.to_thread(market.start_provider, "pam"))["public"]
    quin = (await asyncio.to_thread(market.start_provider, "quin"))["public"]
    cyd, encoder = market.public["cyd"], market.encoder["address"]
    try:
        epoch = await market.until(lambda s: s.node(pam) is not None and s.node(quin) is not None)
        async with market.customer("bereft") as bereft:
            await bereft.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
            me = bereft.session.keys.public
            terms = bereft.terms.model_copy(update={"driver": "local"})
            stuck, going = (terms.model_copy(update={"trusted": (pam, one)}) for one in (quin, cyd))
            await bereft.embed(encoder, TEXTS, terms=stuck)  # now they are linked

            def unpaid():
                return with_own_ledger(market, "pam", lambda ledger: len(ledger.unpaid_dues(me)))

            await market.settled("bereft", pam=pam, quin=quin)
            assert unpaid() == 0
            os.kill(market.processes["quin"].pid, signal.SIGSTOP)
            calls = [asyncio.create_task(bereft.embed(encoder, TEXTS, terms=stuck)) for _ in range(MAX_BROKEN + 1)]
            async with asyncio.timeout(300):
                while unpaid() < len(calls):
                    await asyncio.sleep(0.02)
            process = market.processes["pam"]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            os.kill(market.processes["quin"].pid, signal.SIGCONT)
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, NodewireError) for one in ended), ended
            process.stdout.close()
            ready = await asyncio.to_thread(market.start_provider, "pam")
            back = await market.until(
                lambda s: s.node(pam) is not None and list(s.ads({pam})[pam].wire) == ready["wire"]
            )
            await bereft.session.market.epoch(timeout_s=30, after=back.body.epoch - 1)
            assert unpaid() == len(calls)  # nothing came of them, and nothing was paid
            await bereft.embed(encoder, TEXTS, terms=going)
            assert pam in bereft.last["providers"]
            assert unpaid() == len(calls)
    finally:
        for name in ("pam", "quin"):
            await asyncio.to_thread(market.stop_one, name)
