"""A provider dies while a driver guesses: on real links, its standby goes on, and the tokens are the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from kinds.k8843 import KIND
from nodewire.errors import LinkLost, NodewireError
from nodewire.llm.split import split_decoder
from nodewire.nostr.keys import Keys
from nodewire.pay.ledger import Ledger
from nodewire.protocol.chunk import chunk_of
from nodewire.protocol.close import Close
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.job import Request
from nodewire.protocol.plan import Assignment, Plan, Terms, Verification
from nodewire.protocol.takeover import Takeover
from nodewire.provider.job import JobRun
from nodewire.provider.statements import Statements
from nodewire.wire import Node
from nodewire.wire.membership import Membership
from nodewire.wire.record import Record
from nodewire.wire.spool import Spool
from tests.kinds.inprocess import Direct
from tests.kinds.llama import load
from tests.llm.guessing_driver import make_guessing
from tests.provider.test_guessing_job import Knowing, right_by, truth  # noqa: F401
from tests.provider.test_provider_job import CUSTOMER, HASH, PROMPT, REQUEST, folder  # noqa: F401

CHUNK = 16


@dataclass
class Place:
    """A provider, or one that stands by: its node, and its part of the job once it has one."""

    keys: Keys
    node: Node
    spool: Spool
    run: JobRun | None = None
    tasks: list = field(default_factory=list)
    failed: list = field(default_factory=list)


class Ring:
    """Every task has a provider and a standby, all on nodes of this machine; relays and money are left out."""

    def __init__(self, folder, path, truth, *, policy, lookahead=8, width=1, depth=6, chance=0.8, who=None):  # noqa: F811
        """`who`: by task the numbers of its provider and its standby, where they are not each a node of its own."""
        self.registration = split_decoder(folder, 1_060_000, path / "split", slots=1, name="tiny")
        self.manifest = self.registration.manifest.model_copy(update={"chunk": CHUNK})
        self.path, self.policy, self.lookahead, self.make_guess = path, policy, lookahead, make_guessing
        self.guess = {"guess": right_by(chance, truth), "depth": depth, "width": width}
        count = len(self.manifest.tasks)
        self.keys = [Keys(bytes([i + 1]) * 32) for i in range(2 * count)]
        self.plan = Plan(
            manifest=self.manifest.digest(),
            committee=HASH,
            epoch=1,
            snapshot=HASH,
            certificate=HASH,
            beacon=HASH,
            customer=CUSTOMER.public,
            k=0,
            terms=Terms(max_chunk_msat=10**6, max_total_msat=10**9, lookahead=lookahead),
            tasks=tuple(
                Assignment(
                    task=t.name,
                    provider=self.keys[(who or {}).get(t.name, (n, n + count))[0]].public,
                    standby=self.keys[(who or {}).get(t.name, (n, n + count))[1]].public,
                    price_msat=0,
                )
                for n, t in enumerate(self.manifest.tasks)
            ),
            chunk_msat=0,
            first_result_ms=20_000,
            next_result_ms=5_000,
            verification=Verification(policy=policy, rate_ppm=0, share_ppm=0),
        )
        self.request = Request(REQUEST, CUSTOMER.public, 1, 8843, self.plan, "", HASH, (), 10**9, (), HASH)
        self.places: dict[str, Place] = {}
        self.addresses: dict[str, list[str]] = {}
        self.committed: list = []
        self.takeovers: list[Takeover] = []
        self.open_chunk = 0

    async def __aenter__(self):
        self.customer = Node(CUSTOMER)
        for keys in self.keys:
            node = Node(keys, on_control=lambda peer, document, keys=keys: self.called(keys, document))
            self.addresses[keys.public] = [await node.listen("127.0.0.1")]
            self.places[keys.public] = Place(keys, node, Spool(self.path / keys.public[:8], 10**8))
        self.member = Membership(
            CUSTOMER,
            REQUEST,
            self.plan,
            self.manifest,
            self.customer,
            self.addresses,
            grace_s=10.0,
            tape=Spool(self.path / "customer", 10**8),
        )
        self.handover = self.member.handover(
            open_chunk=lambda: self.open_chunk, changed=self.changed, publish=self.published
        )
        self.beside = [asyncio.create_task(work) for work in (self.follow(), self.member.follow_losses(self.handover))]
        for provider in self.plan.providers():
            await self.enter(self.places[provider])
        for peer in self.member.mailbox.neighbours:
            self.beside.append(asyncio.create_task(self.member.link(peer)))
        return self

    async def __aexit__(self, *_):
        for place in self.places.values():
            await self.kill(place)
        self.member.close()
        for task in self.beside:
            task.cancel()
        await asyncio.gather(*self.beside, return_exceptions=True)
        self.member.mailbox.close()
        await self.customer.close()

    async def changed(self, takeover):
        self.takeovers.append(takeover)

    async def published(self, event):
        pass

    async def follow(self):
        async for peer, document in self.member.mailbox.controls():
            close = Close.from_control(document)
            if close is not None:
                self.open_chunk = max(self.open_chunk, close.chunk + 1)
            else:
                with suppress(NodewireError):
                    await self.handover.heard(peer, document)

    def called(self, keys, document):
        call = Takeover.from_control(document)
        place = self.places[keys.public]
        if call is not None and place.run is None:
            self.beside.append(asyncio.create_task(self.enter(place, call)))

    async def enter(self, place, takeover=None):
        statements = None
        if self.policy == "sampled":
            statements = Statements(place.keys, self.request, self.manifest, place.spool, takeover, self.again)
        record = Record(statements or place.spool, REQUEST, self.manifest, self.lookahead)
        member = Membership(
            place.keys,
            REQUEST,
            self.plan,
            self.manifest,
            place.node,
            self.addresses,
            grace_s=8.0,
            tape=record,
            takeover=takeover,
        )
        actors = load(self.registration)
        self.make_guess(self.manifest, actors, **self.guess)

        async def commit(roots):
            self.committed += [(place.keys.public, root) for root in roots]

        place.run = run = JobRun(
            keys=place.keys,
            request=self.request,
            manifest=self.manifest,
            params=KIND.check(self.manifest, {"max_tokens": 150}),
            kind=KIND,
            mailbox=member.mailbox,
            worker=Slow(actors),
            ledger=Ledger(":memory:"),
            publish=self.published,
            commit=commit,
            takeover=takeover,
            statements=statements,
            record=record,
        )
        handover = member.handover(open_chunk=run.open_chunk, changed=run.took_over, publish=self.published)
        run.handover = handover
        mine = [r for r in member.routes.values() if r.producer == place.keys.public]
        peers = {c for r in mine for c in (*r.consumers, *r.aside)}
        if run.drives:
            peers |= set(handover.others())
        work = [member.link(peer) for peer in peers - {place.keys.public, CUSTOMER.public}]
        place.tasks = [asyncio.create_task(one) for one in (*work, run.listen(), member.follow_losses(handover))]
        place.tasks.append(asyncio.create_task(self.serve(place, member)))

    async def again(self, signer, edge, chunk, most):
        """What a standby shows: it computed the same rows, but not always as many at once."""
        assert self.places[signer].run.feeds(edge.name) is not None
        for _, frame in self.places[signer].spool.read(REQUEST, edge.name):
            if chunk_of(self.manifest, frame.seq) == chunk:
                yield frame

    async def serve(self, place, member):
        try:
            await place.run.run()
        except NodewireError as error:
            place.failed.append(error)
        finally:
            member.close()

    async def kill(self, place):
        for task in place.tasks:
            task.cancel()
        await place.node.close()
        await asyncio.gather(*place.tasks, return_exceptions=True)
        place.spool.close()

    async def tokens(self, *strike, at=0):
        """All tokens; the providers of the tasks `strike` are killed when `at` of them have come."""
        text = PROMPT.encode()
        await self.member.mailbox.put(Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0}))
        ids = []
        try:
            async with asyncio.timeout(60):
                while True:
                    frame = await self.member.mailbox.get()
                    assert frame.seq == len(ids)
                    ids.append(int.from_bytes(frame.tensors[0].data, "little"))
                    if frame.meta["end"]:
                        return ids
                    if len(ids) == at:
                        places = [self.places[self.plan.assignment(task).provider] for task in strike]
                        await asyncio.gather(*map(self.kill, places))
        except (NodewireError, TimeoutError) as error:
            error.add_note(
                f"after {len(ids)} tokens; {[(k[:8], p.failed) for k, p in self.places.items() if p.failed]}"
            )
            raise


class Slow(Direct):
    """As if there were a way between two nodes: else nothing would be in flight when one dies."""

    async def receive(self, task, session, frame):
        await asyncio.sleep(0.001)
        return await super().receive(task, session, frame)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("at", [1, 33, 70])
@pytest.mark.parametrize("task", ["stage.0", "stage.1", "stage.2", "driver"])
async def test_who_enters_goes_on_with_the_same_tokens_and_all_chunks_are_committed_to(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    task,
    at,
    width,
):
    async with Ring(folder, tmp_path, truth, policy="sampled" if at == 33 else "none", width=width) as ring:
        assert await ring.tokens(task, at=at) == truth.ids
        assert [[one[0] for one in said.replaced] for said in ring.takeovers] == [[task]]
        victim = ring.plan.assignment(task).provider
        left = [place for place in ring.places.values() if place.run is not None and place.keys.public != victim]
        async with asyncio.timeout(60):
            while any(not task.done() for place in left for task in place.tasks[-1:]):
                await asyncio.sleep(0.02)
        assert [place.failed for place in left] == [[]] * len(left)
    first = ring.takeovers[0].replaced[0][3]
    chunks = set(range(1 + -(-(len(truth.ids) - 1) // CHUNK)))
    for assignment in ring.plan.tasks:
        made = {
            root.chunk for who, root in ring.committed if (who, root.task) == (assignment.provider, assignment.task)
        }
        if assignment.task != task:
            assert made == chunks
        else:
            entered = {root.chunk for who, root in ring.committed if who == assignment.standby}
            assert entered == {chunk for chunk in chunks if chunk >= first}


@pytest.mark.parametrize("policy", ["none", "sampled"])
@pytest.mark.parametrize("at", [33, 70])
@pytest.mark.parametrize("stage", ["stage.0", "stage.1", "stage.2"])
async def test_a_driver_and_a_stage_that_die_together_are_replaced_together(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    stage,
    at,
    policy,
):
    async with Ring(folder, tmp_path, truth, policy=policy, width=2) as ring:
        assert await ring.tokens("driver", stage, at=at) == truth.ids
        assert {one[0] for one in ring.takeovers[-1].replaced} == {"driver", stage}
        gone = {ring.plan.assignment(task).provider for task in ("driver", stage)}
        left = [place for place in ring.places.values() if place.run is not None and place.keys.public not in gone]
        async with asyncio.timeout(60):
            while any(not task.done() for place in left for task in place.tasks[-1:]):
                await asyncio.sleep(0.02)
        assert [place.failed for place in left] == [[]] * len(left)
    chunks = set(range(1 + -(-(len(truth.ids) - 1) // CHUNK)))
    since = {task: first for task, _, _, first in ring.takeovers[-1].replaced}
    for assignment in ring.plan.tasks:
        who, task = (assignment.standby if assignment.task in since else assignment.provider), assignment.task
        made = {root.chunk for by, root in ring.committed if (by, root.task) == (who, task)}
        assert made == {chunk for chunk in chunks if chunk >= since.get(task, 0)}


def make_trees(manifest, actors, guess, *, depth, width):
    """Have the model's own driver guess; how deep and wide is its own affair."""
    driver = actors[manifest.driver.name]
    driver.program = driver.program.model_copy(update={"chunk": manifest.chunk})
    driver._make_drafters = lambda sampler: [Knowing(guess)]


@pytest.mark.parametrize("chance", [0.0, 0.7])
@pytest.mark.parametrize("at", [1, 17, 33, 40, 65])
@pytest.mark.parametrize("task", ["driver", "stage.1"])
async def test_a_tree_is_handed_over_whoever_dies(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    task,
    at,
    chance,
):
    ring = Ring(folder, tmp_path / "trees", truth, policy="none", chance=chance)
    ring.make_guess = make_trees
    async with ring:
        assert await ring.tokens(task, at=at) == truth.ids
        assert [error for place in ring.places.values() for error in place.failed] == []
        assert [[one[0] for one in said.replaced] for said in ring.takeovers] == [[task]]


@pytest.mark.parametrize("second", ["stage.0", "stage.1", "stage.2"])
@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.2])
async def test_a_death_amid_what_another_had_sent_again_changes_no_token(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    after_s,
    second,
):
    """What cannot be sent again ends the job, and nobody is to blame."""
    ring = Ring(folder, tmp_path / "ring", truth, policy="none", chance=0.7)
    ring.make_guess = make_trees

    async def strike():
        while not ring.takeovers:
            await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        await ring.kill(ring.places[ring.plan.assignment(second).provider])

    async with ring:
        if second == "stage.1":  # who has entered for it cannot be replaced; its own death is that of all
            first, expected = "stage.0", {"stage.0", "stage.1"}
        else:
            first, expected = "stage.1", {"stage.1", second}
        ring.beside.append(asyncio.create_task(strike()))
        with suppress(LinkLost):
            assert await ring.tokens(first, at=33) == truth.ids
        assert {one[0] for said in ring.takeovers for one in said.replaced} <= expected
        failed = [error for place in ring.places.values() for error in place.failed]
        assert all(isinstance(error, LinkLost) for error in failed)


HELD = {
    "the driver with the last stage": ({"driver": (0, 4), "stage.2": (0, 4)}, {"driver", "stage.2"}),
    "the driver with the first stage": ({"driver": (0, 4), "stage.0": (0, 4)}, {"driver", "stage.0"}),
    "the driver with both": (dict.fromkeys(("driver", "stage.0", "stage.2"), (0, 4)), {"driver", "stage.0", "stage.2"}),
    "the driver with the first stage, for which the second enters": (
        {"driver": (0, 4), "stage.0": (0, 2)},
        {"driver", "stage.0"},
    ),
    "the driver with the last stage, for which the second enters": (
        {"driver": (0, 4), "stage.2": (0, 2)},
        {"driver", "stage.2"},
    ),
    "the driver with the first stage, for which the last enters": (
        {"driver": (0, 4), "stage.0": (0, 3)},
        {"driver", "stage.0"},
    ),
    "the driver with the first stage, for both of which the second enters": (
        {"driver": (0, 2), "stage.0": (0, 2)},
        {"driver", "stage.0"},
    ),
    "the driver, for whom the second stage enters": ({"driver": (0, 2)}, {"driver"}),
    "the driver, for whom the last stage enters": ({"driver": (0, 3)}, {"driver"}),
    "the driver, for whom the first stage enters": ({"driver": (0, 1)}, {"driver"}),
    "the last stage, for whom the driver enters": ({"stage.2": (3, 0)}, {"stage.2"}),
    "the first stage, for whom the driver enters": ({"stage.0": (1, 0)}, {"stage.0"}),
}


@pytest.mark.parametrize("make", [make_guessing, make_trees])
@pytest.mark.parametrize("at", [1, 33, 70])
@pytest.mark.parametrize("held", HELD)
async def test_both_ends_of_an_edge_may_come_to_one_node(folder, tmp_path, truth, held, at, make):  # noqa: F811
    """Who drives in place of another counts what came before it otherwise than who made it."""
    who, tasks = HELD[held]
    if make is make_trees and {"driver", "stage.0"} <= tasks:
        pytest.skip("what a driver kept of a tree is gone with whom alone it told: the job begins anew")
    ring = Ring(folder, tmp_path / "ring", truth, policy="none", who=who, width=2)
    ring.make_guess = make
    async with ring:
        try:
            assert await ring.tokens(min(tasks), at=at) == truth.ids
        except LinkLost as error:
            if make is make_guessing or "kept of a tree" not in error.reason:
                raise
            return  # the token was on its way before the keep, and both links ended
        assert [error for place in ring.places.values() for error in place.failed] == []
        assert [{one[0] for one in said.replaced} for said in ring.takeovers] == [tasks]


async def test_nobody_dies_and_nobody_enters(folder, tmp_path, truth):  # noqa: F811
    async with Ring(folder, tmp_path, truth, policy="none", width=2) as ring:
        assert await ring.tokens() == truth.ids
        assert ring.takeovers == []
