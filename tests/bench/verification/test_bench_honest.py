"""How bench.verification.honest computes again and counts: frames merged as a verifier may, and what comparisons come
to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from bench.verification import honest, recompute
from nodewire.protocol.tensors.frame import Frame
from nodewire.protocol.verification.comparison import Comparison, Tolerance


@dataclass
class ManifestOf:
    chunk: int
    mode: str = "generate"


def frame(seq, pos, n=1):
    hidden = torch.arange(pos, pos + n, dtype=torch.float32).reshape(1, n, 1).repeat(1, 1, 4)
    return Frame("hidden.0", seq, (hidden,), {"pos": pos, "chunk": 0, "tokens": n})


FRAMES = [frame(0, 0, 5), *(frame(seq, 4 + seq) for seq in range(1, 6))]


def positions(frames):
    return [(one.seq, one.meta["pos"], one.tensors[0][0, :, 0].tolist()) for one in frames]


@pytest.mark.parametrize("whole", [False, True])
def test_what_came_before_a_chunk_is_merged_and_the_chunk_itself_only_if_asked(whole):
    rounds = list(recompute._by_chunk(ManifestOf(chunk=2), FRAMES, whole=whole))
    assert [positions(before) for before, _ in rounds] == [
        [],
        [(0, 0, [0, 1, 2, 3, 4])],
        [(0, 0, [0, 1, 2, 3, 4, 5, 6])],
        [(0, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8])],
    ]
    own = [positions(own) for _, own in rounds]
    if whole:
        assert own[1] == [(1, 5, [5, 6])]
    else:
        assert own[1] == [(1, 5, [5]), (2, 6, [6])]


def test_merged_frames_stay_below_the_most_positions():
    many = [frame(seq, 300 * seq, 300) for seq in range(3)]
    assert [one.tensors[0].shape[1] for one in recompute._merged(many)] == [300, 300, 300]


def test_the_answer_to_a_merged_frame_is_taken_apart_by_positions():
    (taken,) = recompute._merged(FRAMES[1:4])
    out = Frame("hidden.1", taken.seq, taken.tensors, {"chunk": 1})
    apart = recompute._apart(taken, [out])
    assert [(one.edge, one.seq, one.tensors[0].flatten()[0].item()) for one in apart] == [
        ("hidden.1", 1, 5),
        ("hidden.1", 2, 6),
        ("hidden.1", 3, 7),
    ]
    assert recompute._apart(FRAMES[0], [out]) == [out]


def test_a_tally_tells_the_largest_distance_and_where_it_was():
    tally = honest.Tally()
    for found, what in (
        (Comparison("pass", 3, "hidden.1/7"), "a"),
        (Comparison("grey", 60, "hidden.1/9"), "b"),
        (Comparison("pass", 0, ""), "c"),
        (None, "d"),
    ):
        tally.add(found, what)
    said = tally.document(Tolerance(50, 200))
    assert said["outcomes"] == {"pass": 2, "grey": 1, "not computed": 1}
    assert (said["comparisons"], said["identical"], said["part_of_fail"]) == (4, 1, 0.3)
    assert said["ppm"]["max"] == 60
    assert said["worst"] == "b: hidden.1/9"


def test_a_kind_is_held_against_the_tolerance_of_its_dtype():
    assert honest.tolerance_of("decoder.driver bfloat16 greedy") == honest.EXACT
    assert honest.tolerance_of("decoder.stage bfloat16") == honest.TOLERANCES["bfloat16"]
    assert honest.tolerance_of("encoder.driver") == Tolerance(0, 1)
