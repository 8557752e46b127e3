"""Calls of several customers, computed as one, answer as each alone."""

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import BadInput, NodewireError
from nodewire.graph import entry
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.whitelist import Ref
from nodewire.graph.registration.encoder_splitter import split_encoder
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame
from tests.graph.conftest import Chain

F32 = torch.float32
PROGRAM = Program(
    dims={"b": 16},
    volume=128,
    slots=8,
    inputs=(Input("x", F32, ("b", 4), "in"),),
    weights=(Weight("w", F32, (4, 4)),),
    nodes=(Node("y", "aten.linear.default", (Ref("x"), Ref("w"))),),
    outputs=(Output("y", "y", F32, ("b", 4), "out"),),
)


@pytest.fixture
def loaded(tmp_path):
    save_file({"w": torch.randn(4, 4)}, tmp_path / "w")
    made = entry.load("graph", PROGRAM.encode(), [tmp_path / "w"], Limits(10**6))
    for session in "abcde":
        made.open(session, {})
    return made


def call(session: str, seq: int, rows: int, **meta):
    return session, [Frame("in", seq, (torch.randn(rows, 4),), meta)]


def alone(loaded, calls):
    return [loaded.receive(session, frames[0]) for session, frames in calls]


def same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert [(f.edge, f.seq, f.meta) for f in mine] == [(f.edge, f.seq, f.meta) for f in theirs]
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.tensors[0], b.tensors[0], rtol=1e-5, atol=1e-6)


def test_calls_together_answer_as_each_alone(loaded):
    assert loaded.batches
    calls = [call("a", 3, 2, chunk=3), call("b", 9, 1, chunk=9), call("c", 0, 5)]
    same(loaded.receive_together(calls), alone(loaded, calls))


def test_more_rows_than_the_program_admits_are_several_batches(loaded):
    calls = [call(session, 0, 7) for session in "abcde"]
    same(loaded.receive_together(calls), alone(loaded, calls))


def test_what_is_wrong_with_one_call_costs_the_others_nothing(loaded):
    calls = [call("a", 0, 2), call("b", 0, 17), call("c", 0, 1), call("nobody", 0, 1), ("d", [Frame("else", 0, ())])]
    found = loaded.receive_together(calls)
    same([found[0], found[2]], alone(loaded, [calls[0], calls[2]]))
    assert all(isinstance(found[k], NodewireError) for k in (1, 3, 4))
    assert isinstance(found[1], BadInput)


def test_tasks_of_an_encoder_batch(tiny_directory, tmp_path):
    chain = Chain(split_encoder(tiny_directory, 40_000, tmp_path))
    graphs = [task.name for task in chain.manifest.tasks if task.engine == "graph"]
    assert [name for name in graphs if chain.actors[name].batches] == graphs
