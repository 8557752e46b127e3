"""Producers sign what they sent; a consumer commits to nothing that it was sent unsigned, or signed otherwise."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

from nodewire.errors import BadFrame, BadHash, BadInput, BadSignature, NotAllowed, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.protocol.chunk import leaf_of
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.job import Request
from nodewire.protocol.plan import Assignment
from nodewire.protocol.sent import Sent, digest_of, hashed
from nodewire.protocol.takeover import Takeover
from nodewire.provider import statements as module
from nodewire.provider.statements import Statements
from nodewire.verify.recompute import _left
from nodewire.wire.spool import Spool
from tests.protocol import documents
from tests.provider.test_provider_job import folder, generate, make_market  # noqa: F401  (a fixture)

REQUEST = "cd" * 32
HASH = "ab" * 32
DRIVER, STAGE, LAST = documents.PROVIDERS
STANDBY = Keys(b"\x0c" * 32)
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
    assert len(market.committed) == 4 * len(order)


async def test_in_a_job_that_nobody_judges_nothing_is_signed(folder, tmp_path):  # noqa: F811
    market = make_market(folder, tmp_path)
    assert set((await ended(market)).values()) == {None}
    assert not told(market, "sent")


async def test_a_producer_that_signs_something_else_than_it_sent_ends_the_job_at_its_consumer(market):
    """The driver sends zeros in chunk 1, and signs what it computed."""
    driver, stage = list(market.runs.values())[:2]
    honest = driver._mailbox.put

    async def put(frame):
        taped = driver._mailbox.tape
        if frame.seq == 5 and frame.edge != "tokens":
            taped.write(REQUEST, frame.edge, 0, frame)
            await market.hub.queues[stage._me].put(corrupt(frame))
        else:
            await honest(frame)

    driver._mailbox.put = put
    errors = await ended(market)
    assert isinstance(errors[stage._me], BadHash)
    assert driver._me[:8] in str(errors[stage._me])
    assert [root.chunk for root in market.committed if root.task in stage.tasks] == [0]
    statuses = [(f.status, f.text) for f in map(market.parsed, market.events) if f and f.provider == stage._me]
    assert statuses[-1] == ("error", "bad-hash")


async def test_a_producer_that_signs_nothing_is_not_waited_for_without_end(market, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    monkeypatch.setattr(module, "ASK_S", 0.1)
    driver, stage = list(market.runs.values())[:2]
    driver._statements.sign = lambda chunk, attempt: {}
    errors = await ended(market)
    assert isinstance(errors[stage._me], TimedOut)
    assert not [root for root in market.committed if root.task in stage.tasks]
    # nor asked for: a claim without a certified root is held against who made it
    assert not market.due(stage)


async def test_a_statement_that_was_lost_is_asked_for(market, monkeypatch):
    monkeypatch.setattr(module, "ASK_S", 0.05)
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
    driver._generates = False
    edge = next(e.name for e in market.manifest.edges if e.target == "stage.0")
    driver.produced("driver", 3, dataclasses.replace(frame(3), edge=edge))
    await asyncio.sleep(0)
    ((sender, peer, document),) = told(market, "sent")
    assert (sender, peer) == (driver._me, stage._me)
    assert [(one["edge"], one["chunk"]) for one in document["sent"]] == [(edge, 3)]
    assert driver._statements.sign(3, 0) == {}


# ---- one node's statements ----------------------------------------------------------------------------------------


def request(standby=None) -> Request:
    tasks = tuple(
        Assignment(task=name, provider=keys.public, standby=standby.public if standby else None, price_msat=1000)
        for name, keys in zip(("driver", "stage.0", "stage.1"), documents.PROVIDERS, strict=True)
    )
    plan = documents.plan(tasks=tasks)
    return Request(REQUEST, plan.customer, 1, 8843, plan, "", HASH, (), 100_000, (), HASH)


def frame(seq, value=1, edge="hidden.0"):
    return Frame(edge, seq, (Array("float32", (1, 1, 8), bytes([value]) * 32),), {"pos": seq})


def statement(frames, keys=DRIVER, **changes) -> Sent:
    fields = {"request": REQUEST, "task": "driver", "edge": "hidden.0", "chunk": 0, "attempt": 0}
    return Sent.sign(keys, **{**fields, "frames": digest_of(map(hashed, frames)), **changes})


def takeover(task="driver", left=DRIVER, first=0) -> Takeover:
    replaced = ((task, left.public, STANDBY.public, first),)
    return Takeover.sign(documents.CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=replaced)


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
    return Statements(STAGE, request(STANDBY), MANIFEST, spool)


async def silence(peer, document):
    pass


async def test_what_is_signed_as_it_came_is_kept(mine, spool):
    for seq in (0, 1, 2):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.heard(statement([frame(0)]))
    await mine.complete(0, silence)
    assert [one.chunk for one in spool.sent(REQUEST)] == [0]
    mine.heard(statement([frame(1), frame(2)], chunk=1))
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
    mine.heard(statement(signed))
    with pytest.raises(BadHash):
        await mine.complete(0, silence)
    assert not list(spool.sent(REQUEST))


async def test_who_signs_nothing_is_asked_and_then_named(mine):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    asked = []

    async def tell(peer, document):
        asked.append((peer, document["t"], document["edge"], document["first"]))

    with pytest.raises(TimedOut, match=r"hidden\.0"):
        await mine.complete(0, tell)
    assert set(asked) == {(DRIVER.public, "unsent", "hidden.0", 0)}


async def test_what_a_call_lacks_was_told_before_the_job_was_open_here_and_is_asked_for_at_once(spool, monkeypatch):
    monkeypatch.setattr(module, "ASK_S", 60)
    mine = Statements(STAGE, request(), MANIFEST.model_copy(update={"mode": "run"}), spool)
    for seq in (4, 5):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))

    async def tell(peer, document):
        assert (peer, document["edge"], document["first"]) == (DRIVER.public, "hidden.0", 5)
        mine.heard(statement([frame(5)], chunk=5))

    await asyncio.wait_for(mine.complete(5, tell), 1)  # a call has no state: nobody waits for another's inputs
    assert [one.chunk for one in spool.sent(REQUEST)] == [5]


async def test_who_was_replaced_is_not_waited_for(mine, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 60)
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    waiting = asyncio.create_task(mine.complete(0, silence))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    mine.took_over(takeover(first=1))
    await asyncio.wait_for(waiting, 1)


@pytest.mark.parametrize("by_two", [False, True])
async def test_what_who_was_replaced_did_not_sign_when_it_could_is_not_committed_to_nor_what_follows(
    mine, spool, by_two
):
    """It withholds its word on chunk 0, lets chunk 1 be closed, and leaves: who judges would not believe what came."""
    for seq in (0, 1, 65):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.heard(statement([frame(1)], chunk=1))
    mine.took_over(takeover(first=2))
    if by_two:
        mine._came["hidden.0", 0].senders.add(STANDBY.public)
    for chunk in (0, 1, 2):
        with pytest.raises(TimedOut, match=r"hidden\.0.*chunk 0"):
            await mine.complete(chunk, silence)
    assert not [one for one in spool.sent(REQUEST) if one.chunk != 1]


async def test_nor_what_it_signed_otherwise(mine):
    for seq in (0, 1, 65):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.heard(statement([frame(0, 2)]))
    mine.took_over(takeover(first=2))
    with pytest.raises(BadHash):
        await mine.complete(0, silence)


async def test_its_last_two_chunks_it_may_have_died_before_it_could_sign(mine, spool):
    for seq in (0, 1, 65):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.heard(statement([frame(0)]))
    mine.took_over(takeover(first=2))
    mine.write(REQUEST, "hidden.0", 1, frame(66))  # chunk 2 goes on with the standby
    for chunk in (0, 1, 2):
        await mine.complete(chunk, silence)
    assert [one.chunk for one in spool.sent(REQUEST)] == [0]


@pytest.mark.parametrize("entered", [False, True])
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("chunk", range(5))
def test_what_is_committed_to_unsigned_is_what_judges_believe(spool, chunk, first, entered):
    """hidden.0's producer was replaced, and perhaps this node entered too; what came is what then can have come."""
    me, tasks = (STANDBY, {"driver": DRIVER, "stage.0": STAGE}) if entered else (STAGE, {"driver": DRIVER})
    other = Keys(b"\x0d" * 32)
    plan = request(STANDBY).plan
    by = {"driver": other.public, "stage.0": STANDBY.public, "stage.1": STANDBY.public}
    assignments = tuple(a.model_copy(update={"standby": by[a.task]}) for a in plan.tasks)
    job = dataclasses.replace(request(STANDBY), plan=plan.model_copy(update={"tasks": assignments}))
    replaced = tuple((task, left.public, by[task], first) for task, left in tasks.items())
    call = Takeover.sign(documents.CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=replaced)
    mine = Statements(me, job, MANIFEST, spool, call)
    sample = SimpleNamespace(task="stage.0", provider=me.public)
    edge = next(one for one in MANIFEST.edges if one.name == "hidden.0")
    believed = _left(SimpleNamespace(takeover=call, request=job, sample=sample), edge, chunk)  # type: ignore[arg-type]

    who = other if entered or chunk > first else DRIVER
    for senders in ({who.public}, {who.public, other.public} if chunk == first else {who.public}):
        mine._came["hidden.0", chunk] = module._Came(set(senders), [hashed(frame(0))])
        if not mine._lacking(chunk):
            assert believed


async def test_who_entered_itself_is_believed_in_what_it_was_given_again(spool):
    mine = Statements(STANDBY, request(STANDBY), MANIFEST, spool)
    replaced = tuple((task, left.public, STANDBY.public, 3) for task, left in (("stage.0", STAGE), ("stage.1", LAST)))
    both = Takeover.sign(documents.CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=replaced)
    mine.took_over(both)
    assert not mine._was_due("hidden.1", 0)


async def test_of_frames_by_two_producers_a_statement_is_not_waited_for_and_kept_only_if_it_is_right(mine, spool):
    for chunk, signed in ((1, [frame(1), frame(2)]), (2, [frame(65, 9), frame(66, 9)])):
        mine.write(REQUEST, "hidden.0", 0, frame(64 * chunk - 63))
        mine.took_over(takeover(first=1)) if chunk == 1 else None
        mine._came["hidden.0", chunk].senders.add(DRIVER.public)
        mine.write(REQUEST, "hidden.0", 1, frame(64 * chunk - 62))
        mine.heard(statement(signed, STANDBY, chunk=chunk, attempt=1))
    await mine.complete(2, silence)
    assert [one.chunk for one in spool.sent(REQUEST)] == [1]


async def test_the_standbys_own_chunks_are_owed_by_it(mine):
    mine.took_over(takeover(first=1))
    for seq in (0, 1):  # replayed: nobody signs chunk 0, which the dead one committed to
        mine.write(REQUEST, "hidden.0", 1, frame(seq))
    with pytest.raises(TimedOut):
        await mine.complete(1, silence)
    mine.heard(statement([frame(1)], STANDBY, chunk=1, attempt=1))
    await mine.complete(1, silence)


@pytest.mark.parametrize(
    ("one", "error"),
    [
        (statement([frame(0)], LAST), NotAllowed),
        (statement([frame(0)], STANDBY), NotAllowed),
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
        mine.heard(one)
    assert issubclass(error, BadInput | NotAllowed)  # which a job's listener passes over


async def test_the_first_statement_on_a_chunk_counts_and_their_number_is_bounded(mine, monkeypatch):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine.heard(statement([frame(0, 2)]))
    mine.heard(statement([frame(0)]))
    with pytest.raises(BadHash):
        await mine.complete(0, silence)
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    mine.heard(statement([], chunk=5))
    with pytest.raises(BadFrame, match="wait"):
        mine.heard(statement([], chunk=6))


async def test_a_job_that_failed_waits_for_nobody(mine):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    waiting = asyncio.create_task(mine.complete(0, silence))
    await asyncio.sleep(0)
    mine.stop(NotAllowed("job", "cancelled"))
    with pytest.raises(NotAllowed):
        await waiting


def test_who_enters_later_is_told_what_was_signed_before(spool):
    mine = Statements(DRIVER, request(STANDBY), MANIFEST, spool)
    for chunk in range(3):
        mine.produced(chunk, leaf_of(MANIFEST.digest(), frame(chunk)), {"pos": chunk})
        mine.produced(chunk, leaf_of(MANIFEST.digest(), frame(chunk, edge="tokens")), {})
        (said,) = mine.sign(chunk, 0)[STAGE.public]
        assert said == statement([frame(chunk)], chunk=chunk)
    assert [one.chunk for one in mine.again(STAGE.public, "hidden.0", 1)] == [1, 2]
    with pytest.raises(NotAllowed, match="often"):
        mine.again(STAGE.public, "hidden.0", 2)
    with pytest.raises(NotAllowed, match="lead"):
        mine.again(STANDBY.public, "hidden.0", 0)
    mine.took_over(takeover("stage.0", STAGE))
    assert [one.chunk for one in mine.again(STANDBY.public, "hidden.0", 0)] == [0, 1, 2]
    for edge, first, error in (("hidden.0", "0", BadFrame), (7, 0, BadFrame), ("tokens", 0, NotAllowed)):
        with pytest.raises(error):
            mine.again(STANDBY.public, edge, first)
