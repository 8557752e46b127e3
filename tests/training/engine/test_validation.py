"""FEDSTR's two policies and the rungs of the ladder, each on numbers that one can follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nodewire.errors import BadHash
from nodewire.training.engine import data, validation
from nodewire.training.engine.validation import Judgement, Submission
from nodewire.training.protocol.recipe import Audit, Recipe, Validation
from tests.training.engine.recipes import made, recipe

torch.set_num_threads(1)
RULES = Validation()
STEPS = 10


def ruled(**rules) -> Recipe:
    return recipe("mlp", steps=STEPS).model_copy(update={"validation": Validation(**rules)})


def at(*numbers: float) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor(numbers)}


def towards(*goal: float):
    """A loss, on two samples alike: half the squared distance from a goal."""
    return lambda theta: ((theta["x"] - torch.tensor(goal)).square().sum() / 2).double().expand(2)


def of(losses: torch.Tensor) -> float:
    return float(losses.mean())


def submission(index, delta, steps=STEPS):
    """A result; its own loss falls in the direction in which it went, and to the goal of all."""
    goal = (1.5 * delta["x"] + torch.tensor([1.0, 1.0])).tolist()
    return Submission(index, steps, steps * 10, delta, towards(*goal))


def submissions(*deltas):
    return [submission(i, delta) for i, delta in enumerate(deltas)]


def outcomes(found):
    return [judgement.outcome for judgement in found.values()]


def test_who_works_alike_is_accepted():
    theta = at(0.0, 0.0)
    found = validation.judge(ruled(), theta, submissions(at(0.5, 0.3), at(0.3, 0.5)), towards(1, 1))
    assert found[0] == Judgement("accept", "", found[0].figures)
    assert outcomes(found) == ["accept"] * 2
    assert set(found[0].figures) == {"norm", "relative_norm", "cosine", "gain", "own"}
    assert found[0].figures["gain"] == pytest.approx(1 - (0.25 + 0.49) / 2)


def test_no_work_is_rejected_whoever_else_is_there():
    assert validation.by_norm(RULES, 0.0, [0.0]).outcome == "reject"
    assert validation.by_norm(RULES, float("nan"), [1.0, 1.0, 1.0]).outcome == "reject"


@pytest.mark.parametrize(("length", "outcome"), [(0.19, "reject"), (0.21, "accept"), (4.9, "accept"), (5.1, "reject")])
def test_a_length_is_judged_beside_the_median(length, outcome):
    assert validation.by_norm(RULES, length, [1.0, 1.0, 1.0, length]).outcome == outcome


def test_of_two_lengths_it_is_not_known_which_is_wrong():
    assert [validation.by_norm(RULES, length, [1.0, 30.0]).outcome for length in (1.0, 30.0)] == ["audit", "audit"]
    assert [validation.by_norm(RULES, length, [1.0, 3.0]).outcome for length in (1.0, 3.0)] == ["accept", "accept"]
    assert validation.by_norm(RULES, 30.0, [1.0, 1.0, 30.0]).outcome == "reject"


def test_what_is_out_of_all_proportion_is_doubted_whatever_its_outcome():
    two, four = validation.by_norm(RULES, 30.0, [1.0, 30.0]), validation.by_norm(RULES, 30.0, [1.0, 1.0, 1.0, 30.0])
    assert [(one.outcome, one.threat, one.is_doubted) for one in (two, four)] == [
        ("audit", "sure", True),
        ("reject", "sure", True),
    ]
    idle = validation.by_norm(RULES, 0.0, [1.0, 1.0, 1.0, 0.0])
    assert (idle.threat, idle.is_doubted) == ("none", False)


def test_who_was_given_fewer_steps_may_do_less():
    theta, whole = at(0.0, 0.0), [at(0.5, 0.4), at(0.4, 0.5), at(0.5, 0.5)]
    short = submission(3, at(0.02, 0.12), steps=1)
    found = validation.judge(ruled(cosine="1.0"), theta, [*submissions(*whole), short], towards(1, 1))[3].figures
    assert found["relative_norm"] == pytest.approx(1.06, abs=0.05) and found["gain"] == pytest.approx(0.74, abs=0.05)
    idle = replace(short, steps=STEPS)
    assert validation.judge(ruled(), theta, [*submissions(*whole), idle], towards(1, 1))[3].reason.startswith("norm")


def test_two_that_are_alike_are_both_audited():
    found = validation.judge(
        ruled(), at(0.0, 0.0), submissions(at(0.5, 0.3), at(0.3, 0.5), at(0.51, 0.3)), towards(1, 1)
    )
    assert [found[i].reason for i in (0, 2)] == ["cosine: alike"] * 2
    assert found[1].reason != "cosine: alike"


def test_two_that_are_alike_and_make_the_model_worse_threaten_it_all_the_same():
    away = [at(-0.5, -0.3), at(-0.51, -0.3)]
    found = validation.judge(ruled(), at(0.0, 0.0), submissions(*away, at(0.3, 0.5)), towards(1, 1))
    assert [(found[i].outcome, found[i].threat) for i in (0, 1)] == [("audit", "possible")] * 2
    assert found[2].threat == "none"


def test_an_update_of_the_round_before_is_a_copy_too():
    found = validation.judge(
        ruled(), at(0.0, 0.0), submissions(at(0.5, 0.3), at(0.3, 0.5)), towards(1, 1), earlier=[at(0.05, 0.03)]
    )
    assert [judgement.reason == "cosine: alike" for judgement in found.values()] == [True, False]


def test_cosines_are_those_of_all_numbers():
    found = validation.cosines({3: at(1.0, 0.0), 7: at(1.0, 1.0), 9: at(0.0, 0.0)})
    assert found == pytest.approx({3: 0.5**0.5, 7: 0.5**0.5, 9: 0.0})
    assert validation.cosines({3: at(1.0, 0.0)}) == {3: -1.0} and validation.cosines({}) == {}


def test_a_loss_that_rises_is_audited():
    found = validation.judge(ruled(), at(0.0, 0.0), submissions(at(0.5, 0.3), at(-0.5, 0.1)), towards(1, 1))
    assert found[1] == Judgement("audit", "gain: the loss rises", found[1].figures, "possible")


def test_a_loss_that_is_no_number_is_audited():
    assert validation.by_gain(RULES, torch.tensor([1.0, float("nan")]), torch.ones(2)).outcome == "audit"
    assert validation.by_own(RULES, float("nan"), 0.0, [1.0]).outcome == "audit"
    assert validation.by_own(RULES, 1.0, float("nan"), [1.0]).outcome == "audit"


def test_own_is_how_far_it_is_ahead_of_the_mean_there_and_not_on_held_out_data():
    deltas, theta = [at(0.5, 0.3), at(0.3, 0.5), at(0.1, 0.7)], at(0.0, 0.0)
    results = submissions(*deltas)
    everybody = at(0.3, 0.5)
    held = towards(1, 1)
    ahead = of(results[0].own(everybody) - results[0].own(deltas[0]) - held(everybody) + held(deltas[0]))
    assert validation.judge(ruled(), theta, results, held)[0].figures["own"] == pytest.approx(ahead)
    alone = validation.judge(ruled(), theta, results[:1], held)[0].figures["own"]
    assert alone == pytest.approx(of(results[0].own(theta) - results[0].own(deltas[0]) - held(theta) + held(deltas[0])))


def test_the_mean_is_of_all_but_who_is_rejected():
    a, b, bad = submissions(at(0.5, 0.3), at(0.3, 0.5), at(90.0, 0.0))
    theta, held = at(0.0, 0.0), towards(1, 1)
    found = validation.judge(ruled(), theta, [a, b, bad], held, norms=[0.6, 0.6])
    assert found[2].outcome == "reject"
    mean = at(0.4, 0.4)
    ahead = of(a.own(mean) - a.own(a.delta) - held(mean) + held(a.delta))
    assert found[0].figures["own"] == pytest.approx(ahead)
    heavy = replace(b, weight=300)
    assert validation.judge(ruled(), theta, [a, heavy, replace(a, index=3, delta=at(0.4, 0.1))], held)[0].figures[
        "own"
    ] != pytest.approx(ahead)


def test_who_is_not_ahead_on_its_own_batches_is_audited():
    usual = [0.04, 0.03, 0.05]
    assert validation.by_own(RULES, 0.03, 0.0, [*usual, 0.03]).outcome == "accept"
    assert validation.by_own(RULES, 0.01, 0.0, [*usual, 0.01]).reason == "own: less than others"
    assert validation.by_own(RULES, -0.01, 0.0, [*usual, -0.01]).reason == "own: trained on something else"
    # What chance alone may have done is no reason.
    assert validation.by_own(RULES, 0.01, 0.015, [*usual, 0.01]).outcome == "accept"
    assert validation.by_own(RULES, -0.01, 0.015, [*usual, -0.01]).reason == "own: less than others"


def test_progress_rejects_whom_the_others_leave_behind():
    """Held-out losses 0.08, 0.08 and 0.965; the others' mean is at (0.8, 0.8)."""
    rules = ruled(policy="progress", gamma="0.3")
    found = validation.judge(rules, at(0.0, 0.0), submissions(at(1, 0.6), at(0.6, 1), at(0.3, -0.2)), towards(1, 1))
    assert outcomes(found)[2] == "reject" and found[2].reason == "progress: others are ahead"
    others = of(towards(1, 1)(at(0.8, 0.8)))
    assert found[2].figures["behind"] == pytest.approx(of(towards(1, 1)(at(0.3, -0.2))) - others)
    assert "reject" not in outcomes(found)[:2]
    patient = ruled(policy="progress", gamma="1.0")
    again = validation.judge(patient, at(0.0, 0.0), submissions(at(1, 0.6), at(0.6, 1), at(0.3, -0.2)), towards(1, 1))
    assert "reject" not in outcomes(again)


def test_progress_has_nothing_to_say_of_one_alone():
    rules = ruled(policy="progress", gamma="0.0")
    assert outcomes(validation.judge(rules, at(0.0, 0.0), submissions(at(0.5, 0.3)), towards(1, 1))) == ["accept"]


@pytest.mark.parametrize(
    ("history", "loss", "outcome"),
    [
        ([], 9.0, "accept"),
        ([3.0, 2.8], 2.7, "accept"),
        ([3.0, 2.8, 2.6], 2.5, "accept"),
        ([3.0, 2.8, 2.6], 3.1, "reject"),
        ([3.0, 3.0, 3.0], 3.0, "reject"),
        ([9.0, 3.0, 3.0, 3.0], 2.9, "accept"),
    ],
)
def test_decay_is_of_the_mean_over_the_last_rounds(history, loss, outcome):
    rules = Validation(policy="decay", rate="0.01", average=3)
    assert validation.decay(rules, history, loss).outcome == outcome


def test_decay_may_be_a_bound_on_growth():
    rules = Validation(policy="decay", rate="-0.1", average=1)
    assert [validation.decay(rules, [1.0], loss).outcome for loss in (1.05, 1.15)] == ["accept", "reject"]


def test_decay_judges_every_result_by_its_own_loss():
    rules = ruled(policy="decay", rate="0.1", average=1)
    found = validation.judge(
        rules, at(0.0, 0.0), submissions(at(0.5, 0.3), at(0.1, 0.1)), towards(1, 1), history=[5.0, 1.0]
    )
    assert found[1].reason != "decay: too slow"
    assert found[1].figures["decay"] == pytest.approx(1 - 0.81)
    slow = validation.judge(rules, at(0.0, 0.0), submissions(at(0.01, 0.0)), towards(1, 1), history=[1.0])
    assert slow[0] == Judgement("reject", "decay: too slow", slow[0].figures)


def test_a_recomputed_segment_decides():
    found = [validation.by_audit(ruled(), off).outcome for off in (0.0, 0.019, 0.021, float("nan"), float("inf"))]
    assert found == ["accept", "accept", "reject", "reject", "reject"]
    strict = ruled().model_copy(update={"audit": Audit(tolerance="0.0")})
    assert [validation.by_audit(strict, off).outcome for off in (0.0, 1e-9)] == ["accept", "reject"]
    assert validation.by_audit(recipe("decoder-bf16"), 0.04).outcome == "accept"


def test_what_could_not_be_read_is_rejected_by_its_error():
    assert validation.malformed(BadHash("root", "another")) == Judgement("reject", "bad-hash: root: another")


def test_own_samples_are_batches_of_the_round_itself():
    of = recipe("mlp", steps=STEPS)
    shard = data.split(made(of)[0], 2, of).shards[1]
    few = of.model_copy(update={"validation": Validation(samples=3 * of.batch)})
    x, y = validation.own_samples(few, shard, 4, 1, STEPS)
    rounds = list(data.batches(shard, of, 4, 1))
    assert len(y) == 3 * of.batch
    assert torch.equal(x, torch.cat([rounds[step][0] for step in (0, 3, 6)]))
    assert len(validation.own_samples(of, shard, 4, 1, 1)[1]) == of.batch
