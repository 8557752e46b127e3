"""A request that is under way starts whole and leaves nothing behind, whatever comes of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import pytest

from nodewire.customer.job.attempt import JobAttempt
from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.order import JobOrder
from nodewire.customer.job.tickets import Tickets
from nodewire.customer.payments.purse import Purse
from nodewire.errors import LinkLost, NotAllowed, RelayRefused, TimedOut, WorkerFailed
from nodewire.nostr.event import sign
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job.edge_window import INITIAL_WINDOW_BYTES
from nodewire.wire.node import Node
from tests.protocol import documents

NOBODY = "127.0.0.1:1"


class Pool:
    """Relays that take what comes, or nothing, and tell nothing."""

    def __init__(self, refuses=False):
        self.published, self.refuses = [], refuses

    async def publish(self, event, timeout_s):
        if self.refuses:
            raise RelayRefused("event", "no")
        self.published.append(event)

    @asynccontextmanager
    async def subscribe(self, filters):
        async def never():
            await asyncio.Event().wait()
            yield None

        yield never()


class Settler:
    def __init__(self):
        self.under_way, self.ended = [], []

    def requests(self, request):
        self.under_way.append(request)

    def end_job(self, request, payments):
        self.ended.append(request)


@pytest.fixture
async def running(tmp_path):
    """A function that makes one on these relays, and ends it."""
    node, spool, before = Node(documents.CUSTOMER), Spool(tmp_path, 1_000_000), asyncio.all_tasks()
    made = []

    def make(pool, at=MappingProxyType({}), manifest=None, prompt=b"x"):
        plan, manifest = documents.plan(), manifest or documents.manifest()
        session = SimpleNamespace(
            keys=documents.CUSTOMER, pool=pool, purse=Purse(None, ("ws://r",), "bcrt", False), holder=None,
            share_account=None,
            network="bcrt", node=node, spool=spool, settler=Settler(), withdraw=lambda *_: None,
            log=logging.getLogger("nodewire.customer"),
        )  # fmt: skip
        ads = {public: SimpleNamespace(wire=(at.get(public, NOBODY),), lnurl="") for public in plan.providers()}
        edge = next(e for e in manifest.edges if e.source == "customer")
        inputs = [Frame(edge.name, 0, (Array("uint8", (len(prompt),), prompt),), {"chunk": 0})]
        request = sign(documents.CUSTOMER, 8843, created_at=1)
        drawn = SimpleNamespace(plan=plan, ads=ads, holders={})
        tickets = Tickets(documents.CUSTOMER, {}, inputs)
        order = JobOrder(SimpleNamespace(), "", manifest, {}, inputs)
        one = JobAttempt(session, order, tickets, drawn, request, JobTimes())
        made.append(one)
        return one

    yield make
    for one in made:
        await one.end()
        await one.end()  # twice is as good as once
        assert one._session.settler.ended == [one.request.id]
    await node.close()
    spool.close()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


async def test_a_request_whose_providers_nobody_reaches_is_published_and_leaves_nothing(running):
    pool = Pool()
    one = running(pool)
    await one.start()
    with pytest.raises(LinkLost):
        await one.next(60)
    assert pool.published[0] is one.request
    assert one._session.settler.under_way == [one.request.id]
    assert one.spent_msat() == 0 and one.is_open
    one.cancel()


async def test_a_request_that_no_relay_takes_leaves_nothing_either(running):
    one = running(Pool(refuses=True))
    with pytest.raises(RelayRefused):
        await one.start()


async def test_a_driver_that_is_there_and_takes_no_prompt_is_waited_for_as_for_an_output(running):
    """It answers every PING and never opens the job. More than the first window has room for waits for its word."""
    prompt, manifest = bytes(INITIAL_WINDOW_BYTES), documents.manifest()
    wide = manifest.edges[0].model_copy(update={"dims": {"s": len(prompt)}})
    driver = Node(documents.PROVIDERS[0])
    try:
        at = {driver.public: await driver.listen("127.0.0.1")}
        one = running(Pool(), at, manifest.model_copy(update={"edges": (wide, *manifest.edges[1:])}), prompt)
        assert one.plan.node_of("driver") == driver.public
        async with asyncio.timeout(30):
            await one.start()
            with pytest.raises(TimedOut):
                await one.next(1.0)
        assert one._session.node.open_link(driver.public) is not None
    finally:
        await driver.close()


async def test_later_calls_are_sent_when_those_before_them_have_come_back(running):
    one, sent = running(Pool()), []

    async def put(frame):
        sent.append((frame.edge, frame.seq))

    one._mailbox, real = SimpleNamespace(put=put), one._mailbox
    one._manifest = one._manifest.model_copy(update={"mode": "run"})
    inputs = [Frame(edge, seq, (), {"chunk": seq}) for seq in range(5) for edge in ("a", "b")]
    one._order = replace(one._order, inputs=inputs)
    sending = asyncio.create_task(one._send())
    for delivered, most in ((-1, 1), (0, 2), (2, 4)):
        one.delivered(delivered)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sent == [(edge, seq) for seq in range(most + 1) for edge in ("a", "b")]
    await sending
    one._mailbox = real


async def test_who_is_gone_is_asked_for_and_what_others_say_of_one_who_is_there_is_not_believed(running):
    here, also_here, dead = (keys.public for keys in documents.PROVIDERS)
    others = [Node(keys) for keys in documents.PROVIDERS[:2]]
    at = {other.public: await other.listen("127.0.0.1") for other in others}
    try:
        one = running(Pool(), at)
        assert await one.find_absent(None) == set()
        assert await one.find_absent(NotAllowed("job", "whatever")) == set()
        assert await one.find_absent(TimedOut("output", "none came")) == {dead}
        assert await one.find_absent(LinkLost(here, "as its neighbour says")) == set()
        assert here in one.blamed()  # the same call does without it all the same
        assert await one.find_absent(LinkLost(dead, "as its neighbour says")) == {dead}
        one.answers.blamed.add(also_here)
        assert await one.find_absent(WorkerFailed("provider", "reports it")) == {also_here}
        own = LinkLost(here, "no link from this node, a moment ago")
        one.background.fail(own)
        assert await one.find_absent(own) == set()
        one.lost_here.add(here)
        assert await one.find_absent(own) == {here}
    finally:
        for other in others:
            await other.close()


@pytest.fixture
async def served(running):
    """A request that is under way at nodes that all answer."""
    others = [Node(keys) for keys in documents.PROVIDERS]
    one = running(Pool(), {other.public: await other.listen("127.0.0.1") for other in others})
    await one.start()
    yield one
    for other in others:
        await other.close()


def cancelled(one, by, error):
    """A neighbour ends the job by this error, over the wire."""
    one._mailbox.documented(by, {"t": "cancel", "job": one.request.id, "attempt": 0, "error": error.as_dict()})


async def test_a_neighbours_word_that_another_is_gone_is_no_loss_of_this_nodes_own(served):
    driver, stage, _ = (keys.public for keys in documents.PROVIDERS)
    cancelled(served, driver, LinkLost(stage, "gone: so its driver says"))
    with pytest.raises(LinkLost) as caught:
        await served.next(10.0)
    for _ in range(20):
        await asyncio.sleep(0)  # what runs beside hears it, too
    assert (caught.value.field, caught.value.by) == (stage, driver)
    assert await served.find_absent(caught.value) == set()
    assert served.lost_here == set()


async def test_of_a_loss_that_nobody_else_sees_both_are_left_out_who_says_it_and_who_is_named(served):
    """One of them lies, or the way between them is broken: the same plan would break off again."""
    driver, stage, other = (keys.public for keys in documents.PROVIDERS)
    cancelled(served, driver, LinkLost(stage, "gone: so its driver says"))
    with pytest.raises(LinkLost) as caught:
        await served.next(10.0)
    await served.find_absent(caught.value)
    assert served.blamed() == {driver, stage}
    said = LinkLost("provider", "reports link-lost")  # over relays nobody is named
    said.by = other
    assert await served.find_absent(said) == set()
    assert other in served.blamed()
