"""Customers and drivers who want work for nothing."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from nodewire.errors import BadFrame, NodewireError
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.inference import credit
from tests.provider.inference.test_provider_job import (  # noqa: F401  (fixtures)
    HASH,
    REQUEST,
    change,
    folder,
    market,
)

WIDTH = 32


def hidden(seq: int, chunk: int, *, positions: int = 1, pos: int | None = None) -> Frame[Array]:
    data = np.full((1, positions, WIDTH), 0.1, np.float32)
    array = Array("float32", (1, positions, WIDTH), data.tobytes())
    return Frame("hidden.0", seq, (array,), {"pos": seq if pos is None else pos, "chunk": chunk, "tokens": positions})


@pytest.fixture
def stage(market):  # noqa: F811
    """The first stage's provider, whose driver is hostile (a local driver is the customer itself)."""
    driver, run = list(market.runs.values())[:2]
    change(run, patience_s=0.3)
    run.driver_keys, run.credit._patience_s = driver._context.keys, 0.3
    run.inbox = market.hub.queues[run._context.me]
    return run


async def outcome(run) -> NodewireError:
    with pytest.raises(NodewireError) as caught:
        await asyncio.wait_for(run.run(), 10)
    return caught.value


def close(run, chunk: int, units: int, *, end: bool = False) -> dict:
    said = Close.sign(run.driver_keys, request=REQUEST, attempt=0, chunk=chunk, units=units, end=end)
    return {"t": "close", "close": said.document()}


async def test_calling_every_frame_chunk_0_does_not_get_a_generation_for_nothing(stage):
    for seq in range(200):
        stage.inbox.put_nowait(hidden(seq, 0))
    assert isinstance(await outcome(stage), BadFrame)
    assert stage._frames <= 1


async def test_a_context_of_positions_in_one_frame_is_not_one_position(stage):
    stage.inbox.put_nowait(hidden(0, 0))
    stage.inbox.put_nowait(hidden(1, 1, positions=300))
    assert str(await outcome(stage)).startswith("hidden.0: rows")


async def test_a_prompt_of_five_units_is_not_closed_as_one(stage):
    stage.inbox.put_nowait(hidden(0, 0, positions=300))
    running = asyncio.create_task(stage.run())
    while not stage._frames:
        await asyncio.sleep(0.01)
    await stage.on_close(Close.from_control(close(stage, 0, 1)))
    with pytest.raises(BadFrame, match="units: 1 of chunk 0, which had 5"):
        await asyncio.wait_for(running, 10)
    assert stage._ledger.owed_msat(stage.request.customer) == 0


async def test_a_prompt_of_five_units_costs_five(stage):
    stage.inbox.put_nowait(hidden(0, 0, positions=300))
    running = asyncio.create_task(stage.run())
    await stage.on_close(Close.from_control(close(stage, 0, 5)))  # before it is there
    async with asyncio.timeout(10):
        while not (owed := stage._ledger.owed_msat(stage.request.customer)):
            await asyncio.sleep(0.01)
    assert owed == 500
    running.cancel()


async def test_units_beyond_any_database_are_an_error_with_a_name(stage):
    stage.inbox.put_nowait(hidden(0, 0))
    await stage.on_close(Close.from_control(close(stage, 0, 2**53 - 1)))
    assert str(await outcome(stage)).startswith(f"hidden.0: units: {2**53 - 1} of chunk 0")


async def test_a_closed_chunk_gets_no_further_rows(stage):
    """However early it was closed: what it was closed with is owed, and no more is computed."""
    stage.inbox.put_nowait(hidden(0, 0))
    stage.inbox.put_nowait(hidden(1, 0))
    await stage.on_close(Close.from_control(close(stage, 0, 1)))
    assert str(await outcome(stage)).startswith("hidden.0: chunk")
    assert stage._frames == 1
    assert stage._ledger.owed_msat(stage.request.customer) == 100


async def test_a_driver_that_closes_nothing_is_named_and_its_customer_owes_what_is_complete(stage):
    """Nothing was asked of the customer: it may go on without this driver. Many such jobs are too many, as any."""
    stage.inbox.put_nowait(hidden(0, 0, positions=3))
    for seq in range(1, 65):
        stage.inbox.put_nowait(hidden(seq, 1, pos=2 + seq))
    stage.inbox.put_nowait(hidden(65, 2, pos=67))
    assert str(await outcome(stage)).startswith("hidden.0: chunk: 2 comes")
    assert stage._frames == 65  # no more than AHEAD chunks
    assert credit.AHEAD == 2
    assert stage._ledger.owed_msat(stage.request.customer) == 100


async def test_nonsense_instead_of_a_close_does_not_deafen_a_provider_to_the_driver(stage):
    documents = [{"t": "close"}, {"t": "close", "close": {"v": 9}}, close(stage, 0, 1)]

    async def controls():
        for document in documents:
            yield "", document

    stage._mailbox.controls = controls
    stage.inbox.put_nowait(hidden(0, 0))
    running = asyncio.create_task(stage.run())
    await stage.listen()
    async with asyncio.timeout(10):
        while not stage._ledger.owed_msat(stage.request.customer):
            await asyncio.sleep(0.01)
    running.cancel()


async def test_calls_of_a_stateless_model_are_chunks_of_their_own():
    from types import SimpleNamespace

    from kinds.k8843 import _chunk

    embed = SimpleNamespace(mode="embed", chunk=64)
    assert _chunk(Frame("a", 3, (), {"chunk": 3}), embed) == 3
    with pytest.raises(BadFrame):
        _chunk(Frame("a", 1, (), {"chunk": 0}), embed)
    assert HASH


async def test_frames_beyond_the_money_do_not_fill_the_memory(stage, monkeypatch):
    from kinds import k8843_inboxes

    monkeypatch.setattr(k8843_inboxes, "MAX_WAITING_BYTES", 4_000_000)
    stage.inbox.put_nowait(hidden(0, 0, positions=3))
    for seq in range(1, 65):
        stage.inbox.put_nowait(hidden(seq, 1, pos=2 + seq))
    stage.inbox.put_nowait(hidden(65, 2, pos=67))  # waits for chunk 0's payment
    for seq in range(66, 200):
        stage.inbox.put_nowait(hidden(seq, 2, positions=300))
    started = asyncio.get_running_loop().time()
    stage.credit._patience_s = 30
    assert re.match(r"hidden\.0: frames: over \d+ bytes wait", str(await outcome(stage)))
    assert asyncio.get_running_loop().time() - started < 5
    assert stage.inbox.qsize() > 50
