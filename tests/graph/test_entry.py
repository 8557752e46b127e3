"""A graph task answers when all edges of a call have arrived, and holds a bounded number of calls that wait."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import BadFrame, BadInput, BadTask, BadVersion, Busy, NotFound, OverMemory, TooLarge
from nodewire.graph import entry
from nodewire.graph.encoder import DriverProgram, EncoderDriver, batches, padded, texts_of
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits
from nodewire.protocol.encoding import canonical
from nodewire.protocol.tensors.frame import Frame

F32 = torch.float32


@pytest.fixture
def weights(tmp_path) -> Path:
    save_file({"bias": torch.arange(4, dtype=F32)}, tmp_path / "bias")
    return tmp_path / "bias"


def adder(slots=2) -> bytes:
    """left + right + bias, and left + right, on two edges."""
    return Program(
        dims={"b": 1_024},
        volume=1_024,
        inputs=(Input("x", F32, ("b", 4), "left"), Input("y", F32, ("b", 4), "right")),
        weights=(Weight("bias", F32, (4,)),),
        nodes=(
            Node("sum", "aten.add.Tensor", (Ref("x"), Ref("y"))),
            Node("out", "aten.add.Tensor", (Ref("sum"), Ref("bias"))),
        ),
        outputs=(Output("z", "out", F32, ("b", 4), "up"), Output("s", "sum", F32, ("b", 4), "down")),
        slots=slots,
    ).encode()


def frame(edge, seq, value, rows=1, **meta):
    return Frame(edge, seq, (torch.full((rows, 4), float(value)),), meta)


@pytest.fixture
def loaded(weights):
    made = entry.load("graph", adder(), [weights], Limits(100_000))
    made.open("s", {})
    return made


def test_a_call_runs_when_its_last_edge_arrives_in_any_order_and_leaves_on_every_edge_with_the_same_seq(loaded):
    assert loaded.receive("s", frame("left", 7, 1, chunk=7)) == []
    assert loaded.receive("s", frame("right", 8, 1)) == []
    up, down = loaded.receive("s", frame("right", 7, 2, rows=1))
    assert (up.edge, up.seq, down.edge, down.seq) == ("up", 7, "down", 7)
    assert up.tensors[0].tolist() == [[3.0, 4.0, 5.0, 6.0]]
    assert down.tensors[0].tolist() == [[3.0] * 4]
    assert up.meta == down.meta == {"chunk": 7}
    assert loaded.receive("s", frame("left", 8, 0))[0].seq == 8


def test_edges_that_disagree_about_meta_or_sizes_are_refused(loaded):
    loaded.receive("s", frame("left", 0, 1, chunk=1))
    with pytest.raises(BadFrame, match="chunk"):
        loaded.receive("s", frame("right", 0, 1, chunk=2))
    loaded.receive("s", frame("left", 1, 1))
    with pytest.raises(BadInput, match=r"^left right: b: 2 in y where 1 is meant"):
        loaded.receive("s", frame("right", 1, 1, rows=2))


def test_a_frame_that_came_twice_or_on_a_strange_edge_or_with_more_tensors_is_refused(loaded):
    loaded.receive("s", frame("left", 0, 1))
    with pytest.raises(BadFrame, match="twice"):
        loaded.receive("s", frame("left", 0, 1))
    with pytest.raises(BadFrame, match="lead here"):
        loaded.receive("s", frame("sideways", 0, 1))
    with pytest.raises(BadFrame, match="2 tensors"):
        loaded.receive("s", Frame("right", 0, (torch.zeros(1, 4),) * 2))


def test_waiting_calls_are_bounded_in_number(weights):
    loaded = entry.load("graph", adder(), [weights], Limits(10**9))
    loaded.open("s", {})
    for seq in range(entry.MAX_PENDING):
        loaded.receive("s", frame("left", seq, 0))
    with pytest.raises(TooLarge, match="pending"):
        loaded.receive("s", frame("left", entry.MAX_PENDING, 0))
    assert len(loaded.receive("s", frame("right", 0, 0))) == 2
    loaded.receive("s", frame("left", entry.MAX_PENDING, 0))


def test_waiting_calls_are_bounded_in_bytes_over_all_sessions_and_a_closed_one_gives_its_bytes_back(loaded):
    loaded.open("t", {})
    waiting = 0
    with pytest.raises(TooLarge, match="pending"):
        while waiting < 100:
            loaded.receive("st"[waiting % 2], frame("left", waiting, 0, rows=512))
            waiting += 1
    assert waiting * 512 * 16 <= 100_000
    loaded.close("t")
    loaded.receive("s", frame("left", 100, 0, rows=512))


def test_sessions_are_independent_and_as_many_as_the_slots(loaded):
    loaded.open("t", {})
    with pytest.raises(Busy):
        loaded.open("u", {})
    loaded.receive("s", frame("left", 0, 1))
    assert loaded.receive("t", frame("right", 0, 1)) == []
    loaded.close("t")
    loaded.close("never opened")
    loaded.open("u", {})
    with pytest.raises(NotFound):
        loaded.receive("t", frame("right", 0, 1))


def test_larger_calls_than_declared_are_refused_and_the_session_goes_on(loaded):
    loaded.receive("s", frame("left", 0, 1, rows=1_025))
    with pytest.raises(TooLarge, match="b: 1025"):
        loaded.receive("s", frame("right", 0, 1, rows=1_025))
    loaded.receive("s", frame("left", 1, 1))
    assert loaded.receive("s", frame("right", 1, 1))


def test_a_task_over_the_workers_memory_is_refused_before_its_weights_are_read(tmp_path):
    save_file({"bias": torch.zeros(4)}, tmp_path / "bias")
    with pytest.raises(OverMemory, match=r"^x: "):
        entry.load("graph", adder(), [tmp_path / "bias"], Limits(1_000))


def test_an_unknown_engine_is_refused():
    with pytest.raises(BadTask, match="engine"):
        entry.load("decoder.stage", b"", [], Limits(1))


# The driver


@pytest.fixture
def driver(tiny_directory):
    program = DriverProgram(
        tokenizer=(tiny_directory / "tokenizer.json").read_bytes(),
        pad_id=0,
        positions=8,
        rows=3,
        volume=16,
        edges={"ids.only": ("input_ids",), "mask.only": ("attention_mask",)},
        slots=1,
    )
    assert DriverProgram.decode(program.encode()) == program
    made = entry.load("encoder.driver", program.encode(), [], Limits(2**30))
    assert isinstance(made, EncoderDriver)
    made.open("s", {})
    return made


def test_texts_become_padded_ids_and_masks_on_every_edge(driver, as_texts_frame):
    ids, mask = driver.receive("s", as_texts_frame(["the cat", "cat sat on mat"]))
    assert (ids.edge, mask.edge) == ("ids.only", "mask.only")
    assert ids.meta == mask.meta == {"chunk": 0, "rows": 2, "end": True, "tokens": 10}
    assert ids.tensors[0].dtype == mask.tensors[0].dtype == torch.int64
    assert mask.tensors[0].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert ids.tensors[0][0, 4:].tolist() == [0, 0]


def test_a_text_is_cut_at_the_positions_and_its_last_token_stays_the_separator(driver, as_texts_frame):
    ids, _ = driver.receive("s", as_texts_frame(["cat " * 50]))
    assert ids.tensors[0].shape == (1, 8)
    assert ids.tensors[0][0, [0, -1]].tolist() == [2, 3]


def test_batches_keep_order_rows_and_volume():
    assert batches([3, 3, 3, 3], rows=3, volume=100) == [(0, 3), (3, 4)]
    assert batches([2, 2, 8, 2, 2], rows=9, volume=16) == [(0, 2), (2, 4), (4, 5)]
    assert batches([], rows=1, volume=1) == []
    assert padded([[5], [6, 7]], 0)["input_ids"].tolist() == [[5, 0], [6, 7]]


def test_a_second_request_goes_on_counting(driver, as_texts_frame):
    driver.receive("s", as_texts_frame(["cat"] * 4))
    assert {f.seq for f in driver.receive("s", as_texts_frame(["cat"]))} == {2}


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ([], BadInput),
        ("cat", BadInput),
        ([1], BadInput),
        ({"a": 1}, BadInput),
        (["cat"] * 1_025, TooLarge),
        (["c" * 40_000], TooLarge),
        (["c" * 30_000] * 40, TooLarge),
    ],
)
def test_what_is_no_list_of_texts_is_refused(driver, as_texts_frame, texts, error):
    with pytest.raises(error, match="texts"):
        driver.receive("s", as_texts_frame(texts))


def test_a_pattern_on_which_the_tokenizer_gives_up_costs_a_typed_error_and_not_the_worker(
    driver, tiny_directory, as_texts_frame
):
    """The library panics, which is no Exception."""
    said = json.loads((tiny_directory / "tokenizer.json").read_text())
    said["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    program = replace(driver._program, tokenizer=json.dumps(said).encode())
    hostile = entry.load("encoder.driver", program.encode(), [], Limits(2**30))
    hostile.open("s", {})
    with pytest.raises(BadTask, match="tokenizer"):
        hostile.receive("s", as_texts_frame(["a" * 60 + "b"]))
    assert hostile.receive("s", as_texts_frame(["cat"]))


def test_bytes_that_are_not_json_are_refused():
    for data in (b"\xff\xfe", b"[" * 10_000, b"[1,", b"NaN"):
        with pytest.raises(BadInput):
            texts_of(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    with pytest.raises(BadFrame):
        texts_of(torch.zeros(3))


def test_a_driver_has_slots_and_knows_its_edge(driver, as_texts_frame):
    with pytest.raises(Busy):
        driver.open("t", {})
    with pytest.raises(NotFound):
        driver.receive("t", as_texts_frame(["cat"]))
    with pytest.raises(BadFrame):
        driver.receive("s", Frame("prompt", 0, (torch.zeros(1, dtype=torch.uint8),)))
    driver.close("s")
    driver.open("t", {})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"v": 2}, BadVersion),
        ({"rows": 0}, BadTask),
        ({"volume": 1}, BadTask),
        ({"slots": 0}, BadTask),
        ({"edges": {"e": ["secrets"]}}, BadTask),
        ({"more": 1}, BadTask),
        ({"tokenizer": b"{}"}, BadTask),
        ({"tokenizer": b"\xff"}, BadTask),
    ],
)
def test_a_malformed_driver_is_refused(tiny_directory, change, error):
    tokenizer = (tiny_directory / "tokenizer.json").read_bytes()
    good = DriverProgram(tokenizer, 0, 8, 3, 16, {"e": ("input_ids",)}, 1).encode()
    document = canonical.decode(good, max_bytes=2**20)
    with pytest.raises(error):
        entry.load("encoder.driver", canonical.encode({**document, **change}), [], Limits(2**30))


def test_the_texts_frame_is_plain_json(as_texts_frame):
    assert json.loads(as_texts_frame(["é"]).tensors[0].numpy().tobytes()) == ["é"]
