"""Requests that nobody pays for, from keys that cost nothing: workers, memory and books are for those who pay."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import tracemalloc
from contextlib import asynccontextmanager

import pytest
import torch

from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip59
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol import kinds
from nodewire.training.customer.machine.events import CiphertextRef
from nodewire.training.customer.market import payments
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.customer.market.round_request import Ask, Requests
from nodewire.training.customer.policy import provider_selection
from nodewire.training.protocol.round import RoundTicket
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.provider import worker_slots
from nodewire.training.provider.service import TrainingService
from tests.kinds.digits import RECIPE
from tests.training import small_market
from tests.training.hostile.test_training_hostile import asked
from tests.training.market.test_training_market import expected
from tests.training.small_market import BUDGET_MSAT, LEAST_MSAT, provider, train

torch.set_num_threads(1)
ONE_ROUND = RECIPE.model_copy(update={"rounds": 1})
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})
BLOB = CiphertextRef("ab" * 32, 10_000, "cd" * 32, "ef" * 32)


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


async def ad_of(pool: Pool, public: str) -> Trainer:
    async with asyncio.timeout(60):
        while public not in (found := await provider_selection.trainers(pool)):
            await asyncio.sleep(0.05)
        return found[public]


async def ask(pool: Pool, relay: str, public: str, ad: Trainer) -> str:
    """A request and its ticket from a new key, which will not pay."""
    keys = Keys.generate()
    requests = Requests(keys, ONE_ROUND, 8840, secrets.token_hex(32), (relay,))
    wanted = Ask(0, [(0, public)], {public: ONE_ROUND.steps}, None)
    made, event = await requests.make(wanted, {public: ad}, BLOB, (BLOB,), None, None)
    now_s = int(time.time())
    rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=made.rows[0].ticket)
    await pool.publish(event)
    await pool.publish(nip59.wrap(rumor, keys, public, now_s=now_s, ephemeral=True))
    return made.request


@asynccontextmanager
async def flood(market, public: str, pause_s: float):
    """Such requests, one after the other, as long as the block lasts."""
    sent: list[str] = []

    async def send() -> None:
        async with Pool([market.relay]) as pool:
            ad = await ad_of(pool, public)
            while True:
                sent.append(await ask(pool, market.relay, public, ad))
                await asyncio.sleep(pause_s)

    sending = asyncio.create_task(send())
    try:
        while len(sent) < 3:
            await asyncio.sleep(0.05)
        yield sent
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


async def test_who_does_not_pay_holds_no_worker(market, monkeypatch):
    """One request every half second from fresh keys would keep every worker from those who pay, for nothing."""
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 5.0)
    async with provider(market, "ada") as ada, flood(market, ada.public, 0.5):
        async with asyncio.timeout(60):
            _, weights = await train(market, "dora", TWO_ROUNDS, TrainingOrder(1, BUDGET_MSAT))
    assert weights == expected(TWO_ROUNDS, 1)
    assert await market.balance_msat("ada") == 2 * LEAST_MSAT


async def test_a_deposit_that_was_never_paid_is_no_debt(market):
    """Or a request that was given up would keep the later rounds of its customer from a provider."""
    said: list[events.Event] = []
    async with provider(market, "ada", concurrency=2, patience_s=1.0, published=said.append) as ada:
        done, _ = await train(market, "dora", TWO_ROUNDS, TrainingOrder(1, BUDGET_MSAT))
        async with Pool([market.relay]) as pool:
            ad = await ad_of(pool, ada.public)
        unpaid = await asked(market, "dora", done, ada.public, ad, previous=None)
        async with asyncio.timeout(60):
            while sum(one.tag("e") in unpaid and one.tag("status") == "payment-required" for one in said) < 2:
                await asyncio.sleep(0.05)
        sent = await asked(market, "dora", done, ada.public, ad, previous=done.paid_last[ada.public])
        async with asyncio.timeout(60):
            while not (told := [one for one in said if one.tag("e") in sent and one.kind == 6840]):
                await asyncio.sleep(0.05)
    assert len(told) == 1


async def test_nothing_is_paid_for_what_was_refused_meanwhile(market, monkeypatch):
    """A payment that takes longer than a provider's patience would be a deposit for nothing."""
    pay = payments.pay

    async def late(course, request, provider_, part):
        await asyncio.sleep(1.5 if provider_ == ada.public else 0)
        await pay(course, request, provider_, part)

    monkeypatch.setattr(payments, "pay", late)
    async with provider(market, "ada", patience_s=0.5) as ada, provider(market, "bea", least_msat=2 * LEAST_MSAT):
        async with asyncio.timeout(25):
            done, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert weights == expected(ONE_ROUND, 1)
    assert (done.owed, await market.balance_msat("ada")) == ({}, 0)
    assert done.committed_msat == 2 * LEAST_MSAT


async def test_the_newest_of_too_many_unpaid_requests_are_kept(market, monkeypatch):
    """So whoever pays at once gets a worker, however many do not; and the book keeps nothing of these."""
    monkeypatch.setattr(worker_slots, "MAX_UNPAID", 4)
    monkeypatch.setattr(worker_slots, "SLOT_S", 0.2)
    said: list[events.Event] = []
    async with provider(market, "ada", published=said.append) as ada, Pool([market.relay]) as pool:
        ad = await ad_of(pool, ada.public)
        sent = [await ask(pool, market.relay, ada.public, ad) for _ in range(8)]
        async with asyncio.timeout(60):
            while sum(one.tag("status") == "busy" for one in said) < 4:
                await asyncio.sleep(0.05)
        assert {one.tag("e") for one in said if one.tag("status") == "busy"} < set(sent)
        book = Ledger(market.folder / "ada" / "ledger.db")
        assert sum(book.has_job(request) for request in sent) == 4
        book.close()
        async with asyncio.timeout(60):
            await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))


async def test_a_malformed_request_gets_no_answer_that_relays_would_keep(market):
    said: list[events.Event] = []
    async with provider(market, "ada", published=said.append) as ada, Pool([market.relay]) as pool:
        now_s = int(time.time())
        bad = events.sign(Keys.generate(), 8840, created_at=now_s, content="{}", tags=[["p", ada.public]])
        await pool.publish(bad)
        await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert said
    assert not [one for one in said if one.tag("e") == bad.id]


async def test_tickets_that_open_nothing_take_no_more_memory_than_they_have_bytes(market, monkeypatch):
    """A ticket of 24 KB with a recipe of empty objects was 0.6 MB as a document, and 1,024 of them are kept."""
    run, running = TrainingService.run, []
    monkeypatch.setattr(TrainingService, "run", lambda self: (running.append(self), run(self))[1])
    digest = "ab" * 32
    plain = RoundTicket(
        request=digest,
        index=0,
        salt=digest,
        recipe={"a": 0},
        theta_key=digest,
        theta_sha256=digest,
        shard_key=digest,
        shard_sha256=digest,
    ).to_json()
    empty = "[" + ",".join(["{}"] * 7_800) + "]"
    count = 20
    async with provider(market, "ada") as ada, Pool([market.relay]) as pool:
        await ad_of(pool, ada.public)
        keys, now_s = Keys.generate(), int(time.time())
        wraps = []
        for n in range(count):
            content = plain.replace('"a":0', f'"a":{empty}').replace(f'"request":"{digest}"', f'"request":"{n:064x}"')
            rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=content)
            wraps.append(nip59.wrap(rumor, keys, ada.public, now_s=now_s, ephemeral=True))
        tracemalloc.start()
        try:
            for wrapped in wraps:
                running[0]._ticketed(wrapped)
            took, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(running[0]._matcher._tickets) == count
    assert took < count * 64_000
