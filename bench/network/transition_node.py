"""A provider of `bench.network.transition`: the daemon's own parts around a worker, told what to do on standard input.

python -m bench.network.transition_node provider     a node with a worker: what it holds, who the others are, then jobs
python -m bench.network.transition_node assigner     v0's committee: assigns task by task, by events at a relay
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from bench.network.transition_jobs import given
from kinds.k8843 import KIND
from nodewire.errors import NodewireError
from nodewire.kind import Limits, Params, Turn
from nodewire.nostr.event import Event, sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts.ledger import Ledger
from nodewire.plan.path import remaining_us
from nodewire.protocol.job.plan import Assignment, Plan, Terms, Verification
from nodewire.protocol.job.request import Request
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.tensors.inbox import Inbox
from nodewire.provider.inference.job import JobPorts, JobRun
from nodewire.provider.inference.job_context import JobContext
from nodewire.provider.tasks.job_worker import JobWorker
from nodewire.provider.tasks.loader import loaded_name
from nodewire.wire import JobChannelSpec, Node, Route
from nodewire.wire.job.generation_tape import GenerationTape
from nodewire.worker.persistent_worker import maker

COMPLETED, ASSIGNED = 28_843, 28_844
"""Ephemeral: the relay passes them on and stores nothing, which is less than v0 asked of its chain."""
MEMORY_BYTES = 100_000_000
LOOPBACK, PORT = "127.0.0.1", 4_000
_HASH = "ab" * 32


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def plan_of(manifest: Manifest, holders: Mapping[str, str], customer: str) -> Plan:
    """Everything free: what is measured is how work goes on, not how it is paid."""
    return Plan(
        manifest=manifest.digest(),
        committee=_HASH,
        epoch=1,
        snapshot=_HASH,
        certificate=_HASH,
        beacon=_HASH,
        customer=customer,
        k=0,
        terms=Terms(max_chunk_msat=0, max_total_msat=0),
        tasks=tuple(Assignment(task=t.name, provider=holders[t.name], price_msat=0) for t in manifest.tasks),
        chunk_msat=0,
        first_result_ms=60_000,
        next_result_ms=60_000,
        verification=Verification(policy="none", rate_ppm=0, share_ppm=0),
    )


def routes_of(manifest: Manifest, holders: Mapping[str, str], customer: str) -> dict[str, Route]:
    at = {**holders, CUSTOMER: customer}
    return {edge.name: Route(at[edge.source], at[edge.target]) for edge in manifest.edges}


class Assigned:
    """What a node has heard of v0's assignments, and how it says that a task is done."""

    def __init__(self, keys: Keys, pool: Pool, committee: str) -> None:
        self._keys, self._pool, self._committee = keys, pool, committee
        self._known: dict[tuple[str, str, int], asyncio.Event] = defaultdict(asyncio.Event)
        self._said: set[tuple[str, str, int]] = set()
        self._sending: set[asyncio.Task[Any]] = set()

    async def follow(self) -> None:
        wanted = Filter(kinds=frozenset({ASSIGNED}), tags={"p": frozenset({self._keys.public})})
        async for event in self._pool.subscribe([wanted]):
            job, task, seq = json.loads(event.content)
            self._known[job, task, seq].set()

    def completed(self, job: str, task: str, seq: int) -> None:
        if (job, task, seq) not in self._said:
            self._said.add((job, task, seq))
            published = asyncio.create_task(
                self._pool.publish(event_of(self._keys, COMPLETED, [self._committee], (job, task, seq)))
            )
            self._sending.add(published)
            published.add_done_callback(self._sending.discard)

    async def is_assigned(self, job: str, task: str, seq: int) -> None:
        await self._known[job, task, seq].wait()


class TaskByTask:
    """A mailbox as v0 had it: a result goes on when its next task is assigned, which begins when it knows that."""

    def __init__(self, mailbox: Any, job: str, manifest: Manifest, assigned: Assigned) -> None:
        self._mailbox, self._job, self._assigned = mailbox, job, assigned
        self._edges = {edge.name: edge for edge in manifest.edges}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mailbox, name)

    async def put(self, frame: Frame[Array]) -> None:
        edge = self._edges[frame.edge]
        if edge.target != CUSTOMER:
            self._assigned.completed(self._job, edge.source, frame.seq)
            await self._assigned.is_assigned(self._job, edge.target, frame.seq)
        await self._mailbox.put(frame)

    async def get(self) -> Frame[Array]:
        frame: Frame[Array] = await self._mailbox.get()
        target = self._edges[frame.edge].target
        if target != CUSTOMER:
            await self._assigned.is_assigned(self._job, target, frame.seq)
        return frame

    def deliver_to(self, inbox: Inbox) -> None:
        self._delivering = asyncio.create_task(self._deliver(inbox))

    async def _deliver(self, inbox: Inbox) -> None:
        try:
            while inbox.put(await self.get()):
                pass
        except NodewireError as error:
            inbox.fail(error)


def event_of(keys: Keys, kind: int, to: list[str], what: tuple[str, str, int]) -> Event:
    tags = [["p", public] for public in to]
    return sign(keys, kind=kind, tags=tags, content=json.dumps(what), created_at=int(time.time()))


class Member:
    """What provider and customer both are: a node, what it knows of the others, and its end of v0's relay."""

    def __init__(self, manifests: Mapping[str, Manifest], node: Node, keys: Keys) -> None:
        self.manifests, self.node, self.keys = manifests, node, keys
        self.holders: dict[str, dict[str, str]] = {}
        self.customer = ""
        self._assigned: Assigned

    @classmethod
    async def of(cls, stack: AsyncExitStack, folders: Mapping[str, str], host: str) -> Member:
        """Listening, and saying where."""
        keys = Keys.generate()
        manifests = {s: Manifest.parse((Path(f) / "manifest.json").read_bytes()) for s, f in folders.items()}
        node = Node(keys)
        stack.push_async_callback(node.close)
        say([keys.public, await node.listen(host, PORT if host != LOOPBACK else 0)])
        return cls(manifests, node, keys)

    async def meet(self, stack: AsyncExitStack, said: Mapping[str, Any]) -> None:
        self.holders, self.customer = said["holders"], said["customer"]
        pool = await stack.enter_async_context(Pool([said["relay"]], self.keys))
        self._assigned = Assigned(self.keys, pool, said["committee"])
        following = asyncio.create_task(self._assigned.follow())
        stack.callback(following.cancel)
        for public, address in said["addresses"].items():
            if public > self.keys.public:  # one dials, and both have the link
                await self.node.link(public, [address])
        say("linked")

    def mailbox(self, job: Mapping[str, Any]) -> Any:
        manifest = self.manifests[job["shape"]]
        made = self.node.open_job(
            JobChannelSpec(job["job"], routes_of(manifest, self.holders[job["shape"]], self.customer))
        )
        return TaskByTask(made, job["job"], manifest, self._assigned) if job["arm"] == "relay" else made


async def provide() -> None:
    heard = await lines()
    async with AsyncExitStack() as stack:
        said = json.loads(await heard.readline())
        folders, tasks = said["folders"], said["tasks"]
        worker = maker(stack, Limits(MEMORY_BYTES), Path(said["readable"]))(KIND.worker_entry)
        for shape, folder in folders.items():
            digest = Manifest.parse((Path(folder) / "manifest.json").read_bytes()).digest()
            for task in tasks[shape]:
                program, weights = (Path(folder) / f"{task}.{what}" for what in ("program", "weights"))
                await worker.load(loaded_name(digest, task), "graph", program, [weights])
        me = await Member.of(stack, folders, said["host"])
        await me.meet(stack, json.loads(await heard.readline()))
        while line := await heard.readline():
            job = json.loads(line)
            manifest = me.manifests[job["shape"]]
            plan = plan_of(manifest, me.holders[job["shape"]], me.customer)
            request = Request(job["job"], me.customer, 1, 8843, plan, "", _HASH, (), 0, (), _HASH)
            mine = JobWorker(worker, manifest, _turns(manifest, job["arm"]))
            await served(me.keys, request, manifest, me.mailbox(job), mine, {})


async def buy() -> None:
    """Calls one after the other; says how many seconds each took, from its first frame to its last result."""
    heard = await lines()
    async with AsyncExitStack() as stack:
        said = json.loads(await heard.readline())
        me = await Member.of(stack, said["folders"], said["host"])
        await me.meet(stack, json.loads(await heard.readline()))
        while line := await heard.readline():
            job = json.loads(line)
            manifest, mailbox = me.manifests[job["shape"]], me.mailbox(job)
            say("open")
            await heard.readline()
            x = given(*job["size"])
            ways = [edge.name for edge in manifest.edges if edge.source == CUSTOMER]
            results = sum(edge.target == CUSTOMER for edge in manifest.edges)
            took_s = []
            for seq in range(job["calls"]):
                meta = {"chunk": seq, "end": seq == job["calls"] - 1}
                began_s = time.perf_counter()
                for edge in ways:
                    await mailbox.put(Frame(edge, seq, (x,), meta))
                for _ in range(results):
                    await mailbox.get()
                took_s.append(time.perf_counter() - began_s)
            say(took_s)
            await heard.readline()
            mailbox.close()
            say("done")


def _turns(manifest: Manifest, arm: str) -> dict[str, Turn]:
    remaining = remaining_us(manifest, {t.name: t.flops // 1_000 for t in manifest.tasks}, lambda edge: 0)
    return {
        t.name: Turn(
            "customer",
            0 if arm == "fifo" else remaining[t.name],
            frozenset(edge.name for edge in manifest.inputs(t.name)),
        )
        for t in manifest.tasks
    }


async def served(
    keys: Keys,
    request: Request,
    manifest: Manifest,
    mailbox: Any,
    worker: JobWorker,
    params: Params,
    tape: GenerationTape | None = None,
) -> None:
    """A job from its opening to its end, as a daemon runs it; says when it is open, and when it is done. `tape`: a
    generation's."""

    async def nothing(_: Any) -> None:
        return

    run = JobRun(
        JobContext(keys, request, manifest, params),
        kind=KIND,
        mailbox=mailbox,
        worker=worker,
        ledger=Ledger(":memory:"),
        ports=JobPorts(nothing, nothing, nothing),
        tape=tape,
    )
    listening = asyncio.create_task(run.listen())
    say("open")
    try:
        await run.run()
    finally:
        listening.cancel()
    say("done")


async def assign() -> None:
    """Who holds what is settled beforehand: choosing costs this committee nothing."""
    heard, keys = await lines(), Keys.generate()
    say(keys.public)
    said = json.loads(await heard.readline())
    async with Pool([said["relay"]], keys) as pool:
        wanted = Filter(kinds=frozenset({COMPLETED}), tags={"p": frozenset({keys.public})})
        done: dict[tuple[str, int], set[str]] = defaultdict(set)
        sending: set[asyncio.Task[Any]] = set()
        say("following")
        async for event in pool.subscribe([wanted]):
            job, task, seq = json.loads(event.content)
            of = said["shapes"][said["jobs"][job]]
            done[job, seq].add(task)
            for target, needed in of["sources"].items():
                if task in needed and done[job, seq].issuperset(needed):
                    to = sorted({of["holders"][one] for one in (target, *needed)})
                    published = asyncio.create_task(pool.publish(event_of(keys, ASSIGNED, to, (job, target, seq))))
                    sending.add(published)
                    published.add_done_callback(sending.discard)


if __name__ == "__main__":
    uvloop.run({"provider": provide, "customer": buy, "assigner": assign}[sys.argv[1]]())
