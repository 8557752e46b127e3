"""The cut has the fewest tasks, then the fewest bytes between them; split lookups and predictions are exact."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import OverMemory
from nodewire.graph.cut import Chain, Step, chain, cut, kinds
from nodewire.graph.format import Input, Node, Output, Program, Weight
from nodewire.graph.interpret import Interpreter
from nodewire.graph.liveness import corners, walk
from nodewire.graph.normalize import normalize
from nodewire.graph.rows import RowRange, split_rows
from nodewire.graph.whitelist import Ref

F32, I64 = torch.float32, torch.int64
steps = st.builds(
    lambda names, live: (names, live),
    st.dictionaries(st.sampled_from("abcdef"), st.just(4), max_size=2),
    st.integers(0, 5),
)


def best_by_trial(line, limit):
    """(tasks, bytes crossing, largest task) of the best of all cuts."""
    n = len(line.steps)
    allowed = [k for k in range(1, n) if line.crossing_bytes[k] is not None]
    found = []
    for count in range(len(allowed) + 1):
        for inner in combinations(allowed, count):
            bounds = (0, *inner, n)
            tasks = [line.steps[a:b] for a, b in pairwise(bounds)]
            sizes = [
                sum({k: v for s in t for k, v in s.weights.items()}.values()) + max(s.live_bytes for s in t)
                for t in tasks
            ]
            if max(sizes) <= limit:
                found.append((len(tasks), sum(line.crossing_bytes[k] for k in inner), max(sizes)))
    return min(found, default=None)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=1, max_size=7), st.lists(st.none() | st.integers(1, 9), min_size=8, max_size=8))
def test_no_cut_is_better_than_the_one_found(made, crossing):
    line = Chain(tuple(Step(str(k), w, live) for k, (w, live) in enumerate(made)), tuple(crossing[: len(made) + 1]))
    for limit in (6, 10, 14, 30):
        best = best_by_trial(line, limit)
        if best is None:
            with pytest.raises(OverMemory):
                cut(line, limit)
            continue
        tasks = cut(line, limit)
        assert [name for task in tasks for name in task] == [step.name for step in line.steps]
        bounds = [int(task[0]) for task in tasks[1:]]
        sizes = [
            sum({k: v for n in t for k, v in line.steps[int(n)].weights.items()}.values())
            + max(line.steps[int(n)].live_bytes for n in t)
            for t in tasks
        ]
        assert (len(tasks), sum(line.crossing_bytes[b] for b in bounds), max(sizes)) == best


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
    plain = normalize(model())
    found = kinds(plain)
    assert {"seen", "column", "turned"} == found.free
    assert found.behind["wide"] == {"w": 2_048 * 16 * 4}
    line = chain(plain, {}, found, [])
    assert [step.name for step in line.steps] == ["found", "wide", "kept", "flat", "out"]
    assert set(line.crossing_bytes[1:-1]) == {None}  # no shape is known here, so no cut is allowed


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
