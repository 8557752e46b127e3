"""Whether a node holds a job: it says so to the job's members, and to nobody else."""

import asyncio

import pytest

from nodewire.errors import LinkLost, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.wire import JobChannelSpec, Route
from nodewire.wire.framing import frames
from tests.wire.wire_net import QUICK, TLS_AND_SHM, job_id, until

pytestmark = TLS_AND_SHM

JOB = job_id("job")


@pytest.fixture
async def job(net):
    """A stage, and the customer, to which its edge leads."""
    stage, customer = await net.node(), await net.node()
    routes = {"e": Route(stage.public, customer.public)}
    return stage, customer, stage.open_job(JobChannelSpec(JOB, routes, on_lost=lambda peer, error: None))


async def asked(net, by, of) -> bool:
    return await by.holds(of.public, [net.addresses[of.public]], JOB, 2.0)


async def test_who_has_the_job_open_holds_it(net, job):
    stage, customer, _ = job
    assert await asked(net, customer, stage)


@pytest.mark.parametrize("how", ["failed", "cancelled", "closed"])
async def test_a_node_that_cannot_go_on_holds_nothing(net, job, how):
    stage, customer, mailbox = job
    match how:
        case "failed":
            mailbox.fail(LinkLost("somebody", "gone"))
        case "cancelled":
            mailbox.cancel(NotAllowed("job", "withdrawn"))
        case "closed":
            mailbox.close()
    assert not await asked(net, customer, stage)


async def test_a_node_that_was_started_anew_holds_nothing(net, job):
    stage, customer, _ = job
    keys = stage._links._keys
    await stage.close()
    assert not await asked(net, customer, await net.node(keys))


async def test_strangers_learn_nothing(net, job):
    stage, _, _ = job
    stranger = await net.node()
    assert not await asked(net, stranger, stage)


async def test_who_cannot_be_reached_holds_nothing(net, job):
    stage, _, _ = job
    await stage.close()
    late = await net.node(patience=QUICK)
    assert not await asked(net, late, stage)


async def test_only_who_was_asked_answers(net, job):
    stage, customer, mailbox = job
    mailbox.close()
    liar = await net.proven(customer)
    for _ in range(3):
        liar.send(frames.control({"t": "present", "job": JOB, "held": True}))
        assert not await asked(net, customer, stage)


async def test_a_question_that_was_lost_with_its_link_is_asked_on_the_next(net):
    customer, keys = await net.node(), Keys.generate()
    first = await net.proven(customer, keys)
    asking = asyncio.create_task(customer.holds(keys.public, [], JOB, 20.0))
    assert await first.document() == {"t": "presence", "job": JOB}
    first.writer.transport.abort()
    await until(lambda: keys.public not in customer.peers)
    second = await net.proven(customer, keys)
    assert await second.document() == {"t": "presence", "job": JOB}
    second.send(frames.control({"t": "present", "job": JOB, "held": True}))
    assert await asking is True
