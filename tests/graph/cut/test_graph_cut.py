"""The cut has the fewest tasks, then the fewest bytes between them; split lookups and predictions are exact."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import OverMemory
from nodewire.graph.cut.analysis import flow, with_own_outputs
from nodewire.graph.cut.boundaries import chain
from nodewire.graph.cut.courses import Calls, Plan
from nodewire.graph.cut.cut import BoundaryTensor, Chain, Step, cut
from nodewire.graph.cut.rows import RowRange, split_rows
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.liveness import corners, walk
from nodewire.graph.program.normalization import normalize
from nodewire.graph.program.whitelist import Ref

F32, I64 = torch.float32, torch.int64
steps = st.tuples(
    st.dictionaries(st.sampled_from("abcdef"), st.just(4), max_size=2), st.integers(0, 5), st.integers(0, 3)
)
crossings = st.none() | st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=3)


def room(sent):
    return sent // 2


def takes(line, first, end):
    """What a task takes, counted node by node."""
    sent = line.crossing[first] if first else ()
    live = max(
        step.live_bytes + step.free_bytes + sum(one.nbytes for one in sent if one.last < first + k)
        for k, step in enumerate(line.steps[first:end])
    )
    arrives = sum(one.nbytes for one in sent)
    weights = {name: size for step in line.steps[first:end] for name, size in step.weights.items()}
    return sum(weights.values()) + max(live, line.floor_bytes + arrives) + room(arrives)


def best_by_trial(line, limit, width):
    """(tasks, bytes crossing, largest task) of the best of all cuts where at most `width` tensors cross."""
    n = len(line.steps)
    allowed = [k for k in range(1, n) if line.crossing[k] is not None and len(line.crossing[k]) <= width]
    found = []
    for count in range(len(allowed) + 1):
        for inner in combinations(allowed, count):
            sizes = [takes(line, a, b) for a, b in pairwise((0, *inner, n))]
            if max(sizes) <= limit:
                found.append((len(sizes), sum(one.nbytes for k in inner for one in line.crossing[k]), max(sizes)))
    return min(found, default=None)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(steps, min_size=1, max_size=7), st.lists(crossings, min_size=8, max_size=8), st.integers(0, 4), st.data()
)
def test_no_cut_is_better_than_the_one_found(made, crossing, floor, data):
    line = Chain(
        tuple(Step(str(k), *step) for k, step in enumerate(made)),
        tuple(
            None if found is None else tuple(BoundaryTensor("", size, k + more) for size, more in found)
            for k, found in enumerate(crossing[: len(made)])
        ),
        floor,
    )
    for limit in (6, 10, 14, 30):
        trials = (best_by_trial(line, limit, width) for width in range(1, 5))
        best = next((found for found in trials if found is not None), None)
        if best is None:
            with pytest.raises(OverMemory):
                cut(line, limit, waiting=room)
            continue
        tasks = cut(line, limit, waiting=room)
        assert tasks[0][0] == 0 and tasks[-1][1] == len(made)
        assert all(before[1] == after[0] for before, after in pairwise(tasks))
        crossed = sum(one.nbytes for first, _ in tasks[1:] for one in line.crossing[first])
        assert (len(tasks), crossed, max(takes(line, *task) for task in tasks)) == best


def test_a_task_between_its_bounds_is_measured_and_none_that_was_refused_is_taken():
    line = Chain(tuple(Step(str(k), {}, 4, 2) for k in range(4)), tuple((BoundaryTensor("", 1, k),) for k in range(4)))
    asked = []

    def measure(first, end):
        asked.append((first, end))
        return 5 if end - first > 2 else 7

    assert cut(line, 6, waiting=lambda _: 0) == ((0, 4),)
    assert cut(line, 5, measure) == ((0, 4),)
    assert (0, 4) in asked
    assert len(cut(line, 7, measure, refused={(0, 4)})) == 2


def model():
    """A lookup, a transposed weight, a mask without weights, and copies that do nothing."""
    return Program(
        dims={"b": 4, "s": 6},
        volume=24,
        inputs=(Input("ids", I64, ("b", "s"), "in"), Input("mask", I64, ("b", "s"), "in")),
        weights=(Weight("table", F32, (101, 16)), Weight("w", F32, (2_048, 16)), Weight("unused", F32, (5,))),
        nodes=(
            Node("found", "aten.embedding.default", (Ref("table"), Ref("ids"), 0)),
            Node("copy", "aten.clone.default", (Ref("found"),)),
            Node("turned", "aten.t.default", (Ref("w"),)),
            Node("seen", "aten.gt.Scalar", (Ref("mask"), 0)),
            Node("column", "aten.unsqueeze.default", (Ref("seen"), -1)),
            Node("wide", "aten.matmul.default", (Ref("copy"), Ref("turned"))),
            Node("kept", "aten.where.ScalarOther", (Ref("column"), Ref("wide"), 0.0)),
            Node("flat", "aten.view.default", (Ref("kept"), [Ref("b"), -1])),
            Node("out", "aten.sum.dim_IntList", (Ref("flat"), [1])),
        ),
        outputs=(Output("out", "out", F32, ("b",), "result"),),
    )


def test_normalizing_drops_copies_and_what_is_unused_and_makes_views_reshapes():
    plain = normalize(model())
    assert [n.op for n in plain.nodes if n.name in ("copy", "flat")] == ["aten.reshape.default"]
    assert [w.name for w in plain.weights] == ["table", "w"]
    assert plain.nodes[-4].args[0] == Ref("found")


def test_nodes_without_weights_are_free_and_a_transposed_weight_moves_with_its_user():
    found = flow(normalize(model()))
    assert found.free_names == {"seen", "column", "turned"}
    assert found.behind[found.number["wide"]] == {"w": 2_048 * 16 * 4}
    assert [found.inputs[found.number[name]] for name in ("found", "column", "out")] == [0b01, 0b10, 0b11]


def test_what_another_task_sends_is_not_free_to_make_again():
    program = replace(normalize(model()), inputs=(*model().inputs, Input("sent", F32, ("b", "s", 16))))
    program = replace(program, nodes=(*program.nodes[:-1], Node("more", "aten.relu.default", (Ref("sent"),))))
    number = len(program.nodes) - 1
    assert flow(program).free[number]
    assert not flow(program, {"sent"}).free[number]


def test_an_output_that_is_an_input_as_it_came_gets_a_node_of_its_own():
    program = model()
    passed = replace(program, outputs=(*program.outputs, Output("ids", "ids", I64, ("b", "s"), "result")))
    copied = with_own_outputs(passed)
    assert copied.nodes[-1] == Node("ids.out", "aten.clone.default", (Ref("ids"),))
    assert copied.outputs[-1].value == "ids.out"
    assert with_own_outputs(program) is program


def test_the_chain_has_what_crosses_and_no_boundary_where_a_size_has_no_name():
    calls, program = Calls(), normalize(model())
    plan = Plan(program, calls)
    courses = [calls.course(plan, sizes) for sizes in corners(program)]
    line = chain(flow(program), courses, {"found": ("b", "s", 16), "wide": ("b", "s", 2_048)})
    assert [step.name for step in line.steps] == ["found", "wide", "kept", "flat", "out"]
    assert [c and [one.name for one in c] for c in line.crossing] == [(), ["found"], ["wide"], None, None, ()]
    assert line.crossing[1][0].nbytes == 24 * 16 * 4


@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_lookup_split_by_rows_equals_the_unsplit_one_bit_for_bit(count):
    plain = normalize(model())
    split = split_rows(plain, {"found": ("b", "s", 16)}, "found", count)
    table, w = torch.randn(101, 16), torch.randn(2_048, 16)
    rows = {name: table[r.first : r.last] for name, r in split.ranges.items()}
    assert torch.equal(torch.cat(list(rows.values())), table)
    assert len(split.parts) == count
    ids = torch.tensor([[0, 100, 50], [14, 15, 51]])
    inputs = {"ids": ids, "mask": torch.ones_like(ids)}
    sizes = {"b": 2, "s": 3}
    whole = Interpreter(plain, {"table": table, "w": w})(inputs, sizes)["out"]
    parts = Interpreter(split.program, {**rows, "w": w})(inputs, sizes)["out"]
    assert torch.equal(whole, parts)
    assert split.program.inputs[0].below == 101
    assert all(isinstance(r, RowRange) and r.source == "table" for r in split.ranges.values())


def test_corners_hold_every_admitted_size():
    program = model()
    tops = corners(program)
    for b in range(1, 5):
        for s in range(1, 7):
            if b * s <= program.volume:
                assert any(b * s <= t["b"] * t["s"] for t in tops)


def measured_bytes(call):
    """The most that torch's CPU allocator held during `call`, above what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(("batch", "sequence"), [(1, 6), (4, 6), (3, 2)])
def test_predicted_memory_is_what_the_allocator_hands_out_within_two_percent(batch, sequence):
    plain = normalize(model())
    sizes = {"b": batch, "s": sequence}
    run = Interpreter(plain, {"table": torch.randn(101, 16), "w": torch.randn(2_048, 16)})
    predicted = walk(plain, sizes, 2**30).peak_bytes

    def call():
        ids = torch.ones(batch, sequence, dtype=I64)
        run({"ids": ids, "mask": torch.ones_like(ids)}, sizes)

    call()
    assert measured_bytes(call) == pytest.approx(predicted, rel=0.02)
