"""Programs of strangers that want other customers' rows, or memory and time of who only looks at them."""

import tracemalloc

import pytest
import torch

from nodewire.errors import BadFrame, BadTask, TooLarge
from nodewire.graph.entry import GraphActor
from nodewire.graph.program.format import SOME, Input, Node, Output, Program
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.model.signature import Signature
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.taskgraph import batch_axis
from nodewire.taskgraph.batch_axis_rules import Unproven
from nodewire.taskgraph.program import GraphProgram
from tests.customer.call_models import manifest

F32, I64 = torch.float32, torch.int64
X, N = Ref("x"), Ref("n0")
LIMITS = Limits(2**26)


def program(*nodes: tuple, shape=("b", 4), out=("b", 4), dims=None, more=()) -> Program:
    """x through `nodes` (operator, arguments, options), named n0, n1 ..., the last of which goes out."""
    made = tuple(Node(f"n{k}", op, tuple(args), dict(*options)) for k, (op, args, *options) in enumerate(nodes))
    return Program.decode(
        Program(
            dims={"b": 512} if dims is None else dims,
            volume=512,
            slots=8,
            inputs=(Input("x", F32, shape, "in"), *more),
            weights=(),
            nodes=made,
            outputs=(Output("y", made[-1].name, F32, out, "out"),),
        ).encode()
    )


def loaded(one: Program) -> GraphActor:
    return GraphActor(verify(one, LIMITS.memory_bytes), {}, LIMITS)


def as_types(*dtypes):
    copies = [("aten._to_copy.default", (Ref(f"n{k}"),), {"dtype": dtype}) for k, dtype in enumerate(dtypes)]
    return ("aten.arange.default", (Ref("b"),)), *copies, ("aten.index.Tensor", (X, [Ref(f"n{len(dtypes)}")]))


SHIFTED = {
    "all but the first read the second row": as_types(torch.bool, I64),
    "every 256th reads the first row": as_types(torch.uint8, I64),
    "numbers rounded": as_types(torch.bfloat16, I64),
    "numbers rounded as they are made": (
        ("aten.arange.default", (Ref("b"),), {"dtype": torch.float16}),
        ("aten._to_copy.default", (N,), {"dtype": I64}),
        ("aten.index.Tensor", (X, [Ref("n1")])),
    ),
}


@pytest.mark.parametrize("nodes", SHIFTED.values(), ids=SHIFTED)
def test_rows_numbers_that_are_not_their_own_any_more_make_no_batch(nodes):
    one = program(*nodes)
    assert not loaded(one).batches
    data = one.encode()
    market = manifest({"only": data}, {"in": (CUSTOMER, "only"), "out": ("only", CUSTOMER)})
    with pytest.raises(Unproven):
        batch_axis.axes(market, {"only": GraphProgram.decode(data)}, "b")


def test_a_batch_of_two_customers_shows_neither_the_others_rows():
    """The leak as its author would use it: one customer's call beside another's."""
    actor = loaded(program(*SHIFTED["all but the first read the second row"]))
    for session in ("victim", "thief"):
        actor.open(session, {})
    secret, mine = torch.full((2, 4), 42.0), torch.zeros(3, 4)
    found = actor.receive_together(
        [("victim", [Frame("in", 0, (secret,), {})]), ("thief", [Frame("in", 0, (mine,), {})])]
    )
    for answer, own in zip(found, (secret, mine), strict=True):
        assert isinstance(answer, list)
        assert torch.equal(answer[0].tensors[0], own)


def test_a_task_whose_every_size_the_data_decide_is_no_batch():
    one = program(("aten.neg.default", (X,)), shape=(SOME, 4), out=(SOME, 4), dims={})
    assert not loaded(one).batches


@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize("operator", ["nodewire.select_rows", "nodewire.scatter_rows"])
def test_rows_are_chosen_by_numbers_and_not_by_tensors(operator, place):
    """Which choices are compared with in any shape: memory that nobody has counted."""
    args = [X, Ref("chosen"), 0, 3]
    args[place] = Ref("many")
    more = (Input("chosen", I64, ("b", 2), "in"), Input("many", I64, (1_000, 1, 1), "in"))
    out = (SOME, 4) if operator.endswith("select_rows") else ("b", 4)
    with pytest.raises(BadTask, match="n0"):
        verify(program((operator, args), out=out, more=more), LIMITS.memory_bytes)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 2**63 - 1), (-(2**63), 0), (5, 2), (-1, -1), (2**62, 2**62 + 1)], ids=str
)
def test_choices_out_of_all_ranges_choose_rows_or_none(first, last):
    more = (Input("chosen", I64, ("b", 2), "in"),)
    one = program(
        ("nodewire.select_rows", (X, Ref("chosen"), first, last)),
        ("nodewire.scatter_rows", (N, Ref("chosen"), first, last)),
        more=more,
    )
    actor = loaded(one)
    actor.open("s", {})
    x, chosen = torch.randn(3, 4), torch.tensor([[0, -(2**63)], [2**63 - 1, 7], [-1, -1]])
    (frame,) = actor.receive("s", Frame("in", 0, (x, chosen), {}))
    is_chosen = ((chosen >= first) & (chosen < last)).any(1)
    assert torch.equal(frame.tensors[0], x * is_chosen[:, None])


GROWING = {
    "the last 9 rows up to the second, none of 512": ("aten.slice.Tensor", (N, 0, -9, 2)),
    "a dimension away that is there where 512 rows are": ("aten.squeeze.dim", (N, 0)),
}


@pytest.mark.parametrize("shape", [("b", 4), (SOME, 4)], ids=["selected", "arriving"])
@pytest.mark.parametrize("grows", GROWING.values(), ids=GROWING)
def test_fewer_rows_than_were_verified_cannot_be_made_more(grows, shape):
    """Else two rows, of which verification saw none, become as many as somebody likes."""
    more = (Input("chosen", I64, ("b", 2), "in"),)
    arriving = ("aten.neg.default", (X,)) if SOME in shape else ("nodewire.select_rows", (X, Ref("chosen"), 0, 1))
    nodes = (arriving, grows, ("aten.repeat.default", (Ref("n1"), [2**40, 1])))
    with pytest.raises(BadTask, match=r"^n1: .*data decide"):
        verify(program(*nodes, shape=shape, out=(SOME, 4), more=more), LIMITS.memory_bytes)


def test_rows_that_data_decide_are_sliced_and_squeezed_where_that_makes_no_more():
    nodes = [
        ("aten.slice.Tensor", (X, 1, -2, 2**63 - 1)),
        ("aten.slice.Tensor", (N, 1, 0, 1)),
        ("aten.squeeze.dim", (Ref("n1"), 1)),
    ]
    actor = loaded(program(*nodes, shape=(SOME, 4), out=(SOME,), dims={}))
    actor.open("s", {})
    for seq, rows in enumerate((0, 1, 5)):
        x = torch.randn(rows, 4)
        (frame,) = actor.receive("s", Frame("in", seq, (x,), {}))
        assert torch.equal(frame.tensors[0], x[:, 2])


@pytest.mark.parametrize("rows", [0, 1, 3, 512])
def test_rows_of_a_lying_neighbour_are_refused_by_the_node_that_cannot_place_them(rows):
    more = (Input("chosen", I64, ("b", 2), "in"),)
    one = program(("nodewire.scatter_rows", (X, Ref("chosen"), 0, 2)), shape=(SOME, 4), more=more)
    actor = loaded(one)
    actor.open("s", {})
    chosen = torch.tensor([[0, 5], [1, 0], [9, 9], [3, 3]])
    with pytest.raises(BadTask, match=f"n0: .*{rows} rows, 2 chosen"):
        actor.receive("s", Frame("in", 0, (torch.zeros(rows, 4), chosen), {}))
    (frame,) = actor.receive("s", Frame("in", 1, (torch.ones(2, 4), chosen), {}))
    assert frame.tensors[0].sum() == 8


def document(**changes):
    port = {"edge": "in", "tensor": "x", "dtype": "float32", "shape": ["b", 4], "below": 0}
    made = {
        "v": 1,
        "slots": 1,
        "dims": {"b": 8},
        "volume": 8,
        "inputs": [port],
        "weights": [],
        "nodes": [["n", "aten.neg.default", [{"ref": "x"}], {}]],
        "outputs": [{"edge": "out", "tensor": "y", "dtype": "float32", "shape": ["b", 4], "value": "n"}],
    }
    return canonical.encode(made | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": [["n", "py.add", [1, 1], {}]] * 16_385},
        {"weights": [{"name": "w", "shape": []}] * 16_385},
        {"weights": [{"name": "w", "shape": [1] * 9}]},
        {"weights": [{"name": "w", "shape": 7}]},
        {"dims": {"a": 1, "b": 8, "c": 1, "d": 1}},
        {"inputs": [{}] * 65},
        {"outputs": 7},
        {"nodes": None},
        {"nodes": ["abcd"]},
        {"nodes": [[[], [], [], []]]},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_who_only_reads_a_program_refuses_what_nobody_loads(changes):
    with pytest.raises((BadTask, TooLarge)):
        GraphProgram.decode(document(**changes))


GROWING = {
    "one more rank at every node": ("aten.unsqueeze.default", lambda before: [before, 0], {}),
    "a list of ever more": ("aten.stack.default", lambda before: [[before, before], 0], {}),
}


@pytest.mark.parametrize("grown", GROWING.values(), ids=GROWING)
@pytest.mark.parametrize("first", ["x", "constant"])
def test_ranks_that_grow_do_not_fill_the_memory_of_who_looks_for_rows(grown, first):
    operator, args, named = grown
    start = [["n0", "aten.neg.default", [{"ref": "x"}], {}]]
    if first == "constant":
        start = [["n0", "aten.ones.default", [[1]], {}]]
    nodes = [*start, *([f"n{k + 1}", operator, args({"ref": f"n{k}"}), named] for k in range(8_000))]
    nodes.append(["n", "aten.neg.default", [{"ref": "x"}], {}])
    data = document(nodes=nodes)
    read = GraphProgram.decode(data)
    market = manifest({"only": data}, {"in": (CUSTOMER, "only"), "out": ("only", CUSTOMER)})
    tracemalloc.start()
    try:
        with pytest.raises(Unproven, match="rank 9"):
            batch_axis.axes(market, {"only": read}, "b")
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_bools_of_a_provider_that_are_neither_0_nor_1_are_refused():
    data = document()
    market = manifest({"only": data}, {"in": (CUSTOMER, "only"), "out": ("only", CUSTOMER)})
    into, out = market.edges
    out = out.model_copy(update={"tensors": (out.tensors[0].model_copy(update={"dtype": "bool"}),)})
    said = Signature.from_manifest(market.model_copy(update={"edges": (into, out)}))
    shape, count = (2, 4), 8
    frame = Frame("out", 0, (Array("bool", shape, b"\1" * count),), {})
    assert said.outputs_of(frame)
    frame = Frame("out", 0, (Array("bool", shape, b"\1" * (count - 1) + b"\2"),), {})
    with pytest.raises(BadFrame, match="neither 0 nor 1"):
        said.outputs_of(frame)
