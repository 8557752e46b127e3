"""A customer that drives itself, over queues for wires: it signs what it sends, and its stages commit to all of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from kinds.k8843 import KIND
from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import control_messages as controls
from nodewire.customer.job.order import JobOrder
from nodewire.customer.job.session import LocalMailbox, Session, signing_of
from nodewire.provider.inference import statements
from nodewire.wire.evidence import output_signer
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job.generation_tape import GenerationTape
from tests.kinds.inprocess import Direct
from tests.provider.inference.test_provider_job import CUSTOMER, REQUEST, Recorded, folder, generate, make_market  # noqa: F401
from tests.provider.inference.test_speculative_job import guessing, truth  # noqa: F401

PARAMS = {"max_tokens": 150}


class Driving:
    """What a purchase has around the customer's own driver; `heard` are the documents that its neighbours send."""

    def __init__(self, market, path, lookahead=1):
        self.market, self.heard = market, asyncio.Queue()
        self.spool = Spool(path / "customer", 10**8)
        self.tape = GenerationTape(self.spool, REQUEST, market.manifest, lookahead)
        market.box = Recorded(market.hub, CUSTOMER.public, self.tape)
        self.closes = []
        self.signing = signing_of(CUSTOMER, REQUEST, market.manifest, market.plan)
        deliver = market.hub.on_control

        async def on_control(sender, peer, document):
            if peer == CUSTOMER.public:
                self.heard.put_nowait((sender, document))
            else:
                await deliver(sender, peer, document)

        market.hub.on_control = on_control

    async def closed(self, chunk, units):
        self.closes.append(chunk)

    async def controls(self):
        while True:
            yield await self.heard.get()

    async def run(self):
        """The whole generation; how every provider's run ended, None or its error."""
        market, background = self.market, JobTaskGroup()
        running = {public: asyncio.create_task(run.run()) for public, run in market.runs.items()}
        beside = [asyncio.create_task(market.pay_everything())]
        box = LocalMailbox(market.box, market.manifest, market.plan)
        members = SimpleNamespace(controls=self.controls, control=market.box.control)
        background.spawn(controls.follow(REQUEST, members, CUSTOMER.public, self, self.signing, background))

        async def hand():
            while True:
                frame = await market.hub.queues[CUSTOMER.public].get()
                if not box.accept(frame):
                    await outputs.put(frame)

        outputs = asyncio.Queue()
        beside.append(asyncio.create_task(hand()))
        session = SimpleNamespace(keys=CUSTOMER)

        async def worker(*_):
            return Direct(market.actors)

        session._worker = worker
        params = KIND.check(market.manifest, PARAMS)
        serving = Session.serve_locally(
            session,
            JobOrder(KIND, "", market.manifest, params, ()),
            REQUEST,
            market.plan,
            box,
            self.closed,
            self.signing,
            self.tape,
        )
        beside.append(asyncio.create_task(serving))
        market.box.get = outputs.get
        beside.append(asyncio.create_task(generate(market)))
        await asyncio.wait((*running.values(), beside[-1]), timeout=20, return_when=asyncio.FIRST_EXCEPTION)
        for task in (*running.values(), *beside):
            task.cancel()
        await asyncio.gather(*running.values(), *beside, return_exceptions=True)
        await background.end()
        assert background.fault is None
        return {public: None if task.cancelled() else task.exception() for public, task in running.items()}


@pytest.fixture
def market(folder, tmp_path):  # noqa: F811
    return make_market(folder, tmp_path, "sampled", driver="local")


async def test_its_first_stage_has_its_word_for_every_chunk_and_commits_to_it(market, tmp_path):
    driving = Driving(market, tmp_path)
    assert set((await driving.run()).values()) == {None}
    assert driving.closes == [0, 1, 2, 3]
    first = next(iter(market.runs.values()))
    kept = list(first._statements._spool.sent(REQUEST))
    assert [(one.chunk, one.signer, one.task) for one in kept] == [(n, CUSTOMER.public, "driver") for n in range(4)]
    for one in kept:
        one.check()
    assert {root.chunk for root in market.committed if root.task == "stage.0"} == {0, 1, 2, 3}
    assert not [one for one in market.hub.controls if one[1] == CUSTOMER.public and one[2]["t"] == "sent"]


async def test_what_was_lost_on_the_way_it_says_again(market, tmp_path, monkeypatch):
    for module in (statements, output_signer):
        monkeypatch.setattr(module, "ASK_S", 0.05)
    driving, lost = Driving(market, tmp_path), []
    deliver = market.hub.on_control

    async def losing(sender, peer, document):
        if sender == CUSTOMER.public and document["t"] == "sent" and len(lost) < 2:
            lost.append(document)
        else:
            await deliver(sender, peer, document)

    market.hub.on_control = losing
    assert set((await driving.run()).values()) == {None}
    assert len(lost) == 2
    assert [one for one in market.hub.controls if one[2]["t"] == "unsent" and one[1] == CUSTOMER.public]


async def test_a_customer_that_signs_nothing_has_nothing_committed_to_nor_asked_for(market, tmp_path, monkeypatch):
    monkeypatch.setattr(statements, "PATIENCE_S", 0.3)
    driving = Driving(market, tmp_path)
    driving.signing.sign = lambda chunk: {}
    errors = await driving.run()
    first = next(iter(market.runs))
    assert errors[first].code == "bad-frame"
    assert "not signed" in str(errors[first])
    assert not [root for root in market.committed if root.task == "stage.0"]


def test_where_nobody_judges_or_nothing_runs_here_there_is_nothing_to_sign(folder, tmp_path):  # noqa: F811
    for policy, driver in (("none", "local"), ("sampled", "provider")):
        market = make_market(folder, tmp_path, policy, driver)
        assert signing_of(CUSTOMER, REQUEST, market.manifest, market.plan) is None


async def test_where_it_guesses_its_word_is_on_what_it_would_have_sent_without(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16, policy="sampled", driver="local", width=2, depth=6)
    driving = Driving(market, tmp_path, 8)
    spool = driving.spool
    assert set((await driving.run()).values()) == {None}
    count = 1 + -(-(len(truth.ids) - 1) // 16)
    assert driving.closes == list(range(count))
    first = next(iter(market.runs.values()))
    kept = [one for one in first._statements._spool.sent(REQUEST) if one.edge == "hidden.0"]
    assert [(one.chunk, one.signer) for one in kept] == [(n, CUSTOMER.public) for n in range(count)]
    assert {root.chunk for root in market.committed if root.task == "stage.0"} == set(range(count))
    sent = [frame for _, frame in spool.read(REQUEST, "hidden.0")]
    assert sent == [frame for _, frame in first._tape._tape.read(REQUEST, "hidden.0")]
