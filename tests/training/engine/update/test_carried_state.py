"""Fragments and residuals: cut, carried, bounded, and audited against those who carry something else."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nodewire.errors import BadHash, BadRecipe, BadUpdate, TooLarge, Withheld
from nodewire.training.engine import bare_loop, data, segments
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.segments import Claim
from nodewire.training.engine.update import carried_state, fragments, outer_step
from nodewire.training.engine.update import compression as compress
from nodewire.training.engine.update.carried_state import NOTHING, CarriedState
from nodewire.training.protocol.recipe import Compression, Recipe
from tests.training.engine.recipes import made, recipe
from tests.training.engine.test_train_rounds import bits

torch.set_num_threads(1)
FEEDBACK = {"method": "int4", "block": 128, "error_feedback": "0.9"}
FRAGMENTS = {"fragments": 2}
BOTH = FEEDBACK | FRAGMENTS
FORMS = {"feedback": FEEDBACK, "topk": FEEDBACK | {"method": "topk"}, "fragments": FRAGMENTS, "both": BOTH}
LAYERED = recipe("decoder")


def cut(of: Recipe, many: int, rounds: int) -> Recipe:
    document = of.document() | {"rounds": rounds}
    return Recipe.from_document(document | {"compression": document["compression"] | {"fragments": many}})


@settings(max_examples=30, deadline=None)
@given(many=st.integers(2, 20), name=st.sampled_from(["decoder", "mlp", "cnn"]))
def test_every_number_is_in_one_fragment_and_they_are_alike(many, name):
    of = cut(recipe(name), many, many + 1)
    numbers = {n: torch.arange(prod(shape)).view(shape) for n, shape in of.shapes().items()}
    seen = {n: torch.zeros(prod(shape)) for n, shape in of.shapes().items()}
    sizes = []
    for round in range(many):
        fragment = fragments.of_round(of, round)
        part = fragment.select(numbers)
        assert {n: tuple(tensor.shape) for n, tensor in part.items()} == fragment.shapes(of.shapes())
        for n, places in part.items():
            seen[n][places] += 1
        sizes.append(sum(tensor.numel() for tensor in part.values()))
        back = fragment.into(part, {n: torch.full_like(tensor, -1) for n, tensor in numbers.items()})
        assert all(((back[n] == numbers[n]) | (back[n] == -1)).all() for n in numbers)
        assert sum(int((back[n] >= 0).sum()) for n in numbers) == sizes[-1]
    assert all((tensor == 1).all() for tensor in seen.values())
    assert max(sizes) - min(sizes) <= of.stretches()
    assert fragments.of_round(of, many).spans is None


def test_fragments_are_interleaved_and_as_long_as_layers():
    of = cut(LAYERED.model_copy(update={"family": LAYERED.family.model_copy(update={"layers": 8})}), 4, 9)
    assert of.stretches() == 8
    numbers, first = of.trained(), fragments.of_round(of, 1)
    row = torch.cat(
        [t.reshape(-1) for t in first.into(first.select(initial(of)), fragments.zeros(of.shapes())).values()]
    )
    places = row.nonzero()[:, 0]
    inside = ((places >= numbers // 8) & (places < 2 * numbers // 8)) | (
        (places >= 5 * numbers // 8) & (places < 6 * numbers // 8)
    )
    assert bool(inside.all()) and len(places) > 0.2 * numbers


@pytest.mark.parametrize("change", [{"fragments": 65}, {"fragments": 5}, {"fragments": 0}])
def test_more_fragments_than_rounds_or_the_cap_are_refused(change):
    with pytest.raises(BadRecipe, match="fragments"):
        recipe("mlp", compression=change)


def test_of_late_results_of_another_fragment_nothing_can_count():
    with pytest.raises(BadRecipe, match="late"):
        Recipe.from_document(recipe("mlp", compression=FRAGMENTS).document() | {"late": "half"})


LOSSY = [
    Compression(method=method, block=128, bits=size, fraction=fraction, error_feedback="1.0")
    for method, size, fraction in [
        ("f32", 8, "0.1"),
        ("int8", 8, "0.1"),
        ("int4", 8, "0.1"),
        ("topk", 8, "0.1"),
        ("topk", 2, "0.1"),
        ("topk", 2, "0.01"),
        ("topk", 2, "0.5"),
    ]
]
FINITE = st.floats(-(2.0**60), 2.0**60, width=32)


@settings(max_examples=150, deadline=None)
@given(form=st.sampled_from(LOSSY), numbers=hnp.arrays(np.float32, st.integers(1, 300), elements=FINITE))
def test_no_residual_is_larger_than_what_packing_can_lose(form, numbers):
    delta = {"x": torch.from_numpy(numbers)}
    packed, residual = compress.pack(delta, form)
    most = compress.most_lost(packed, {"x": (len(numbers),)}, form)
    assert bool((residual["x"].abs() <= most["x"]).all())


@pytest.mark.parametrize("form", LOSSY[1:], ids=lambda form: f"{form.method} {form.bits} {form.fraction}")
def test_the_bound_is_of_the_size_of_what_is_lost(form):
    delta = {"x": torch.randn(10_000, generator=torch.Generator().manual_seed(4))}
    packed, residual = compress.pack(delta, form)
    most = compress.most_lost(packed, {"x": (10_000,)}, form)["x"]
    assert most.norm() < 20 * residual["x"].norm()


class Rounds:
    """Some honest rounds of one shard, each with what was carried into it and from it."""

    def __init__(self, compression: dict, many: int = 3):
        self.recipe = recipe("mlp", compression=compression, outer={"method": "nesterov", "lr": "0.7"})
        self.shards = data.split(made(self.recipe)[0], 2, self.recipe).shards
        self.trainer = Trainer(self.recipe)
        self.rounds = []
        theta = initial(self.recipe)
        momenta, kept = outer_step.start(self.recipe.outer, theta), None
        for round in range(many):
            snapshots, now = [], self.trainer.beginning(carried_state.start_of_round(theta, kept))
            for steps in (4, 4, 2):
                now = self.trainer.segment(now, self.shards[0], round, 0, steps)
                snapshots.append(now)
            packed, after = carried_state.send(self.recipe, round, carried_state.moved(theta, now.theta), kept)
            self.rounds.append((theta, kept, snapshots, packed, after))
            kept, results = after, [(160, carried_state.received(self.recipe, round, packed))]
            theta, momenta = fragments.step(self.recipe, round, theta, momenta, results)

    def claim(self, round: int, **changes) -> Claim:
        _, _, snapshots, _, after = self.rounds[round]
        states = tuple(snapshot.digest() for snapshot in snapshots)
        digest = carried_state.digest(carried_state.packed(after))
        return replace(Claim(round, 0, states, digest), **changes)

    def off(self, round: int, segment: int, claim: Claim | None = None, **changes) -> float:
        theta, begun, snapshots, packed, _ = self.rounds[round]
        return segments.recomputed(
            self.trainer,
            claim or self.claim(round),
            segments.RoundInputs(theta, self.shards[0], 10, changes.get("begun", begun)),
            segment,
            lambda i: segments.show(snapshots[i]),
            changes.get("packed", packed),
        )


@pytest.fixture(scope="module", params=FORMS)
def done(request):
    return Rounds(FORMS[request.param])


def test_honest_rounds_agree_to_the_bit(done):
    for round in range(3):
        assert [done.off(round, segment) for segment in range(3)] == [0.0, 0.0, 0.0]
    assert done.rounds[0][1] is None
    assert done.rounds[1][1] is not None and done.rounds[2][1] is not None


def test_what_is_carried_comes_back_from_bytes_and_is_found_by_its_digest(done):
    after = done.rounds[1][4]
    whole = carried_state.packed(after)
    assert len(whole) <= carried_state.most_bytes(done.recipe)
    back = carried_state.shown(whole, done.recipe, carried_state.digest(whole))
    assert carried_state.packed(back) == whole
    assert carried_state.shown(carried_state.EMPTY, done.recipe, NOTHING) is None
    with pytest.raises(Withheld):
        carried_state.shown(None, done.recipe, NOTHING)
    for other in (
        b"",
        carried_state.EMPTY,
        whole[:-1] + bytes([whole[-1] ^ 1]),
        carried_state.packed(done.rounds[0][4]),
    ):
        with pytest.raises(BadHash, match="carried"):
            carried_state.shown(other, done.recipe, carried_state.digest(whole))


def test_what_is_carried_of_another_shard_or_an_earlier_round_is_refused(done):
    """By its digest; and if a provider could begin with it, its first segment would be another's."""
    committed = done.claim(1).carried
    for stale in (done.rounds[0][4], done.rounds[1][1]):
        with pytest.raises(BadHash, match="carried"):
            carried_state.shown(carried_state.packed(stale), done.recipe, committed)
    other = Rounds(done.recipe.compression.model_dump(exclude_defaults=True))
    assert carried_state.digest(carried_state.packed(other.rounds[1][4])) == committed  # the same shard, again


def scaled(of: CarriedState, factor: float) -> CarriedState:
    parts = ({n: t * factor for n, t in part.items()} if part is not None else None for part in (of.drift, of.residual))
    return CarriedState(*parts)


@pytest.mark.parametrize("factor", [0.0, 1.01, -1.0, 1e3])
def test_who_carries_on_something_else_is_found_with_the_last_segment(done, factor):
    swelled = scaled(done.rounds[1][4], factor)
    claim = done.claim(1, carried=carried_state.digest(carried_state.packed(swelled)))
    assert done.off(1, 2, claim) == float("inf")
    assert done.off(1, 1, claim) == 0.0


def test_who_packs_with_another_residual_or_begins_elsewhere_is_found(done):
    """A provider that has lied about the round before: what it shows is what it has committed to, and it does not fit
    what it delivers of this round."""
    honest = done.rounds[2][1]
    for begun in (None, scaled(honest, 3.0), scaled(honest, -1.0)):
        assert max(done.off(2, segment, begun=begun) for segment in (0, 2)) > 0.02


def test_an_update_with_a_swelled_residual_is_right_but_for_the_bound():
    """All of the round fits what was carried into it; only the round before says that this cannot have been lost."""
    done = Rounds(FEEDBACK)
    theta, begun, snapshots, _, _ = done.rounds[2]
    before = done.rounds[1][3]
    carried_state.check_residual(begun, before, done.recipe)
    swelled = CarriedState(None, {name: tensor + 0.01 for name, tensor in begun.residual.items()})
    delta = carried_state.moved(theta, snapshots[-1].theta)
    packed, after = carried_state.send(done.recipe, 2, delta, swelled)
    digest = carried_state.digest(carried_state.packed(after))
    claim = done.claim(2, carried=digest)
    assert done.off(2, 2, claim, packed=packed, begun=swelled) == 0.0
    with pytest.raises(BadUpdate, match="more than packing can lose"):
        carried_state.check_residual(swelled, before, done.recipe)


def test_one_number_above_its_blocks_step_is_seen():
    done = Rounds(FEEDBACK)
    _, begun, _, _, _ = done.rounds[2]
    name = next(iter(begun.residual))
    residual = {n: tensor.clone() for n, tensor in begun.residual.items()}
    most = compress.most_lost(done.rounds[1][3], done.recipe.shapes(), done.recipe.compression)[name]
    residual[name].view(-1)[5] = 1.01 * most.view(-1)[5]
    with pytest.raises(BadUpdate, match=name):
        carried_state.check_residual(CarriedState(None, residual), done.rounds[1][3], done.recipe)


def test_a_snapshot_far_off_the_rounds_way_is_refused_with_fragments():
    done = Rounds(FRAGMENTS)
    theta, begun, snapshots, packed, _ = done.rounds[1]
    away = replace(snapshots[0], theta={n: t - 50 * t.abs() for n, t in snapshots[0].theta.items()})
    shown = [away, done.trainer.segment(away, done.shards[0], 1, 0, 4), snapshots[2]]
    claim = done.claim(1, states=tuple(one.digest() for one in shown))
    inputs = segments.RoundInputs(theta, done.shards[0], 10, begun)
    off = segments.recomputed(done.trainer, claim, inputs, 1, lambda i: segments.show(shown[i]), packed)
    assert off > 1.0


@pytest.mark.parametrize("form", [FEEDBACK, FRAGMENTS, BOTH])
def test_bytes_that_are_nothing_carried_are_refused(form):
    of = recipe("mlp", compression=form)
    good = carried_state.packed(Rounds(form, 1).rounds[0][4])
    nan = bytearray(good)
    nan[-4:] = b"\xff\xff\xff\xff"
    for bad in (b"\xff" * 9, b"\x08" + bytes(7) + b"{}      ", good[:-4], good + bytes(4), bytes(nan)):
        with pytest.raises((BadUpdate, TooLarge)):
            carried_state.unpack(bad, of)
    with pytest.raises(BadUpdate):
        carried_state.unpack(good, recipe("mlp", compression=FRAGMENTS if form is FEEDBACK else FEEDBACK))


@pytest.mark.parametrize("form", FORMS)
def test_who_takes_over_begins_with_nothing(form):
    of = recipe("mlp", compression=FORMS[form])
    dataset, _ = made(of)
    theta, curve = bare_loop.run(of, dataset, 3)
    again, _ = bare_loop.run(of, dataset, 3)
    other, changed = bare_loop.run(of, dataset, 3, taken_over={(2, 1)})
    assert bits(theta) == bits(again) != bits(other)
    assert curve[:2] == changed[:2]
    assert bits(bare_loop.run(of, dataset, 3, taken_over={(0, 1)})[0]) == bits(theta)


def test_whose_result_did_not_count_begins_with_nothing():
    of = recipe("mlp", compression=BOTH)
    dataset, _ = made(of)
    everybody = bare_loop.everybody(of, 3, 4)
    without = everybody | {1: [part for part in everybody[1] if part.index]}
    theta, _ = bare_loop.run(of, dataset, 3, participation=without)
    assert bits(theta) == bits(bare_loop.run(of, dataset, 3, participation=without, taken_over={(2, 0)})[0])
    assert bits(theta) != bits(bare_loop.run(of, dataset, 3)[0])


def test_nothing_trained_is_thrown_away():
    """One provider, plain averaging: after the last round theta is where it stands, whatever was sent when."""
    whole, parts = (cut(recipe("mlp"), many, 4) for many in (1, 4))
    dataset, _ = made(whole)
    one, other = (bare_loop.run(of, dataset, 1)[0] for of in (whole, parts))
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5)


def test_four_fragments_learn_as_much_at_a_quarter_of_the_bytes():
    document = recipe("decoder", steps=5).document() | {"rounds": 25}
    ends, sizes = [], []
    for many in (1, 4):
        of = Recipe.from_document(document | {"compression": {"method": "int4", "fragments": many}})
        _, curve = bare_loop.run(of, made(of)[0], 2)
        ends.append(curve[-1].held_out)
        sizes.append([point.upload_bytes for point in curve])
    assert ends[1] < 1.05 * ends[0] < 2.0  # of 5.5 at first
    assert all(part < 0.3 * whole for part, whole in zip(sizes[1][:-1], sizes[0], strict=False))
    assert sizes[1][-1] == sizes[0][-1]
    assert sum(sizes[1]) < 0.3 * sum(sizes[0])
