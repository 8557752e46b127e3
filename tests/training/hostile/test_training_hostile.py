"""Money for nothing, work for nothing, a training that never ends: what providers and customers of training try."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import AsyncExitStack

import pytest
import torch

from nodewire.errors import NotFound
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip59
from nodewire.nostr.pool import Pool
from nodewire.protocol import kinds
from nodewire.training.customer.machine.events import ResultPayment
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.customer.market.round_request import Ask, Requests
from nodewire.training.customer.policy import provider_selection
from nodewire.training.customer.policy.payment_retry import PaymentWait
from nodewire.training.provider.shard_job import ShardRun
from nodewire.training.provider.store import KeptShards
from nodewire.training.verify import transcript as transcripts
from tests.kinds.digits import RECIPE
from tests.training import small_market
from tests.training.market.test_training_market import expected
from tests.training.small_market import BUDGET_MSAT, DEPOSIT_MSAT, LEAST_MSAT, Conduct, provider, train

torch.set_num_threads(1)
ONE_ROUND = RECIPE.model_copy(update={"rounds": 1})
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})
NOWHERE = "http://127.0.0.1:1/.well-known/lnurlp/nodewire"


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


@pytest.mark.parametrize("deposit_ppm", [0, 250_000], ids=["balance", "deposit"])
async def test_who_cannot_be_paid_does_not_keep_the_model_from_its_customer(market, monkeypatch, deposit_ppm):
    monkeypatch.setattr("nodewire.training.customer.policy.payment_retry.UNPAYABLE_S", 1.0)
    async with (
        provider(market, "ada", lnurl=NOWHERE, deposit_ppm=deposit_ppm, patience_s=0.5) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        async with asyncio.timeout(60):
            done, weights = await train(market, "dora", ONE_ROUND)
        assert weights == expected(ONE_ROUND)
        # A deposit that was not paid is no debt once its work is over.
        assert [who for _, who in done.owed] == ([] if deposit_ppm else [ada.public])
        assert list(done.owed.values()) == ([] if deposit_ppm else [LEAST_MSAT])
        told = []
        again, _ = await train(market, "dora", ONE_ROUND, on_change=lambda state, event, who: told.append(event))
        assert again.owed == done.owed  # it is not forgotten
        assert not [event for event in told if isinstance(event, ResultPayment)]
        waits = [PaymentWait(((ada.public, LEAST_MSAT),), 1.0)]  # told once, not at each try
        assert [event for event in told if isinstance(event, PaymentWait)] == ([] if deposit_ppm else waits)


async def test_what_is_owed_is_paid_when_its_provider_can_be_paid_again(market, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.policy.payment_retry.UNPAYABLE_S", 1.0)
    async with provider(market, "ada", lnurl=NOWHERE, deposit_ppm=0):
        done, _ = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert sum(done.owed.values()) == LEAST_MSAT
    monkeypatch.setattr("nodewire.training.customer.policy.payment_retry.UNPAYABLE_S", 20.0)
    async with provider(market, "ada", deposit_ppm=0):
        done, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert (done.owed, weights) == ({}, expected(ONE_ROUND, 1))
    assert await market.balance_msat("ada") == LEAST_MSAT


async def asked(market, name: str, done, provider_: str, ad, **changes) -> list[str]:
    """Requests by hand of a customer that was served before: for each round of TWO_ROUNDS one at the same time."""
    folder = market.folder / name
    keys, theta = Keys.from_file(folder / "key"), done.thetas[0]
    requests = Requests(keys, TWO_ROUNDS, 8840, "5a" * 32, (market.relay,))
    inline = (folder / "blobs" / theta.sha256[:2] / theta.sha256).read_bytes()
    sent = []
    async with Pool([market.relay], keys=keys) as pool:
        for round_ in (0, 1):
            ask = Ask(round_, [(0, provider_)], {provider_: TWO_ROUNDS.steps}, **changes)
            made, event = await requests.make(ask, {provider_: ad}, theta, done.shards, None, inline)
            await pool.publish(event)
            now_s = int(time.time())
            rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=made.rows[0].ticket)
            await pool.publish(nip59.wrap(rumor, keys, provider_, now_s=now_s, ephemeral=True))
            sent.append(made.request)
    return sent


async def test_one_payment_stands_for_one_deposit(market):
    """A customer that was served once would have work for nothing in every slot at once: it owes after deliveries."""
    from nodewire.training.customer.policy import provider_selection

    said: list[events.Event] = []
    slow = asyncio.Event()

    async def hold(edge):
        await asyncio.sleep(1.0 if slow.is_set() and edge == "train" else 0)

    async with provider(market, "ada", Conduct(hold=hold), concurrency=2, published=said.append) as ada:
        done, _ = await train(market, "dora", TWO_ROUNDS, TrainingOrder(1, BUDGET_MSAT))
        slow.set()
        async with Pool([market.relay]) as pool:
            ad = (await provider_selection.trainers(pool))[ada.public]
        sent = await asked(market, "dora", done, ada.public, ad, previous=done.paid_last[ada.public])
        answers: dict[str, str] = {}
        async with asyncio.timeout(60):
            while len(answers) < 2:
                await asyncio.sleep(0.05)
                for one in said:
                    if one.tag("e") in sent and one.tag("status") != "processing":
                        answers[one.tag("e")] = str(one.tag("status"))
    assert sorted(answers.values()) == ["None", "error"]


async def test_two_shards_at_one_provider_follow_one_payment_once(market):
    """So an honest customer pays a deposit for the second, and nobody is lost."""
    async with provider(market, "ada", concurrency=2) as ada:
        done, weights = await train(market, "dora", TWO_ROUNDS)
    assert weights == expected(TWO_ROUNDS)
    assert done.failures == ()
    assert {who for _, who in done.debts} == {ada.public}
    assert await market.balance_msat("ada") == 4 * LEAST_MSAT


async def test_a_request_of_the_future_is_refused(market, monkeypatch):
    """Its debt would begin there."""
    said: list[events.Event] = []
    real = time.time
    async with provider(market, "ada", published=said.append) as ada:
        monkeypatch.setattr("nodewire.training.customer.market.round_request.time.time", real)
        from nodewire.training.provider.admission import TrainingAdmission

        glance = TrainingAdmission.glance
        # The provider's clock is what is late here: the request is an hour ahead of it.
        monkeypatch.setattr(TrainingAdmission, "glance", lambda self, event, now_s: glance(self, event, now_s - 3600))
        monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 1.0)
        from nodewire.errors import NoProvider

        with pytest.raises(NoProvider):
            await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert [one.content or one.tag("status") for one in said if one.kind == 7000]
    assert await market.balance_msat("ada") == 0
    assert ada.public


@pytest.mark.parametrize("where", ["begun", "made"])
async def test_a_full_disk_costs_a_provider_the_round_and_no_slot(market, monkeypatch, where):
    """And its customer does not wait for the deadline of a round that nobody trains."""
    full = sqlite3.OperationalError("database or disk is full")
    broken = {"left": 1}

    def once(real):
        def call(self, *args, **named):
            if broken["left"]:
                broken["left"] -= 1
                raise full
            return real(self, *args, **named)

        return call

    if where == "begun":
        monkeypatch.setattr(KeptShards, "begun", once(KeptShards.begun))
    else:
        monkeypatch.setattr(ShardRun, "_make", once(ShardRun._make))
    async with provider(market, "ada"), provider(market, "cyd", least_msat=2 * LEAST_MSAT):
        async with asyncio.timeout(60):
            done, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
        assert weights == expected(ONE_ROUND, 1)
        assert len(done.failures) == 1
        async with asyncio.timeout(60):  # and its only slot is free
            done, _ = await train(market, "eve", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
        assert done.failures == ()


async def test_a_snapshot_of_another_size_is_not_even_fetched(market, monkeypatch):
    """A provider that is asked for 30 kB and cites gigabytes would fill its customer's disk."""
    upload, cheat, cited = ShardRun._upload, [], []

    async def padded(self, pieces):
        if self._keys.public not in cheat or self.committed is None:
            return await upload(self, pieces)
        cited.append(await upload(self, [*pieces, bytes(3_000_000)]))
        return cited[-1]

    monkeypatch.setattr(ShardRun, "_upload", padded)
    async with (
        provider(market, "ada") as ada,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        cheat.append(ada.public)
        done, _ = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert cited
    assert [(who, "too-large" in reason) for who, reason in done.failures] == [(ada.public, True)]
    assert not any((market.folder / "dora" / "blobs" / one.sha256[:2] / one.sha256).exists() for one in cited)
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


async def test_one_process_at_a_time_is_at_a_training(tmp_path):
    """Two would buy everything twice, and write a journal that nobody can go on from."""
    from nodewire.config import CustomerConfig, WalletConfig
    from nodewire.errors import Busy
    from nodewire.training.customer import api
    from nodewire.training.customer.process_lock import alone

    config = CustomerConfig(
        key=tmp_path / "key",
        relays=("ws://127.0.0.1:1",),
        blossom=("http://127.0.0.1:1",),
        committee=f"38841:{'0' * 64}:none",
        state=tmp_path,
        wallet=WalletConfig(url="http://127.0.0.1:1", token_file=tmp_path / "token"),
    )
    folder = api.folder_of(config, ONE_ROUND, 2)
    folder.mkdir(parents=True)
    with alone(folder), pytest.raises(Busy, match="another process"):
        await api.train(config, ONE_ROUND, tmp_path, TrainingOrder(2, 10**6))
    with alone(folder):  # it is free again
        pass


async def test_a_full_disk_at_the_customer_is_a_typed_error_and_the_training_goes_on_later(market):
    from nodewire.errors import BadConfig
    from nodewire.training.customer.machine.journal import Journal

    async with provider(market, "ada"), provider(market, "bea"):
        write, left = Journal.append, 9

        def append(self, event):
            nonlocal left
            left -= 1
            if not left:
                self._db.execute("PRAGMA max_page_count = 1")  # SQLite says then what it says on a full disk
            write(self, event)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(BadConfig, match="full"):
            patch.setattr(Journal, "append", append)
            await train(market, "dora", ONE_ROUND)
        _, weights = await train(market, "dora", ONE_ROUND)
    assert weights == expected(ONE_ROUND)
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [LEAST_MSAT] * 2


def takes_the_money(edge, frames):
    """A provider that takes its deposit, and does nothing."""
    if edge == "train":
        raise NotFound("train", "sorry")
    return frames


async def test_who_wants_everything_before_it_begins_is_not_asked(market):
    async with (
        provider(market, "ada", Conduct(alter=takes_the_money), deposit_ppm=1_000_000),
        provider(market, "bea", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert (weights, done.failures) == (expected(ONE_ROUND, 1), ())
    assert await market.balance_msat("ada") == 0


async def test_thieves_of_deposits_get_an_eighth_of_a_budget_at_most(market):
    """Any number of keys, each cheaper than honest work: as soon as one has done its work, strangers are not asked."""
    budget_msat = 10 * LEAST_MSAT
    thieves = [f"thief{n}" for n in range(8)]
    async with AsyncExitStack() as stack:
        for name in thieves:
            await stack.enter_async_context(provider(market, name, Conduct(alter=takes_the_money)))
        # It is the only one who works, and free when it has delivered.
        await stack.enter_async_context(provider(market, "bea", least_msat=LEAST_MSAT - 1))
        _, weights = await train(market, "dora", TWO_ROUNDS, TrainingOrder(2, budget_msat))
        stolen = [await market.balance_msat(name) for name in thieves]
    assert weights == expected(TWO_ROUNDS)
    assert sum(stolen) <= budget_msat // 8 + DEPOSIT_MSAT
    assert await market.balance_msat("bea") == 4 * (LEAST_MSAT - 1)


async def test_rounds_do_not_fill_a_providers_disk(market, monkeypatch):
    """Each brings new weights and leaves a result; most_bytes bounds what stays of them."""
    monkeypatch.setattr("nodewire.store.bounded_cache.YOUNG_S", 0.0)
    monkeypatch.setattr("nodewire.protocol.model.inline_blob.MAX_BYTES", 0)  # larger models travel by servers
    monkeypatch.setattr("nodewire.training.provider.service.CACHED_TIMES", 1)
    recipe = RECIPE.model_copy(update={"rounds": 8})
    async with provider(market, "ada", most_bytes=170_000):
        _, weights = await train(market, "dora", recipe, TrainingOrder(1, BUDGET_MSAT))
    assert weights == expected(recipe, 1)
    cached = [path.stat().st_size for path in (market.folder / "ada" / "blobs").rglob("*") if path.is_file()]
    assert len(cached) > 2
    assert sum(cached) <= 170_000


async def test_a_transcript_cannot_keep_its_reader_busy_for_ever(market, monkeypatch):
    """Each receipt is looked at for each part of a payment, however often the payment stands there."""
    async with provider(market, "ada") as ada:
        done, _ = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
        keys = Keys.from_file(market.folder / "ada" / "key")
    (request,) = done.requests
    receipts = [
        events.sign(keys, 9735, created_at=n, content="", tags=[["e", request], ["p", ada.public]]).to_json()
        for n in range(40)
    ]
    looked = 0
    real = transcripts.zaps.check_receipt

    def check_receipt(*args, **named):
        nonlocal looked
        looked += 1
        return real(*args, **named)

    monkeypatch.setattr(transcripts.zaps, "check_receipt", check_receipt)
    long = market.transcript.model_copy(
        update={"payments": market.transcript.payments * 50, "receipts": tuple(receipts)}
    )
    faults = [(fault.step, fault.reason) for fault in transcripts.check(long).faults]
    assert ("payment", "paid twice") in faults
    assert looked <= 2 * len(receipts)


async def test_who_is_dead_and_cheapest_is_not_asked_in_each_round(market, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.ANSWER_S", 2.5)
    async with provider(market, "ada") as ada, Pool([market.relay]) as pool:
        while ada.public not in await provider_selection.trainers(pool):
            await asyncio.sleep(0.05)
    # It is dead now, and its ad is still there.
    async with provider(market, "bea", least_msat=9 * LEAST_MSAT), provider(market, "cyd", least_msat=9 * LEAST_MSAT):
        done, weights = await train(
            market, "dora", RECIPE.model_copy(update={"rounds": 4}), TrainingOrder(2, 73 * LEAST_MSAT)
        )
    assert weights == expected(RECIPE.model_copy(update={"rounds": 4}))
    assert {debt.round for (_, who), debt in done.debts.items() if who == ada.public} == {0, 2}
    assert {reason for _, reason in done.failures} == {"no answer"}
