"""A stage's past, many positions to a frame: what a verifier computes instead of one step after the other."""

import numpy as np
import pytest
import torch

from kinds.k8843 import KIND, MERGED_POSITIONS
from nodewire.protocol.tensors import mxint8
from nodewire.protocol.tensors.frame import MXINT8, Array, Frame
from nodewire.worker.process.edge_codec import in_blocks
from tests.kinds.inprocess import to_arrays, to_torch
from tests.llm.llm_models import hidden_frame


def past(steps: int) -> list[Frame[Array]]:
    """A prompt of five positions and single ones after it, as the driver sends them."""
    torch.manual_seed(2)
    found = [hidden_frame(5, 0)]
    for seq in range(1, steps + 1):
        states = torch.randn(1, 1, 64)
        found.append(Frame("hidden.0", seq, (states,), {"pos": 4 + seq, "chunk": 1 + (seq - 1) // 64, "tokens": 1}))
    return [to_arrays(frame) for frame in found]


def test_a_session_after_the_merged_past_is_where_the_steps_leave_it(ring):
    stage, frames = ring.actors["stage.0"], past(90)
    merged = KIND.merged(ring.manifest, "stage.0", frames[:-1])
    assert len(merged) == 1
    assert merged[0].tensors[0].shape == (1, 94, 64)
    outs = []
    for name, inputs in (("steps", frames), ("merged", [*merged, frames[-1]])):
        stage.open(name, {})
        for frame in inputs:
            (out,) = stage.receive(name, to_torch(frame))
        outs.append(out)
    assert (outs[0].seq, outs[0].meta) == (outs[1].seq, outs[1].meta)
    torch.testing.assert_close(outs[0].tensors[0], outs[1].tensors[0], rtol=1e-4, atol=1e-5)


def test_a_narrowed_past_is_merged_as_it_travels(ring):
    """Rows of MXINT8 stand one after the other, each with its scales."""
    frames = [
        Frame(f.edge, f.seq, (Array(MXINT8, f.tensors[0].shape, in_blocks(t).numpy().tobytes()),), f.meta)
        for f in past(9)
        for t in to_torch(f).tensors
    ]
    [merged] = KIND.merged(ring.manifest, "stage.0", frames)
    merged.tensors[0].check(2**20)
    alone = np.concatenate([mxint8.numbers(frame.tensors[0]) for frame in frames])
    assert np.array_equal(mxint8.numbers(merged.tensors[0]), alone)


def test_a_rewind_and_a_full_frame_begin_another(ring):
    frames = past(3)
    again = [*frames, frames[2], frames[3]]
    assert [f.tensors[0].shape[1] for f in KIND.merged(ring.manifest, "stage.0", again)] == [8, 2]
    long = past(MERGED_POSITIONS + 10)
    shapes = [f.tensors[0].shape[1] for f in KIND.merged(ring.manifest, "stage.0", long)]
    assert shapes == [MERGED_POSITIONS, 15]


@pytest.mark.parametrize("broken", [{"pos": None}, {"pos": "7"}, {}])
def test_what_does_not_adjoin_stays_as_it_is(ring, broken):
    frames = [Frame(f.edge, f.seq, f.tensors, broken) for f in past(2)]
    assert KIND.merged(ring.manifest, "stage.0", frames) == frames


def test_a_drivers_inputs_are_its_own(ring):
    frames = past(2)
    assert KIND.merged(ring.manifest, "driver", frames) == frames
    assert KIND.merged(ring.manifest, "stage.0", []) == []
