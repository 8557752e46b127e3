"""Hostile tasks: some of each kind, and that the arms see what they are to see."""

from __future__ import annotations

import random

import pytest
import torch

from bench.fuzz import hostile_tasks
from bench.fuzz.fuzz_tasks import CASES, read_apart
from bench.fuzz.fuzz_tasks_child import Cases, Fault
from nodewire.errors import NodewireError
from nodewire.graph.program import liveness
from nodewire.graph.program.format import Program
from nodewire.graph.program.whitelist import OPS

SOME = {"calls": 60, "memory": 30, "bombs": 16, "weights": 60}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arm", SOME)
async def test_some_end_in_typed_errors_that_name_a_part_or_are_as_promised(arm):
    found = await read_apart(arm, 0, SOME[arm], seed=11)
    assert [line for one in found for line in (*one["faults"], *one["violations"])] == []
    assert sum(one["cases"] for one in found) == SOME[arm] == sum(one["valid"] + one["named"] for one in found)
    assert any(one["valid"] for one in found) and any(one["typed"] for one in found)


def test_calls_are_of_every_operator():
    drawn = {
        node.op for n in range(1_500) for node in hostile_tasks.calls(random.Random(n)).nodes if "evil" in node.name
    }
    assert drawn == set(OPS)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases("calls", tmp_path_factory.mktemp("cases"))


def test_a_kernel_that_takes_more_than_is_told_is_a_fault(cases, monkeypatch):
    monkeypatch.setattr(liveness, "workspace_bytes", lambda *_: 0)
    attention = hostile_tasks.Node("evil", "aten.softmax.int", (hostile_tasks.Ref("turned"), -1))
    plain = hostile_tasks.calls(random.Random(1))
    nodes = (*hostile_tasks.PRELUDE, attention, plain.nodes[-1])
    program = Program({"b": 512}, 512, plain.inputs, plain.weights, nodes, plain.outputs)
    with pytest.raises(Fault, match="took"):
        cases.measured(program)


def test_a_value_that_differs_from_run_to_run_is_a_fault(cases, monkeypatch):
    drawn = torch.Generator().manual_seed(1)
    relu = OPS["aten.relu.default"]
    noisy = type(relu)(relu.name, lambda x: x + torch.rand(x.shape, generator=drawn) if not x.is_meta else x.relu(),
                       relu.parameters)  # fmt: skip
    monkeypatch.setitem(OPS, "aten.relu.default", noisy)
    plain = hostile_tasks.calls(random.Random(1))
    node = hostile_tasks.Node("evil", "aten.relu.default", (hostile_tasks.X,))
    program = Program({"b": 3}, 3, plain.inputs, plain.weights, (*hostile_tasks.PRELUDE, node, plain.nodes[-1]),
                      plain.outputs)  # fmt: skip
    with pytest.raises(Fault, match="run to run"):
        cases.as_promised(program, {"b": 3})


def test_as_many_rows_as_data_decide_are_promised_or_fewer_and_no_more(cases):
    plain = hostile_tasks.calls(random.Random(1))
    chosen = hostile_tasks.Node("evil", "nodewire.select_rows", (hostile_tasks.X, hostile_tasks.Ref("grid"), 1, 2))
    nodes = (*hostile_tasks.PRELUDE, chosen, plain.nodes[-1])
    program = Program({"b": 3}, 3, plain.inputs, plain.weights, nodes, plain.outputs)
    cases.as_promised(program, {"b": 3})
    promised = [(torch.float32, (3, 4), (4, 1))]
    fewer, more = torch.zeros(1, 4), torch.zeros(4, 4)
    cases.compare(chosen, OPS[chosen.op], promised, fewer, at_most=True)
    for value, at_most in ((fewer, False), (more, True), (fewer.squeeze(0), True)):
        with pytest.raises(Fault, match="promised"):
            cases.compare(chosen, OPS[chosen.op], promised, value, at_most)


def test_hostile_documents_are_written_however_deeply_they_are_nested():
    """The reader is to refuse them, not the one who writes them."""
    written = [hostile_tasks._deep(random.Random(n)) for n in range(60)]
    refused = []
    for data in written:
        try:
            Program.decode(data)
        except NodewireError as error:
            refused.append(str(error))
    assert "program: nested more than 32 deep" in refused


def test_there_are_a_hundred_thousand():
    assert sum(CASES.values()) == 100_000
