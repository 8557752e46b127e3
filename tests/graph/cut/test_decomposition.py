"""Any program becomes tasks that hold every node once, stay under the target, and compute the same bits."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import OverMemory
from nodewire.graph.cut.decomposition import decompose, memory_bytes
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import Ref
from nodewire.protocol.encoding.byte_sizes import parse_size

F32 = torch.float32
WIDTH = 40
"""A square matrix of it is above what is made again by whoever uses it."""
B = ("b", WIDTH)


def program_of(nodes, outputs, inputs=("x",)):
    """A program over rows of WIDTH numbers, of (name, operator, names); a linear layer has its own weight."""
    weights = [Weight(f"m.{name}.w", F32, (WIDTH, WIDTH)) for name, op, _ in nodes if op == "linear"]
    made = tuple(
        Node(name, "aten.linear.default", (Ref(of[0]), Ref(f"m.{name}.w")))
        if op == "linear"
        else Node(name, f"aten.{op}", tuple(Ref(one) for one in of))
        for name, op, of in nodes
    )
    return Program(
        dims={"b": 8},
        volume=8,
        inputs=tuple(Input(name, F32, B) for name in inputs),
        weights=tuple(weights),
        nodes=made,
        outputs=tuple(Output(f"out.{name}", name, F32, B, "result") for name in outputs),
    )


def shapes_of(program):
    return dict.fromkeys((*(i.name for i in program.inputs), *(n.name for n in program.nodes)), B)


def run(programs, weights, given):
    """What the tasks put out, each run when its edges have come; who waits for what never comes fails."""
    arrived = {("driver", name): tensor for name, tensor in given.items()}
    outputs, waiting = {}, dict(programs)
    while waiting:
        ready = [
            name
            for name, task in waiting.items()
            if all((i.edge.removesuffix(f".to.{name}"), i.name) in arrived for i in task.inputs)
        ]
        assert ready, f"{list(waiting)} wait for each other"
        for name in ready:
            task = waiting.pop(name)
            sent = {i.name: arrived[i.edge.removesuffix(f".to.{name}"), i.name] for i in task.inputs}
            dims = {"b": next(iter(given.values())).shape[0]} if task.dims else {}
            results = Interpreter(task, {w.name: weights[w.name] for w in task.weights})(sent, dims)
            for out in task.outputs:
                if out.edge == "result":
                    outputs[out.name] = results[out.value]
                else:
                    arrived[name, out.name] = results[out.value].clone()
    return outputs


def check(program, done, target):
    """The tasks are under the target, take what was said, own each node once, and give the same bits."""
    for name, task in done.tasks.items():
        found = verify(task.program, target)
        assert replace(found, program=task.program) == task, name
        assert memory_bytes(task, target) <= target
    generator = torch.Generator().manual_seed(1)
    weights = {w.name: torch.randn(w.shape, generator=generator) / 8 for w in program.weights}
    given = {i.name: torch.randn(3, WIDTH, generator=generator) for i in program.inputs}
    whole = Interpreter(program, weights)(given, {"b": 3})
    rows = {name: weights[r.source][r.first : r.last] for name, r in done.ranges.items()}
    parts = run({name: task.program for name, task in done.tasks.items()}, weights | rows, given)
    assert parts.keys() == {out.name for out in program.outputs}
    for out in program.outputs:
        if done.ranges:  # a library may sum up fewer columns in another order
            torch.testing.assert_close(parts[out.name], whole[out.value], rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(parts[out.name], whole[out.value])
    heavy = "aten.linear.default"
    held = [node.name for task in done.tasks.values() for node in task.program.nodes if node.op == heavy]
    assert len(held) == len(set(held))


@st.composite
def programs(draw):
    inputs = ("x", "y")[: draw(st.integers(1, 2))]
    known, nodes = list(inputs), []
    for k in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from(["linear", "linear", "relu.default", "add.Tensor", "mul.Tensor"]))
        of = [draw(st.sampled_from(known)) for _ in range(2 if "Tensor" in op else 1)]
        nodes.append((f"n{k}", op, of))
        known.append(f"n{k}")
    used = {name for _, _, of in nodes for name in of}
    ends = [name for name, _, _ in nodes if name not in used]
    more = draw(st.lists(st.sampled_from([name for name, _, _ in nodes]), max_size=2))
    return program_of(nodes, list(dict.fromkeys([*ends, *more])), inputs)


@settings(max_examples=120, deadline=None)
@given(programs(), st.integers(8_000, 60_000))
def test_any_program_becomes_tasks_under_the_target_that_compute_the_same(program, target):
    try:
        done = decompose(program, shapes_of(program), target, least_volume=8)
    except OverMemory:
        assert target < 40_000
        return
    check(program, done, target)


def tower(start, name, depth):
    """`depth` linear layers with their activations."""
    nodes, at = [], start
    for k in range(depth):
        nodes += [(f"{name}{k}", "linear", [at]), (f"{name}{k}r", "relu.default", [f"{name}{k}"])]
        at = f"{name}{k}r"
    return nodes, at


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(9_000, 40_000))
def test_a_chain_has_as_few_tasks_as_any_cut_of_it(depth, target):
    nodes, end = tower("x", "t", depth)
    program = program_of(nodes, [end])
    try:
        done = decompose(program, shapes_of(program), target, least_volume=8)
    except OverMemory:
        return
    names = [name for name, _, _ in nodes]

    def fits(first, last):
        part = program_of([(n, op, ["x"] if k == 0 else of) for k, (n, op, of) in enumerate(nodes[first:last])], [])
        outputs = (Output(names[last - 1], names[last - 1], F32, B, "result"),)
        return memory_bytes(verify(replace(part, outputs=outputs), 2**40), target) <= target

    fewest = {0: 0}
    for last in range(1, len(nodes) + 1):
        ways = [fewest[first] + 1 for first in range(last) if first in fewest and fits(first, last)]
        if ways:
            fewest[last] = min(ways)
    assert len(done.tasks) == fewest[len(nodes)]
    check(program, done, target)


def test_towers_from_two_inputs_are_tasks_beside_each_other_and_what_joins_them_a_third():
    left, a = tower("x", "l", 4)
    right, b = tower("y", "r", 4)
    program = program_of([*left, *right, ("join", "mul.Tensor", [a, b])], ["join", a], ("x", "y"))
    done = decompose(program, shapes_of(program), 10**6, least_volume=8)
    check(program, done, 10**6)
    sources = {name: {i.edge.partition(".to.")[0] for i in task.program.inputs} for name, task in done.tasks.items()}
    assert sorted(map(sorted, sources.values())) == [["driver"], ["driver"], ["m.0", "m.1"]]


def test_towers_from_one_input_are_parallel_tasks_and_the_forks_of_a_layer_are_not():
    left, a = tower("x", "l", 4)
    right, b = tower("x", "r", 4)
    program = program_of([*left, *right, ("join", "add.Tensor", [a, b]), ("end", "linear", ["join"])], ["end"])
    done = decompose(program, shapes_of(program), 10**6, least_volume=8)
    check(program, done, 10**6)
    assert len(done.tasks) == 3
    assert sum({i.edge.partition(".to.")[0] for i in t.program.inputs} == {"driver"} for t in done.tasks.values()) == 2
    forked = [("q", "linear", ["x"]), ("k", "linear", ["x"]), ("both", "mul.Tensor", ["q", "k"])]
    program = program_of(forked, ["both"])
    assert len(decompose(program, shapes_of(program), 10**6, least_volume=8).tasks) == 1


def test_a_narrow_boundary_is_taken_before_a_wide_one_and_a_wide_one_before_none():
    nodes, end = tower("x", "t", 6)
    skipping = [*nodes, ("sum", "add.Tensor", [end, "t0r"])]
    program = program_of(skipping, ["sum"])
    done = decompose(program, shapes_of(program), 24_000, least_volume=8)
    check(program, done, 24_000)
    tasks = list(done.tasks.values())
    assert max(len(task.program.inputs) for task in tasks) == 2
    assert [one.task for one in done.bottlenecks] == list(done.tasks)
    assert any(one.next_node for one in done.bottlenecks)


def test_a_weight_used_twice_is_counted_once_in_a_task():
    nodes, end = tower("x", "t", 3)
    program = program_of(nodes, [end])
    tied = replace(
        program,
        nodes=tuple(
            replace(node, args=(node.args[0], Ref("m.t0.w"))) if len(node.args) == 2 else node for node in program.nodes
        ),
        weights=program.weights[:1],
    )
    done = decompose(tied, shapes_of(tied), 12_000, least_volume=8)
    assert len(done.tasks) == 1
    assert len(decompose(program, shapes_of(program), 12_000, least_volume=8).tasks) == 3
    check(tied, done, 12_000)


def test_a_layer_above_the_target_is_made_in_rows_by_tasks_beside_the_chain():
    nodes, end = tower("x", "t", 2)
    program = program_of([*nodes, ("head", "linear", [end])], ["head", end])
    wide = tuple(replace(w, shape=(8 * WIDTH, WIDTH)) if w.name == "m.head.w" else w for w in program.weights)
    outputs = (replace(program.outputs[0], shape=("b", 8 * WIDTH)), program.outputs[1])
    program = replace(program, weights=wide, outputs=outputs)
    shapes = {**shapes_of(program), "head": ("b", 8 * WIDTH)}
    done = decompose(program, shapes, 34_000, least_volume=8)
    check(program, done, 34_000)
    parts = [name for name in done.tasks if name.startswith("rows.")]
    assert len(parts) >= 2
    assert [{i.edge.partition(".to.")[0] for i in done.tasks[name].program.inputs} for name in parts] == [
        {"graph.0"} for _ in parts
    ]
    assert sum(r.last - r.first for r in done.ranges.values()) == 8 * WIDTH


def test_a_target_that_is_too_small_is_answered_with_one_that_would_do():
    nodes, end = tower("x", "t", 3)
    program = program_of(nodes, [end])
    with pytest.raises(OverMemory, match=r"^t\d: needs a target of") as refused:
        decompose(program, shapes_of(program), 5_000, least_volume=8)
    enough = parse_size(refused.value.reason.split("target of ")[1].split(",")[0])
    check(program, decompose(program, shapes_of(program), enough, least_volume=8), enough)


def test_a_larger_target_never_takes_more_tasks():
    nodes, end = tower("x", "t", 8)
    program = program_of(nodes, [end])
    counts = [
        len(decompose(program, shapes_of(program), target, least_volume=8).tasks)
        for target in range(11_000, 81_000, 5_000)
    ]
    assert all(before >= after for before, after in pairwise(counts))
    assert counts[0] > counts[-1] == 1
