"""A whole generation over desks, credit, closes and commitments, with queues for wires."""

import asyncio
import errno
import sqlite3
import time
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from kinds.k8843 import KIND
from nodewire.errors import (
    BadFrame,
    BadSignature,
    LinkLost,
    NodeFailed,
    NodewireError,
    NotAllowed,
    OverBudget,
    PaymentRequired,
    RelayRefused,
    TimedOut,
    WorkerFailed,
)
from nodewire.kind import Job
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import MAX_BROKEN, Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback, result
from nodewire.protocol.job.chunk import claim
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import Assignment, Plan, Terms, Verification, ends
from nodewire.protocol.job.request import Request
from nodewire.protocol.market.cached_price import WHOLE_PPM
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.evidence.committer import Committer
from nodewire.provider.evidence.store import KeptWork
from nodewire.provider.inference.job import JobPorts, JobRun
from nodewire.provider.inference.job_context import JobContext
from nodewire.provider.inference.statements import Statements
from nodewire.provider.tasks.job_worker import JobWorker
from nodewire.provider.tasks.loader import loaded_name
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job.generation_tape import GenerationTape
from tests.kinds.inprocess import Box, Direct, Hub
from tests.kinds.llama import load, make_llama

CUSTOMER = Keys(b"\x09" * 32)
HASH = "ab" * 32
REQUEST = "cd" * 32
PROMPT = "the cat sat on the m"


@dataclass
class Market:
    manifest: object
    hub: Hub
    plan: Plan
    actors: dict
    runs: dict = field(default_factory=dict)
    events: list = field(default_factory=list)
    committed: list = field(default_factory=list)
    box: object = None
    registration: object = None

    def due(self, run):
        return [f for f in map(self.parsed, self.events) if f and f.provider == run._context.keys.public and f.due]

    @staticmethod
    def parsed(event):
        return feedback.parse(event) if event.kind == kinds.FEEDBACK else None

    async def pay_everything(self):
        """Be the wallet: whatever is asked for is paid."""
        paid = set()
        while True:
            for run in self.runs.values():
                for said in self.due(run):
                    if (run, said.due.chunk) not in paid:
                        paid.add((run, said.due.chunk))
                        await run.credit.paid(said.due.chunk)
            await asyncio.sleep(0.005)


class Recorded(Box):
    """A box that keeps what it puts, as the wire's mailbox does; what comes its kind has kept."""

    def __init__(self, hub, public, tape):
        super().__init__(hub, public)
        hub.queues.setdefault(public, asyncio.Queue())
        self.tape = tape

    async def put(self, frame):
        self.tape.write(REQUEST, frame.edge, 0, frame)
        await super().put(frame)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=400, seed=5, eos_token_id=None)


@pytest.fixture
def market(folder, tmp_path):
    return make_market(folder, tmp_path)


class Loaded(dict):
    """Actors, which may change, by the names that tasks of a manifest have in a shared worker."""

    def __init__(self, manifest, actors):
        super().__init__({loaded_name(manifest.digest(), task): task for task in actors})
        self._actors = actors

    def __getitem__(self, name):
        return self._actors[super().__getitem__(name)]


@dataclass(frozen=True)
class Prefixes:
    """Whose beginnings of prompts the nodes keep, in actors of an earlier job, and what they cost who comes again."""

    actors: dict | None = None
    whose: str = ""
    cached_ppm: int = WHOLE_PPM


NOBODYS = Prefixes()


def make_market(
    folder,
    tmp_path,
    policy="none",
    driver="provider",
    lookahead=1,
    chunk=64,
    params=None,
    prefixes=NOBODYS,
):
    """A job's nodes; its driver is a "provider", "local", or "lent" both ends.

    With the policy "sampled" they keep frames and sign what they send, each in a spool of its own.
    """
    options = DecoderOptions(lend=driver == "lent")
    registration = split_decoder(folder, 1_100_000, tmp_path, slots=1, name="tiny", options=options)
    manifest, actors = registration.manifest.model_copy(update={"chunk": chunk}), prefixes.actors or load(registration)
    providers = [Keys(bytes([i + 1]) * 32) for i in range(len(manifest.tasks))]
    plan = Plan(
        manifest=manifest.digest(),
        committee=HASH,
        epoch=1,
        snapshot=HASH,
        certificate=HASH,
        beacon=HASH,
        customer=CUSTOMER.public,
        k=0,
        terms=Terms(max_chunk_msat=10**6, max_total_msat=10**9, lookahead=lookahead),
        tasks=tuple(
            Assignment(task=t.name, provider=k.public, price_msat=100)
            if driver != "local" or t != manifest.driver
            else Assignment(task=t.name, provider="local", price_msat=0)
            for t, k in zip(manifest.tasks, providers, strict=True)
        ),
        chunk_msat=100 * (len(providers) - (driver == "local")),
        first_result_ms=1000,
        next_result_ms=1000,
        verification=Verification(policy=policy, rate_ppm=0, share_ppm=0),
    )
    request = Request(REQUEST, CUSTOMER.public, 1, 8843, plan, "", HASH, (), 10**9, (), HASH)
    market = Market(manifest, Hub(ends(manifest, plan)), plan, actors, registration=registration)
    params = KIND.check(manifest, {"max_tokens": 150, **(params or {})})

    async def publish(event):
        market.events.append(event)

    async def commit(roots):
        market.committed += roots

    for keys in providers[driver == "local" :]:
        spool = Spool(tmp_path / keys.public[:8], 10**8)
        statements = Statements(keys, request, manifest, spool) if policy == "sampled" else None
        tape = GenerationTape(statements or spool, REQUEST, manifest, lookahead)
        mailbox = Recorded(market.hub, keys.public, tape)
        market.runs[keys.public] = JobRun(
            JobContext(keys, request, manifest, params, cached_ppm=prefixes.cached_ppm),
            kind=KIND,
            mailbox=mailbox,
            worker=JobWorker(Direct(Loaded(manifest, actors)), manifest, {}, whose=prefixes.whose),
            ledger=Ledger(":memory:"),
            ports=JobPorts(publish, publish, commit),
            statements=statements,
            tape=tape,
        )
    market.box = market.hub.box(CUSTOMER.public)

    async def on_control(sender, peer, document):
        if peer in market.runs:
            await market.runs[peer].on_control(sender, document)

    market.hub.on_control = on_control
    return market


def change(run, **said):
    """Change what all parts of a job know of it."""
    for name, value in said.items():
        object.__setattr__(run._context, name, value)


async def generate(market, prompt=PROMPT):
    """The customer's side: prompt in, ids out."""
    text = prompt.encode()
    await market.box.put(Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0}))
    ids = []
    while True:
        async with asyncio.timeout(60):  # wait_for of Python 3.11 loses a cancellation that comes with a frame
            frame = await market.box.get()
        ids.append(int.from_bytes(frame.tensors[0].data, "little"))
        if frame.meta["end"]:
            return ids


async def served(market, prompt=PROMPT):
    async with asyncio.TaskGroup() as group:
        for run in market.runs.values():
            group.create_task(run.run())
        paying = asyncio.create_task(market.pay_everything())
        ids = await generate(market, prompt)
    paying.cancel()
    return ids


async def test_a_prompt_that_a_stage_has_had_costs_what_the_ad_says_and_gives_the_same_roots(folder, tmp_path):
    """Of a page's length: in this process nobody cuts longer ones into pages."""
    whole = LocalDecoder(folder)
    prompt = "a" * (64 - len(whole.tokenizer.encode("")))
    actors, found = None, []
    jobs = (CUSTOMER.public, CUSTOMER.public, "somebody else", "")
    for number, whose in enumerate(jobs):
        prefixes = Prefixes(actors, whose, 300_000)
        market = make_market(folder, tmp_path, params={"max_tokens": 3, "positions": 80}, prefixes=prefixes)
        actors = market.actors
        found.append((await served(market, prompt), list(market.committed)))
        for task, run in zip(market.manifest.tasks, market.runs.values(), strict=True):
            said = {f.due.chunk: (f.due.cached, f.due.amount_msat) for f in market.due(run)}
            is_found = number == 1 and task.engine == "decoder.stage"
            assert said == {0: (1, 30) if is_found else (0, 100), 1: (0, 100)}
    assert len(whole.tokenizer.encode(prompt)) == 64
    assert found == [found[0]] * len(jobs)


async def test_the_tokens_are_those_of_the_whole_model(market, folder):
    whole = LocalDecoder(folder)
    expected = list(whole.tokens(whole.tokenizer.encode(PROMPT), Sampling(150)))
    assert await served(market) == expected


async def test_every_provider_asks_once_for_every_chunk_and_ends_with_success(market):
    await served(market)
    for run in market.runs.values():
        dues = [f.due for f in market.due(run)]
        # 20-odd prompt positions are one unit; 150 tokens are the prompt's own and 149 more: chunks of 64, 64 and 21
        assert [d.chunk for d in dues] == [0, 1, 2, 3]
        assert all(d.units == 1 and d.amount_msat == 100 for d in dues)
        statuses = [f.status for f in map(market.parsed, market.events) if f and f.provider == run._context.keys.public]
        assert statuses[0] == "processing"
        assert statuses[-1] == "success"


async def test_what_is_asked_for_is_what_is_committed_and_what_the_result_says(market):
    await served(market)
    for run in market.runs.values():
        said = next(result.parse(e) for e in market.events if e.kind == 6843 and e.pubkey == run._context.keys.public)
        mine = [r for r in market.committed if r.task in run.tasks]
        assert list(said.roots) == mine
        for f in market.due(run):
            assert f.due.root == claim([r for r in mine if r.chunk == f.due.chunk])


@pytest.mark.parametrize("policy", ["none", "sampled"])
async def test_no_claim_is_published_before_its_root_is_on_disk(folder, tmp_path, policy):
    """Another process, which would begin if this one died in that very moment, finds all roots that were claimed."""
    market = make_market(folder, tmp_path, policy)
    path = tmp_path / "kept.db"
    committing, claims = Committer(CUSTOMER, None, None, SimpleNamespace(committee=None), KeptWork(path)), []

    async def publish(event):
        market.events.append(event)
        said = market.parsed(event)
        if said is not None and said.due is not None:
            run = market.runs[said.provider]
            on_disk = [r for r in KeptWork(path).due(0, 10**6) if r.task in run.tasks and r.chunk == said.due.chunk]
            claims.append((claim(on_disk), said.due.root))

    for run in market.runs.values():
        run._telling.publish, run._settling._commit = publish, lambda roots: committing.commit(roots, 20)
    await served(market)
    assert len(claims) == 4 * len(market.runs)
    assert all(on_disk == claimed for on_disk, claimed in claims)


async def test_relays_that_take_no_claim_make_no_stage_deaf(market):
    stage, refused = list(market.runs.values())[1], []
    publish = stage._telling._publish

    async def moody(event):
        said = market.parsed(event)
        if said is not None and said.due is not None and not refused:
            refused.append(event)
            asyncio.get_running_loop().call_later(0.2, market.events.append, event)  # as it is told again
            raise RelayRefused("relay", "not now")
        await publish(event)

    stage._telling._publish = moody
    await served(market)
    assert refused
    assert sorted(f.due.chunk for f in market.due(stage)) == [0, 1, 2, 3]


async def test_a_job_whose_beginning_no_relay_takes_is_over_by_its_own_nodes_fault(market):
    stage, closed = list(market.runs.values())[1], []

    async def refuse(event):
        raise RelayRefused("relay", "not now")

    stage._telling._publish = refuse
    stage._mailbox.close = lambda: closed.append(True)
    row = np.full((1, 1, 32), 0.1, np.float32)
    prompt = Frame("hidden.0", 0, (Array("float32", row.shape, row.tobytes()),), {"pos": 0, "chunk": 0, "tokens": 1})
    market.hub.queues[stage._context.me].put_nowait(prompt)
    with pytest.raises(NodeFailed, match="relays"):
        await stage.run()
    assert closed
    assert isinstance(stage._mailbox.failure, NodeFailed), "its neighbours know, too"


@pytest.mark.parametrize("policy", ["none", "sampled"])
async def test_what_cannot_be_written_down_is_not_claimed(folder, tmp_path, policy):
    market = make_market(folder, tmp_path, policy)
    driver = next(r for r in market.runs.values() if r.drives)
    file = KeptWork(tmp_path / "kept.db")
    file._db.execute("PRAGMA query_only = ON")  # as on a disk that is full
    committing = Committer(CUSTOMER, None, None, SimpleNamespace(committee=None), file)
    driver._settling._commit = lambda roots: committing.commit(roots, 20)
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(served(market), 20)
    assert ended.group_contains(NodeFailed)
    assert market.due(driver) == []


@pytest.mark.parametrize("policy", ["none", "sampled"])
@pytest.mark.parametrize(
    "fault",
    [
        KeyError("a programming fault"),
        sqlite3.OperationalError("database or disk is full"),
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_providers_own_fault_beside_its_job_ends_the_job_as_its_own(folder, tmp_path, policy, fault):
    """The ledger fails, which is asked in a task beside the job. Nobody is asked for a payment because of it."""
    market = make_market(folder, tmp_path, policy)
    driver = next(r for r in market.runs.values() if r.drives)
    book, ended = driver._ledger, []

    class Broken:
        def owe(self, *_, **__):
            raise fault

        def interrupted(self, job):
            ended.append(job)
            raise fault

        def __getattr__(self, name):
            return getattr(book, name)

    driver._ledger = driver._settling._ledger = Broken()
    with pytest.raises(ExceptionGroup) as ended_by:
        await asyncio.wait_for(served(market), 60)
    assert ended_by.group_contains(NodeFailed)
    said = [f for f in map(market.parsed, market.events) if f and f.provider == driver._context.keys.public]
    assert [f.status for f in said if f.status == "payment-required"] == []
    assert (said[-1].status, said[-1].text) == ("error", "node-failed")
    assert ended == [REQUEST]  # not counted against the customer


async def test_the_third_chunk_waits_for_the_first_ones_payment(market):
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(run.run()) for run in market.runs.values()]
        customer = group.create_task(generate(market))
        driver = next(r for r in market.runs.values() if r.drives)
        while len(market.due(driver)) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert [f.due.chunk for f in market.due(driver)] == [0, 1]
        assert not customer.done()
        paying = group.create_task(market.pay_everything())
        await customer
        await asyncio.gather(*running)
        paying.cancel()


async def test_a_close_by_anyone_but_the_driver_of_another_job_or_attempt_is_refused(market):
    driver, other = list(market.runs.values())[:2]
    forged = Close.sign(CUSTOMER, request=REQUEST, attempt=0, chunk=0, units=1, end=True)
    with pytest.raises(BadSignature):
        await other.on_close(forged)
    for wrong in ({"request": HASH, "attempt": 0}, {"request": REQUEST, "attempt": 1}):
        with pytest.raises(BadFrame):
            await other.on_close(Close.sign(driver._context.keys, **wrong, chunk=0, units=1, end=True))


async def ended(run, market):
    """The feedback by which a run fails."""
    with pytest.raises(NodewireError):
        await asyncio.wait_for(run.run(), 20)
    return next(f for f in map(market.parsed, market.events) if f and f.status == "error")


async def test_a_neighbours_frame_that_cannot_be_computed_is_refused_by_its_edge(market):
    stage = list(market.runs.values())[1]
    rubbish = Array("float32", (1, 1, 32), np.full((1, 1, 32), np.nan, np.float32).tobytes())
    frame = Frame("hidden.0", 0, (rubbish,), {"pos": 0, "chunk": 0, "tokens": 1})
    market.hub.queues[stage._context.keys.public].put_nowait(frame)
    said = await ended(stage, market)
    assert (said.provider, said.text, said.edge, said.by) == (stage._context.keys.public, "bad-frame", "hidden.0", "")
    assert stage._mailbox.cancelled.field == "hidden.0"


async def test_who_ends_because_a_neighbour_did_says_whose_word_it_is(market):
    stage, other = list(market.runs.values())[1:3]

    async def get():
        error = BadFrame("hidden.0", "what another one got")
        error.by = other._context.keys.public
        raise error

    stage._mailbox.get = get
    said = await ended(stage, market)
    assert (said.text, said.edge, said.by) == ("bad-frame", "", other._context.keys.public)


async def test_a_customers_prompt_that_is_too_long_keeps_its_code(market):
    driver = next(run for run in market.runs.values() if run.drives)
    text = b"the cat " * 1_000
    frame = Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0})
    market.hub.queues[driver._context.keys.public].put_nowait(frame)
    said = await ended(driver, market)
    assert (said.text, said.edge, said.by) == ("too-large", "", "")


async def test_sessions_end_with_the_job(market):
    await served(market)
    for run in market.runs.values():
        assert not run._worker._worker.open_sessions
        assert run._mailbox.closed


class Behind(Direct):
    """A worker that closes nothing while it computes another customer's long call."""

    def __init__(self, actors):
        super().__init__(actors)
        self.free = asyncio.Event()

    async def close(self, task, session):
        await self.free.wait()
        await super().close(task, session)


async def test_sessions_end_with_the_job_though_the_worker_is_busy_as_it_ends(market):
    workers = []
    for run in market.runs.values():
        behind = Behind(Loaded(market.manifest, market.actors))
        run._worker = JobWorker(behind, market.manifest, {})
        workers.append((behind, run._worker))
    serving = asyncio.create_task(served(market))
    async with asyncio.timeout(60):
        while sum(said.status == "success" for said in filter(None, map(market.parsed, market.events))) < len(workers):
            await asyncio.sleep(0.005)
    for behind, _ in workers:
        behind.free.set()
    await asyncio.wait_for(serving, 20)
    for behind, one in workers:  # who was to close its session may have been stopped meanwhile
        await one.end()
        assert not behind.open_sessions


async def test_who_is_stopped_while_it_closes_sessions_leaves_none_open(market):
    behind = Behind(Loaded(market.manifest, market.actors))
    one, tasks = JobWorker(behind, market.manifest, {}), list(market.actors)
    for task in tasks:
        await one.open(task, REQUEST, {"max_tokens": 1})

    async def close():
        for task in tasks:
            await one.close(task, REQUEST)

    closing = asyncio.create_task(close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert len(behind.open_sessions) == len(tasks)
    behind.free.set()
    await one.end()
    assert not behind.open_sessions


async def test_a_kind_serves_only_its_own_parameters(market):
    from nodewire.errors import BadInput

    for params, field_ in [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 0.0005}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 2**31}, "top_k"),
        ({"min_p": float("nan")}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"logit_bias": {"05": 1.0}}, "logit_bias"),  # two names for one token: whose bias counts would be the order's
        ({"logit_bias": {"5": float("inf")}}, "logit_bias"),
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"stop": "x"}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"colour": 1}, "colour"),
    ]:
        with pytest.raises(BadInput) as caught:
            KIND.check(market.manifest, params)
        assert caught.value.field == field_


def test_a_job_names_its_tasks_in_order(market):
    run = next(iter(market.runs.values()))
    assert isinstance(run._job, Job)
    assert run.tasks == ("driver",)


async def test_a_job_whose_input_never_comes_gives_its_slot_back(market):
    run = next(r for r in market.runs.values() if r.drives)
    change(run, patience_s=0)
    with pytest.raises(TimedOut):
        await asyncio.wait_for(run.run(), 5)
    statuses = [(f.status, f.text) for f in map(market.parsed, market.events)]
    assert statuses == [("error", "timed-out")]
    assert not run._worker._worker.open_sessions


@pytest.mark.parametrize("is_withdrawn", [True, False])
async def test_a_job_that_ends_before_its_first_input_is_told_of_as_a_refusal(market, is_withdrawn):
    """It has cost its customer a request, and relays keep what is published: there is room for so much of that."""
    run, refused = next(r for r in market.runs.values() if r.drives), []

    async def refuse(event):
        refused.append(market.parsed(event))

    run._telling._refuse = refuse
    if is_withdrawn:  # who takes it back need not hear that it is over
        await run.on_control(CUSTOMER.public, {"t": "withdraw"})
    else:
        run._mailbox.cancel(LinkLost("hidden.0", "gone"))
    with pytest.raises(NodewireError):
        await asyncio.wait_for(run.run(), 60)
    assert [said.status for said in refused] == ([] if is_withdrawn else ["error"])
    assert market.events == []


# What a job that ends badly means for its customer's credit.


def is_in_debt(run):
    return run._ledger.in_debt(CUSTOMER.public, time.time() + 3_600)


async def begun(market, count):
    """The runs under way, with chunk 0 claimed by `count` of them."""
    running = {run: asyncio.create_task(run.run()) for run in market.runs.values()}
    text = PROMPT.encode()
    await market.box.put(Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0}))
    async with asyncio.timeout(60):
        while sum(bool(market.due(run)) for run in running) < count:
            await asyncio.sleep(0.005)
    return running


async def stop(running):
    for task in running.values():
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)


def fail(run, error=None):
    """Something ends the job for `run`: a neighbour, if no error is given."""
    if error is None:
        error = PaymentRequired("chunk 0", "says a neighbour")
        error.by = HASH

    async def get():
        raise error

    run._mailbox.get = get


async def test_what_the_driver_closed_is_owed_however_the_job_ends(market):
    running = await begun(market, len(market.runs))
    stage = list(market.runs.values())[1]
    fail(stage)
    with pytest.raises(PaymentRequired):
        await asyncio.wait_for(running[stage], 20)
    await stop(running)
    assert all(map(is_in_debt, market.runs.values()))


async def test_what_nobody_closed_of_a_job_that_a_neighbour_ended_keeps_its_customer_out_of_nothing(market):
    driver, stage = list(market.runs.values())[:2]
    market.hub.on_control = None  # the driver's closes do not arrive
    running = await begun(market, 1)
    async with asyncio.timeout(60):
        while len(stage._chunks.units) < 2:  # of the second chunk something has come
            await asyncio.sleep(0.005)
    fail(stage)
    with pytest.raises(PaymentRequired):
        await asyncio.wait_for(running[stage], 20)
    assert [said.due.chunk for said in market.due(stage)] == [0]
    assert stage._ledger.owed_msat(CUSTOMER.public) > 0
    assert not is_in_debt(stage)
    await stop(running)
    assert is_in_debt(driver)


async def first_unpaid(market, running):
    """The run whose patience ends first."""
    done, _ = await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED, timeout=20)
    run = next(run for run, task in running.items() if task in done)
    assert isinstance(running[run].exception(), PaymentRequired)
    assert run._ledger.owed_msat(CUSTOMER.public) > 0
    return run


async def test_who_runs_out_of_patience_itself_is_owed_a_debt(market):
    for run in market.runs.values():
        run.credit._patience_s = 0.2
    running = await begun(market, 1)
    assert is_in_debt(await first_unpaid(market, running))
    await stop(running)


@pytest.mark.parametrize("others_end_it", [True, False])
async def test_a_call_that_others_ended_while_it_waited_for_money_is_no_debt(market, others_end_it):
    """A call's claims are as these are: whether anything came of it is not known."""
    for run in market.runs.values():
        run.credit._patience_s = 0.2
        run._settling._ask = partial(ask_as_of_a_call, run._settling._ask)
    running = await begun(market, 1)
    for run in running if others_end_it else ():
        run._mailbox.failure = NotAllowed("job", "cancelled by a neighbour")  # and no read hears it
    assert is_in_debt(await first_unpaid(market, running)) is not others_end_it
    await stop(running)


@pytest.mark.parametrize(
    ("ends", "counts"), [("the worker fails", False), ("the daemon stops", False), ("a neighbour fails", True)]
)
async def test_only_what_others_break_off_counts_against_the_customer(market, ends, counts):
    stage = list(market.runs.values())[1]
    stage._settling._ask = partial(ask_as_of_a_call, stage._settling._ask)
    for n in range(MAX_BROKEN):
        key = Key(f"{n:064x}", stage._context.keys.public, 0)
        stage._ledger.owe(Due(key, CUSTOMER.public, 1_000, 10**9), under_way=True)
        stage._ledger.broke_off(key.job, time.time())
    running = await begun(market, len(market.runs))
    if ends != "the daemon stops":
        error = WorkerFailed("worker", "killed by SIGKILL")
        error.by = HASH if counts else ""
        fail(stage, error)
        with pytest.raises(WorkerFailed):
            await asyncio.wait_for(running[stage], 20)
    await stop(running)
    assert stage._ledger.owed_msat(CUSTOMER.public) > 1_000 * MAX_BROKEN
    assert is_in_debt(stage) is counts


async def ask_as_of_a_call(ask, *claim_and_close):
    await ask(*claim_and_close[:-1], None)


def limit(market, max_total_msat=None, first_result_ms=None):
    """Change what the plan allows."""
    for run in market.runs.values():
        plan = run.request.plan
        if max_total_msat is not None:
            plan = plan.model_copy(update={"terms": plan.terms.model_copy(update={"max_total_msat": max_total_msat})})
        if first_result_ms is not None:
            plan = plan.model_copy(update={"first_result_ms": first_result_ms})
        change(run, request=replace(run.request, plan=plan))


async def test_a_prompt_beyond_the_budget_ends_the_job_at_once_and_no_stage_computes_it(market):
    """Of 64 positions a unit: the prompt has two, and the plan pays for one."""
    limit(market, max_total_msat=market.plan.chunk_msat)
    driver, stage = list(market.runs.values())[:2]
    serving = [asyncio.create_task(run.run()) for run in market.runs.values()]
    ids = np.full(100, 7, np.int64).tobytes()
    await market.box.put(Frame("prompt", 0, (Array("int64", (100,), ids),), {"chunk": 0}))
    with pytest.raises(OverBudget):
        await asyncio.wait_for(asyncio.shield(serving[0]), 20)
    assert not driver._ledger.owed_msat(CUSTOMER.public) and market.hub.queues[stage._context.keys.public].empty()
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


async def test_a_stage_ends_a_job_whose_prompt_is_beyond_the_budget_itself(market):
    """A driver that sends it all the same is not waited for: no close can come that makes it fit."""
    limit(market, max_total_msat=market.plan.chunk_msat)
    stage = list(market.runs.values())[1]
    width = market.actors[market.manifest.driver.name].program.config.hidden_size
    rows = Array("float32", (1, 100, width), bytes(4 * 100 * width))
    market.hub.queues[stage._context.keys.public].put_nowait(
        Frame("hidden.0", 0, (rows,), {"pos": 0, "chunk": 0, "tokens": 100})
    )
    with pytest.raises(OverBudget):
        await asyncio.wait_for(stage.run(), 20)
    assert stage._ledger.owed_msat(CUSTOMER.public) == 0


async def test_the_driver_tells_every_other_member_once_that_a_chunk_is_over(market):
    driver, told = next(iter(market.runs.values())), []

    async def hears(_, peer, document):
        told.append((peer, document["close"]["chunk"]))

    market.hub.on_control = hears
    await driver.completed(0, 1, end=False)
    await driver.completed(1, 1, end=False)
    members = [*(task.provider for task in market.plan.tasks[1:]), CUSTOMER.public]
    assert sorted(told) == sorted((peer, chunk) for peer in members for chunk in (0, 1))


async def test_a_member_that_dies_while_a_close_goes_out_keeps_no_other_from_hearing_it(market):
    driver, gone = list(market.runs.values())[:2]
    control, refused = driver._mailbox.control, []

    async def dies(peer, document):
        await control(peer, document)
        if peer == gone._context.keys.public and document["t"] == "close":
            refused.append(document)
            raise LinkLost(peer, "no link")

    driver._mailbox.control = dies
    running = {run: asyncio.create_task(run.run()) for run in market.runs.values()}
    paying = asyncio.create_task(market.pay_everything())
    text = PROMPT.encode()
    await market.box.put(Frame("prompt", 0, (Array("uint8", (len(text),), text),), {"chunk": 0}))
    async with asyncio.timeout(60):
        await running[driver]
    assert refused
    await stop({**running, None: paying})
