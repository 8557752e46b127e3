"""What the bench of bought DAGs reads: branches by inputs, and calls out of providers' logs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np

from bench.market.market_dag import _difference, _traces, branches
from nodewire.protocol.model.manifest import CUSTOMER
from tests.customer.call_models import manifest, program, ref


def two_towers():
    def tower(name: str, given: str, out: str) -> bytes:
        ports = [(f"customer.to.{name}", given, "float32", ("n",))]
        nodes = [(out, "aten.neg.default", [ref(given)])]
        return program(ports, nodes, [(f"{name}.to.join", out, "float32", ("n",))], {"n": 4})

    join = program(
        [("left.to.join", "a", "float32", ("n",)), ("right.to.join", "b", "float32", ("n",))],
        [("c", "aten.add.Tensor", [ref("a"), ref("b")])],
        [("join.to.customer", "c", "float32", ("n",))],
        {"n": 4},
    )
    programs = {"left": tower("left", "pixels", "a"), "right": tower("right", "ids", "b"), "join": join}
    ends = {f"customer.to.{name}": (CUSTOMER, name) for name in ("left", "right")}
    ends |= {f"{name}.to.join": (name, "join") for name in ("left", "right")}
    return manifest(programs, {**ends, "join.to.customer": ("join", CUSTOMER)})


def test_branches_are_told_by_the_inputs_that_they_depend_on():
    found = branches(two_towers())
    assert found == {"left": {"pixels"}, "right": {"ids"}, "join": {"pixels", "ids"}}


def test_calls_are_read_out_of_the_logs_of_those_who_computed_them():
    made = two_towers()
    said = {"program": made.task("left").program.sha256, "began_ns": 1, "ended_ns": 2}
    lines = ["WARNING 17: traced " + json.dumps(said), "another line", "traced " + json.dumps({**said, "program": "x"})]
    market = SimpleNamespace(providers=["ada", "bea"], log=lambda name: "\n".join(lines) if name == "ada" else "")
    [one] = _traces(market, made)
    assert (one["task"], one["provider"], one["began_ns"]) == ("left", "ada", 1)


def test_a_difference_is_told_beside_the_largest_number():

    assert _difference(np.array([100.0, 1.0]), np.array([100.0, 2.0])) == 0.01
    assert _difference(np.array([0.5]), np.array([0.25])) == 0.25
    assert _difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
