"""Tensors that travel narrower than they are: what is lost is bounded, what is malformed is refused."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame
from nodewire.kind import Limits
from nodewire.protocol.tensors import mxint8
from nodewire.protocol.tensors.frame import BLOCK, MXINT8, Array, Frame, bytes_of
from nodewire.worker import WorkerProcess
from nodewire.worker.process.edge_codec import in_blocks, of_blocks
from tests.sessions import Named

F32 = torch.float32
TINY = 2.0**-120
"""A block below this is zeros."""
SHAPES = st.lists(st.integers(0, 70), max_size=3).map(tuple).filter(lambda shape: math.prod(shape) < 5_000)


@st.composite
def tensors(draw):
    """Of any shape, from tiny to huge numbers, some of them zero."""
    shape, seed = draw(SHAPES), draw(st.integers(0, 2**31))
    low, high = sorted((draw(st.integers(-140, 126)), draw(st.integers(-140, 126))))
    made = torch.Generator().manual_seed(seed)
    exponents = torch.randint(low, high + 1, shape, generator=made)
    found = torch.ldexp(torch.randn(shape, generator=made).clamp(-1.9, 1.9), exponents)
    return torch.where(torch.rand(shape, generator=made) < draw(st.sampled_from([0.0, 0.3, 1.0])), 0.0, found)


def array_of(tensor: torch.Tensor) -> Array:
    return Array(MXINT8, tuple(tensor.shape), in_blocks(tensor).numpy().tobytes())


def back(tensor: torch.Tensor) -> torch.Tensor:
    return of_blocks(in_blocks(tensor), tensor.shape, tensor.dtype)


def largest_of_blocks(tensor: torch.Tensor) -> torch.Tensor:
    """For every number, the largest of its block."""
    width = tensor.shape[-1] if tensor.ndim else 1
    rows = tensor.reshape(math.prod(tensor.shape[:-1]), width).abs()
    padded = torch.nn.functional.pad(rows, (0, -width % BLOCK)).view(len(rows), -(-width // BLOCK), BLOCK)
    return padded.amax(2).repeat_interleave(BLOCK, 1)[:, :width].reshape(tensor.shape)


@given(tensors())
def test_a_number_moves_by_a_64th_of_its_blocks_largest_at_most_and_takes_the_bytes_that_are_said(tensor):
    made = array_of(tensor)
    made.check(2**20)
    assert len(made.data) == bytes_of(MXINT8, tensor.shape)
    largest = largest_of_blocks(tensor)
    lost = (back(tensor) - tensor).abs()
    assert bool((lost <= torch.where(largest < TINY, largest, largest / 64)).all())


@given(tensors())
def test_what_sketches_are_made_of_is_what_engines_compute_with(tensor):
    found = mxint8.numbers(array_of(tensor))
    assert found.tobytes() == back(tensor).numpy().tobytes()


@given(tensors())
def test_narrowing_again_loses_nothing_more(tensor):
    once = back(tensor)
    assert torch.equal(back(once), once)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrower_floats_come_back_in_their_own_dtype(dtype):
    tensor = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = back(tensor)
    assert found.dtype == dtype
    assert bool(((found - tensor).abs().float() <= largest_of_blocks(tensor.float()) / 60).all())


def test_the_bytes_are_a_rows_scales_and_then_its_codes():
    row = torch.zeros(34)
    row[0], row[1], row[32], row[33] = 1.0, -0.5, 3.0, 127.9
    raw = in_blocks(row).flatten()
    assert raw[:2].tolist() == [127, 127 + 6]  # 1 = 2^0, and 2^6 <= 127.9
    assert raw[2:].view(torch.int8).tolist() == [64, -32, *[0] * 30, 3, 127]
    assert back(row)[33] == 127.0
    rows = torch.stack([row, 2 * row])
    assert torch.equal(in_blocks(rows).flatten(), torch.cat([raw, in_blocks(2 * row).flatten()]))  # rows can be joined


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_cannot_be_narrowed(bad):
    tensor = torch.ones(2, 40)
    tensor[1, 35] = bad
    with pytest.raises(BadFrame, match="not finite"):
        in_blocks(tensor)


@pytest.mark.parametrize("scale", [*range(1, 7), 255])
def test_a_scale_that_no_block_has_is_refused_by_whoever_reads_it(scale):
    raw = in_blocks(torch.ones(3, 40))
    raw[2, 1] = scale
    with pytest.raises(BadFrame) as engine:
        of_blocks(raw, (3, 40), F32)
    with pytest.raises(BadFrame) as sketch:
        mxint8.numbers(Array(MXINT8, (3, 40), raw.numpy().tobytes()))
    assert engine.value.field == sketch.value.field == "scales"


def test_the_one_number_beyond_float32_is_refused_by_whoever_reads_it():
    raw = in_blocks(torch.zeros(2, 32))
    raw[:, 0], raw[1, 5] = mxint8.MOST_SCALE, 0x81  # -127
    assert bool(torch.isfinite(of_blocks(raw, (2, 32), F32)).all())
    raw[1, 5] = 0x80
    with pytest.raises(BadFrame, match="codes"):
        of_blocks(raw, (2, 32), F32)
    with pytest.raises(BadFrame, match="codes"):
        mxint8.numbers(Array(MXINT8, (2, 32), raw.numpy().tobytes()))


@given(st.binary(min_size=66, max_size=66))
def test_whatever_a_peer_sends_is_finite_or_refused(data):
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    try:
        found = of_blocks(raw, (2, 32), F32)
    except BadFrame:
        return
    assert bool(torch.isfinite(found).all())
    assert np.array_equal(mxint8.numbers(Array(MXINT8, (2, 32), data)), found.numpy())


# Through a worker process

CODINGS = {"e.0": (("float32", MXINT8), ("int64", "int64")), "e.1": (("float32", "bfloat16"),)}
VALUES = np.linspace(-3, 7, 90, dtype=np.float32).reshape(2, 45)
IDS = Array("int64", (3,), np.arange(3).tobytes())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blobs")
    (folder / "program").write_bytes(b"8")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        started = Named(
            await WorkerProcess.start(
                "worker_entry_for_tests", Limits(memory_bytes=128 * 2**20), readable=[folder], arena_bytes=2**22
            )
        )
    finally:
        sys.path.pop(0)
    await started.load("echo", "any", folder / "program", [folder / "program"])
    await started.open("echo", "narrow", {}, CODINGS)
    await started.open("echo", "wide", {})
    yield started
    await started.stop()


async def echoed(worker, session: str, edge: str, *arrays: Array, **meta: str) -> Frame[Array]:
    [frame] = await worker.receive("echo", session, Frame(edge, 0, arrays, meta))
    return frame


@pytest.mark.asyncio(loop_scope="module")
async def test_an_actor_is_given_its_own_dtypes_and_what_it_puts_out_is_narrowed(worker):
    sent = array_of(torch.from_numpy(VALUES))
    frame = await echoed(worker, "narrow", "e.0", sent, IDS)
    assert frame.tensors == (sent, IDS)  # narrowing again loses nothing
    given = await echoed(worker, "narrow", "e.0", sent, IDS, do="dtypes")
    assert given.meta["dtypes"] == "torch.float32, torch.int64"
    half = (VALUES.view(np.uint32) >> 16).astype(np.uint16)
    sent = Array("bfloat16", VALUES.shape, half.tobytes())
    assert (await echoed(worker, "narrow", "e.1", sent)).tensors == (sent,)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_empty_tensor_is_narrowed_to_none(worker):
    nothing = Array(MXINT8, (0, 45), b""), Array("int64", (0,), b"")
    assert (await echoed(worker, "narrow", "e.0", *nothing)).tensors == nothing


@pytest.mark.asyncio(loop_scope="module")
async def test_a_frame_comes_as_the_plan_says_or_not_at_all(worker):
    wide, narrow = Array("float32", (2, 45), VALUES.tobytes()), array_of(torch.from_numpy(VALUES))
    assert (await echoed(worker, "wide", "e.0", wide)).tensors == (wide,)
    for session, edge, arrays in (
        ("wide", "e.0", (narrow,)),
        ("narrow", "e.9", (narrow,)),
        ("narrow", "e.0", (wide, IDS)),
        ("narrow", "e.0", (narrow,)),
        ("narrow", "e.0", (narrow, IDS, IDS)),
        ("narrow", "e.1", (narrow,)),
    ):
        with pytest.raises(BadFrame, match=f"^{edge}: dtype"):
            await echoed(worker, session, edge, *arrays)


@pytest.mark.asyncio(loop_scope="module")
async def test_malformed_bytes_of_a_peer_end_one_call_and_no_session(worker):
    good = array_of(torch.from_numpy(VALUES))
    bad = Array(MXINT8, good.shape, b"\xff" + bytes(good.data)[1:])
    with pytest.raises(BadFrame, match="scales"):
        await echoed(worker, "narrow", "e.0", bad, IDS)
    assert (await echoed(worker, "narrow", "e.0", good, IDS)).tensors == (good, IDS)
