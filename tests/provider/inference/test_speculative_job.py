"""Jobs whose driver guesses: the tokens, roots, statements, claims and payments are those of one that never does."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.errors import BadFrame, NodewireError, OverBudget, TimedOut
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.speculation.proposer import Candidate
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.frame_refusal import suspects
from nodewire.protocol.speculation.frame_meta import without_rows
from nodewire.protocol.tensors.frame import Array, Frame
from tests.kinds.inprocess import to_arrays, to_torch
from tests.llm.guess_driver import make_guessing
from tests.provider.inference.test_provider_job import (  # noqa: F401
    CUSTOMER,
    PROMPT,
    REQUEST,
    change,
    folder,
    generate,
    limit,
    make_market,
    served,
)


@pytest.fixture(scope="module")
def truth(folder):  # noqa: F811
    whole = LocalDecoder(folder)
    prompt = whole.tokenizer.encode(PROMPT)
    return SimpleNamespace(prompt=len(prompt), ids=list(whole.tokens(prompt, Sampling(150))))


def right_by(chance, truth, seed=0):
    draw = random.Random(seed)

    def guess(position):
        number = position - truth.prompt
        if number >= len(truth.ids):
            return 7
        return truth.ids[number] if draw.random() < chance else (truth.ids[number] + 1) % 290

    return guess


def guessing(folder, tmp_path, truth, *, chance=0.8, depth=4, width=1, seed=0, **kwargs):  # noqa: F811
    market = make_market(folder, tmp_path, lookahead=8, **kwargs)
    make_guessing(market.manifest, market.actors, right_by(chance, truth, seed), depth=depth, width=width)
    return market


def roots(market):
    return sorted((root.task, root.chunk, root.attempt, root.root) for root in market.committed)


def dues(market):
    return {
        run.tasks[0]: sorted((f.due.chunk, f.due.units, f.due.amount_msat, f.due.root) for f in market.due(run))
        for run in market.runs.values()
    }


@pytest.mark.parametrize("policy", ["none", "sampled"])
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9, 1.0])
async def test_all_that_is_committed_to_and_claimed_is_as_if_nobody_had_guessed(
    folder,  # noqa: F811
    tmp_path,
    truth,
    policy,
    chance,
):
    """Rows of their own have the same bits whoever else is under way, so roots are the same to the last digit."""
    plain = make_market(folder, tmp_path / "plain", policy, chunk=16)
    driver = plain.actors[plain.manifest.driver.name]
    driver.program = driver.program.model_copy(update={"chunk": 16})
    assert await served(plain) == truth.ids
    market = guessing(folder, tmp_path / "guessed", truth, chance=chance, policy=policy, chunk=16)
    assert await served(market) == truth.ids
    assert roots(market) == roots(plain)
    assert dues(market) == dues(plain)
    if policy == "sampled":
        for one, other in zip(market.runs.values(), plain.runs.values(), strict=True):
            kept = [
                sorted(
                    (said.edge, said.chunk, said.signer, said.frames) for said in run._statements._spool.sent(REQUEST)
                )
                for run in (one, other)
            ]
            assert kept[0] == kept[1]


@pytest.mark.parametrize(("depth", "width", "chunk"), [(12, 3, 16), (40, 8, 16), (8, 8, 4), (20, 5, 64)])
async def test_many_rows_a_frame_and_guesses_over_several_chunks_end_with_the_same_tokens(
    folder,  # noqa: F811
    tmp_path,
    truth,
    depth,
    width,
    chunk,
):
    market = guessing(folder, tmp_path, truth, chance=0.9, depth=depth, width=width, chunk=chunk, policy="sampled")
    assert await served(market) == truth.ids
    count = 1 + -(-(len(truth.ids) - 1) // chunk)
    for asked in dues(market).values():
        assert [chunk for chunk, *_ in asked] == list(range(count))


class Knowing:
    """A drafter for the model's own driver: what is right by `guess` first, something else beside it."""

    def __init__(self, guess):
        self.guess, self.count = guess, 0

    def accept(self, token):
        self.count += 1

    def root(self):
        return self.count

    def after(self, place, token):
        return place + 1

    def candidates(self, place):
        token = self.guess(place)
        return [Candidate(token, 0, 0.8), Candidate((token + 3) % 290, 0, 0.1)]


@pytest.mark.parametrize("policy", ["none", "sampled"])
@pytest.mark.parametrize("chance", [0.0, 0.6, 1.0])
async def test_a_decoders_own_driver_and_its_trees_end_with_the_same_tokens_and_every_chunk_is_claimed(
    folder,  # noqa: F811
    tmp_path,
    truth,
    policy,
    chance,
):
    market = make_market(folder, tmp_path, policy, lookahead=8, chunk=16)
    driver = market.actors[market.manifest.driver.name]
    driver.program = driver.program.model_copy(update={"chunk": 16})
    drafted = []

    def drafters(sampler):
        drafted.append(sampler)
        return [Knowing(right_by(chance, truth))]

    driver._make_drafters = drafters
    assert await served(market) == truth.ids
    assert drafted
    count = 1 + -(-(len(truth.ids) - 1) // 16)
    for asked in dues(market).values():
        assert [chunk for chunk, *_ in asked] == list(range(count))


async def test_what_is_kept_for_others_is_plain(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chance=0.7, width=3, depth=9, chunk=16)
    await served(market)
    for run in market.runs.values():
        for edge in run._context.inner_edges:
            kept = [frame for _, frame in run._tape._tape.read(REQUEST, edge)]
            assert [frame.seq for frame in kept] == list(range(len(truth.ids)))
            assert [frame.meta["chunk"] for frame in kept] == [0, *(1 + i // 16 for i in range(len(truth.ids) - 1))]
            assert {name for frame in kept for name in frame.meta} == {"pos", "chunk", "tokens"}


async def test_a_budget_that_a_guess_would_break_ends_nothing(folder, tmp_path, truth):  # noqa: F811
    """Three chunks of 64 hold all tokens; guesses that run into a fourth are not computed, and nobody pays for them."""
    market = guessing(folder, tmp_path, truth, chance=1.0, depth=60, width=8, chunk=149)
    limit(market, max_total_msat=2 * market.plan.chunk_msat)
    assert await served(market) == truth.ids


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def put_out(stage):
    """The newest frame behind the first stage."""
    history = stage._tape._histories.get("hidden.1")
    return history.last_seq if history is not None else -1


def close(driver, chunk):
    return Close.sign(driver._context.keys, request=REQUEST, attempt=0, chunk=chunk, units=1, end=False)


def hidden(driver, seq, pos, rows=1, chunk=None, ids=(1,), **meta):
    """A frame on the edge to the first stage."""
    row = driver.embed(list(ids)).numpy().tobytes()
    tensor = Array("float32", (1, rows, len(row) // 4), row * rows)
    chunk = 1 + (pos - 1) // 16 if chunk is None else chunk
    return Frame("hidden.0", seq, (tensor,), {"pos": pos, "chunk": chunk, "tokens": rows, **meta})


def ids(driver, seq, pos, rows=1, chunk=None, **meta):
    """The same where the stage has the embedding."""
    chunk = 1 + (pos - 1) // 16 if chunk is None else chunk
    tensor = Array("int64", (1, rows, 1), (1).to_bytes(8, "little") * rows)
    return Frame("hidden.0", seq, (tensor,), {"pos": pos, "chunk": chunk, "tokens": rows, **meta})


async def refused(market, *frames):
    """How the first stage's part of a job ends that is sent these after a prompt of one position."""
    stage = list(market.runs.values())[1]
    driver, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    queue.put_nowait(hidden(driver, 0, 0, chunk=0))
    for fields in frames:
        queue.put_nowait(hidden(driver, **fields))
    with pytest.raises(BadFrame) as ended:
        await asyncio.wait_for(stage.run(), 20)
    assert ended.value.field == "hidden.0"
    (said,) = [f for f in map(market.parsed, market.events) if f and f.status == "error"]
    assert (said.text, said.edge, said.by) == ("bad-frame", "hidden.0", "")
    assert [root for root in market.committed if root.task != "stage.0"] == []
    return str(ended.value)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([{"seq": 1, "pos": 1, "rows": 9}], "rows"),
        ([{"seq": 1, "pos": 1, "chunk": 0}], "chunk"),
        ([{"seq": 1, "pos": 1, "chunk": 2}], "chunk"),
        ([{"seq": 1, "pos": 1, "epoch": 3}, {"seq": 2, "pos": 2, "epoch": 2}], "epoch"),
        ([{"seq": 1, "pos": 0, "chunk": 0, "epoch": 1}], "pos"),
        ([{"seq": 1, "pos": 3}], "pos"),
        ([{"seq": 1, "pos": 1, "rows": 0}, {"seq": 2, "pos": 2}], "pos"),
        ([{"seq": 1, "pos": 1, "parents": b"\0\0"}], "parents"),
        ([{"seq": 1, "pos": 2, "keep": b"\0\0"}], "keep"),
        ([{"seq": 1, "pos": 1, "epoch": "later"}], "epoch"),
    ],
)
async def test_what_cannot_be_a_guess_is_refused_by_its_edge(folder, tmp_path, truth, frames, why):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    assert (await refused(market, *frames)).startswith(f"hidden.0: {why}: ")


async def test_a_driver_that_never_accepts_is_refused_at_the_bound(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    sent = [{"seq": seq, "pos": 1, "epoch": seq} for seq in range(1, 8 * 16 + 64 + 2)]
    assert (await refused(market, *sent)).startswith("hidden.0: lookahead: ")


async def test_a_rewind_into_a_closed_chunk_is_refused(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    driver, stage = list(market.runs.values())[:2]

    async def closing():
        while not stage._tape._histories or stage._tape._histories["hidden.0"].last_seq < 17:
            await asyncio.sleep(0)
        for chunk in (0, 1):
            await stage.on_close(close(driver, chunk))
        frame = hidden(market.actors[market.manifest.driver.name], 18, 16, epoch=1)
        market.hub.queues[stage._context.keys.public].put_nowait(frame)

    closed = asyncio.create_task(closing())
    sent = [{"seq": seq, "pos": seq} for seq in range(1, 18)]
    assert "closed" in await refused(market, *sent)
    await closed


@pytest.mark.parametrize("lend", [False, True])
async def test_what_a_newer_epoch_makes_void_is_not_computed(folder, tmp_path, truth, lend):  # noqa: F811
    """Nor is it where ids come in and rows go out: what stands for it has the width of those rows."""
    if lend:
        market = make_market(folder, tmp_path, lookahead=8, chunk=16, driver="lent")
    else:
        market = guessing(folder, tmp_path, truth, chunk=16)
    stage = list(market.runs.values())[1]
    driver, computed = market.actors[market.manifest.driver.name], []
    receive = stage._worker._worker.receive

    async def counted(task, session, frame):
        computed.append(frame.seq)
        return await receive(task, session, frame)

    stage._worker._worker.receive = counted
    queue = market.hub.queues[stage._context.keys.public]
    sent = ids if lend else hidden
    for frame in (
        sent(driver, 0, 0, chunk=0),
        sent(driver, 1, 1),
        sent(driver, 2, 2),
        sent(driver, 3, 3, rows=3),
        sent(driver, 4, 2, epoch=1),
    ):
        queue.put_nowait(frame)
    running = asyncio.create_task(stage.run())
    consumer = market.hub.queues[list(market.runs.values())[2]._context.keys.public]
    async with asyncio.timeout(60):
        outs = [await consumer.get() for _ in range(5)]
    assert computed == [0, 1, 4]
    assert len({(out.tensors[0].dtype, out.tensors[0].shape[2]) for out in outs}) == 1
    assert [(out.seq, out.tensors[0].shape[1], out.meta.get("epoch", 0)) for out in outs] == [
        (0, 1, 0),
        (1, 1, 0),
        (2, 0, 0),
        (3, 0, 0),
        (4, 1, 1),
    ]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    "frames",
    [
        [
            {"seq": 1, "pos": 1, "parents": b"\xff\xff"},
            {"seq": 2, "pos": 2, "rows": 0, "chunk": 1, "keep": b"\0\0"},
            {"seq": 3, "pos": 1, "epoch": 1},
        ],
        [{"seq": 1, "pos": 1}, {"seq": 2, "pos": 2, "epoch": 1}, {"seq": 3, "pos": 1, "epoch": 1}],
    ],
)
async def test_a_driver_that_takes_back_what_the_next_frame_needs_gets_nobody_blamed(
    folder,  # noqa: F811
    tmp_path,
    truth,
    frames,
):
    """Its frames pass a stage that computes each as it comes. One that is slow has them all before it."""
    market = guessing(folder, tmp_path, truth, chunk=16)
    stage = list(market.runs.values())[1]
    driver, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    for fields in ({"seq": 0, "pos": 0, "chunk": 0}, *frames):
        queue.put_nowait(hidden(driver, **fields))
    running = asyncio.create_task(stage.run())
    consumer = market.hub.queues[list(market.runs.values())[2]._context.keys.public]
    async with asyncio.timeout(60):
        outs = [await consumer.get() for _ in range(4)]
    assert [out.tensors[0].shape[1] for out in outs] == [1, *(frame.get("rows", 1) for frame in frames)]
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_return_that_was_not_computed_for_a_guess_that_stands_is_refused(folder, tmp_path, truth):  # noqa: F811
    """Its stage leaves out what it was sent, and has no reason to."""
    market = guessing(folder, tmp_path, truth, chunk=16, chance=1.0)
    last = list(market.runs.values())[-1]
    put = last._mailbox.put

    async def lazy(frame):
        width = frame.tensors[0].shape[2]
        await put(without_rows(frame.edge, frame, "float32", width) if frame.seq == 5 else frame)

    last._mailbox.put = lazy
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(served(market), 20)
    assert ended.group_contains(BadFrame, match="was not computed")


async def test_a_close_before_its_rows_waits_for_them_and_one_far_ahead_is_refused(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    driver, stage = list(market.runs.values())[:2]
    await stage.on_close(close(driver, 0))
    assert stage.open_chunk() == 0
    assert market.due(stage) == []
    with pytest.raises(BadFrame):
        await stage.on_close(close(driver, 2_000))


async def test_a_row_that_is_replaced_behind_an_empty_frame_convicts_nobody(folder, tmp_path, truth):  # noqa: F811
    """The stage leaves out what a newer epoch makes void; the driver closes the chunk as if it had computed that. What
    the stage commits to is what it makes of what is kept of its input."""
    market = guessing(folder, tmp_path, truth, chunk=4)
    driver, stage = list(market.runs.values())[:2]
    embed, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    for seq in range(5):
        queue.put_nowait(hidden(embed, seq, seq, chunk=min(seq, 1)))
    running = asyncio.create_task(stage.run())
    await until(lambda: put_out(stage) == 4)
    queue.put_nowait(hidden(embed, 5, 4, chunk=1, epoch=1, ids=(9,)))
    queue.put_nowait(hidden(embed, 6, 4, rows=0, chunk=1, epoch=2))
    await until(lambda: put_out(stage) == 6)
    for chunk in (0, 1):
        await stage.on_close(close(driver, chunk))
    assert stage.open_chunk() == 1
    queue.put_nowait(hidden(embed, 7, 4, chunk=1, epoch=2, ids=(5,)))
    await until(lambda: stage.open_chunk() == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    tape = stage._tape._tape
    actor = market.actors["stage.0"]
    actor.open("again", {})
    for (_, came), (_, made) in zip(tape.read(REQUEST, "hidden.0"), tape.read(REQUEST, "hidden.1"), strict=True):
        (again,) = actor.receive("again", to_torch(came))
        assert to_arrays(again).tensors[0].data == made.tensors[0].data


async def test_a_close_of_a_row_that_is_being_replaced_ends_the_job_and_names_the_driver(
    folder,  # noqa: F811
    tmp_path,
    truth,
):
    market = guessing(folder, tmp_path, truth, chunk=4)
    driver, stage = list(market.runs.values())[:2]
    embed, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    receive, computing = stage._worker._worker.receive, asyncio.Event()

    async def slow(task, session, frame):
        if frame.seq == 5:
            computing.set()
            await asyncio.sleep(30)
        return await receive(task, session, frame)

    stage._worker._worker.receive = slow
    for seq in range(5):
        queue.put_nowait(hidden(embed, seq, seq, chunk=min(seq, 1)))
    running = asyncio.create_task(stage.run())
    await until(lambda: put_out(stage) == 4)
    queue.put_nowait(hidden(embed, 5, 4, chunk=1, epoch=1, ids=(9,)))
    await asyncio.wait_for(computing.wait(), 10)
    for chunk in (0, 1):
        await stage.on_close(close(driver, chunk))
    with pytest.raises(BadFrame):
        await asyncio.wait_for(running, 10)
    (said,) = [f for f in map(market.parsed, market.events) if f and f.status == "error"]
    assert (said.text, said.edge) == ("bad-frame", "hidden.0")
    last = market.manifest.tasks[-1].name
    names = {task.name: keys for task, keys in zip(market.manifest.tasks, market.runs, strict=True)}
    assert names["driver"] in suspects(market.manifest, names, names[last], "hidden.0")
    assert {f.due.chunk for f in market.due(stage)} == {0}


@pytest.mark.parametrize(
    "lie",
    [
        {"keep": b"\1\0"},
        {"keep": None},
        {"pos": 30},
        {"epoch": 2**40},
        {"chunk": 7},
        {"parents": b"\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0"},
    ],
)
async def test_a_return_that_is_not_what_the_driver_sent_is_refused(folder, tmp_path, truth, lie):  # noqa: F811
    market = make_market(folder, tmp_path, lookahead=8, chunk=16)
    driver, mailbox = market.actors[market.manifest.driver.name], next(iter(market.runs.values()))._mailbox
    driver.program = driver.program.model_copy(update={"chunk": 16})
    driver._make_drafters = lambda sampler: [Knowing(right_by(1.0, truth))]
    get, told = mailbox.get, []

    async def lied_to():
        frame = await get()
        if frame.seq > 3 and frame.meta.get("keep") and frame.tensors[0].nbytes and not told:
            told.append(frame)
            frame = replace(frame, meta={k: v for k, v in (frame.meta | lie).items() if v is not None})
        return frame

    mailbox.get = lied_to
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(served(market), 20)
    assert ended.group_contains(BadFrame, match=f"^{told[0].edge}: (frame {told[0].seq} is not the one|parents: )")


async def test_a_budget_that_ends_with_a_chunk_ends_a_trees_job_as_one_and_all_of_it_is_claimed(
    folder,  # noqa: F811
    tmp_path,
    truth,
):
    market = make_market(folder, tmp_path, lookahead=8, chunk=16)
    driver = market.actors[market.manifest.driver.name]
    driver.program = driver.program.model_copy(update={"chunk": 16})
    driver._make_drafters = lambda sampler: [Knowing(right_by(1.0, truth))]
    limit(market, max_total_msat=3 * market.plan.chunk_msat)
    runs = [asyncio.create_task(run.run()) for run in market.runs.values()]
    paying, customer = asyncio.create_task(market.pay_everything()), asyncio.create_task(generate(market))
    async with asyncio.timeout(60):
        done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
    assert {type(run.exception()) for run in done} == {OverBudget}
    await asyncio.sleep(0.1)
    for run in market.runs.values():
        assert {f.due.chunk for f in market.due(run)} == {0, 1, 2}
    for task in (*runs, paying, customer):
        task.cancel()
    await asyncio.gather(*runs, paying, customer, return_exceptions=True)


async def ended(market, stage, patience_s=0.2, first_result_ms=100):
    """How the stage's part of the job ends, once it gets nothing that it waits for."""
    limit(market, first_result_ms=first_result_ms)
    change(stage, patience_s=patience_s)
    stage.credit._patience_s = patience_s
    with pytest.raises(NodewireError) as error:
        await asyncio.wait_for(stage.run(), 20)
    return error.value


async def test_who_leaves_before_the_first_close_owes_the_prompt(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    stage = list(market.runs.values())[1]
    embed, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    queue.put_nowait(hidden(embed, 0, 0, chunk=0))
    queue.put_nowait(hidden(embed, 1, 1))
    assert isinstance(await ended(market, stage), TimedOut)
    assert [f.due.chunk for f in market.due(stage)] == [0]
    assert stage._ledger.owed_msat(stage.request.customer) == 100


async def test_who_never_closes_what_it_has_gone_beyond_owes_it(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=4)
    stage = list(market.runs.values())[1]
    embed, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    for seq in range(40):
        queue.put_nowait(hidden(embed, seq, seq, chunk=-(-seq // 4)))
    paying = asyncio.create_task(market.pay_everything())
    await stage.credit.paid(0)
    await stage.credit.paid(1)
    await stage.credit.paid(2)
    await stage.credit.paid(3)
    assert str(await ended(market, stage)).startswith("hidden.0: chunk: 6 comes")
    paying.cancel()
    assert [f.due.chunk for f in market.due(stage)] == [0, 1]


async def test_frames_that_void_each_other_do_not_hold_a_slot(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=64)
    stage = list(market.runs.values())[1]
    embed, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    queue.put_nowait(hidden(embed, 0, 0, chunk=0))

    async def forever():
        for seq in range(1, 500):
            queue.put_nowait(hidden(embed, seq, 1, chunk=1, epoch=seq))
            if seq > 2:
                await asyncio.sleep(0.05)

    sending = asyncio.create_task(forever())
    put = stage._mailbox.put

    async def late(frame):  # so that the next one waits behind
        await asyncio.sleep(0.06)
        await put(frame)

    stage._mailbox.put = late
    began = asyncio.get_running_loop().time()
    assert isinstance(await ended(market, stage), TimedOut)
    assert asyncio.get_running_loop().time() - began < 5
    sending.cancel()


async def test_a_chunk_has_its_time_however_many_rows_come_for_it(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=4)
    stage = list(market.runs.values())[1]
    embed, queue = market.actors[market.manifest.driver.name], market.hub.queues[stage._context.keys.public]
    queue.put_nowait(hidden(embed, 0, 0, chunk=0))

    async def forever():
        for seq in range(1, 90):
            queue.put_nowait(hidden(embed, seq, 1, chunk=1, epoch=seq))
            await asyncio.sleep(0.1)

    sending = asyncio.create_task(forever())
    assert isinstance(await ended(market, stage, 0.1, 100), TimedOut)
    assert not sending.done()
    sending.cancel()
