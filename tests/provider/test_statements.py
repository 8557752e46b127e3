"""Producers sign what they sent; a consumer commits to nothing that it was sent unsigned, or signed otherwise."""

import asyncio
import dataclasses
import struct

import pytest

from nodewire.errors import BadFrame, BadInput, BadSignature, Busy, LinkLost, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.protocol.chunk import claim
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.job import Request
from nodewire.protocol.plan import Assignment
from nodewire.protocol.sent import Sent, digest_of, hashed
from nodewire.protocol.takeover import Takeover
from nodewire.provider import statements as module
from nodewire.provider.statements import Statements
from nodewire.wire import signing
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


def asked_every(monkeypatch, seconds):
    monkeypatch.setattr(module, "ASK_S", seconds)
    monkeypatch.setattr(signing, "ASK_S", seconds)


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


async def test_what_is_settled_by_a_takeover_is_committed_to_and_claimed_at_its_attempt(market):
    stage = list(market.runs.values())[1]
    complete = stage._statements.complete

    async def settled(chunk, tell):
        return await complete(chunk, tell) + (chunk > 1)

    stage._statements.complete = settled
    assert set((await ended(market)).values()) == {None}
    roots = sorted((root for root in market.committed if root.task in stage.tasks), key=lambda root: root.chunk)
    assert [root.attempt for root in roots] == [0, 0, 1, 1]
    dues = [said.due for said in market.due(stage)]
    assert [(due.chunk, due.attempt, due.root) for due in dues] == [
        (root.chunk, root.attempt, claim([root])) for root in roots
    ]


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
            await market.hub.queues[stage._part.me].put(corrupt(frame))
        else:
            await honest(frame)

    driver._mailbox.put = put
    errors = await ended(market)
    assert isinstance(errors[stage._part.me], BadFrame)
    assert driver._part.me[:8] in str(errors[stage._part.me])
    assert [root.chunk for root in market.committed if root.task in stage.tasks] == [0]
    statuses = [(f.status, f.text) for f in map(market.parsed, market.events) if f and f.provider == stage._part.me]
    assert statuses[-1] == ("error", "bad-frame")


async def test_a_producer_that_signs_nothing_is_not_waited_for_without_end(market, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    asked_every(monkeypatch, 0.1)
    driver, stage = list(market.runs.values())[:2]
    driver._statements.sign = lambda chunk, attempt, edge: {}
    errors = await ended(market)
    assert isinstance(errors[stage._part.me], BadFrame)
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
    driver._part.generates = False
    edge = next(e.name for e in market.manifest.edges if e.target == "stage.0")
    driver.produced("driver", 3, dataclasses.replace(frame(3), edge=edge))
    while not told(market, "sent"):
        await asyncio.sleep(0)
    ((sender, peer, document),) = told(market, "sent")
    assert (sender, peer) == (driver._part.me, stage._part.me)
    assert [(one["edge"], one["chunk"]) for one in document["sent"]] == [(edge, 3)]
    assert driver._statements.sign(3, 0) == {}


# ---- one node's statements ----------------------------------------------------------------------------------------


def request(standby=None) -> Request:
    tasks = tuple(
        Assignment(task=name, provider=keys.public, standby=standby.public if standby else None, price_msat=1000)
        for name, keys in zip(("driver", "stage.0", "stage.1"), documents.PROVIDERS, strict=True)
    )
    plan = documents.plan(tasks=tasks, first_result_ms=10)
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
    with pytest.raises(BadFrame):
        await mine.complete(0, silence)
    assert not list(spool.sent(REQUEST))


@pytest.fixture
def guessing(spool, monkeypatch):
    """stage.0's, in a job whose driver guesses."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    plain = request(STANDBY)
    plan = plain.plan.model_copy(update={"terms": plain.plan.terms.model_copy(update={"lookahead": 8})})
    return Statements(STAGE, dataclasses.replace(plain, plan=plan), MANIFEST, spool)


async def test_a_statement_that_overtook_the_driver_taking_back_what_it_had_closed_blames_the_driver(guessing):
    """Its producer signed what it has after a frame that is still under way."""
    guessing.write(REQUEST, "hidden.0", 0, frame(0))
    guessing.heard(statement([frame(0, 2)]))
    waiting = asyncio.create_task(guessing.complete(0, silence))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    guessing.stop(BadFrame("hidden.0", "makes rows void that were closed"))  # the frame came
    with pytest.raises(BadFrame, match="void"):
        await waiting


async def test_of_guesses_too_what_is_signed_otherwise_than_it_came_is_an_error_when_nothing_more_comes(guessing):
    guessing.write(REQUEST, "hidden.0", 0, frame(0))
    guessing.heard(statement([frame(0, 2)]))
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
    for seq in (4, 5):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))

    async def tell(peer, document):
        assert (peer, document["edge"], document["first"]) == (DRIVER.public, "hidden.0", 5)
        mine.heard(statement([frame(5)], chunk=5))

    await asyncio.wait_for(mine.complete(5, tell), 10)  # a call has no state: nobody waits for another's inputs
    assert [one.chunk for one in spool.sent(REQUEST)] == [5]


async def test_what_who_was_replaced_had_not_signed_its_standby_signs(mine, spool, monkeypatch):
    """It died after chunk 1 was closed, before it signed it, and in the middle of chunk 2."""
    monkeypatch.setattr(module, "PATIENCE_S", 60)
    for seq in (0, 1, 65):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.heard(statement([frame(0)]))
    assert await mine.complete(0, silence) == 0
    waiting = asyncio.create_task(mine.complete(1, silence))
    await asyncio.sleep(0.01)
    mine.took_over(takeover(first=2))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    mine.heard(statement([frame(1)], STANDBY, chunk=1, attempt=1))
    assert await asyncio.wait_for(waiting, 10) == 1  # the attempt by which it is to be judged
    mine.write(REQUEST, "hidden.0", 1, frame(66))  # chunk 2 goes on with the standby
    mine.heard(statement([frame(65), frame(66)], STANDBY, chunk=2, attempt=1))
    assert await mine.complete(2, silence) == 1
    assert [(one.chunk, one.signer) for one in spool.sent(REQUEST)] == [
        (0, DRIVER.public), (1, STANDBY.public), (2, STANDBY.public)
    ]  # fmt: skip


async def test_and_what_it_signed_with_its_last_breath_counts(mine, spool):
    for seq in (0, 1):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.heard(statement([frame(1)], chunk=1))
    mine.took_over(takeover(first=2))
    mine.heard(statement([frame(0)]))
    assert await mine.complete(1, silence) == 1
    assert {one.signer for one in spool.sent(REQUEST)} == {DRIVER.public}


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("chunk", range(3))
async def test_what_neither_signs_is_not_committed_to_nor_what_follows(mine, spool, first, chunk):
    for seq in (0, 1, 65):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.took_over(takeover(first=first))
    for one, number in (([frame(0)], 0), ([frame(1)], 1), ([frame(65)], 2)):
        if number != chunk:
            mine.heard(statement(one, STANDBY, chunk=number, attempt=1))
    for number in range(chunk):
        await mine.complete(number, silence)
    for number in range(chunk, 3):
        with pytest.raises(LinkLost, match=f"chunk {chunk}"):
            await mine.complete(number, silence)


async def test_what_both_signed_otherwise_than_it_came_is_an_error(mine, spool):
    """Whatever came before it died, the standby's honest word on it is another: this node's own work would fail.
    Who lied nobody can tell."""
    for seq in (0, 1):
        mine.write(REQUEST, "hidden.0", 0, frame(seq))
    mine.took_over(takeover(first=2))
    mine.heard(statement([frame(0, 2)]))
    with pytest.raises(LinkLost):
        await mine.complete(0, silence)
    mine.heard(statement([frame(0, 2)], STANDBY, attempt=1))
    with pytest.raises(LinkLost):
        await mine.complete(0, silence)
    assert not list(spool.sent(REQUEST))


async def test_a_standby_is_waited_for_as_long_as_it_may_compute_again(mine, monkeypatch):
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine._plan = mine._plan.model_copy(update={"first_result_ms": 5_000})
    waiting = asyncio.create_task(mine.complete(0, silence))
    await asyncio.sleep(0.05)
    mine.took_over(takeover(first=1))
    await asyncio.sleep(0.2)
    assert not waiting.done()  # its patience alone would be over
    mine.heard(statement([frame(0)], STANDBY, attempt=1))
    assert await waiting == 1


def enters(spool, *lost, first=2):
    """The standby, which enters for those tasks."""
    left = {"driver": DRIVER, "stage.0": STAGE, "stage.1": LAST}
    replaced = tuple((task, left[task].public, STANDBY.public, first) for task in lost)
    call = Takeover.sign(documents.CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=replaced)
    return Statements(STANDBY, request(STANDBY), MANIFEST, spool, call)


def put_out(statements, seq, edge="hidden.0", value=1):
    statements.produced(0 if seq == 0 else 1 + (seq - 1) // 64, edge, hashed(frame(seq, value, edge)))


def test_a_standby_signs_each_chunk_that_it_has_computed_again(spool):
    entered = enters(spool, "driver")
    put_out(entered, 0)
    assert entered.whole("hidden.0") == []
    for seq in range(1, 65):
        put_out(entered, seq)
    assert entered.whole("hidden.0") == [0]
    (said,) = entered.sign(0, 1, "hidden.0")[STAGE.public]
    assert said == statement([frame(0)], STANDBY, attempt=1)
    put_out(entered, 65)
    assert entered.whole("hidden.0") == [1]
    entered.sign(1, 1, "hidden.0")
    put_out(entered, 129)
    assert entered.whole("hidden.0") == []  # chunk 2 is its own: that is signed when it is closed
    assert entered.whole("nowhere") == []
    assert [one.chunk for one in entered.again(STAGE.public, "hidden.0", 0)] == [0, 1]


async def test_it_signs_the_last_chunk_of_a_job_too_when_it_has_all_that_this_was_computed_from(spool):
    """No later one shows that it is over; that the frames before it are signed does."""
    entered, asked = enters(spool, "driver"), []

    async def tell(peer, document):
        asked.append((peer, document["edge"], document["first"]))

    for seq in (0, 1, 2):
        put_out(entered, seq)
        entered.write(REQUEST, "return", 0, frame(seq, edge="return"))
    assert entered.whole("hidden.0") == [0]
    entered.sign(0, 1, "hidden.0")
    await entered.ask_for("hidden.0", tell)
    assert asked == [(LAST.public, "return", 0)]
    entered.heard(statement([frame(1, edge="return")], LAST, task="stage.1", edge="return", chunk=1))
    assert entered.whole("hidden.0") == []
    again = enters(spool, "driver")
    for seq in (0, 1, 2):
        put_out(again, seq)
        again.write(REQUEST, "return", 0, frame(seq, edge="return"))
    again.sign(0, 1, "hidden.0")
    both = [frame(seq, edge="return") for seq in (1, 2)]
    again.heard(statement(both, LAST, task="stage.1", edge="return", chunk=1))
    assert again.whole("hidden.0") == [1]


async def test_two_neighbours_die_and_the_standby_of_both_needs_no_word_of_its_own(spool):
    entered = enters(spool, "driver", "stage.0")
    for seq in range(66):
        put_out(entered, seq)
        put_out(entered, seq, "hidden.1")
    assert entered.whole("hidden.0") == []
    assert entered.whole("hidden.1") == [0, 1]
    assert await entered.complete(1, silence) == 1
    assert not entered._signing.unsigned("hidden.0", 1)


async def test_two_neighbours_die_and_two_enter(spool):
    """What the one computes again it signs to the other, which was given all of it again."""
    after = Keys(b"\x0d" * 32)
    job = request(STANDBY)
    tasks = tuple(
        a.model_copy(update={"standby": after.public if a.task == "stage.0" else STANDBY.public})
        for a in job.plan.tasks
    )
    job = dataclasses.replace(job, plan=job.plan.model_copy(update={"tasks": tasks}))
    replaced = (("driver", DRIVER.public, STANDBY.public, 2), ("stage.0", STAGE.public, after.public, 2))
    call = Takeover.sign(documents.CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=replaced)
    entered = Statements(after, job, MANIFEST, spool, call)
    for chunk, seq in ((0, 0), (1, 1), (2, 65)):
        entered.write(REQUEST, "hidden.0", 1, frame(seq))
        entered.heard(statement([frame(seq)], STANDBY, chunk=chunk, attempt=1))
    assert await entered.complete(2, silence) == 1
    assert [one.chunk for one in spool.sent(REQUEST)] == [0, 1, 2]


def near(seq, by=0.0):
    row = struct.pack("<8f", *(1.0 + i + (1.0 + i) * by for i in range(8)))
    return Frame("hidden.0", seq, (Array("float32", (1, 1, 8), row),), {"pos": seq})


@pytest.mark.parametrize(
    ("signed", "shown", "error"),
    [
        (near(65, 1e-6), near(65, 1e-6), None),
        (near(65, 0.1), near(65, 0.1), LinkLost),
        (near(65, 1e-6), near(65), LinkLost),
        (near(65, 1e-6), None, LinkLost),
        (*(dataclasses.replace(near(65, 1e-6), meta={"pos": 7}),) * 2, LinkLost),
    ],
    ids=["other hardware", "other work", "not what it signed", "not shown", "another meta"],
)
async def test_a_standby_on_other_hardware_shows_what_it_signed_and_that_is_judged(
    spool, monkeypatch, signed, shown, error
):
    """In the chunk of the death both sent a part. It is compared: who died may have sent anything, and signed none."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(module, "ASK_S", 0.03)

    async def again(peer, edge, chunk, max_bytes):
        assert (peer, edge.name, chunk, max_bytes) == (STANDBY.public, "hidden.0", 2, 64)
        if shown is None:
            raise Busy("pull", "full")
        for one in (shown, near(66)):
            yield one

    mine = Statements(STAGE, request(STANDBY), MANIFEST, spool, again=again)
    for seq in range(66):
        mine.write(REQUEST, "hidden.0", 0, near(seq))
    for chunk in (0, 1):
        mine.heard(statement([near(seq) for seq in (range(1, 65) if chunk else [0])], chunk=chunk))
    await mine.complete(1, silence)
    mine.took_over(takeover(first=2))
    mine.write(REQUEST, "hidden.0", 1, near(66))
    mine.heard(statement([signed, near(66)], STANDBY, chunk=2, attempt=1))
    if error is not None:
        with pytest.raises(error):
            await mine.complete(2, silence)
        return
    assert await mine.complete(2, silence) == 1
    kept = [frame for _, frame in spool.read(REQUEST, "hidden.0", 64)]
    assert [hashed(one) for one in kept] == [hashed(one) for one in (near(64), signed, near(66))]
    assert [one.signer for one in spool.sent(REQUEST)] == [DRIVER.public, DRIVER.public, STANDBY.public]


@pytest.mark.parametrize("sent", [1, 2], ids=["honest", "garbage"])
async def test_who_stands_by_for_its_own_producer_says_itself_what_it_was_sent(spool, sent):
    """Nobody else can: it computes that again, and compares."""
    mine = Statements(STAGE, request(STAGE), MANIFEST, spool)
    for seq in (0, 1, 65):
        mine.write(REQUEST, "hidden.0", 0, frame(seq, sent if seq else 1))
    mine.heard(statement([frame(0)]))
    replaced = (("driver", DRIVER.public, STAGE.public, 2),)
    mine.took_over(Takeover.sign(documents.CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=replaced))
    assert await mine.complete(0, silence) == 1
    waiting = asyncio.create_task(mine.complete(1, silence))
    await asyncio.sleep(0)
    for seq in (0, 1, 65, 66):
        put_out(mine, seq)
    if sent == 2:
        with pytest.raises(LinkLost):
            await waiting
        return
    assert await waiting == 1
    assert await mine.complete(2, silence) == 1
    assert [(one.chunk, one.signer) for one in spool.sent(REQUEST)] == [(0, DRIVER.public), (1, STAGE.public)]


async def test_the_standbys_own_chunks_are_owed_by_it(mine):
    mine.took_over(takeover(first=1))
    for seq in (0, 1):
        mine.write(REQUEST, "hidden.0", 1, frame(seq))
    mine.heard(statement([frame(0)]))
    with pytest.raises(NotAllowed):
        mine.heard(statement([frame(1)], chunk=1))
    with pytest.raises(LinkLost):
        await mine.complete(1, silence)
    mine.heard(statement([frame(1)], STANDBY, chunk=1, attempt=1))
    await mine.complete(1, silence)
    mine.write(REQUEST, "hidden.0", 1, frame(1 + 4 * 64))
    mine.heard(statement([frame(1 + 4 * 64, 2)], STANDBY, chunk=5, attempt=1))
    with pytest.raises(BadFrame, match=r"hidden\.0"):  # all of that is its own
        await mine.complete(5, silence)


async def test_what_is_settled_is_not_taken_again(mine, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    mine.write(REQUEST, "hidden.0", 0, frame(0))
    mine.heard(statement([frame(0)]))
    await mine.complete(0, silence)
    mine.took_over(takeover(first=2))
    mine.heard(statement([frame(0)], STANDBY, attempt=1))
    mine.heard(statement([frame(1)], STANDBY, chunk=1, attempt=1))


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
        mine.heard(statement([frame(0)]))
    mine.heard(statement([frame(0)], documents.CUSTOMER))
    await mine.complete(0, tell)
    # what leads to the customer it needs no word of
    last = Statements(LAST, job, MANIFEST, spool)
    put_out(last, 0, "return")
    assert last.sign(0, 0) == {}


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
    with pytest.raises(BadFrame):
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
        mine.produced(chunk, "hidden.0", hashed(frame(chunk)))
        mine.produced(chunk, "tokens", hashed(frame(chunk, edge="tokens")))
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
