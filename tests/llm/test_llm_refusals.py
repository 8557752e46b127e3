"""What a stranger may send to a decoder's tasks, and what it gets: typed errors, and the session beside goes on."""

import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadInput, BadTask, Busy, NodewireError, NotFound, OverMemory, TooLarge
from nodewire.kind import Limits
from nodewire.llm import actor
from nodewire.llm.config import read_config
from nodewire.llm.split import read_tokenizer, split_decoder
from nodewire.llm.tokenizer import Detokenizer, Tokenizer
from nodewire.protocol import canonical
from nodewire.protocol.frame import Frame
from tests.llm.test_llm_parity import ROOM, load, prompt_frame


@pytest.fixture
def registration(llama, tmp_path):
    return split_decoder(llama, 400_000, tmp_path, slots=2, name="tiny")


def stage_of(registration, **changes):
    """stage.0's files with fields of its program changed."""
    task = registration.manifest.task("stage.0")
    program = canonical.decode(registration.blobs[task.program.sha256].read_bytes(), max_bytes=10**6)
    for path, value in changes.items():
        target = program
        *parents, last = path.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    return canonical.encode(program), [registration.blobs[w.sha256] for w in task.weights]


@pytest.mark.parametrize(
    "change",
    [
        {"first": 5},
        {"last": 0},
        {"last": 99},
        {"config__hidden": 2**40},
        {"config__heads": 3},
        {"config__hidden": -1},
        {"config__head_dim": 7},
        {"positions": 10**9},
        {"slots": 0},
        {"compute": "float64"},
        {"stored": "float16"},
        {"v": 2},
        {"colour": 1},
        {"config__family": "evil"},
        {"config__intermediate": 49},
    ],
)
def test_a_program_that_is_not_of_its_weights_is_refused(registration, change):
    program, weights = stage_of(registration, **change)
    with pytest.raises((BadTask, BadInput)):
        actor.load("decoder.stage", program, weights, ROOM)


def test_a_program_that_needs_more_than_its_cap_is_refused_before_memory_is_taken(registration):
    program, weights = stage_of(registration)
    with pytest.raises(OverMemory):
        actor.load("decoder.stage", program, weights, Limits(memory_bytes=1000))


def test_a_huge_program_within_its_own_bounds_is_refused_by_its_size(registration):
    program, weights = stage_of(registration, config__intermediate=1_000_000, config__hidden=65_536)
    with pytest.raises(OverMemory):
        actor.load("decoder.stage", program, weights, ROOM)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff" * 100])
def test_a_program_of_garbage_is_a_typed_error(data):
    for engine in ("decoder.stage", "decoder.driver", "evil"):
        with pytest.raises(BadTask):
            actor.load(engine, data, [], ROOM)


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_any_program_is_a_typed_error(data):
    with pytest.raises(NodewireError):
        actor.load("decoder.stage", data, [], ROOM)


def test_weights_with_a_monstrous_header_are_refused(registration, tmp_path):
    evil = tmp_path / "evil"
    evil.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    program, _ = stage_of(registration)
    with pytest.raises(TooLarge):
        actor.load("decoder.stage", program, [evil], ROOM)


def test_truncated_weights_are_refused(registration, tmp_path):
    program, (weights,) = stage_of(registration)
    evil = tmp_path / "evil"
    evil.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(BadTask):
        actor.load("decoder.stage", program, [evil], ROOM)


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (Frame("hidden.0", 0, (torch.randn(1, 31),), {"pos": 0}), "hidden"),
        (Frame("hidden.0", 0, (torch.randn(1, 1, 32),), {"pos": 0}), "hidden"),
        (Frame("hidden.0", 0, (torch.randn(0, 32),), {"pos": 0}), "hidden"),
        (Frame("hidden.0", 0, (torch.zeros(1, 32, dtype=torch.int64),), {"pos": 0}), "hidden"),
        (Frame("hidden.0", 0, (torch.full((1, 32), torch.nan),), {"pos": 0}), "hidden"),
        (Frame("hidden.0", 0, (torch.randn(1, 32),), {"pos": 3}), "pos"),
        (Frame("hidden.0", 0, (torch.randn(1, 32),), {"pos": -1}), "pos"),
        (Frame("hidden.0", 0, (torch.randn(1, 32),), {"pos": True}), "pos"),
        (Frame("hidden.0", 0, (torch.randn(1, 32),), {}), "pos"),
        (Frame("hidden.0", 0, (torch.randn(161, 32),), {"pos": 0}), "pos"),
        (Frame("hidden.0", 0, (), {"pos": 0}), "edge"),
        (Frame("return", 0, (torch.randn(1, 32),), {"pos": 0}), "edge"),
    ],
)
def test_a_malformed_frame_is_refused_by_field_and_the_session_beside_goes_on(registration, frame, field):
    stage = load(registration)["stage.0"]
    stage.open("good", {})
    stage.open("bad", {})
    good = Frame("hidden.0", 0, (torch.randn(4, 32),), {"pos": 0})
    stage.receive("good", good)
    with pytest.raises(BadFrame) as caught:
        stage.receive("bad", frame)
    assert caught.value.field == field
    assert stage.receive("good", Frame("hidden.0", 1, (torch.randn(1, 32),), {"pos": 4}))


def test_the_last_slot_taken_is_busy_and_a_closed_one_is_free_again(registration):
    for one in load(registration).values():
        one.open("a", {"max_tokens": 1})
        one.open("b", {"max_tokens": 1})
        with pytest.raises(Busy):
            one.open("c", {"max_tokens": 1})
        one.close("a")
        one.close("nobody")
        one.open("c", {"max_tokens": 1})


def test_a_session_that_is_not_open_is_not_found(registration):
    for one in load(registration).values():
        with pytest.raises(NotFound):
            one.receive("nobody", prompt_frame())


@pytest.mark.parametrize("text", ["", "mat " * 400])
def test_a_prompt_that_is_empty_or_beyond_the_context_is_refused(registration, text):
    driver = load(registration)["driver"]
    driver.open("s", {"max_tokens": 4})
    with pytest.raises(BadInput, match="prompt"):
        driver.receive("s", prompt_frame(text))


def test_a_prompt_that_is_not_utf8_is_refused(registration):
    driver = load(registration)["driver"]
    driver.open("s", {"max_tokens": 4})
    with pytest.raises(BadInput, match="UTF-8"):
        driver.receive("s", Frame("prompt", 0, (torch.tensor([255, 254], dtype=torch.uint8),), {}))


def test_a_returned_frame_out_of_turn_is_refused(registration):
    driver = load(registration)["driver"]
    driver.open("s", {"max_tokens": 4})
    driver.receive("s", prompt_frame())
    for seq in (1, -1):
        with pytest.raises(BadFrame, match="seq"):
            driver.receive("s", Frame("return", seq, (torch.randn(1, 32),), {}))


def test_a_target_below_one_layer_says_what_would_do(llama, tmp_path):
    with pytest.raises(OverMemory, match="bytes"):
        split_decoder(llama, 60_000, tmp_path, slots=1, name="tiny")


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["EvilForCausalLM"]},
        {"hidden_size": -4},
        {"hidden_size": "32"},
        {"num_hidden_layers": 10**9},
        {"attention_bias": True},
        {"rope_scaling": {"rope_type": "yarn"}},
        {"vocab_size": None},
    ],
)
def test_a_config_that_is_not_served_is_refused_by_field(llama, tmp_path, change):
    config = json.loads((llama / "config.json").read_text())
    config.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises((BadTask, BadInput)):
        read_config(tmp_path)


@given(st.text(min_size=1, max_size=60))
@settings(max_examples=100)
def test_pieces_never_end_inside_a_character(llama, text):
    tokenizer = Tokenizer(read_tokenizer(llama))
    ids = tokenizer.encode(text)
    grow = Detokenizer(tokenizer)
    pieces = [grow.add(i) for i in ids]
    assert "".join(pieces) + grow.rest() == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
