"""A job whose link to a member breaks: one that comes back goes on, a dead one ends the job at once."""

import asyncio
import hashlib
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest

from nodewire.errors import LinkLost, NodewireError, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import Spool, job_member
from nodewire.wire.framing import frames
from nodewire.wire.job.channel_spec import JobChannelSpec
from nodewire.wire.job.routes import routes_of
from nodewire.wire.job_member import Membership
from tests.faults.cut import Way
from tests.protocol.documents import CUSTOMER, PROVIDERS, manifest, plan
from tests.wire.wire_net import array, job_id, refused_as, until

JOB = job_id("job")
DRIVER, FIRST, SECOND = PROVIDERS
ALL = (CUSTOMER, *PROVIDERS)
TURNS, STEP_S = 260, 0.01


def made(task: str, data) -> bytes:
    return hashlib.sha256(task.encode() + bytes(data)).digest()


def answers() -> list[bytes]:
    found = []
    for seq in range(TURNS):
        data = b"%d" % seq
        for task in ("stage.0", "stage.1"):
            data = made(task, data)
        found.append(data)
    return found


@dataclass
class Generation:
    """A customer, a driver and two stages, all of which are dialled by ways."""

    net: object
    path: object
    ways: dict[str, Way]
    nodes: dict[str, object] = field(default_factory=dict)
    tasks: set[asyncio.Task] = field(default_factory=set)
    members: dict[str, Membership] = field(default_factory=dict)
    spools: list[Spool] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    async def start(self):
        for keys in ALL:
            await self.add(keys)
        self.addresses = {}
        for keys in PROVIDERS:
            address = self.net.addresses[keys.public]
            if (way := self.ways.get(keys.public)) is not None:
                way.target, address = address, way.address
            self.addresses[keys.public] = [address]
        for keys, peers in (
            (CUSTOMER, [DRIVER]), (DRIVER, [FIRST, SECOND]), (FIRST, [SECOND]), (SECOND, [DRIVER])
        ):  # fmt: skip
            self.join(keys)
            for peer in peers:
                await self.members[keys.public].link(peer.public)
        self.spawn(self.stage(FIRST, "stage.0", "hidden.1"))
        self.spawn(self.stage(SECOND, "stage.1", "return"))
        self.spawn(self.drive())
        self.reading = self.spawn(self.read())

    async def add(self, keys):
        self.nodes[keys.public] = await self.net.node(keys)

    def join(self, keys):
        self.spools.append(Spool(self.path / keys.public, 2**30))
        member = self.members[keys.public] = Membership(
            JobChannelSpec(JOB, routes_of(manifest(), plan()), tape=self.spools[-1]),
            manifest(),
            self.nodes[keys.public],
            self.addresses,
        )
        self.spawn(member.follow_losses())

    def spawn(self, work):
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def stage(self, keys, task, edge):
        mailbox = self.members[keys.public].mailbox
        while True:
            frame = await mailbox.get()
            await mailbox.put(Frame(edge, frame.seq, (array(made(task, frame.tensors[0].data)),)))

    async def drive(self):
        mailbox = self.members[DRIVER.public].mailbox
        for seq in range(TURNS):
            await mailbox.put(Frame("hidden.0", seq, (array(b"%d" % seq),)))
            frame = await mailbox.get()
            assert frame.seq == seq
            await mailbox.put(Frame("tokens", seq, frame.tensors))
            await asyncio.sleep(STEP_S)

    async def read(self):
        mailbox = self.members[CUSTOMER.public].mailbox
        while len(self.tokens) < TURNS:
            self.tokens.append(bytes((await mailbox.get()).tensors[0].data))
            self.at_s.append(time.monotonic())

    async def come_to(self, count):
        await until(lambda: len(self.tokens) >= count or self.reading.done(), 20)

    async def end(self):
        """All tokens came, once and in order."""
        async with asyncio.timeout(60):
            await self.reading
        assert self.tokens == answers()

    async def breaks_off(self, missing, *, is_there=False):
        """The job ends for the customer and for all that still run it, and the node that lacks it is named. It counts
        as gone unless it is there.

        Returns how long after the last token, in seconds.
        """
        async with asyncio.timeout(60):
            with pytest.raises(NodewireError) as failed:
                await self.reading
        after_s = time.monotonic() - self.at_s[-1]
        assert (failed.value.code, failed.value.field) == (LinkLost.code, missing.public), failed.value
        assert self.tokens == answers()[: len(self.tokens)]
        for keys in ALL:
            if keys is not missing:
                member = self.members[keys.public]
                async with asyncio.timeout(10):
                    error = await member.mailbox.failed()
                assert (error.code, error.field) == (LinkLost.code, missing.public)
                assert member.lost_here <= {missing.public}
        assert any(missing.public in member.lost_here for member in self.members.values()) is not is_there
        return after_s

    @property
    def stall_s(self):
        return max(b - a for a, b in zip(self.at_s, self.at_s[1:], strict=False))

    async def close(self):
        for member in self.members.values():
            member.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for spool in self.spools:
            spool.close()


@pytest.fixture
async def generation(net, tmp_path):
    async with AsyncExitStack() as stack:
        ways = {keys.public: await stack.enter_async_context(Way()) for keys in PROVIDERS}
        made = Generation(net, tmp_path, ways)
        await made.start()
        yield made
        await made.close()


@pytest.mark.parametrize("cut", [[FIRST], [SECOND], [DRIVER], PROVIDERS], ids=["stage.0", "stage.1", "driver", "all"])
async def test_ways_that_are_cut_for_two_seconds_cost_the_time_and_nothing_else(generation, cut):
    """To one node only the others' way is cut: it may dial them sooner than that."""
    await generation.come_to(50)
    for keys in cut:
        await generation.ways[keys.public].cut()
    await asyncio.sleep(2)
    assert len(generation.tokens) < TURNS
    for keys in cut:
        generation.ways[keys.public].mend()
    await generation.end()
    assert not any(member.lost_here for member in generation.members.values())
    assert generation.stall_s < job_member.RETURN_S + 1
    if len(cut) > 1:
        assert generation.stall_s > 1.5


async def test_a_node_to_which_no_way_leads_any_more_is_waited_for_for_three_seconds(generation):
    await generation.come_to(50)
    await generation.ways[FIRST.public].cut()
    await generation.nodes[FIRST.public].close()
    after_s = await generation.breaks_off(FIRST)
    assert job_member.RETURN_S - 0.5 < after_s < job_member.RETURN_S + 2


@pytest.mark.parametrize("how", ["dead", "started anew", "closed it"])
@pytest.mark.parametrize("gone", PROVIDERS, ids=["driver", "stage.0", "stage.1"])
async def test_a_node_that_is_not_there_or_has_not_got_the_job_ends_it_at_once(generation, how, gone):
    """The same address may lead to another process of the same node, which knows nothing of the job."""
    await generation.come_to(50)
    node = generation.nodes[gone.public]
    if how == "closed it":
        generation.members[gone.public].mailbox.close()
    elif how == "started anew":
        await generation.add(gone)
        generation.ways[gone.public].target = generation.net.addresses[gone.public]
    for link in list(node.peers.values()):
        link.abort(LinkLost("killed", ""))
    if how != "closed it":
        await node.close()
    assert await generation.breaks_off(gone, is_there=how != "dead") < 1


async def test_a_node_that_says_it_holds_the_job_and_is_silent_in_it_is_given_up(net, tmp_path):
    """Its word brings it time, and not the job's whole life."""
    customer, spool = await net.node(CUSTOMER), Spool(tmp_path, 2**20)
    await net.proven(customer, DRIVER)
    channel = JobChannelSpec(JOB, routes_of(manifest(), plan()), grace_s=2.0, tape=spool)
    member = Membership(channel, manifest(), customer, {})
    following = asyncio.create_task(member.follow_losses())
    customer.peers[DRIVER.public].abort(LinkLost(DRIVER.public, "cut"))
    raw, asked = await net.proven(customer, DRIVER), []

    async def answer():
        while True:
            if (await raw.document())["t"] == "presence":
                asked.append(JOB)
                raw.send(frames.control({"t": "present", "job": JOB, "held": True}))

    answering = asyncio.create_task(answer())
    await refused_as(LinkLost, DRIVER.public, member.mailbox.get())
    assert asked and not member.lost_here  # it was believed
    assert customer.peers[DRIVER.public].is_open
    for task in (following, answering):
        task.cancel()
    spool.close()


async def test_a_node_that_comes_and_goes_ends_the_job_in_the_end(generation, monkeypatch):
    monkeypatch.setattr(job_member, "MAX_RETURNS", 3)
    driver = generation.nodes[DRIVER.public]
    for times in range(4):
        await generation.come_to(50 * (times + 1))
        assert not generation.reading.done()
        driver.peers[FIRST.public].abort(LinkLost("link", "cut"))
    error = await generation.members[DRIVER.public].mailbox.failed()
    assert (error.code, error.field) in {(LinkLost.code, keys.public) for keys in (DRIVER, FIRST)}


async def test_losses_of_one_node_that_come_together_are_one(generation):
    await generation.come_to(50)
    lost, node = generation.members[DRIVER.public]._losses, generation.nodes[DRIVER.public]
    asked = []
    holds = node.holds

    async def counted(peer, *arguments):
        asked.append(peer)
        return await holds(peer, *arguments)

    node.holds = counted
    node.peers[FIRST.public].abort(LinkLost("link", "cut"))
    for _ in range(3):
        lost.put_nowait((FIRST.public, LinkLost(FIRST.public, "again")))
    await generation.end()
    assert asked == [FIRST.public]


@pytest.mark.parametrize(("silent", "goes_on"), [(CUSTOMER, True), (FIRST, False)])
async def test_a_process_that_stood_still_is_waited_for_where_nobody_can_replace_it(generation, silent, goes_on):
    await generation.come_to(50)
    driver = generation.nodes[DRIVER.public]
    driver.peers[silent.public].abort(TimedOut(silent.public, "silent for 1 s, though its machine answers"))
    if goes_on:
        await generation.end()
        return
    error = await generation.members[DRIVER.public].mailbox.failed()
    assert (error.code, error.field) == (LinkLost.code, silent.public)


# What silence means.


async def test_a_peer_whose_machine_answers_hangs_and_one_whose_does_not_may_be_cut_off(net, monkeypatch):
    node, keys = await net.node(), Keys.generate()
    for acked_ms, expected in ((40, TimedOut), (600, LinkLost)):
        await net.proven(node, keys)
        link = node.peers[keys.public]
        info = replace(link.tcp, acked_ms=acked_ms)
        monkeypatch.setattr(type(link), "tcp", property(lambda self, info=info: info))
        link.attend(JOB)
        await until(lambda link=link: not link.is_open)
        monkeypatch.undo()
        assert type(link.error) is expected


async def test_the_kernel_of_a_peer_that_says_nothing_acknowledges(net):
    node, keys = await net.node(), Keys.generate()
    await net.proven(node, keys)
    link = node.peers[keys.public]
    link.attend(JOB)
    await until(lambda: not link.is_open)
    assert type(link.error) is TimedOut
