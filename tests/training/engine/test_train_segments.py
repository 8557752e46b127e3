"""Commitments to a round, the draw of what is computed again, and what its provider may and may not show."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch

from nodewire.errors import BadHash, BadInput, BadUpdate, TooLarge, Withheld
from nodewire.training.engine import data, segments, state
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Snapshot, Trainer
from nodewire.training.engine.segments import Claim
from nodewire.training.engine.update import compression as compress
from tests.training.engine.recipes import made, recipe

torch.set_num_threads(1)
SEED = hashlib.sha256(b"closed").digest()


class Round:
    """One honest round of the small classifier: 10 steps in segments of 4."""

    def __init__(self, compression=None, **inner):
        self.recipe = recipe("mlp", compression=compression, **inner)
        self.shard = data.split(made(self.recipe)[0], 2, self.recipe).shards[0]
        self.trainer, self.theta = Trainer(self.recipe), initial(self.recipe)
        self.snapshots, now = [], self.trainer.beginning(self.theta)
        for steps in (4, 4, 2):
            now = self.trainer.segment(now, self.shard, 3, 0, steps)
            self.snapshots.append(now)
        self.delta = {name: now.theta[name] - tensor for name, tensor in self.theta.items()}
        self.packed, _ = compress.pack(self.delta, self.recipe.compression)
        self.claim = self.claimed(self.snapshots)
        self.asked = []

    def claimed(self, snapshots):
        states = tuple(snapshot.digest() for snapshot in snapshots)
        return Claim(3, 0, states)

    def reveal(self, i):
        self.asked.append(i)
        return segments.show(self.snapshots[i])

    def off(self, segment, claim=None, reveal=None, packed=None):
        return segments.recomputed(
            self.trainer,
            claim or self.claim,
            segments.RoundInputs(self.theta, self.shard, 10),
            segment,
            reveal or self.reveal,
            packed or self.packed,
        )


@pytest.fixture(scope="module")
def done():
    return Round()


def test_a_claim_is_what_inner_training_reports(done):
    update = done.trainer.train(done.theta, done.shard, 3, 0)
    assert done.claim.states == update.states
    assert len(update.states) == segments.count(done.recipe, 10)


def test_who_has_the_same_profile_shows_one_snapshot_and_none_for_the_first_segment(done):
    done.asked.clear()
    assert [done.off(segment) for segment in range(3)] == [0.0, 0.0, 0.0]
    assert done.asked == [0, 1]


def test_a_snapshot_other_than_the_one_committed_to_is_refused(done):
    with pytest.raises(BadHash, match="snapshot"):
        done.off(2, reveal=lambda i: segments.show(done.snapshots[0]))


def test_a_snapshot_that_is_not_shown_is_withheld(done):
    with pytest.raises(Withheld):
        done.off(1, reveal=lambda i: None)


def test_a_segment_that_is_none_is_refused(done):
    for segment in (-1, 3):
        with pytest.raises(BadInput, match="segment"):
            done.off(segment)


def _nan(snapshot):
    theta = {name: tensor.clone() for name, tensor in snapshot.theta.items()}
    next(iter(theta.values())).view(-1)[0] = float("nan")
    return replace(snapshot, theta=theta)


def test_snapshots_of_no_numbers_are_refused_though_committed_to(done):
    bad = [_nan(done.snapshots[0]), *done.snapshots[1:]]
    with pytest.raises(BadUpdate, match="finite"):
        done.off(1, claim=done.claimed(bad), reveal=lambda i: segments.show(bad[i]))


def test_snapshots_of_another_model_are_refused_before_they_are_hashed(done):
    theta = done.snapshots[0].theta
    for tensors in ({"x": torch.zeros(3)}, {**theta, "more": torch.zeros(1)}, dict(list(theta.items())[:1])):
        with pytest.raises(BadUpdate):
            done.off(1, reveal=lambda i, tensors=tensors: state.pack(tensors))
    for raw in (b"", b"\xff" * 8, b"\xff" * 100):
        with pytest.raises((BadUpdate, TooLarge)):
            done.off(1, reveal=lambda i, raw=raw: raw)


def test_theta_and_moments_that_are_off_are_off_by_their_share(done):
    """Half the segment's way, and momentum doubled, each while the other is right."""
    start, end = done.snapshots[0], done.snapshots[1]
    short = replace(end, theta={name: (tensor + start.theta[name]) / 2 for name, tensor in end.theta.items()})
    assert segments.apart(done.recipe, start, end, short) == pytest.approx(0.5, rel=1e-4)
    fast = replace(end, moments={name: 2 * moment for name, moment in end.moments.items()})
    assert segments.apart(done.recipe, start, end, fast) > 1.0
    for claimed in (short, fast):
        snapshots = [start, claimed, done.snapshots[2]]
        claim = done.claimed(snapshots)
        assert done.off(1, claim=claim, reveal=lambda i, s=snapshots: segments.show(s[i])) > 0.49


def test_where_nothing_moves_nothing_may_be_off(done):
    still = Snapshot(1, {"x": torch.zeros(2)}, {})
    moved = Snapshot(1, {"x": torch.ones(2)}, {})
    assert segments.apart(done.recipe, still, still, still) == 0.0
    assert segments.apart(done.recipe, still, still, moved) == float("inf")


@pytest.mark.parametrize("factor", [1e6, 1e12])
def test_moments_beside_which_gradients_are_nothing_are_refused(factor):
    """One wrong snapshot, whose moments drive theta as they please: all that follows is right, and no work."""
    done = Round(optimizer="adamw", lr="0.01")
    first = done.snapshots[0]
    power = {"first": factor, "second": factor**2}
    loaded = replace(first, moments={name: power[name] * moment for name, moment in first.moments.items()})
    after = done.trainer.segment(loaded, done.shard, 3, 0, 4)
    snapshots = [loaded, after, after]
    claim = done.claimed(snapshots)
    assert done.off(1, claim=claim, reveal=lambda i: segments.show(snapshots[i])) == float("inf")


def test_a_step_that_was_left_out_shows_in_the_moments_beside_larger_ones():
    """Moments a hundredfold too large hide gradients from |m|, not from what a segment adds to it."""
    done = Round(optimizer="adamw", lr="0.01")
    power = {"first": 100.0, "second": 10_000.0}
    loaded = replace(done.snapshots[0], moments={n: power[n] * m for n, m in done.snapshots[0].moments.items()})
    decay = {"first": 0.9**4, "second": 0.95**4}
    mine = done.trainer.segment(loaded, done.shard, 3, 0, 4)
    idle = replace(mine, moments={name: decay[name] * moment for name, moment in loaded.moments.items()})
    assert segments.apart(done.recipe, loaded, mine, idle) == pytest.approx(1.0, abs=0.01)


def test_a_snapshot_far_off_the_way_is_refused(done):
    """Two wrong snapshots: to where every unit is dead, and back."""
    first = done.snapshots[0]
    away = replace(first, theta={name: tensor - 50 * tensor.abs() for name, tensor in first.theta.items()})
    after = done.trainer.segment(away, done.shard, 3, 0, 4)
    snapshots = [away, after, done.snapshots[2]]
    claim = done.claimed(snapshots)
    assert done.off(1, claim=claim, reveal=lambda i: segments.show(snapshots[i])) > 1.0


@pytest.mark.parametrize("method", ["f32", "int8", "int4", "topk"])
def test_the_packing_is_checked_with_the_last_segment(method):
    done = Round({"method": method})
    assert done.off(2) == 0.0
    done.packed, _ = compress.pack({n: 1.5 * t for n, t in done.delta.items()}, done.recipe.compression)
    assert done.off(2, claim=done.claimed(done.snapshots)) == pytest.approx(0.5, rel=0.01)
    assert done.off(1, claim=done.claimed(done.snapshots)) == 0.0
