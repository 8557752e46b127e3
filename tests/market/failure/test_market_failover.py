"""A provider dies in mid-generation: the job is begun anew, tokens stay the same, and no chunk is paid twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import pytest

from nodewire.errors import LinkLost
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment
from nodewire.protocol.job import request as job
from nodewire.protocol.verification import verdict
from processes.slowdown import children
from tests.market.failure.test_market_failures import _wire, gone, whole_tokens
from tests.market.market_process import STALLS

PROMPT = "the cat sat on the mat"


@asynccontextmanager
async def dies(market, name, how):
    """The provider is killed, or stopped, and serves again afterwards."""
    process = market.processes[name]
    workers = children(process.pid)
    for pid in (process.pid, *(workers if how == signal.SIGSTOP else ())):
        os.kill(pid, how)
    try:
        yield
    finally:
        if how == signal.SIGSTOP:
            for pid in (process.pid, *workers):
                os.kill(pid, signal.SIGCONT)
        else:
            for worker in workers:
                await asyncio.wait_for(gone(worker), 20)
            process.wait()
            process.stdout.close()
            ready = await asyncio.to_thread(market.start_provider, name)
            await market.until(lambda s: _wire(s, market.public[name]) == ready["wire"])
        await market.until(market.is_free(name))


def earned(market, public, job):
    """What a provider's own ledger says that it was paid for a job."""
    name = next(name for name, key in market.public.items() if key == public)
    ledger = market.ledger(name)
    try:
        return ledger.earned_msat(job=job)
    finally:
        ledger.close()


async def all_free(market):
    """An epoch in which everybody can be bought from, whoever was struck last."""
    now = await market.until(lambda s: True)
    return await market.until(lambda s: all(market.is_free(n)(s) for n in STALLS), after=now.body.epoch + 1)


def underway(customer):
    """Of a customer's purchases those that were requested."""
    return [bought for bought in customer.purchases if bought.is_underway]


async def struck_amid(market, customer, struck, task, *, how=signal.SIGKILL, after=100, **options):
    """A generation whose provider of a task is struck after so many tokens: the ids, their times, and the victim."""
    ids: list[int] = []
    at_s: list[float] = []
    victim = ""
    async with asyncio.timeout(200):
        async for piece in customer.generate(market.decoder["address"], PROMPT, **options):
            ids += piece.ids
            at_s.append(time.monotonic())
            if not victim and len(ids) >= after:
                victim = underway(customer)[-1].plan.assignment(task).provider
                name = next(name for name, public in market.public.items() if public == victim)
                await struck.enter_async_context(dies(market, name, how))
    return ids, at_s, victim


async def committed(market, bought):
    """The chunks of a job that each of its providers has committed to."""
    events = await market.events(
        Filter(kinds=frozenset({kinds.COMMITMENT}), authors=frozenset(bought.plan.providers()))
    )
    found = {provider: set() for provider in bought.plan.providers()}
    for event in events:
        said = commitment.parse(event).commitment
        found[event.pubkey] |= (
            {root.chunk for root in said.chunks if root.request == bought.request.id} if said else set()
        )
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("task", ["driver", "stage.0", "stage.2"])
async def test_the_job_is_begun_anew_without_the_dead_and_the_tokens_are_the_same(market, task, how):
    epoch = await all_free(market)
    customer_name = f"lucky-{task}-{how.name.lower()}"
    async with market.customer(customer_name) as customer, AsyncExitStack() as struck:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        ids, at_s, victim = await struck_amid(market, customer, struck, task, how=how, max_tokens=350)
        done = customer.last
        assert ids == whole_tokens(market, PROMPT, 350)
        first, second, *more = underway(customer)  # more where a busy machine keeps a provider waiting for its money
        # One that was overtaken by another is named last.
        assert sorted(done["requests"]) == sorted(one.request.id for one in (first, second, *more))
        assert victim in first.plan.providers()
        assert victim not in second.plan.providers()  # a further one may ask it again, where nobody else is left
        # Who stays was asked for by the customer itself: nobody else is left out.
        assert second.plan.terms.excluded == (victim,)
        # On a busy machine all is slower: then it is the hundred tokens before that this is measured by.
        assert max(b - a for a, b in pairwise(at_s)) < 8 + 2 * (at_s[99] - at_s[0])
    await market.settled(customer_name)
    ledger = market.ledger(customer_name)
    last = more[-1] if more else second
    booked = {bought.request.id: ledger.debts_of(bought.request.id) for bought in (first, second, *more)}
    ledger.close()
    for id_, debts in booked.items():
        paid_msat = sum(debt.amount_msat for debt in debts if debt.state == "paid")
        assert paid_msat == sum(earned(market, public, id_) for public in market.public.values())
        # Each chunk of each provider is booked once.
        assert len({(debt.key.payee, debt.key.chunk) for debt in debts}) == len(debts)
    # The broken job closed its prompt and the chunk of tokens 2 to 65, which are paid at the plan's price. The open
    # chunk is lost, and nobody owes it. The dead may have died before it claimed what it had completed.
    debts = booked[first.request.id]
    assert all(debt.amount_msat == first.plan.price_msat(debt.key.payee) for debt in debts)
    assert {debt.key.chunk for debt in debts} == {0, 1}
    stay = set(first.plan.providers()) - {victim}
    paid = {(debt.key.payee, debt.key.chunk) for debt in debts if debt.state == "paid"}
    assert paid >= {(provider, chunk) for provider in stay for chunk in (0, 1)}
    assert {debt.key.payee for debt in debts if debt.state != "paid"} <= {victim}
    # What went through to the end is paid whole.
    assert {debt.state for debt in booked[last.request.id]} == {"paid"}
    assert {debt.key.payee for debt in booked[last.request.id]} == set(last.plan.providers())


async def test_a_death_over_narrowed_edges_changes_no_token(market):
    """What was narrowed is computed anew, and comes out as it was."""
    epoch = await all_free(market)
    codecs = dict.fromkeys(("hidden.0", "hidden.1", "hidden.2", "return"), "int8")
    async with market.customer("narrow") as customer, AsyncExitStack() as struck:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        options = {"terms": customer.terms.model_copy(update={"codecs": codecs}), "max_tokens": 120}
        undisturbed = [n async for p in customer.generate(market.decoder["address"], PROMPT, **options) for n in p.ids]
        before = len(underway(customer))
        ids, _, _ = await struck_amid(market, customer, struck, "stage.0", after=60, **options)
        assert len(underway(customer)) >= before + 2
        assert ids == undisturbed
        assert len(ids) == 120


async def test_a_job_that_breaks_off_by_a_death_and_is_judged_convicts_nobody(market):
    """Who stays has the statements of those who stay; nobody waits for those of the dead."""
    epoch = await all_free(market)
    async with market.customer("judging") as customer, AsyncExitStack() as struck:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        ids, _, _ = await struck_amid(market, customer, struck, "stage.0", max_tokens=200, terms=terms)
        first, second, *more = underway(customer)
    assert ids == whole_tokens(market, PROMPT, 200)
    ended = await market.until(lambda s: True)
    await market.until(lambda s: True, after=ended.body.epoch + 6)
    requests = frozenset(one.request.id for one in (first, second, *more))
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": requests})
    found = [verdict.parse(event).verdict for event in await market.events(about)]
    assert {one.culprit for one in found} == {""}
    assert "fail" not in {one.outcome for one in found}
    # Who stays has committed to every chunk that was closed, and to all of what was begun anew.
    stays = first.plan.assignment("stage.2").provider
    assert (await committed(market, first))[stays] >= {0, 1}
    last = more[-1] if more else second
    roots = await committed(market, last)
    tokens = len(ids) - last.inputs[0].tensors[1].shape[0]
    assert all(chunks == set(range(1 + -(-(tokens - 1) // 64))) for chunks in roots.values())


async def planned_first(market, done):
    """The plan of the first of the jobs that a call took."""
    first = done.get("requests", [done["request"]])[0]
    (event,) = await market.events(Filter(ids=frozenset({first})))
    return job.parse(event).plan


async def test_a_call_whose_provider_is_dead_is_made_again_by_others(market):
    """The snapshot still names a provider that was killed a moment ago."""
    now = await market.until(lambda s: True)
    epoch = await market.until(lambda s: all(market.is_free(n)(s) for n in STALLS), after=now.body.epoch + 1)
    async with market.customer("caller") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        texts = ["a cat", "a kitten"]
        alone = await customer.embed(market.encoder["address"], texts)
        first = customer.last
        names = {public: name for name, public in market.public.items()}
        victim = next(t["provider"] for t in first["tasks"] if t["task"] == "graph.1")
        async with dies(market, names[victim], signal.SIGKILL):
            again = await customer.embed(market.encoder["address"], texts)
            assert (again == alone).all()
            assert victim not in customer.last["providers"]
            # Another beacon may have drawn the other holder at once; if it drew the dead one, a second job was needed.
            first_plan = await planned_first(market, customer.last)
            assert ("requests" in customer.last) == (victim in first_plan.providers())


async def test_a_driver_that_says_that_a_live_stage_is_gone_ends_one_job_and_is_left_out_of_the_next(market):
    """It ends the job by the stage's name, at the customer and at all others; the customer finds the stage there."""
    epoch = await all_free(market)
    names = {public: name for name, public in market.public.items()}
    async with market.customer("slandering") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        ids: list[int] = []
        async with asyncio.timeout(200):
            async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=350):
                ids += piece.ids
                if len(ids) == 100:
                    bought = underway(customer)[-1]
                    driver, stage = (bought.plan.assignment(task).provider for task in ("driver", "stage.0"))
                    lie = {"t": "cancel", "job": bought.request.id, "attempt": 0}
                    lie["error"] = LinkLost(stage, "gone: so its driver says").as_dict()
                    bought.running._mailbox.documented(driver, lie)
        assert ids == whole_tokens(market, PROMPT, 350)
        first, second, *_ = underway(customer)
        assert set(second.plan.terms.excluded) <= {driver, stage}
        assert second.plan.assignment("driver").provider != driver
        assert stage not in first._gone
    await market.settled("slandering")
    # The prompt and the first 64 tokens, of which it was told that they were over.
    of_stage_msat = first.plan.price_msat(stage)
    assert earned(market, stage, first.request.id) == 2 * of_stage_msat
    assert names[driver] in STALLS
