"""The outer step: each rule beside its formula in numpy, robust aggregates beside liars, and what is refused."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadUpdate
from nodewire.training.engine.sums import PIECE, distance, dot, fold, norm
from nodewire.training.engine.update import aggregate, outer_step
from nodewire.training.protocol.recipe import MAX_SAMPLES, Outer

torch.set_num_threads(1)

AVERAGE = Outer()
NESTEROV = Outer(method="nesterov", lr="0.7", momentum="0.9")
FEDADAM = Outer(method="fedadam", lr="0.01", betas=("0.9", "0.99"), eps="0.001")


def state(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in (("w", (7, 5)), ("b", (5,)))}


def results(count, scale=0.01):
    return [(10 + i, state(100 + i, scale)) for i in range(count)]


def flat(one):
    return np.concatenate([tensor.numpy().reshape(-1) for tensor in one.values()]).astype(np.float64)


def weighted(given_results):
    total = sum(weight for weight, _ in given_results)
    return sum(weight * flat(delta) for weight, delta in given_results) / total


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_average_is_fedavg_the_weighted_mean_of_what_the_providers_have():
    theta, given_results = state(0), results(4)
    after, momenta = outer_step.step(AVERAGE, theta, outer_step.start(AVERAGE, theta), given_results)
    models = [(weight, {n: theta[n] + d for n, d in delta.items()}) for weight, delta in given_results]
    assert np.allclose(flat(after), weighted(models), atol=1e-6) and momenta == {}


@pytest.mark.parametrize(("weights", "share"), [((20, 20), 0.5), ((20, 10), 0.375), ((20,) * 4, 1.0), ((20,) * 6, 1.0)])
def test_a_step_of_few_of_a_rules_shards_is_short(weights, share):
    rule, whole = NESTEROV.model_copy(update={"shards": 4}), NESTEROV
    theta, some = state(0), [(weight, state(number, 0.01)) for number, weight in enumerate(weights)]
    short, kept = outer_step.step(rule, theta, outer_step.start(rule, theta), some)
    expected, _ = outer_step.step(whole, theta, outer_step.start(whole, theta), some)
    assert np.allclose(flat(short) - flat(theta), share**0.5 * (flat(expected) - flat(theta)), atol=1e-6)
    assert same(short, expected) == (share == 1.0)
    assert np.allclose(flat(kept), share**0.5 * weighted(some), atol=1e-6)


def test_nesterov_is_dilocos_outer_step():
    theta = state(0)
    momenta, x, v = outer_step.start(NESTEROV, theta), flat(theta), 0
    for turn in range(3):
        given_results = [(weight, state(turn * 10 + weight, 0.01)) for weight in (1, 2, 3)]
        theta, momenta = outer_step.step(NESTEROV, theta, momenta, given_results)
        g = weighted(given_results)
        v = 0.9 * v + g
        x = x + 0.7 * (0.9 * v + g)
    assert np.allclose(flat(theta), x, atol=1e-6) and np.allclose(flat(momenta), v, atol=1e-7)


def test_nesterov_is_what_torchs_sgd_makes_of_the_negated_mean():
    theta = state(0)
    momenta = outer_step.start(NESTEROV, theta)
    parameters = [tensor.clone().requires_grad_() for tensor in theta.values()]
    sgd = torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
    for turn in range(3):
        delta = state(50 + turn)
        theta, momenta = outer_step.step(NESTEROV, theta, momenta, [(1, delta)])
        for parameter, tensor in zip(parameters, delta.values(), strict=True):
            parameter.grad = -tensor
        sgd.step()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(theta.values(), parameters, strict=True))


def test_fedadam_is_the_papers():
    theta = state(0)
    momenta, x, m, v = outer_step.start(FEDADAM, theta), flat(theta), 0, 0
    for turn in range(3):
        given_results = [(weight, state(turn * 10 + weight, 0.01)) for weight in (1, 2)]
        theta, momenta = outer_step.step(FEDADAM, theta, momenta, given_results)
        g = weighted(given_results)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        x = x + 0.01 * m / (np.sqrt(v) + 0.001)
    assert np.allclose(flat(theta), x, atol=1e-6)
    assert np.allclose(flat({n: t for n, t in momenta.items() if n.startswith("v/")}), v)


@pytest.mark.parametrize("rule", [AVERAGE, NESTEROV, FEDADAM], ids=lambda rule: rule.method)
def test_a_step_changes_nothing_that_it_was_given(rule):
    theta, given_results = state(0), results(3)
    momenta = outer_step.start(rule, theta)
    first = outer_step.step(rule, theta, momenta, given_results)
    assert same(theta, state(0)) and same(momenta, outer_step.start(rule, theta))
    assert same(given_results[2][1], results(3)[2][1])
    again = outer_step.step(rule, theta, momenta, given_results)
    assert same(first[0], again[0]) and same(first[1], again[1])


def test_one_result_of_any_weight_is_itself():
    theta, delta = state(0), state(1)
    after, _ = outer_step.step(AVERAGE, theta, {}, [(12_345, delta)])
    assert all(torch.equal(after[n], (theta[n].double() + delta[n].double()).float()) for n in theta)


@settings(max_examples=30, deadline=None)
@given(weights=st.lists(st.integers(1, MAX_SAMPLES), min_size=1, max_size=5))
def test_equal_results_give_themselves_whatever_they_weigh(weights):
    delta = state(1)
    assert all(torch.equal(t.float(), delta[n]) for n, t in aggregate.mean([(w, delta) for w in weights]).items())


def test_what_spans_pieces_is_aggregated_like_the_rest():
    delta = {"x": torch.arange(PIECE + 3, dtype=torch.float32)}
    for found in (
        aggregate.mean([(2, delta)]),
        aggregate.median([(1, delta)] * 2),
        aggregate.trimmed([(1, delta)] * 3, 1),
    ):
        assert torch.equal(found["x"].float(), delta["x"])


# Aggregates that survive liars.


def around(seed, spread=0.1):
    noise = state(seed, spread)
    return {name: tensor + noise[name] for name, tensor in state(7).items()}


LIES = {
    "sign": {name: -tensor for name, tensor in state(7).items()},
    "times ten": {name: 10 * tensor for name, tensor in state(7).items()},
    "noise": state(99, 30.0),
    "huge": {name: torch.full_like(tensor, 2.0**64) for name, tensor in state(7).items()},
}


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize(
    "rule",
    [
        Outer(aggregate="trimmed", tolerated=2),
        Outer(aggregate="median"),
        Outer(aggregate="clip", bound="1.5"),
        Outer(aggregate="krum", tolerated=2),
    ],
    ids=lambda rule: rule.aggregate,
)
def test_two_liars_of_seven_do_not_turn_a_robust_aggregate(rule, lie):
    given_results = [(10, around(i)) for i in range(5)] + [(10, LIES[lie])] * 2
    random.Random(3).shuffle(given_results)
    theta = {name: torch.zeros_like(tensor) for name, tensor in state(7).items()}
    after, _ = outer_step.step(rule, theta, {}, given_results)
    cosine = dot(after, state(7)) / norm(after) / norm(state(7))
    # Clipping only shortens lies; the others leave them out.
    assert cosine > (0.8 if rule.aggregate == "clip" else 0.95) and norm(after) < 2 * norm(state(7))


def test_the_plain_mean_does_not_survive_them():
    given_results = [(10, around(i)) for i in range(5)] + [(10, LIES["huge"])] * 2
    assert norm(aggregate.mean(given_results)) > 1e15


def test_trimming_weighs_what_is_left():
    rows = [(1, {"x": torch.tensor([0.0])}), (3, {"x": torch.tensor([1.0])}), (1, {"x": torch.tensor([2.0])})]
    rows += [(5, {"x": torch.tensor([-90.0])}), (5, {"x": torch.tensor([90.0])})]
    assert aggregate.trimmed(rows, 1)["x"].tolist() == [1.0]
    rows[2] = (4, rows[2][1])
    assert aggregate.trimmed(rows, 1)["x"].tolist() == [(0 + 3 + 8) / 8]


def test_the_median_of_an_even_count_is_between_the_two_in_the_middle():
    rows = [(1, {"x": torch.tensor([value])}) for value in (1.0, 100.0, 3.0, -50.0)]
    assert aggregate.median(rows)["x"].tolist() == [2.0]


def test_clipping_leaves_what_is_short_enough_as_it_is():
    rows = [(1, state(1)), (1, state(2)), (1, state(3))]
    assert same(aggregate.clip(rows, 5.0), aggregate.mean(rows))


def test_zeros_are_clipped_without_a_division():
    zero = {"x": torch.zeros(3)}
    assert aggregate.clip([(1, zero), (2, zero)], 2.0)["x"].tolist() == [0, 0, 0]


def test_too_few_results_for_a_robust_aggregate_are_an_error():
    for rule in (Outer(aggregate="krum", tolerated=1), Outer(aggregate="trimmed", tolerated=2)):
        with pytest.raises(BadInput, match="aggregate"):
            outer_step.step(rule, state(0), {}, results(4))


# What is refused.


@pytest.mark.parametrize("weight", [0, -1, 2**29])
def test_weights_out_of_range_are_refused(weight):
    with pytest.raises(BadUpdate, match="weight"):
        outer_step.step(AVERAGE, state(0), {}, [(weight, state(1))])


def test_no_results_are_refused():
    with pytest.raises(BadUpdate, match="none"):
        outer_step.step(AVERAGE, state(0), {}, [])


def test_a_delta_of_another_model_is_refused():
    delta = state(1)
    for other in ({"w": delta["w"]}, {"w": delta["w"], "b": delta["b"][:4]}, {**delta, "c": delta["b"]}):
        with pytest.raises(BadUpdate, match="delta"):
            outer_step.step(AVERAGE, state(0), {}, [(1, other)])


def test_momenta_of_another_rule_are_refused():
    with pytest.raises(BadUpdate, match="momenta"):
        outer_step.step(FEDADAM, state(0), outer_step.start(NESTEROV, state(0)), results(2))


def test_a_step_out_of_float32s_range_is_refused():
    theta = {"w": torch.full((2,), 3e38)}
    with pytest.raises(BadUpdate, match="w: "):
        outer_step.step(Outer(lr="10000.0"), theta, {}, [(1, {"w": torch.full((2,), 1e37)})])


# Sums.


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
def test_a_folded_sum_is_the_sum_in_the_order_that_it_says(count, seed):
    values = np.random.default_rng(seed).normal(size=(2, count))

    def folded(row):
        while len(row) > 1:
            half = len(row) // 2
            row = np.concatenate([row[:half] + row[half : 2 * half], row[2 * half :]])
        return row[0] if len(row) else 0.0

    assert fold(torch.from_numpy(values)).tolist() == [folded(row) for row in values]


def test_norms_products_and_distances_are_those_of_all_numbers_together():
    a, b = state(1), state(2)
    assert norm(a) == pytest.approx(np.linalg.norm(flat(a)))
    assert dot(a, b) == pytest.approx(flat(a) @ flat(b))
    assert distance(a, b) == pytest.approx(np.linalg.norm(flat(a) - flat(b)))
