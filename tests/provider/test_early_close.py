"""A driver signs a chunk's end before its rows are there: stages are paid for what they compute all the same."""

import asyncio

import pytest

from nodewire.errors import BadFrame, NodewireError
from nodewire.protocol.job.chunk import chunk_of
from nodewire.protocol.job.chunk_close import Close
from tests.provider.inference.test_provider_job import REQUEST, folder, generate, make_market, served  # noqa: F401

CHUNK = 16
PROMPT = "xq" * 12
UNITS = 2
"""Of the prompt."""
POLICIES = pytest.mark.parametrize("policy", ["none", "sampled"])


def short(folder, path, policy, **kwargs):  # noqa: F811
    """A job whose chunks are short."""
    market = make_market(folder, path, policy, chunk=CHUNK, **kwargs)
    driver = market.actors[market.manifest.driver.name]
    driver.program = driver.program.model_copy(update={"chunk": CHUNK})
    return market


def signed(market, chunk, units=1, *, end=False, positions=None):
    driver = next(iter(market.runs.values()))
    keys = driver._context.keys
    return Close.sign(keys, request=REQUEST, attempt=0, chunk=chunk, units=units, end=end, positions=positions)


def claims(market, run):
    return [(said.due.chunk, said.due.units, said.due.root) for said in market.due(run)]


def outputs(market, run):
    """By chunk, how many outputs its stage has committed to, by what it keeps."""
    edge = market.manifest.outputs(run.tasks[0])[0].name
    kept = [frame for _, frame in run._tape._tape.read(REQUEST, edge)]
    return [sum(chunk_of(market.manifest, frame.seq) == chunk for frame in kept) for chunk in range(4)]


async def broken(market):
    """How every stage's part of a job ends whose driver is caught."""
    _, *stages = market.runs.values()
    running = {run: asyncio.create_task(run.run()) for run in market.runs.values()}
    beside = [asyncio.create_task(market.pay_everything()), asyncio.create_task(generate(market, PROMPT))]
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([running[stage] for stage in stages], return_when=asyncio.FIRST_COMPLETED)
        return {stage: running[stage].exception() for stage in stages if running[stage].done()}
    finally:
        for task in (*beside, *running.values()):
            task.cancel()
        await asyncio.gather(*beside, *running.values(), return_exceptions=True)


@POLICIES
async def test_a_close_that_comes_before_its_rows_costs_no_stage_its_pay(folder, tmp_path, policy):  # noqa: F811
    claimed, roots = [], []
    for n, early in enumerate((False, True)):
        market = short(folder, tmp_path / str(n), policy, params={"max_tokens": 40})
        if early:
            for stage in list(market.runs.values())[1:]:
                for chunk, units in enumerate((UNITS, 1, 1)):
                    await stage.on_close(signed(market, chunk, units))
        await served(market, PROMPT)
        claimed.append([claims(market, run) for run in market.runs.values()])
        roots.append(sorted(root.root for root in market.committed))
    assert claimed[1] == claimed[0]
    assert roots[1] == roots[0]
    assert [units for _, units, _ in claimed[1][1]] == [UNITS, 1, 1, 1]


@POLICIES
async def test_a_close_of_fewer_units_than_came_ends_the_job_as_the_drivers_fault(folder, tmp_path, policy):  # noqa: F811
    market = short(folder, tmp_path, policy)
    for stage in list(market.runs.values())[1:]:
        await stage.on_close(signed(market, 0, 1))
    for stage, error in (await broken(market)).items():
        assert isinstance(error, NodewireError)
        assert (error.code, error.field) == (BadFrame.code, "hidden.0"), stage
        assert "units: 1 of chunk 0" in str(error)


@POLICIES
async def test_of_a_chunk_that_is_cut_short_a_stage_commits_to_what_counts(folder, tmp_path, policy):  # noqa: F811
    """The driver says early that three positions count, and sends further ones."""
    market = short(folder, tmp_path, policy)
    stage = list(market.runs.values())[1]
    for one in list(market.runs.values())[1:]:
        await one.on_close(signed(market, 0, UNITS))
        await one.on_close(signed(market, 1, end=True, positions=3))
    ended = await broken(market)
    assert {(error.code, error.field) for error in ended.values() if error is not None} <= {("bad-frame", "hidden.0")}
    # Where it may be judged it asks for nothing that the driver has not signed, and that says more.
    asked = [(0, UNITS)] if policy == "sampled" else [(0, UNITS), (1, 1)]
    assert [(chunk, units) for chunk, units, _ in claims(market, stage)] == asked
    assert outputs(market, stage) == [1, 3, 0, 0]


async def test_chunks_that_are_closed_far_ahead_are_refused(folder, tmp_path):  # noqa: F811
    market = short(folder, tmp_path, "none")
    stage = list(market.runs.values())[1]
    with pytest.raises(BadFrame, match="newest"):
        await stage.on_close(signed(market, 2**20))
    assert stage._chunks._signed == {}
