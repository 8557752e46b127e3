"""Whether a node holds a job: it says so to the job's members, also after a takeover, and to nobody else."""

import pytest
from wire_net import QUICK, TLS_AND_SHM, job_id

from nodewire.errors import LinkLost, NotAllowed
from nodewire.wire import Route, frames

pytestmark = TLS_AND_SHM

JOB = job_id("job")


@pytest.fixture
async def job(net):
    """A stage, and the customer, to which its edge leads."""
    stage, customer = await net.node(), await net.node()
    routes = {"e": Route(stage.public, (customer.public,))}
    return stage, customer, stage.open_job(JOB, routes, on_lost=lambda peer, error: None)


async def asked(net, by, of) -> bool:
    return await by.holds(of.public, [net.addresses[of.public]], JOB, 2.0)


async def test_who_has_the_job_open_holds_it(net, job):
    stage, customer, _ = job
    assert await asked(net, customer, stage)


async def test_who_was_replaced_while_it_held_the_job_still_says_so(net, job):
    stage, customer, mailbox = job
    mailbox.replaced()
    mailbox.close()
    assert await asked(net, customer, stage)


@pytest.mark.parametrize("how", ["failed", "given up", "closed"])
async def test_who_cannot_go_on_holds_nothing_and_a_takeover_changes_nothing_of_that(net, job, how):
    stage, customer, mailbox = job
    match how:
        case "failed":
            mailbox.fail(LinkLost("somebody", "gone"))
        case "given up":
            mailbox.give_up()
        case "closed":
            mailbox.close()
    assert not await asked(net, customer, stage)
    mailbox.replaced()
    assert not await asked(net, customer, stage)


async def test_who_has_stood_still_itself_does_not_say_that_it_was_there(net, job):
    stage, customer, _ = job
    stage.stood_still()
    assert not await asked(net, customer, stage)


async def test_strangers_learn_nothing(net, job):
    stage, _, mailbox = job
    stranger = await net.node()
    assert not await asked(net, stranger, stage)
    mailbox.replaced()
    mailbox.close()
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


@pytest.mark.parametrize("replaced", [True, False])
async def test_who_was_replaced_does_not_end_the_job_for_neighbours_that_have_not_heard_of_it(net, job, replaced):
    stage, customer, mailbox = job
    theirs = customer.open_job(JOB, {"e": Route(stage.public, (customer.public,))}, on_lost=lambda peer, error: None)
    await net.link(stage, customer)
    if replaced:
        mailbox.replaced()
    mailbox.cancel(NotAllowed("job", "taken over"))
    assert await asked(net, customer, stage) is replaced  # what was said before the answer has been read by now
    assert theirs.is_held is replaced
