"""Producers sign what they sent; a consumer commits to nothing that it was sent unsigned, or signed otherwise."""

import asyncio
import dataclasses

import pytest

from nodewire.errors import BadFrame, BadInput, BadSignature, LinkLost, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.protocol.job.request import Request
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.statement import FrameStatement, digest_of, hashed
from nodewire.provider.inference import statements as module
from nodewire.provider.inference.statements import Statements
from nodewire.wire.evidence import output_signer
from nodewire.wire.evidence.spool import Spool
from tests.protocol import documents
from tests.provider.inference.test_provider_job import change, folder, generate, make_market  # noqa: F401  (a fixture)

REQUEST = "cd" * 32
HASH = "ab" * 32
DRIVER, STAGE, LAST = documents.PROVIDERS
STRANGER = Keys(b"\x0c" * 32)
MANIFEST = documents.manifest()


# ---- a job in which all of it happens -----------------------------------------------------------------------------


@pytest.fixture
def market(folder, tmp_path):  # noqa: F811
    return make_market(folder, tmp_path, "sampled")


async def ended(market, *, paid=True):
    """How every node's run ended, None or its error, by public key."""
    running = {public: asyncio.create_task(run.run()) for public, run in market.runs.items()}
    paying = asyncio.create_task(market.pay_everything())
    customer = asyncio.create_task(generate(market))
    _, left = await asyncio.wait(running.values(), timeout=20, return_when=asyncio.FIRST_EXCEPTION)
    for task in (*left, paying, customer):
        task.cancel()
    await asyncio.gather(*running.values(), paying, customer, return_exceptions=True)
    return {public: None if task.cancelled() else task.exception() for public, task in running.items()}


def asked_every(monkeypatch, seconds):
    monkeypatch.setattr(module, "ASK_S", seconds)
    monkeypatch.setattr(output_signer, "ASK_S", seconds)


def told(market, kind):
    return [(sender, peer, document) for sender, peer, document in market.hub.controls if document["t"] == kind]


def corrupt(frame):
    return dataclasses.replace(frame, tensors=tuple(Array(a.dtype, a.shape, bytes(len(a.data))) for a in frame.tensors))


async def test_every_chunk_of_every_edge_between_nodes_is_signed_and_the_statements_are_kept(market):
    assert set((await ended(market)).values()) == {None}
    order = list(market.runs)
    for i, run in enumerate(market.runs.values()):
        kept = list(run._statements._spool.sent(REQUEST))
        assert [one.chunk for one in kept] == [0, 1, 2, 3]
        assert {one.signer for one in kept} == {order[i - 1]}
        for one in kept:
            one.check()
        assert [f.due.chunk for f in market.due(run)] == [0, 1, 2, 3]
        assert not run._statements._came
        assert not run._statements._signing._out
    assert len(market.committed) == 4 * len(order)


async def test_in_a_job_that_nobody_judges_nothing_is_signed(folder, tmp_path):  # noqa: F811
    market = make_market(folder, tmp_path)
    assert set((await ended(market)).values()) == {None}
    assert not told(market, "sent")


async def test_a_producer_that_signs_something_else_than_it_sent_ends_the_job_at_its_consumer(market, monkeypatch):
    """The driver sends zeros in chunk 1, and signs what it computed."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    driver, stage = list(market.runs.values())[:2]
    honest = driver._mailbox.put

    async def put(frame):
        taped = driver._mailbox.tape
        if frame.seq == 5 and frame.edge != "tokens":
            taped.write(REQUEST, frame.edge, 0, frame)
            await market.hub.queues[stage._context.me].put(corrupt(frame))
        else:
            await honest(frame)

    driver._mailbox.put = put
    errors = await ended(market)
    assert isinstance(errors[stage._context.me], BadFrame)
    assert errors[stage._context.me].field == "hidden.0"
    assert "has not signed what came" in str(errors[stage._context.me])
    assert [root.chunk for root in market.committed if root.task in stage.tasks] == [0]
    statuses = [(f.status, f.text) for f in map(market.parsed, market.events) if f and f.provider == stage._context.me]
    assert statuses[-1] == ("error", "bad-frame")


async def test_a_producer_that_signs_nothing_is_not_waited_for_without_end(market, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    asked_every(monkeypatch, 0.1)
    driver, stage = list(market.runs.values())[:2]
    driver._statements.sign = lambda chunk: {}
    errors = await ended(market)
    assert isinstance(errors[stage._context.me], BadFrame)
    assert not [root for root in market.committed if root.task in stage.tasks]
    # nor asked for: a claim without a certified root is held against who made it
    assert not market.due(stage)


async def test_a_statement_that_was_lost_is_asked_for(market, monkeypatch):
    asked_every(monkeypatch, 0.05)
    deliver, lost = market.hub.on_control, []

    async def losing(sender, peer, document):
        if document["t"] == "sent" and len(lost) < 2:
            lost.append(document)
        else:
            await deliver(sender, peer, document)

    market.hub.on_control = losing
    assert set((await ended(market)).values()) == {None}
    assert len(lost) == 2
    assert told(market, "unsent")


async def test_a_call_is_signed_when_it_is_put_out_and_not_when_the_nodes_own_part_is_over(market):
    """A node's part of a call may wait for what its consumer makes of it, which waits for the statement."""
    driver, stage = list(market.runs.values())[:2]
    change(driver, generates=False)
    driver._tape = None  # which only a generation has
    edge = next(e.name for e in market.manifest.edges if e.target == "stage.0")
    driver.produced("driver", 3, dataclasses.replace(frame(3), edge=edge))
    while not told(market, "sent"):
        await asyncio.sleep(0)
    ((sender, peer, document),) = told(market, "sent")
    assert (sender, peer) == (driver._context.me, stage._context.me)
    assert [(one["edge"], one["chunk"]) for one in document["sent"]] == [(edge, 3)]
    assert driver._statements.sign(3) == {}


# ---- one node's statements ----------------------------------------------------------------------------------------


def request() -> Request:
    plan = documents.plan(first_result_ms=10)
    return Request(REQUEST, plan.customer, 1, 8843, plan, "", HASH, (), 100_000, (), HASH)


def frame(seq, value=1, edge="hidden.0"):
    return Frame(edge, seq, (Array("float32", (1, 1, 8), bytes([value]) * 32),), {"pos": seq})


def statement(frames, keys=DRIVER, **changes) -> FrameStatement:
    fields = {"request": REQUEST, "task": "driver", "edge": "hidden.0", "chunk": 0, "attempt": 0}
    return FrameStatement.sign(keys, **{**fields, "frames": digest_of(map(hashed, frames)), **changes})


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, 10**8)
    yield spool
    spool.close()


@pytest.fixture
def mine(spool, monkeypatch):
    """stage.0's, which hidden.0 leads to."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "ASK_S", 0.03)
    return Statements(STAGE, request(), MANIFEST, spool)


async def silence(peer, document):
    pass


async def test_what_is_signed_as_it_came_is_kept(mine, spool):
    for seq in (0, 1, 2):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.add(statement([frame(0)]))
    await mine.complete(0, silence)
    assert [one.chunk for one in spool.sent(REQUEST)] == [0]
    mine.add(statement([frame(1), frame(2)], chunk=1))
    await mine.complete(1, silence)
    assert [one.chunk for one in spool.sent(REQUEST)] == [0, 1]
    assert [f.seq for _, f in mine.read(REQUEST, "hidden.0")] == [0, 1, 2]


@pytest.mark.parametrize(
    "signed",
    [[], [frame(0, 2)], [frame(0), frame(1)], [dataclasses.replace(frame(0), meta={"pos": 1})]],
    ids=["nothing", "others", "more", "another meta"],
)
async def test_what_is_signed_otherwise_than_it_came_is_an_error_and_not_kept(mine, spool, signed):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine.add(statement(signed))
    with pytest.raises(BadFrame):
        await mine.complete(0, silence)
    assert not list(spool.sent(REQUEST))


@pytest.fixture
def guessing(spool, monkeypatch):
    """stage.0's, in a job whose driver guesses."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    plain = request()
    plan = plain.plan.model_copy(update={"terms": plain.plan.terms.model_copy(update={"lookahead": 8})})
    return Statements(STAGE, dataclasses.replace(plain, plan=plan), MANIFEST, spool)


async def test_a_statement_that_overtook_the_driver_taking_back_what_it_had_closed_blames_the_driver(guessing):
    """Its producer signed what it has after a frame that is still under way."""
    guessing.write(REQUEST, "hidden.0", 0, frame(0))
    guessing.add(statement([frame(0, 2)]))
    waiting = asyncio.create_task(guessing.complete(0, silence))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    guessing.stop(BadFrame("hidden.0", "makes rows void that were closed"))  # the frame came
    with pytest.raises(BadFrame, match="void"):
        await waiting


async def test_of_guesses_too_what_is_signed_otherwise_than_it_came_is_an_error_when_nothing_more_comes(guessing):
    guessing.write(REQUEST, "hidden.0", 0, frame(0))
    guessing.add(statement([frame(0, 2)]))
    with pytest.raises(BadFrame, match=r"hidden\.0.*not signed what came of chunk 0"):
        await guessing.complete(0, silence)


async def test_who_signs_nothing_is_asked_and_then_named(mine):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    asked = []

    async def tell(peer, document):
        asked.append((peer, document["t"], document["edge"], document["first"]))

    with pytest.raises(BadFrame, match=r"hidden\.0"):
        await mine.complete(0, tell)
    assert set(asked) == {(DRIVER.public, "unsent", "hidden.0", 0)}


async def test_what_a_call_lacks_was_told_before_the_job_was_open_here_and_is_asked_for_at_once(spool, monkeypatch):
    monkeypatch.setattr(module, "ASK_S", 60)
    mine = Statements(STAGE, request(), MANIFEST.model_copy(update={"mode": "run"}), spool)
    for seq in range(6):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))

    async def tell(peer, document):
        assert (peer, document["edge"], document["first"]) == (DRIVER.public, "hidden.0", 5)
        mine.add(statement([frame(5)], chunk=5))

    await asyncio.wait_for(mine.complete(5, tell), 10)  # a call has no state: nobody waits for another's inputs
    assert [one.chunk for one in spool.sent(REQUEST)] == [5]


async def test_a_producer_that_is_gone_before_it_signed_is_nobodys_fault_at_its_consumer(mine, spool):
    """The job has ended by then: no consumer commits to what nobody signed, nor blames the dead one."""
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine.write(REQUEST, "hidden.0", 0, frame(1))
    mine.add(statement([frame(0)]))
    await mine.complete(0, silence)
    mine.stop(LinkLost(DRIVER.public, "gone"))
    with pytest.raises(LinkLost):
        await mine.complete(1, silence)
    assert [one.chunk for one in spool.sent(REQUEST)] == [0]


async def test_and_what_it_signed_with_its_last_breath_counts(mine, spool):
    for seq in (0, 1):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    for seq in (1, 0):
        mine.add(statement([frame(seq)], chunk=seq))
    mine.stop(LinkLost(DRIVER.public, "gone"))
    await mine.complete(1, silence)
    assert {one.chunk for one in spool.sent(REQUEST)} == {0, 1}


async def test_what_is_settled_is_not_taken_again(mine, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine.add(statement([frame(0)]))
    await mine.complete(0, silence)
    mine.add(statement([frame(0)]))
    mine.add(statement([frame(1)], chunk=1))
    assert list(mine._said["hidden.0"]) == [1]


async def test_of_a_task_that_the_customer_runs_it_signs(spool, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "ASK_S", 0.03)
    job = request()
    local = job.plan.tasks[0].model_copy(update={"provider": "local", "price_msat": 0})
    job = dataclasses.replace(job, plan=job.plan.model_copy(update={"tasks": (local, *job.plan.tasks[1:])}))
    mine, asked = Statements(STAGE, job, MANIFEST, spool), set()

    async def tell(peer, document):
        asked.add(peer)

    mine.write(REQUEST, "hidden.0", 0, frame(0))
    with pytest.raises(BadFrame):
        await mine.complete(0, tell)
    assert asked == {job.plan.customer}
    with pytest.raises(NotAllowed):
        mine.add(statement([frame(0)]))
    mine.add(statement([frame(0)], documents.CUSTOMER))
    await mine.complete(0, tell)
    # what leads to the customer it needs no word of
    last = Statements(LAST, job, MANIFEST, spool)
    put_out(last, 0, "return")
    assert last.sign(0) == {}


@pytest.mark.parametrize(
    ("one", "error"),
    [
        (statement([frame(0)], LAST), NotAllowed),
        (statement([frame(0)], STRANGER), NotAllowed),
        (statement([frame(0)], request=HASH), BadFrame),
        (statement([frame(0)], edge="hidden.1", task="stage.0"), BadFrame),
        (statement([frame(0)], edge="return", task="stage.1"), BadFrame),
        (statement([frame(0)], edge="prompt", task="customer"), BadFrame),
        (statement([frame(0)], edge="nowhere"), BadFrame),
        (statement([frame(0)], task="stage.1"), BadFrame),
        (statement([frame(0)], LAST).model_copy(update={"signer": DRIVER.public}), BadSignature),
    ],
)
async def test_a_statement_by_somebody_else_or_about_something_else_is_refused(mine, one, error):
    with pytest.raises(error):
        mine.add(one)
    assert issubclass(error, BadInput | NotAllowed)  # which a job's listener passes over


async def test_the_first_statement_on_a_chunk_counts_and_their_number_is_bounded(mine, monkeypatch):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine.add(statement([frame(0, 2)]))
    mine.add(statement([frame(0)]))
    with pytest.raises(BadFrame):
        await mine.complete(0, silence)
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    mine.add(statement([], chunk=5))
    with pytest.raises(BadFrame, match="wait"):
        mine.add(statement([], chunk=6))


async def test_a_job_that_failed_waits_for_nobody(mine):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    waiting = asyncio.create_task(mine.complete(0, silence))
    await asyncio.sleep(0)
    mine.stop(NotAllowed("job", "cancelled"))
    with pytest.raises(NotAllowed):
        await waiting


def test_a_consumer_is_told_again_what_was_signed_to_it_and_nobody_else_is(spool):
    mine = Statements(DRIVER, request(), MANIFEST, spool)
    for chunk in range(3):
        put_out(mine, chunk, chunk=chunk)
        put_out(mine, chunk, "tokens", chunk=chunk)
        (said,) = mine.sign(chunk)[STAGE.public]
        assert said == statement([frame(chunk)], chunk=chunk)
    assert [one.chunk for one in mine.again(STAGE.public, "hidden.0", 1)] == [1, 2]
    with pytest.raises(NotAllowed, match="often"):
        mine.again(STAGE.public, "hidden.0", 2)
    for peer, edge in ((STRANGER, "hidden.0"), (LAST, "hidden.0"), (STAGE, "tokens")):
        with pytest.raises(NotAllowed, match="lead"):
            mine.again(peer.public, edge, 0)
    for edge, first in (("hidden.0", "0"), (7, 0)):
        with pytest.raises(BadFrame):
            mine.again(STAGE.public, edge, first)


def put_out(statements, seq, edge="hidden.0", chunk=0):
    statements.produced(chunk, edge, hashed(frame(seq, edge=edge)))
