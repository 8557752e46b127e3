"""A job whose link to a member breaks: who comes back goes on, who is dead is replaced at once."""

import asyncio
import hashlib
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
from wire_net import array, job_id, until

from nodewire.errors import LinkLost, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.protocol.frame import Frame
from nodewire.protocol.takeover import Takeover
from nodewire.wire import Spool, handover
from nodewire.wire.membership import Membership
from tests.faults.cut import Way
from tests.protocol.documents import CUSTOMER, PROVIDERS, manifest, plan

JOB = job_id("job")
DRIVER, FIRST, SECOND = PROVIDERS
STANDBY = Keys(b"\x09" * 32)
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
    """A customer, a driver and two stages, the first of which has a standby; all are dialled by ways."""

    net: object
    path: object
    ways: dict[str, Way]
    nodes: dict[str, object] = field(default_factory=dict)
    tasks: set[asyncio.Task] = field(default_factory=set)
    members: dict[str, Membership] = field(default_factory=dict)
    spools: list[Spool] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    async def start(self):
        tasks = plan().tasks
        self.plan = plan(tasks=(tasks[0], tasks[1].model_copy(update={"standby": STANDBY.public}), tasks[2]))
        for keys in (CUSTOMER, DRIVER, FIRST, SECOND, STANDBY):
            await self.add(keys)
        self.addresses = {}
        for keys in (DRIVER, FIRST, SECOND, STANDBY):
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
        def control(peer, document, keys=keys):
            call = Takeover.from_control(document)
            if keys is STANDBY and call is not None and STANDBY.public not in self.members:
                self.join(STANDBY, call)
                self.spawn(self.stage(STANDBY, "stage.0", "hidden.1"))
                self.spawn(self.members[STANDBY.public].link(SECOND.public))

        self.nodes[keys.public] = await self.net.node(keys, on_control=control)

    def join(self, keys, call=None):
        self.spools.append(Spool(self.path / keys.public, 2**30))
        member = self.members[keys.public] = Membership(
            keys, JOB, self.plan, manifest(), self.nodes[keys.public], self.addresses,
            grace_s=10.0, tape=self.spools[-1], takeover=call,
        )  # fmt: skip

        async def changed(takeover):
            return

        async def publish(event):
            self.takeovers.append(event)

        part = member.handover(open_chunk=lambda: 0, changed=changed, publish=publish)

        async def listen():
            async for peer, document in member.mailbox.controls():
                await part.heard(peer, document)

        self.spawn(member.follow_losses(part))
        self.spawn(listen())

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
        ways = {keys.public: await stack.enter_async_context(Way()) for keys in (*PROVIDERS, STANDBY)}
        made = Generation(net, tmp_path, ways)
        await made.start()
        yield made
        await made.close()


@pytest.mark.parametrize("cut", [[FIRST], [SECOND], [DRIVER], PROVIDERS], ids=["stage.0", "stage.1", "driver", "all"])
async def test_ways_that_are_cut_for_two_seconds_cost_no_takeover(generation, cut):
    """To one node only the others' way is cut: it may dial them sooner than that."""
    await generation.come_to(50)
    for keys in cut:
        await generation.ways[keys.public].cut()
    await asyncio.sleep(2)
    assert len(generation.tokens) < TURNS
    for keys in cut:
        generation.ways[keys.public].mend()
    await generation.end()
    assert not generation.takeovers
    assert generation.stall_s < handover.RETURN_S + 1
    if len(cut) > 1:
        assert generation.stall_s > 1.5


async def test_a_node_to_which_no_way_leads_any_more_costs_the_job_three_seconds(generation):
    await generation.come_to(50)
    await generation.ways[FIRST.public].cut()
    await generation.nodes[FIRST.public].close()
    await generation.end()
    assert len(generation.takeovers) == 1
    assert handover.RETURN_S - 0.5 < generation.stall_s < handover.RETURN_S + 2


@pytest.mark.parametrize("how", ["dead", "started anew", "gave up"])
async def test_one_that_is_there_no_more_or_not_in_the_job_is_replaced_at_once(generation, how):
    """The same address may lead to another process of the same node, which knows nothing of the job."""
    await generation.come_to(50)
    first = generation.nodes[FIRST.public]
    if how == "gave up":
        generation.members[FIRST.public].mailbox.give_up()
        for link in list(first.peers.values()):
            link.abort(LinkLost("link", "cut"))
    else:
        if how == "started anew":
            await generation.add(FIRST)
            generation.ways[FIRST.public].target = generation.net.addresses[FIRST.public]
        for link in list(first.peers.values()):
            link.abort(LinkLost("killed", ""))
        await first.close()
    await generation.end()
    assert len(generation.takeovers) == 1
    assert generation.stall_s < 1


async def test_a_node_that_comes_and_goes_is_replaced_in_the_end(generation, monkeypatch):
    monkeypatch.setattr(handover, "MAX_RETURNS", 3)
    driver = generation.nodes[DRIVER.public]
    for times in range(4):
        await generation.come_to(50 * (times + 1))
        assert not generation.takeovers
        driver.peers[FIRST.public].abort(LinkLost("link", "cut"))
    await generation.end()
    assert len(generation.takeovers) == 1


async def test_losses_of_one_node_that_come_together_are_one(generation):
    await generation.come_to(50)
    lost = generation.members[DRIVER.public]._losses
    await generation.nodes[FIRST.public].close()
    for _ in range(3):
        lost.put_nowait((FIRST.public, LinkLost(FIRST.public, "again")))
    await generation.end()
    assert len(generation.takeovers) == 1


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
