"""What is wrong with a call is told before anything is bought; what is too large is made in parts, if that is safe."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nodewire.customer.calls.arrays import array_of, like, numpy_of, raw
from nodewire.customer.calls.batch_splitter import BatchSplitter, Parts, Programs
from nodewire.customer.calls.tensor_call import Evaluation, jobs
from nodewire.customer.job.tickets import Tickets
from nodewire.errors import BadFrame, BadInput, BadManifest, TooLarge, Unsupported
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job.request import Ticket
from nodewire.protocol.model.manifest import CUSTOMER, Tensor
from nodewire.protocol.model.signature import MAX_FRAME_BYTES, Signature
from nodewire.protocol.tensors.frame import Array, Frame
from tests.customer.call_models import Blobs, manifest, program, ref
from tests.protocol import documents

DTYPES = ["float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"]
F32 = Tensor(name="x", dtype="float32", shape=("rows", 4))


def two_branches(*, mixing: bool = False, volume: int = 2**20) -> dict[str, bytes]:
    """left doubles pixels, right looks ids up, both add; `mixing`: left takes the mean over all rows off as well."""
    rows = {"rows": 8}
    left = [("doubled", "aten.mul.Tensor", [ref("pixels"), 2])]
    if mixing:
        left = [
            ("mean", "aten.mean.dim", [ref("pixels"), [0], True]),
            ("doubled", "aten.sub.Tensor", [ref("pixels"), ref("mean")]),
        ]
    return {
        "left": program(
            [("customer.to.left", "pixels", "float32", ("rows", 4))],
            left,
            [("left.to.sum", "doubled", "float32", ("rows", 4))],
            rows,
            volume=volume,
        ),
        "right": program(
            [("customer.to.right", "ids", "int64", ("rows",))],
            [("found", "aten.embedding.default", [ref("table"), ref("ids")])],
            [("right.to.sum", "found", "float32", ("rows", 4)), ("found", "found", "float32", ("rows", 4))],
            rows,
            volume=volume,
            below=10,
            weights={"table": (10, 4)},
        ),
        "sum": program(
            [("left.to.sum", "doubled", "float32", ("rows", 4)), ("right.to.sum", "found", "float32", ("rows", 4))],
            [("sum", "aten.add.Tensor", [ref("doubled"), ref("found")])],
            [("sum", "sum", "float32", ("rows", 4))],
            rows,
        ),
    }


ENDS = {
    "customer.to.left": (CUSTOMER, "left"),
    "customer.to.right": (CUSTOMER, "right"),
    "left.to.sum": ("left", "sum"),
    "right.to.sum": ("right", "sum"),
    "found": ("right", CUSTOMER),
    "sum": ("sum", CUSTOMER),
}


def call(rows: int, **changes) -> dict[str, np.ndarray]:
    pixels = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    return {"pixels": pixels, "ids": np.arange(rows, dtype=np.int64) % 10, **changes}


async def parts(folder, given, **model) -> Parts:
    programs = two_branches(**model)
    made = manifest(programs, ENDS)
    batching = await BatchSplitter.load(made, Programs(Blobs(folder, programs)))
    return await batching.parts(batching.signature.arrays(given, array_of))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_and_of_none_travel_and_come_back_as_they_were_given(dtype):
    for shape in ((2, 3), (), (0, 3)):
        tensor = torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, dtype))
        declared = Tensor(name="x", dtype=dtype, shape=shape)
        travels = array_of(declared, tensor)
        travels.check(2**20)
        back = like({"x": tensor}, {"x": travels})["x"]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape) and torch.equal(back, tensor)
        shown = like({"x": np.zeros(1)}, {"x": travels})["x"]
        assert shown.shape == shape and shown.tolist() == tensor.float().numpy().astype(shown.dtype).tolist()
        assert like({"x": travels}, {"x": travels}) == {"x": travels}
        assert array_of(declared, shown).data == travels.data  # bfloat16 too: float32 that holds no more


async def test_an_integer_that_a_table_has_no_row_for_is_told_although_its_input_names_no_bound(tmp_path):
    """Programs that are traced name none: the table that the ids are looked up in has it."""
    programs = two_branches()
    document = canonical.decode(programs["right"], max_bytes=2**20)
    document["inputs"][0]["below"] = 0
    document["nodes"] = [
        ["shaped", "aten.reshape.default", [ref("ids"), [-1]], {}],
        ["found", "aten.embedding.default", [ref("table"), ref("shaped")], {}],
    ]
    programs["right"] = canonical.encode(document)
    batching = await BatchSplitter.load(manifest(programs, ENDS), Programs(Blobs(tmp_path, programs)))
    for ids in ([0, 10], [-1, 3]):
        with pytest.raises(BadInput, match=r"^ids: has (10|-1); from 0 to 9 is taken"):
            await batching.parts(batching.signature.arrays(call(2, ids=np.array(ids)), array_of))
    assert await batching.parts(batching.signature.arrays(call(2, ids=np.array([0, 9])), array_of))


def test_nothing_is_converted_unasked():
    for value in (np.zeros((2, 4)), np.zeros((2, 4), np.int64), torch.zeros(2, 4, dtype=torch.bfloat16), [[1, 2], [3]]):
        with pytest.raises(BadInput, match=r"^x: "):
            array_of(F32, value)
    with pytest.raises(BadInput, match="does not hold"):
        array_of(Tensor(name="x", dtype="bfloat16", shape=(1,)), np.array([1.001], np.float32))
    with pytest.raises(BadInput, match="neither 0 nor 1"):
        array_of(Tensor(name="x", dtype="bool", shape=(2,)), Array("bool", (2,), b"\x01\x02"))
    big = np.arange(4, dtype=">f4").reshape(1, 4)
    assert numpy_of(array_of(F32, big)).tolist() == big.tolist()  # the bytes' order is no conversion


def test_floats_that_are_no_numbers_are_a_models_own_affair():
    odd = np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32)
    assert numpy_of(array_of(F32, odd)).tobytes() == odd.tobytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pixles": np.zeros(1)}, "pixles: no input of the model, which takes pixels, ids"),
        ({"pixels": np.zeros((3, 5), np.float32)}, "pixels: of shape"),
        ({"pixels": np.zeros((3, 4, 1), np.float32)}, "pixels: of shape"),
        ({"ids": np.zeros(2, np.int64)}, "ids: has 2 as rows, another tensor has 3"),
        ({"ids": np.zeros(3, np.int32)}, "ids: int32, the model takes int64"),
        ({"ids": np.array([0, 10, 1])}, "ids: has 10; from 0 to 9 is taken"),
        ({"ids": np.array([0, -1, 1])}, "ids: has -1"),
    ],
)
async def test_a_wrong_call_is_told_with_the_tensors_name(tmp_path, changes, said):
    with pytest.raises(BadInput) as refused:
        await parts(tmp_path, call(3, **changes))
    assert str(refused.value).startswith(said)


async def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"^ids: is missing; the model takes int64 \[rows\]"):
        await parts(tmp_path, {"pixels": call(1)["pixels"]})


async def test_a_batch_above_the_dims_or_the_volume_is_made_in_parts_whose_outputs_make_the_whole(tmp_path):
    for model, sizes in (({}, [8, 8, 4]), ({"volume": 6}, [6, 6, 6, 2])):
        made = await parts(tmp_path, call(20), **model)
        assert [one["pixels"].shape[0] for one in made.calls] == sizes == [one["ids"].shape[0] for one in made.calls]
        assert made.axes == {"sum": 0, "found": 0}
        back = made.whole([{"sum": one["pixels"], "found": one["pixels"]} for one in made.calls])
        assert numpy_of(back["sum"]).tolist() == call(20)["pixels"].tolist()
    for rows in (0, 1, 8):
        assert len((await parts(tmp_path, call(rows))).calls) == 1


async def test_a_batch_whose_rows_are_mixed_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(BadInput, match=r"too large for one call: rows 20: at most 8; make it several calls; .*mean"):
        await parts(tmp_path, call(20), mixing=True)
    assert len((await parts(tmp_path, call(8), mixing=True)).calls) == 1
    with pytest.raises(BadInput, match=r"7 = 7 positions \(rows\); this model takes 6 in one call \(6\)"):
        await parts(tmp_path, call(7), mixing=True, volume=6)


async def test_programs_are_read_once_for_many_calls(tmp_path):
    programs = two_branches()
    market = Blobs(tmp_path, programs)
    batching = await BatchSplitter.load(manifest(programs, ENDS), Programs(market))
    for rows in (3, 30, 30):
        await batching.parts(batching.signature.arrays(call(rows), array_of))
    assert len(market.fetched) == 3


async def test_a_task_that_the_customer_does_not_feed_may_be_the_one_that_a_call_is_too_large_for(tmp_path):
    programs = two_branches()
    programs["sum"] = canonical.encode({**canonical.decode(programs["sum"], max_bytes=2**20), "volume": 5})
    batching = await BatchSplitter.load(manifest(programs, ENDS), Programs(Blobs(tmp_path, programs)))
    parts = await batching.parts(batching.signature.arrays(call(8), array_of))
    assert [one["ids"].shape[0] for one in parts.calls] == [5, 3]


async def test_a_call_with_more_for_one_task_than_a_frame_takes_is_refused(tmp_path):
    rows = MAX_FRAME_BYTES // 16 + 1
    wide = {"rows": 2**30}
    programs = {
        "only": program(
            [("customer.to.only", "x", "float32", ("rows", 4))],
            [("y", "aten.cumsum.default", [ref("x"), 0])],
            [("y", "y", "float32", ("rows", 4))],
            wide,
            volume=2**30,
        )
    }
    made = manifest(programs, {"customer.to.only": (CUSTOMER, "only"), "y": ("only", CUSTOMER)})
    batching = await BatchSplitter.load(made, Programs(Blobs(tmp_path, programs)))
    with pytest.raises(TooLarge, match=str(MAX_FRAME_BYTES)):
        await batching.parts({"x": Array("float32", (rows, 4), bytes(rows * 16))})


def test_many_calls_are_as_many_jobs_as_tickets_need():
    signature = Signature.from_manifest(manifest(two_branches(), ENDS))
    calls = [{name: raw(name, value) for name, value in call(2).items()}] * 200
    portions = jobs(signature, calls)
    assert [len(portion) for portion in portions] == [64, 64, 64, 8]
    tickets = Tickets(documents.CUSTOMER, {}, signature.frames(portions[0]))
    assert len(tickets.make_ticket("ab" * 32).to_json()) <= Ticket.MAX_BYTES
    large = [{name: Array("uint8", (30 * 2**20,), b"") for name in ("pixels", "ids")}] * 3
    assert [len(portion) for portion in jobs(signature, large)] == [1, 1, 1]


def test_a_model_that_takes_its_input_on_more_edges_than_a_ticket_can_name_is_unsupported():
    names = [f"task.with-a-long-name-of-its-own.{k}" for k in range(200)]
    programs = {
        name: program(
            [(f"customer.to.{name}", "x", "float32", (1,))],
            [("y", "aten.neg.default", [ref("x")])],
            [(name, f"y{k}", "float32", (1,))],
            {},
        )
        for k, name in enumerate(names)
    }
    ends = {f"customer.to.{name}": (CUSTOMER, name) for name in names} | {name: (name, CUSTOMER) for name in names}
    with pytest.raises(Unsupported, match="200 edges"):
        jobs(Signature.from_manifest(manifest(programs, ends)), [{"x": Array("float32", (1,), bytes(4))}])


def test_one_name_of_two_types_is_no_signature():
    changed = two_branches()
    changed["right"] = changed["right"].replace(b"ids", b"pix")  # of the same length: only names change
    made = manifest(changed, ENDS)
    edges = [
        edge.model_copy(update={"tensors": (edge.tensors[0].model_copy(update={"name": "pixels"}),)})
        if edge.name == "customer.to.right"
        else edge
        for edge in made.edges
    ]
    with pytest.raises(BadManifest, match=r"pixels: is float32 \[rows, 4\], and int64 \[rows\] on customer.to.right"):
        Signature.from_manifest(made.model_copy(update={"edges": tuple(edges)}))


def evaluation(*rows: int) -> Evaluation:
    made = manifest(two_branches(), ENDS)
    calls = [{name: raw(name, value) for name, value in call(n).items()} for n in rows]
    one = Evaluation(None, None, "", made, None, lambda made: None, None, Signature.from_manifest(made), calls)
    one.frames()
    one.forget()
    return one


def output(edge: str, seq: int, rows: int, *, end: bool) -> Frame[Array]:
    return Frame(edge, seq, (Array("float32", (rows, 4), bytes(16 * rows)),), {"chunk": seq, "end": end})


def test_outputs_of_all_edges_and_calls_are_taken_in_any_order():
    one = evaluation(2, 3)
    for edge, seq in (("sum", 0), ("sum", 1), ("found", 0)):
        one.add_output(output(edge, seq, 2 + seq, end=seq == 1))
    with pytest.raises(BadFrame, match="found: did not come for call 1"):
        one.finish()
    one.add_output(output("found", 1, 3, end=True))
    one.finish()
    assert [set(outputs) for outputs in one.outputs] == [{"sum", "found"}] * 2
    one.forget()
    assert not one.has_output()


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (output("sum", 2, 2, end=True), "there are 2"),
        (output("sum", 0, 2, end=True), "the end is said"),
        (output("sum", 1, 3, end=False), "the end is said"),
        (output("sum", 0, 3, end=False), "has 3 as rows"),
        (Frame("sum", 0, (), {"chunk": 0, "end": False}), "0 tensors"),
        (Frame("sum", 0, (Array("int64", (2, 4), bytes(64)),), {"chunk": 0, "end": False}), "int64"),
        (output("other", 0, 2, end=False), "other"),
        (output("found", 0, 2, end=False), "came twice"),
    ],
)
def test_an_output_that_is_not_what_was_bought_is_not_taken(frame, said):
    one = evaluation(2, 3)
    one.add_output(output("found", 0, 2, end=False))
    with pytest.raises(BadFrame, match=said):
        one.add_output(frame)


async def test_programs_that_would_take_a_customers_memory_are_not_read(tmp_path):
    programs = two_branches()
    made, market = manifest(programs, ENDS), Blobs(tmp_path, programs)

    def with_large(*names: str):
        large = {"program": made.tasks[0].program.model_copy(update={"bytes": 2**40})}
        return made.model_copy(
            update={"tasks": tuple(one.model_copy(update=large) if one.name in names else one for one in made.tasks)}
        )

    with pytest.raises(TooLarge, match="of programs"):
        await BatchSplitter.load(with_large("left"), Programs(market))
    assert not market.fetched
    batching = await BatchSplitter.load(with_large("sum"), Programs(market))  # which the customer does not feed
    assert len((await batching.parts(batching.signature.arrays(call(8), array_of))).calls) == 1
    with pytest.raises(BadInput, match="a task that is not read"):
        await batching.parts(batching.signature.arrays(call(9), array_of))
