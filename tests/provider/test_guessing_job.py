"""Jobs whose driver guesses: the tokens, roots, statements, claims and payments are those of one that never does."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from nodewire.errors import BadFrame
from nodewire.llm.sampling import Sampling
from nodewire.llm.whole import Whole
from nodewire.protocol.close import Close
from nodewire.protocol.frame import Array, Frame
from tests.llm.guessing_driver import make_guessing
from tests.provider.test_provider_job import PROMPT, REQUEST, folder, make_market, served  # noqa: F401


@pytest.fixture(scope="module")
def truth(folder):  # noqa: F811
    whole = Whole(folder)
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


async def test_what_is_kept_for_others_is_plain(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chance=0.7, width=3, depth=9, chunk=16)
    await served(market)
    for run in market.runs.values():
        for edge in run._inner_edges():
            kept = [frame for _, frame in run._record._tape.read(REQUEST, edge)]
            assert [frame.seq for frame in kept] == list(range(len(truth.ids)))
            assert [frame.meta["chunk"] for frame in kept] == [0, *(1 + i // 16 for i in range(len(truth.ids) - 1))]
            assert {name for frame in kept for name in frame.meta} == {"pos", "chunk", "tokens"}


async def test_a_budget_that_a_guess_would_break_ends_nothing(folder, tmp_path, truth):  # noqa: F811
    """Three chunks of 64 hold all tokens; guesses that run into a fourth are not computed, and nobody pays for them."""
    market = guessing(folder, tmp_path, truth, chance=1.0, depth=60, width=8, chunk=149)
    price = market.plan.chunk_msat
    for run in market.runs.values():
        plan = run.request.plan
        terms = plan.terms.model_copy(update={"max_total_msat": 2 * price})
        run.request = run.request.__class__(
            *(
                plan.model_copy(update={"terms": terms}) if name == "plan" else getattr(run.request, name)
                for name in run.request.__dataclass_fields__
            )
        )
    assert await served(market) == truth.ids


async def test_a_driver_that_never_accepts_is_refused_at_the_bound(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    stage = list(market.runs.values())[1]
    driver = market.actors[market.manifest.driver.name]

    data = driver.embed([1]).numpy().tobytes()
    width = len(data) // 4
    queue = market.hub.queues[stage._keys.public]
    queue.put_nowait(
        Frame("hidden.0", 0, (Array("float32", (1, 1, width), data),), {"pos": 0, "chunk": 0, "tokens": 1})
    )
    for seq in range(1, 8 * 16 + 64 + 2):
        meta = {"pos": 1, "chunk": 1, "tokens": 1, "epoch": seq}
        queue.put_nowait(Frame("hidden.0", seq, (Array("float32", (1, 1, width), data),), meta))
    with pytest.raises(BadFrame) as refused:
        await asyncio.wait_for(stage.run(), 20)
    assert refused.value.field == "hidden.0"
    assert "lookahead" in str(refused.value)


async def test_a_close_before_its_rows_waits_for_them_and_one_far_ahead_is_refused(folder, tmp_path, truth):  # noqa: F811
    market = guessing(folder, tmp_path, truth, chunk=16)
    driver, stage = list(market.runs.values())[:2]

    def close(chunk):
        return Close.sign(driver._keys, request=REQUEST, attempt=0, chunk=chunk, units=1, end=False)

    await stage.heard(close(0))
    assert stage.open_chunk() == 0
    assert market.due(stage) == []
    with pytest.raises(BadFrame):
        await stage.heard(close(2_000))
