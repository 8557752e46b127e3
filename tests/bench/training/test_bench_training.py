"""The trials of training measure what they say: the loop that loses results, equal compute, mutations, books."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from bench.fuzz import mutations
from bench.training import chaos_train, quality_train, scale_train
from bench.training.late_cheat import Following, LateCheat, longer
from nodewire.training.customer.machine.events import RequestPublication, RoundQuorum, StepRollback
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.update import compression
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.provider.service import TrainingService
from nodewire.training.provider.shard_job import ShardRun
from tests.training.engine import recipes

torch.set_num_threads(1)


def test_the_loop_that_loses_results_is_the_bare_loop_where_none_is_lost():
    recipe = recipes.recipe("decoder", outer={"method": "nesterov", "lr": "0.7", "momentum": "0.6"})
    dataset, _ = recipes.made(recipe)
    expected, curve = bare_loop.run(recipe, dataset, quality_train.K)
    points = []
    theta = quality_train.with_losses(recipe, dataset, 1, points.append, lost=0.0)
    assert state.pack(theta) == state.pack(expected)
    assert [(p.held_out, p.upload_bytes) for p in points] == [(p.held_out, p.upload_bytes) for p in curve]


def test_a_lost_result_is_not_counted_and_one_of_a_round_always_comes():
    recipe = recipes.recipe("mlp")
    dataset, _ = recipes.made(recipe)
    points = []
    quality_train.with_losses(recipe, dataset, 1, points.append, lost=1.0)
    assert {point.upload_bytes for point in points} == {bare_loop.run(recipe, dataset, 1, rounds=1)[1][0].upload_bytes}


def test_all_arms_see_as_many_samples_by_as_many_operations_and_the_same_schedule():
    arms = {arm: Recipe.from_document(quality_train.document(arm, 1, 40)) for arm in quality_train.ARMS}
    central, diloco = arms["central"], arms["f32"]
    assert 120_000 < diloco.trained() < 480_000
    samples = quality_train.K * diloco.rounds * diloco.steps * diloco.batch
    assert central.rounds * central.steps * central.batch == samples
    assert central.total_steps() == diloco.total_steps() == 1_600
    assert central.family == diloco.family and central.data == diloco.data
    assert arms["int4"].upload_bytes() * 7.5 < arms["f32"].upload_bytes()


def test_the_centralized_arm_is_one_round_of_the_bare_loop():
    document = quality_train.document("central", 1, 2)
    document |= {"family": document["family"] | {"width": 16, "inner": 16, "layers": 1, "heads": 2, "kv_heads": 2,
                 "head_dim": 8}, "batch": 4, "validation": {"samples": 8}}  # fmt: skip
    recipe = Recipe.from_document(document)
    dataset = {"ids": torch.randint(97, 123, (100_000,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)}
    points = []
    theta = quality_train.centralized(recipe, dataset, points.append)
    delta = bare_loop.run(recipe, dataset, 1)[0]
    assert len(points) == 2  # one for each round of the others
    assert all(torch.allclose(theta[name], delta[name], atol=1e-6) for name in theta)


@pytest.mark.parametrize("mutate", [mutations.of_bytes, mutations.of_safetensors])
def test_mutations_of_a_seed_are_the_same_every_time_and_bounded(mutate):
    packed = state.pack({"x": torch.zeros(40), "y": torch.ones(3)})
    made = [mutate(random.Random(seed), packed, [packed]) for seed in range(300)]
    assert made == [mutate(random.Random(seed), packed, [packed]) for seed in range(300)]
    assert len(set(made)) > 150 and max(map(len, made)) <= 2 * mutations.MOST_BYTES


def test_mutations_of_documents_leave_the_document_alone():
    document = {"v": 1, "list": [1, 2, {"a": "b"}], "text": "x"}
    for seed in range(200):
        mutations.dumps(mutations.of_document(random.Random(seed), document))
    assert document == {"v": 1, "list": [1, 2, {"a": "b"}], "text": "x"}


class _Market:
    """What `settled` asks of a market."""

    providers = ("ada",)

    def __init__(self, folder, quotes):
        self.folder, self._quotes = folder, quotes

    def rows(self, name, sql):
        return self._quotes


def test_two_settled_invoices_of_one_part_are_a_double_payment(tmp_path):
    with sqlite3.connect(tmp_path / "simnet.db") as db:
        db.execute("CREATE TABLE events (type TEXT, payment_hash TEXT)")
        rows = [("Settled", "a"), ("Settled", "b"), ("Invoiced", "c"), ("Settled", "d"), ("Settled", "e")]
        db.executemany("INSERT INTO events VALUES (?, ?)", rows)
    quotes = [
        {"payment_hash": hash_, "job": "r", "payee": "ada", "chunk": part}
        for hash_, part in (("a", 0), ("b", 0), ("c", 0), ("d", 1))
    ]
    found = chaos_train.settled(_Market(tmp_path, quotes))
    assert found == {("r", "ada", 0): 2, ("r", "ada", 1): 1, ("", "e", 0): 1}


def test_steps_of_chaos_are_told_by_the_customers_journal(tmp_path):
    market = SimpleNamespace(relay="ws://none", folder=tmp_path, providers={})
    world = chaos_train.World(market, tmp_path / "customer.toml", set())
    folder = tmp_path / "state" / "training" / "chaos"
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.db")

    def published(request: str) -> RequestPublication:
        return RequestPublication(0, request, "{}", ())

    assert not world.written("Published") and world.journal() == []
    for event in (published("a"), StepRollback(0, (("a", "eve"),))):
        journal.append(event)
    assert world.written("Published") and world.written("Undone") and not world.written("Published#2")
    assert not world.written("Undone>Published")
    journal.append(published("b"))
    assert world.written("Undone>Published") and world.written("Published#2")
    world.requests = {"a", "b", "other"}
    assert world.fresh == world.requests
    world.again = True
    assert world.fresh == {"b"}
    journal.close()


def test_the_faults_of_chaos_stand_once_and_those_with_a_cheat_at_the_end():
    whole, quick = chaos_train._faults(False), chaos_train._faults(True)
    assert len(set(whole)) == len(whole) and set(quick) < set(whole)
    for faults in (whole, quick):
        assert [fault.undoing for fault in faults] == sorted(fault.undoing for fault in faults)
        assert {fault.who for fault in faults if fault.undoing} == {"nobody", "provider", "customer"}


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_the_late_cheats_update_is_longer_and_has_the_form_of_one(method):
    recipe = recipes.recipe("mlp", compression={"method": method})
    delta = {name: torch.randn(shape) for name, shape in recipe.shapes().items()}
    packed, _ = compression.pack(delta, recipe.compression)
    honest, cheat = (compression.unpack(one, recipe.shapes(), recipe.compression) for one in (packed, longer(packed)))
    assert all(torch.allclose(cheat[name], 1.02 * honest[name]) for name in honest)
    assert any(not torch.equal(cheat[name], honest[name]) for name in honest)


def test_what_the_late_cheat_changes_is_what_providers_do():
    for cheat, honest in ((LateCheat, ShardRun), (Following, TrainingService)):
        changed = {name for name in vars(cheat) if not name.startswith("__")}
        assert changed and changed <= set(vars(honest))


def test_a_customer_that_is_to_die_before_an_event_leaves_a_journal_without_it(tmp_path):
    code = """
from pathlib import Path
from bench.training.crash_customer import dies_before
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.events import RoundQuorum, StepRollback
dies_before("Undone")
journal = Journal(Path("journal.db"))
journal.append(RoundQuorum(0))
journal.append(StepRollback(0))
"""
    path = {**os.environ, "PYTHONPATH": str(chaos_train.ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=path, timeout=60)
    assert done.returncode == -signal.SIGKILL
    journal = Journal(tmp_path / "journal.db")
    assert journal.events() == [RoundQuorum(0)]
    journal.close()


def test_the_recipes_of_chaos_and_scale_are_recipes():
    chaos = Recipe.from_toml(chaos_train.RECIPE.format(rounds=3, steps=chaos_train.STEPS, seed=5))
    scale = Recipe.from_toml(scale_train.RECIPE.format(rounds=3, seed=5))
    assert chaos.audit.fraction != "0.0" and scale.audit.fraction != "0.0"


def test_judging_many_results_is_measured():
    said = scale_train.judged(8, 650, 1)
    assert said["results"] == 8 and said["numbers"] == 650 and said["judged_s"] >= 0
