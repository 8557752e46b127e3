"""The bare loop: reproducible to the bit, and learning under every outer step and compression."""

from __future__ import annotations

import pytest

from nodewire.training.engine import bare_loop, data
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.update import compression, outer_step
from tests.training.engine.recipes import made, recipe
from tests.training.engine.test_train_rounds import bits

OUTER = {
    "average": {},
    "nesterov": {"method": "nesterov", "lr": "0.7", "momentum": "0.9"},
    "fedadam": {"method": "fedadam", "lr": "0.05"},
}
METHODS = ("f32", "int8", "int4", "topk")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", OUTER)
def test_runs_agree_to_the_bit_and_learn(rule, method):
    of = recipe("mlp", outer=OUTER[rule], compression={"method": method, "block": 128, "error_feedback": "1.0"})
    dataset, _ = made(of)
    theta, curve = bare_loop.run(of, dataset, 3)
    again, same = bare_loop.run(of, dataset, 3)
    assert bits(theta) == bits(again)
    assert curve == same
    assert [point.round for point in curve] == [0, 1, 2, 3]
    assert curve[-1].held_out < 1.1 and curve[-1].inner < curve[0].inner
    assert curve[0].upload_bytes >= 3 * of.upload_bytes()


@pytest.mark.parametrize("name", ["decoder", "encoder-lora"])
def test_the_loop_is_what_customer_and_providers_do_apart(name):
    """Shards and updates as bytes, a provider that has no memory, and the outer step at the customer."""
    of = recipe(name, outer=OUTER["nesterov"], compression={"method": "int4", "block": 128})
    dataset, start = made(of)
    wanted, _ = bare_loop.run(of, dataset, 2, start=start, rounds=2)
    sent = [shard.packed for shard in data.split(dataset, 2, of).shards]
    theta = initial(of, start)
    momenta = outer_step.start(of.outer, theta)
    for round in range(2):
        results = []
        for index in (1, 0):
            update = Trainer(of, start).train(theta, data.Shard.unpack(sent[index], of), round, index)
            packed, _ = compression.pack(update.delta, of.compression)
            results.append((index, update.samples, compression.unpack(packed, of.shapes(), of.compression)))
        theta, momenta = outer_step.step(
            of.outer, theta, momenta, [row[1:] for row in sorted(results, key=lambda r: r[0])]
        )
    assert bits(theta) == bits(wanted)


def test_it_can_be_watched_and_stopped_early():
    of = recipe("linear")
    seen = []
    _, curve = bare_loop.run(of, made(of)[0], 2, rounds=2, on_round=seen.append)
    assert seen == curve and len(curve) == 2
