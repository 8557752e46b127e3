"""How long a node takes for its part of a turn: members are told, and an odd answer is as good as a slow one."""

import asyncio

import pytest

from nodewire.wire import JobChannelSpec, Route
from nodewire.wire.framing import frames
from nodewire.wire.job.latency_query import MAX_US
from tests.wire.wire_net import TLS_AND_SHM, job_id

pytestmark = TLS_AND_SHM

JOB = job_id("job")
PATIENCE_S = 1.0


@pytest.fixture
async def job(net):
    """A stage, and the customer, to which its edge leads."""
    stage, customer = await net.node(), await net.node()
    routes = {"e": Route(stage.public, customer.public)}
    return stage, customer, stage.open_job(JobChannelSpec(JOB, routes))


async def asked(net, by, of):
    return await by.pace(of.public, [net.addresses[of.public]], JOB, PATIENCE_S)


async def test_a_member_is_told(net, job):
    stage, customer, mailbox = job
    mailbox.turn_us = lambda: 1_234
    assert await asked(net, customer, stage) == 1_234


async def test_strangers_are_told_nothing(net, job):
    stage, _, mailbox = job
    mailbox.turn_us = lambda: 1_234
    assert await asked(net, await net.node(), stage) is None


async def test_who_counts_nothing_does_not_answer(net, job):
    stage, customer, _ = job
    assert await asked(net, customer, stage) is None


@pytest.mark.parametrize("us", [-1, "soon", 1.5, True, MAX_US + 1, None], ids=repr)
async def test_what_is_no_time_counts_as_the_longest(net, job, us):
    stage, customer, mailbox = job
    link = await net.link(stage, customer)

    def answer_oddly():
        link.send_control({"t": "paced", "job": JOB, "us": us} if type(us) is not float else {"t": "paced", "job": JOB})
        return 1

    mailbox.turn_us = answer_oddly
    assert await asked(net, customer, stage) == MAX_US


async def test_only_who_was_asked_answers(net, job):
    stage, customer, mailbox = job
    liar = await net.proven(customer)
    mailbox.turn_us = lambda: 50
    for _ in range(3):
        liar.send(frames.control({"t": "paced", "job": JOB, "us": 1}))
        assert await asked(net, customer, stage) == 50


async def test_who_asks_with_less_patience_takes_nobody_elses_answer_away(net, job):
    stage, customer, mailbox = job
    mailbox.turn_us = lambda: 50
    link, there = await net.link(customer, stage), asyncio.get_running_loop().create_future()
    patient = asyncio.create_task(customer._pacing.ask(there, stage.public, JOB, PATIENCE_S))
    assert await customer._pacing.ask(asyncio.Event().wait(), stage.public, JOB, 0.01) is None
    there.set_result(link)
    assert await patient == 50
    assert not customer._pacing._asking._waiting
