"""A job's providers as nodes of this machine, on real links; relays and money are left out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kinds.k8843 import KIND
from nodewire.errors import NodewireError
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import Assignment, Plan, Terms, Verification
from nodewire.protocol.job.request import Request
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.inference.job import JobPorts, JobRun
from nodewire.provider.inference.job_context import JobContext
from nodewire.provider.inference.statements import Statements
from nodewire.provider.tasks.job_worker import JobWorker
from nodewire.wire import Node
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job.channel_spec import JobChannelSpec
from nodewire.wire.job.generation_tape import GenerationTape
from nodewire.wire.job.routes import routes_of
from nodewire.wire.job_member import Membership
from tests.kinds.inprocess import Direct
from tests.kinds.llama import load
from tests.llm.guess_driver import make_guessing
from tests.provider.inference.test_provider_job import CUSTOMER, HASH, PROMPT, REQUEST, Loaded
from tests.provider.inference.test_speculative_job import Knowing, right_by

CHUNK = 16


@dataclass
class Place:
    """A provider: its node, and its part of the job."""

    keys: Keys
    node: Node
    spool: Spool
    run: JobRun | None = None
    tasks: list = field(default_factory=list)
    failed: list = field(default_factory=list)


class Ring:
    """Every task has a provider."""

    worker = None
    """A worker that has all tasks loaded; without one every provider computes where it stands."""

    def __init__(self, folder, path, truth, *, policy, lookahead=1, width=1, at=None, chunk=CHUNK):
        """`at`: by task the number of its provider, where several are at one node."""
        self.registration = split_decoder(folder, 1_060_000, path / "split", slots=1, name="tiny")
        self.manifest = self.registration.manifest.model_copy(update={"chunk": chunk})
        self.path, self.policy, self.lookahead, self.make_guess = path, policy, lookahead, make_guessing
        self.guess = {"guess": right_by(0.8, truth), "depth": 6, "width": width}
        self.keys = [Keys(bytes([i + 1]) * 32) for i in range(len(self.manifest.tasks))]
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
                Assignment(task=t.name, provider=self.keys[(at or {}).get(t.name, n)].public, price_msat=0)
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
        self.open_chunk = 0

    async def __aenter__(self):
        self.customer = Node(CUSTOMER, survey_s=3_600)
        for keys in self.keys:
            node = Node(keys, survey_s=3_600)
            self.addresses[keys.public] = [await node.listen("127.0.0.1")]
            self.places[keys.public] = Place(keys, node, Spool(self.path / keys.public[:8], 10**8))
        self.member = Membership(
            JobChannelSpec(REQUEST, routes_of(self.manifest, self.plan), tape=Spool(self.path / "customer", 10**8)),
            self.manifest,
            self.customer,
            self.addresses,
        )
        self.beside = [asyncio.create_task(work) for work in (self.follow(), self.member.follow_losses())]
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

    async def published(self, event):
        pass

    async def follow(self):
        async for _, document in self.member.mailbox.controls():
            close = Close.from_control(document)
            if close is not None:
                self.open_chunk = max(self.open_chunk, close.chunk + 1)

    async def enter(self, place):
        statements = None
        if self.policy == "sampled":
            statements = Statements(place.keys, self.request, self.manifest, place.spool)
        tape = GenerationTape(statements or place.spool, REQUEST, self.manifest, self.lookahead)
        member = Membership(
            JobChannelSpec(REQUEST, routes_of(self.manifest, self.plan), grace_s=8.0, tape=tape),
            self.manifest,
            place.node,
            self.addresses,
        )
        worker = self.worker
        if worker is None:
            actors = load(self.registration)
            self.make_guess(self.manifest, actors, **self.guess)
            worker = Slow(Loaded(self.manifest, actors))

        async def commit(roots):
            self.committed += [(place.keys.public, root) for root in roots]

        place.run = run = JobRun(
            JobContext(place.keys, self.request, self.manifest, KIND.check(self.manifest, {"max_tokens": 150})),
            kind=KIND,
            mailbox=member.mailbox,
            worker=JobWorker(worker, self.manifest, {}),
            ledger=Ledger(":memory:"),
            ports=JobPorts(self.published, self.published, commit),
            statements=statements,
            tape=tape,
        )
        peers = {route.consumer for route in member.routes.values() if route.producer == place.keys.public}
        if run.drives:
            peers |= set(run._context.others)
        work = [member.link(peer) for peer in peers - {place.keys.public, CUSTOMER.public}]
        place.tasks = [asyncio.create_task(one) for one in (*work, run.listen(), member.follow_losses())]
        place.tasks.append(asyncio.create_task(self.serve(place, member)))

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

    async def ask(self):
        text = PROMPT.encode()
        await self.member.mailbox.put(Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0}))

    async def tokens(self, *strike, at=0):
        """All tokens; the providers of the tasks `strike` are killed when `at` of them have come."""
        await self.ask()
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


def make_trees(manifest, actors, guess, *, depth, width):
    """Have the model's own driver guess; how deep and wide is its own affair."""
    driver = actors[manifest.driver.name]
    driver.program = driver.program.model_copy(update={"chunk": manifest.chunk})
    driver._make_drafters = lambda sampler: [Knowing(guess)]
