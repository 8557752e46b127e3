"""One round is a pure function: of a seed, of a step's number, of nothing that happened before in the process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nodewire.errors import BadInput, BadRecipe
from nodewire.training.engine import data, inner_loop
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from tests.training.engine.recipes import NAMES, made, recipe

ROOT = Path(__file__).parents[3]


def bits(state) -> str:
    hashed = hashlib.sha256()
    for name, tensor in state.items():
        hashed.update(name.encode() + tensor.numpy().tobytes())
    return hashed.hexdigest()


def trained(name: str, **changes):
    of = recipe(name, **changes)
    dataset, start = made(of)
    shards, held_out = data.split(dataset, 2, of)
    trainer, theta = Trainer(of, start), initial(of, start)
    return of, trainer, theta, shards, held_out


@pytest.mark.parametrize("name", NAMES)
def test_every_family_learns(name):
    of, trainer, theta, shards, held_out = trained(name)
    measured = data.samples(held_out, of, 64)
    before = trainer.loss(theta, measured)
    for round in range(3):
        update = trainer.train(theta, shards[0], round, 0)
        theta = {name: theta[name] + delta for name, delta in update.delta.items()}
    assert trainer.loss(theta, measured) < 0.97 * before
    assert list(update.delta) == list(of.shapes()) == list(theta)
    assert update.samples == of.steps * of.batch
    assert len(update.losses) == of.steps
    assert len(update.states) == -(-of.steps // of.audit.segment)


def test_the_rate_rises_in_every_round():
    whole = {"optimizer": "sgd", "lr": "0.5"}
    _, trainer, theta, shards, _ = trained("linear", **whole)
    _, rising, *_ = trained("linear", **whole, rise=4)
    for round in (0, 3):
        one, quarter = (of.train(theta, shards[0], round, 0, 1).delta for of in (trainer, rising))
        assert all(torch.allclose(4 * quarter[name], one[name], atol=1e-6) for name in theta)
    few, all_ = (of.train(theta, shards[0], 0, 0).losses for of in (rising, trainer))
    assert few[0] == all_[0] != few[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_round_leaves_nothing_behind(name):
    _, trainer, theta, shards, _ = trained(name)
    first = trainer.train(theta, shards[0], 0, 0)
    other = trainer.train(theta, shards[1], 1, 1)
    again = trainer.train(theta, shards[0], 0, 0)
    assert bits(first.delta) == bits(again.delta) != bits(other.delta)
    assert first.states == again.states
    assert first.losses == again.losses


@pytest.mark.parametrize("name", NAMES)
def test_any_segment_can_be_computed_again(name):
    of, trainer, theta, shards, _ = trained(name)
    update = trainer.train(theta, shards[1], 2, 1)
    every = of.audit.segment
    begun = trainer.beginning(theta)
    for number, committed in enumerate(update.states):
        revealed = trainer.snapshot(theta, shards[1], 2, 1, begun.step)
        assert revealed.digest() == begun.digest()
        steps = min(every, of.steps - begun.step)
        begun = Trainer(of, made(of)[1]).segment(revealed, shards[1], 2, 1, steps)
        assert begun.digest() == committed, number
    after = {name: before + update.delta[name] for name, before in theta.items()}
    assert all(torch.allclose(begun.theta[name], after[name], atol=1e-6) for name in theta)


IN_ANOTHER_PROCESS = """
import sys
from tests.training.engine.test_train_rounds import bits, trained
for name in sys.argv[1:]:
    of, trainer, theta, shards, _ = trained(name)
    print(bits(theta), bits(trainer.train(theta, shards[0], 1, 0).delta))
"""


def test_other_processes_get_the_same_bits():
    names = ("mlp", "cnn", "decoder", "decoder-muon", "encoder-lora")
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # the engine takes one all the same
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    here = []
    for name in names:
        _, trainer, theta, shards, _ = trained(name)
        here.append(f"{bits(theta)} {bits(trainer.train(theta, shards[0], 1, 0).delta)}\n")
    assert said == "".join(here)


def test_threads_and_settings_are_as_they_were():
    _, trainer, theta, shards, _ = trained("mlp")
    torch.set_num_threads(2)
    try:
        trainer.train(theta, shards[0], 0, 0)
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(1)


def test_fewer_steps_are_the_beginning_of_more():
    of, trainer, theta, shards, _ = trained("mlp")
    whole, part = (trainer.train(theta, shards[0], 0, 0, steps) for steps in (None, of.steps - 2))
    assert whole.losses[: of.steps - 2] == part.losses
    assert part.samples == (of.steps - 2) * of.batch
    for steps in (0, of.steps + 1):
        with pytest.raises(BadInput, match="steps"):
            trainer.train(theta, shards[0], 0, 0, steps)


def test_progress_is_told_after_every_segment():
    _, trainer, theta, shards, _ = trained("mlp")
    told = []
    update = trainer.train(theta, shards[0], 0, 0, on_step=lambda done, loss: told.append((done, loss)))
    assert [done for done, _ in told] == [4, 8, 10]
    assert told[-1][1] == pytest.approx(update.losses[-1])


def test_what_does_not_stay_finite_is_said():
    _, trainer, theta, shards, _ = trained("regression", lr="10.0")
    with pytest.raises(BadRecipe, match="finite"):
        for round in range(9):
            update = trainer.train(theta, shards[0], round, 0)
            theta = {name: theta[name] + delta for name, delta in update.delta.items()}


def test_one_offs_are_what_a_trainer_does():
    of, trainer, theta, shards, _ = trained("mlp")
    once = inner_loop.train(of, theta, shards[0], 0, 0)
    assert bits(once.delta) == bits(trainer.train(theta, shards[0], 0, 0).delta)
    end = inner_loop.segment(of, trainer.beginning(theta), shards[0], 0, 0, 4)
    assert end.digest() == once.states[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_the_optimizers_are_torchs(optimizer):
    """Against torch.optim on the same gradients, within rounding."""
    changes = {} if optimizer == "adamw" else {"momentum": "0.9", "nesterov": True}
    steps = 1 if optimizer == "muon" else 10  # torch's Muon iterates in bfloat16, so the two part after a step
    of, trainer, theta, shards, _ = trained(
        "mlp", steps=steps, optimizer=optimizer, lr="0.01", rest_lr="0.01", clip="0.5", **changes
    )
    ours = trainer.train(theta, shards[0], 0, 0)
    from nodewire.training.engine.families import build, hidden_matrices

    parameters = {name: tensor.clone().requires_grad_() for name, tensor in theta.items()}
    model = build(of, parameters)
    hidden = [parameters[name] for name in hidden_matrices(of)] if optimizer == "muon" else []
    rest = [p for p in parameters.values() if not any(p is h for h in hidden)]
    adam = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    match optimizer:
        case "sgd":
            theirs = [torch.optim.SGD(rest, lr=0.01, momentum=0.9, nesterov=True)]
        case "adamw":
            theirs = [torch.optim.AdamW(rest, **adam)]
        case "muon":
            theirs = [
                torch.optim.Muon(hidden, lr=0.01, momentum=0.9, weight_decay=0.0),
                torch.optim.AdamW(rest, **adam),
            ]
    for batch in data.batches(shards[0], of, 0, 0):
        model.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 0.5)
        for each in theirs:
            each.step()
            each.zero_grad()
    for name, parameter in parameters.items():
        theirs_moved = parameter.detach() - theta[name]
        if optimizer == "muon" and name in hidden_matrices(of):
            cosine = torch.nn.functional.cosine_similarity(ours.delta[name].flatten(), theirs_moved.flatten(), dim=0)
            assert cosine > 0.99
            assert ours.delta[name].norm() == pytest.approx(float(theirs_moved.norm()), rel=0.02)
        else:
            torch.testing.assert_close(ours.delta[name], theirs_moved, rtol=1e-3, atol=1e-6)
