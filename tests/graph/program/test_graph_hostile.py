"""A hostile task is refused with a typed error that names the node, before memory is taken for it."""

import dataclasses
import json
import struct
import subprocess
import sys
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from nodewire.errors import BadInput, BadTask, BadVersion, NodewireError, OverMemory, TooLarge
from nodewire.graph import entry
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.interpreter import Interpreter, bind
from nodewire.graph.program.liveness import corners, walk
from nodewire.graph.program.verification import header, verify, verify_weights
from nodewire.graph.program.whitelist import OPS, Ref
from nodewire.kind import Limits
from nodewire.protocol.encoding import canonical

MEBIBYTE = 2**20
F32, I64 = torch.float32, torch.int64


def program(*nodes, value="out", shape=("b", 4), dtype=F32, **changes):
    """A task of an input x float32 [b, 4], ids int64 [b] and a table of 10 rows of 4, with these nodes."""
    return dataclasses.replace(
        Program(
            dims={"b": 8},
            volume=8,
            inputs=(Input("x", F32, ("b", 4), "in"), Input("ids", I64, ("b",), "in")),
            weights=(Weight("table", F32, (10, 4)),),
            nodes=nodes,
            outputs=(Output("out", value, dtype, shape, "result"),),
        ),
        **changes,
    )


def node(op, *args, name="evil", **kwargs):
    return Node(name, op if "." in op else f"aten.{op}.default", args, kwargs)


X, IDS, TABLE, EVIL = Ref("x"), Ref("ids"), Ref("table"), Ref("evil")
OUT = Node("out", "aten.add.Tensor", (X, 1.0))

NOT_ALLOWED = [
    node("aten.from_file.default", "/etc/passwd"),
    node("aten.save.default", X),
    node("aten.set_.source_Storage", X),
    node("aten.resize_.default", X, [9]),
    node("aten.as_strided.default", X, [99], [1]),
    node("aten.empty.memory_format", [4]),
    node("aten.empty_like.default", X),
    node("aten.new_empty.default", X, [4]),
    node("aten._print.default", "boo"),
    node("aten.rand.default", [4]),
    node("aten.bernoulli.default", X),
    node("aten.dropout.default", X, 0.5, True),
    node("aten.relu_.default", X),
    node("aten.nonzero.default", X),
    node("py.__import__", "os"),
    node("py.eval", "1"),
    node("aten.add", X, X),
    node("quantized.add.default", X, X),
]

MISTYPED = {
    "too many arguments": node("relu", X, X),
    "too few": node("aten.add.Tensor", X),
    "an unknown keyword": node("relu", X, inplace=True),
    "an argument given twice": node("aten.add.Tensor", X, X, other=X),
    "a string for a tensor": node("relu", "x"),
    "a list for a tensor": node("relu", [X]),
    "a number for a list of tensors": node("cat", 3),
    "a float for an int": node("aten.transpose.int", X, 0.0, 1),
    "a bool for an int": node("aten.select.int", X, True, 0),
    "a dtype for a number": node("aten.mul.Scalar", X, torch.float32),
    "a placement": node("zeros", [4], device="cuda"),
    "a dropout": node("scaled_dot_product_attention", X, X, X, None, 0.5),
    "a long text": node("gelu", X, approximate="tanh" * 40),
    "a list of 10,000": node("zeros", [1] * 10_000),
    "an undefined value": node("relu", Ref("nowhere")),
    "itself": node("relu", EVIL),
    "a later value": node("relu", Ref("out")),
    "a value of thousands of letters": node("relu", Ref("9" * 5_000)),
}

IMPOSSIBLE = {
    "a negative size": node("full", [-5], 1.0),
    "an overflowing size": node("full", [2**40, 2**40], 1.0),
    "a rank bomb": node("reshape", X, [1] * 60 + [-1]),
    "a rank bomb by stacking": node("aten.unsqueeze.default", Ref("deep"), 0),
    "a constant index out of range": node("aten.select.int", TABLE, 0, 10),
    "floats times integers": node("linear", X, Ref("whole")),
    "integers times integers": node("mm", Ref("whole"), Ref("whole")),
    "attention of mixed dtypes": node("scaled_dot_product_attention", X, X, Ref("half")),
    "a lookup by floats": node("embedding", TABLE, X),
    "a lookup by a number": node("embedding", TABLE, 3),
    "a mask for an index": node("aten.index.Tensor", X, [Ref("mask")]),
    "the power of a truth value, of whose dtype meta and kernels disagree": node("aten.pow.Tensor_Scalar", X, True),
    "bits of floats": node("aten.bitwise_and.Tensor", X, X),
    "a split into a million pieces": node("aten.split.Tensor", Ref("long"), 1),
    "a split into pieces of nothing": node("aten.split.Tensor", X, 0),
    "a list as a tensor": node("relu", Ref("pieces")),
    "a size as a tensor": node("aten.transpose.int", Ref("b"), 0, 0),
    "a tensor as a size": node("zeros", [X]),
    "a piece that is not there": node("py.getitem", Ref("pieces"), 200),
    "a division by zero": node("py.floordiv", Ref("b"), 0),
    "a list times a trillion": node("py.mul", Ref("pieces"), 10**12),
    "a list and itself": node("py.add", Ref("pieces"), Ref("pieces")),
    "tensors in Python's own product": node("py.mul", X, X),
    "a piece of a tensor": node("py.getitem", X, 0),
    "a number for a tensor, which would be computed for real": node("aten.relu.default", 1.5),
    "two numbers for tensors": node("aten.add.Tensor", 1.5, 2.5),
    "an assertion of a meta kernel": node("aten._softmax.default", X, 0, True),
    "sizes beyond 64 bits": node("py.mul", 2**62, 2**62),
    "a contraction that does not match": node("linear", X, Ref("whole_float")),
}
PRELUDE = (
    Node("whole", "aten.zeros.default", ([4, 4],), {"dtype": I64}),
    Node("whole_float", "aten.zeros.default", ([4, 3],)),
    Node("half", "aten._to_copy.default", (X,), {"dtype": torch.float16}),
    Node("mask", "aten.gt.Scalar", (X, 0)),
    Node("long", "aten.zeros.default", ([1_000_000],), {"dtype": torch.bool}),
    Node("pieces", "aten.split.Tensor", (X, 2, 1)),
    Node("deep", "aten.reshape.default", (X, [1] * 7 + [-1])),
)

TOO_MUCH = {
    "forty terabytes": node("full", [10**7, 10**6], 1.0),
    "forty terabytes of range": node("arange", 5 * 10**12),
    "a view that repeats": node("expand", Ref("one"), [2**38, 4]),
    "an outer product": node("aten.mul.Tensor", Ref("tall"), Ref("wide")),
    "a repetition": node("repeat", X, [2**20, 4]),
    "padding": node("constant_pad_nd", X, [0, 2**30]),
}
LARGE = (
    Node("one", "aten.zeros.default", ([1, 4],)),
    Node("tall", "aten.zeros.default", ([10_000, 1],)),
    Node("wide", "aten.zeros.default", ([1, 10_000],)),
)


@pytest.mark.parametrize("bad", NOT_ALLOWED, ids=lambda bad: bad.op)
def test_an_operator_off_the_whitelist_is_refused_by_the_nodes_name(bad):
    with pytest.raises(BadTask, match=r"^evil: operator .* is not on the whitelist"):
        Program.decode(program(bad, OUT).encode())


@pytest.mark.parametrize("what", MISTYPED)
def test_a_call_with_wrong_arguments_is_refused_by_the_nodes_name(what):
    with pytest.raises(BadTask, match=r"^evil: ") as refused:
        Program.decode(program(MISTYPED[what], OUT).encode())
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_no_kernel_takes_is_refused_on_the_meta_device_by_the_nodes_name(what):
    task = Program.decode(program(*PRELUDE, IMPOSSIBLE[what], OUT).encode())
    with pytest.raises(BadTask, match=r"^evil: "):
        verify(task, 64 * MEBIBYTE)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_takes_too_much_is_refused_by_the_nodes_name(what):
    task = Program.decode(program(*LARGE, TOO_MUCH[what], OUT).encode())
    with pytest.raises(OverMemory, match=r"^evil: "):
        verify(task, 64 * MEBIBYTE)


def test_forty_terabytes_are_refused_in_a_process_that_may_not_have_one_gigabyte_more(tmp_path):
    save_file({"table": torch.zeros(10, 4)}, tmp_path / "weights")
    (tmp_path / "program").write_bytes(program(TOO_MUCH["forty terabytes"], OUT).encode())
    script = f"""
import resource, pathlib
from nodewire.errors import OverMemory
from nodewire.graph import entry as actor
from nodewire.kind import Limits
here = pathlib.Path({str(tmp_path)!r})
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    actor.load("graph", (here / "program").read_bytes(), [here / "weights"], Limits(2**26))
except OverMemory as error:
    print(error.field, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    field, grown_kib = done.stdout.split()
    assert field == "evil"
    assert int(grown_kib) < 64 * 1024


def test_weights_alone_over_the_budget_are_refused():
    task = program(OUT, weights=(Weight("table", F32, (2**20, 64)),))
    with pytest.raises(OverMemory):
        verify(task, 64 * MEBIBYTE)


def test_memory_is_checked_at_every_corner_of_the_declared_sizes():
    pair = program(
        Node("square", "aten.mul.Tensor", (Ref("y"), Ref("yt"))),
        Node("out", "aten.add.Tensor", (X, 1.0)),
        dims={"b": 8, "s": 512},
        volume=512,
        inputs=(Input("x", F32, ("b", 4), "in"), Input("y", F32, ("s", 1), "in"), Input("yt", F32, (1, "s"), "in")),
        weights=(),
    )
    assert corners(pair) == [{"b": 8, "s": 64}, {"b": 1, "s": 512}]
    assert verify(pair, 2 * MEBIBYTE).live_bytes > 512 * 512 * 4
    with pytest.raises(OverMemory, match=r"^square"):
        verify(pair, MEBIBYTE)


def test_a_task_that_takes_more_at_smaller_sizes_is_caught_at_the_sizes_of_the_request(tmp_path):
    shrinking = program(
        Node("left", "py.sub", (9, Ref("b"))),
        Node("size", "py.mul", (Ref("left"), 2**20)),
        Node("huge", "aten.zeros.default", ([Ref("size")],), {"dtype": torch.uint8}),
        Node("out", "aten.add.Tensor", (X, 1.0)),
        weights=(),
    )
    loaded = entry.load("graph", shrinking.encode(), [], Limits(4 * MEBIBYTE))
    loaded.open("s", {})
    frame = entry.Frame("in", 0, (torch.zeros(2, 4), torch.zeros(2, dtype=I64)), {})
    with pytest.raises(OverMemory, match=r"^huge"):
        loaded.receive("s", frame)


def test_a_million_nodes_are_refused_before_any_is_looked_at():
    document = canonical.decode(program(OUT).encode(), max_bytes=MEBIBYTE)
    with pytest.raises(BadTask, match=r"^nodes: 100000 entries"):
        Program.decode(canonical.encode({**document, "nodes": [None] * 100_000}))
    with pytest.raises(TooLarge, match="more than 524288 values"):
        Program.decode(canonical.encode({**document, "nodes": [None] * 1_000_000}))
    with pytest.raises(TooLarge, match="program"):
        Program.decode(bytes(9 * MEBIBYTE))


def test_a_megabyte_of_empty_lists_is_given_up_while_it_is_read():
    document = canonical.decode(program(OUT).encode(), max_bytes=MEBIBYTE)
    data = canonical.encode({**document, "nodes": [[[]] * 1_000] * 1_000})
    tracemalloc.start()
    with pytest.raises(TooLarge, match="program: more than 524288 values"):
        Program.decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 96 * MEBIBYTE


def test_one_name_is_not_defined_twice():
    with pytest.raises(BadTask, match=r"^x: defined twice"):
        Program.decode(program(Node("x", "aten.relu.default", (X,)), OUT).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": ("b", 5)},
        {"dtype": torch.float16},
        {"value": "ids"},
    ],
)
def test_an_output_other_than_declared_is_refused(changes):
    with pytest.raises(BadTask, match="declared"):
        verify(program(OUT, **changes), MEBIBYTE)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"v": 2}, BadVersion),
        ({"extra": 1}, BadTask),
        ({"dims": {"b": -1}}, BadTask),
        ({"dims": {"b": 8, "unused": 8}}, BadTask),
        ({"volume": 0}, BadTask),
        ({"slots": 10**9}, BadTask),
        ({"inputs": [{"edge": "in", "tensor": "x", "dtype": "complex64", "shape": [4], "below": 0}]}, BadTask),
        ({"inputs": [{"edge": "in", "tensor": "x", "dtype": "int64", "shape": [1] * 9, "below": 0}]}, BadTask),
        ({"inputs": [{"edge": "in", "tensor": "../x", "dtype": "int64", "shape": [4], "below": 0}]}, BadTask),
        ({"weights": [{"name": "w", "dtype": "float32", "shape": [-4], "file": 0}]}, BadTask),
        ({"weights": [{"name": "w", "dtype": "float32", "shape": [4], "file": 64}]}, BadTask),
        ({"nodes": [["a", "aten.relu.default", [{"ref": 3}], {}]]}, BadTask),
        ({"nodes": [["a", "aten.relu.default", [[[["x"]]]], {}]]}, BadTask),
        ({"nodes": [["a", "aten.mul.Scalar", [{"ref": "x"}, {"f64": b"short"}], {}]]}, BadTask),
        ({"nodes": "aten"}, BadTask),
        ({"outputs": []}, BadTask),
    ],
)
def test_a_malformed_document_is_refused(change, error):
    document = canonical.decode(program(OUT).encode(), max_bytes=MEBIBYTE)
    with pytest.raises(error):
        Program.decode(canonical.encode({**document, **change}))


def test_floats_survive_the_format_exactly():
    values = (0.1, -0.0, float("inf"), 1e-12, 5e-324)
    task = program(*(Node(f"n{k}", "aten.mul.Scalar", (X, v)) for k, v in enumerate(values)), OUT)
    read = Program.decode(task.encode())
    assert read == task
    assert [struct.pack(">d", n.args[1]) for n in read.nodes[:5]] == [struct.pack(">d", v) for v in values]


def test_the_whitelist_holds_no_operator_that_writes_draws_or_prints():
    for op in OPS.values():
        if op.name.startswith("aten."):
            assert not op.call._schema.is_mutable, op.name
            assert torch.Tag.nondeterministic_seeded not in op.call.tags or "attention" in op.name, op.name


# Weights


def weights_file(path, tensors):
    save_file(tensors, path)
    return path


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"table": torch.zeros(10, 5)}, "table"),
        ({"table": torch.zeros(10, 4, dtype=torch.float16)}, "table"),
        ({"other": torch.zeros(10, 4)}, "other"),
        ({"table": torch.zeros(10, 4), "more": torch.zeros(1)}, "more"),
    ],
)
def test_weights_that_differ_from_the_table_are_refused_by_name(tmp_path, tensors, named):
    with pytest.raises(BadTask, match=named):
        verify_weights(program(OUT), [weights_file(tmp_path / "w", tensors)])


def test_a_missing_file_of_weights_is_refused():
    with pytest.raises(BadTask, match="weights"):
        verify_weights(program(OUT), [])


def raw_file(path, document, data=b""):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("document", "data"),
    [
        (b"not json", b""),
        (b"[" * 50_000, b""),
        ([], b""),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b""),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        ({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        ({"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, b"12345678"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"),
        ({"w": {"dtype": "F32", "shape": [2**40] * 8, "data_offsets": [0, 4]}}, b"1234"),
        ({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, b"1234"),
    ],
)
def test_a_malformed_header_of_weights_is_refused(tmp_path, document, data):
    with pytest.raises(BadTask):
        header(raw_file(tmp_path / "w", document, data))


def test_a_header_that_claims_to_be_huge_is_refused_unread(tmp_path):
    (tmp_path / "w").write_bytes((2**60).to_bytes(8, "little"))
    with pytest.raises(TooLarge):
        header(tmp_path / "w")


# At run time


def lookup():
    return program(
        Node("found", "aten.embedding.default", (TABLE, IDS)), Node("out", "aten.add.Tensor", (X, Ref("found")))
    )


@pytest.mark.parametrize("bad", [10, -1, 2**62])
def test_an_id_outside_the_table_is_refused_by_the_nodes_name_before_the_kernel(bad):
    run = Interpreter(lookup(), {"table": torch.zeros(10, 4)})
    with pytest.raises(BadInput, match=f"^found: index {bad} of 10 rows"):
        run({"x": torch.zeros(2, 4), "ids": torch.tensor([0, bad])}, {"b": 2})


@pytest.mark.parametrize("op", ["index_select", "gather", "aten.index.Tensor"])
def test_every_indexing_operator_bounds_its_indices(op):
    args = (TABLE, [IDS]) if op.endswith("Tensor") else (TABLE, 0, Ref("matrix") if op == "gather" else IDS)
    task = program(
        Node("matrix", "aten.unsqueeze.default", (IDS, 1)), node(op, *args), Node("out", "aten.mul.Scalar", (X, 1))
    )
    run = Interpreter(task, {"table": torch.zeros(10, 4)})
    x = torch.zeros(1, 4)
    run({"x": x, "ids": torch.tensor([9])}, {"b": 1})
    with pytest.raises(BadInput, match=r"^evil: index 10"):
        run({"x": x, "ids": torch.tensor([10])}, {"b": 1})


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"x": torch.zeros(9, 4), "ids": torch.zeros(9, dtype=I64)}, TooLarge, "b"),
        ({"x": torch.zeros(0, 4)}, BadInput, "b: 2 in ids"),
        ({"x": torch.zeros(2, 5)}, BadInput, "x"),
        ({"x": torch.zeros(2, 4, 1)}, BadInput, "x"),
        ({"x": torch.zeros(2, 4, dtype=torch.float16)}, BadInput, "x"),
        ({"x": torch.zeros(3, 4)}, BadInput, "b: 2 in ids"),
        ({"ids": torch.tensor([0, 10])}, BadInput, "ids"),
    ],
)
def test_inputs_other_than_declared_are_refused_by_name(changes, error, named):
    task = program(OUT, inputs=(Input("x", F32, ("b", 4), "in"), Input("ids", I64, ("b",), "in", below=10)))
    with pytest.raises(error, match=f"^{named}"):
        bind(task, {"x": torch.zeros(2, 4), "ids": torch.zeros(2, dtype=I64), **changes})


# Fuzz

GOOD = program(
    Node("found", "aten.embedding.default", (TABLE, IDS)),
    Node("sum", "aten.add.Tensor", (X, Ref("found"))),
    Node("flat", "aten.reshape.default", (Ref("sum"), [Ref("b"), 2, -1])),
    Node("parts", "aten.split.Tensor", (Ref("flat"), 1, 1)),
    Node("part", "py.getitem", (Ref("parts"), 1)),
    Node("both", "aten.cat.default", ([Ref("part"), Ref("part")], 1)),
    Node("soft", "aten.softmax.int", (Ref("both"), -1)),
    Node("out", "aten.reshape.default", (Ref("soft"), [Ref("b"), 4])),
)
GOOD_DOCUMENT = canonical.decode(GOOD.encode(), max_bytes=MEBIBYTE)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 3, 7, 2**31, 2**40, 2**62, -(2**63)]),
    st.sampled_from(["x", "ids", "table", "b", "found", "sum", "parts", "out", "both"]).map(lambda n: {"ref": n}),
    st.floats().map(lambda f: {"f64": struct.pack(">d", f)}),
    st.sampled_from(["float32", "int64", "bool", "float16"]).map(lambda d: {"dtype": d}),
    st.text(max_size=4),
)
arguments = leaves | st.lists(leaves, max_size=5)
calls = st.tuples(st.sampled_from(sorted(OPS)), st.lists(arguments, max_size=5))


def paths(value, here=()):
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*here, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def attempt(data):
    """Load and run as a worker would; anything but a typed error fails the test."""
    try:
        task = Program.decode(data)
        verify(task, 4 * MEBIBYTE)
        inputs = {"x": torch.ones(2, 4), "ids": torch.tensor([0, 9])}
        sizes = bind(task, inputs)
        walk(task, sizes, 4 * MEBIBYTE)
        Interpreter(task, {w.name: torch.ones(w.shape, dtype=w.dtype) for w in task.weights})(inputs, sizes)
    except NodewireError:
        return


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(list(paths(GOOD_DOCUMENT))[1:]), arguments)
def test_a_mutated_program_runs_or_is_refused_with_a_typed_error(path, new):
    attempt(canonical.encode(replaced(GOOD_DOCUMENT, path, new)))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 7), calls)
def test_any_operator_with_any_arguments_runs_or_is_refused_with_a_typed_error(at, call):
    changed = list(GOOD_DOCUMENT["nodes"])
    changed[at] = [changed[at][0], call[0], call[1], {}]
    attempt(canonical.encode({**GOOD_DOCUMENT, "nodes": changed}))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_typed_error(data):
    with pytest.raises(NodewireError):
        Program.decode(data)


def test_the_unmutated_program_runs():
    verify(GOOD, 4 * MEBIBYTE)
    inputs = {"x": torch.ones(2, 4), "ids": torch.tensor([0, 9])}
    out = Interpreter(GOOD, {"table": torch.ones(10, 4)})(inputs, bind(GOOD, inputs))["out"]
    assert out.shape == (2, 4)
