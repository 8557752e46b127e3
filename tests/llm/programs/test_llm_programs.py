"""Hostile programs and weights are refused before memory is taken for them."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodewire.errors import BadHash, BadInput, BadTask, BadVersion, OverMemory, TooLarge
from nodewire.kind import Limits
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.entry import load
from nodewire.llm.families import stage_tensors
from nodewire.llm.programs.programs import DriverProgram, StageProgram
from nodewire.llm.spec.config import DecoderConfig
from nodewire.protocol.encoding import canonical
from nodewire.weights.tensorfile import read_header
from tests.llm.llm_models import ROOMY

STAGE = "decoder.stage"


@pytest.fixture
def parts(registration):
    """(program, weights) of a task by name."""

    def find(name):
        task = registration.manifest.task(name)
        program = registration.blobs[task.program.sha256].read_bytes()
        return program, [registration.blobs[blob.sha256] for blob in task.weights]

    return find


def edited(program, **changes):
    """The program with fields replaced; `a__b` reaches into `a`."""
    document = canonical.decode(program, max_bytes=2**24)
    for name, value in changes.items():
        *path, last = name.split("__")
        inner = document
        for part in path:
            inner = inner[part]
        inner[last] = value
    return canonical.encode(document)


EXPERTS = {"num_experts": 1024, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
HOSTILE = {
    "layers out of range": {"first": 4, "last": 9},
    "no layers": {"first": 1, "last": 1},
    "layers backwards": {"first": 2, "last": 0},
    "a huge width": {"config__hidden_size": 2**40},
    "a wide width": {"config__hidden_size": 65_536},
    "many layers": {"config__num_hidden_layers": 10**9, "last": 10**9},
    "other layers": {"first": 1},
    "no heads": {"config__num_attention_heads": 0},
    "heads that do not divide": {"config__num_key_value_heads": 3},
    "an odd head": {"config__head_dim": 15},
    "positions beyond the model's": {"positions": 10**6},
    "positions without end": {"positions": 2**50},
    "slots without end": {"slots": 10**9},
    "no block": {"block": 0},
    "a block of one row": {"block": 1},
    "a norm that divides by nothing": {"config__rms_norm_eps": "0.0"},
    "a number that is none": {"config__rope_theta": "nan"},
    "a number in a long form": {"config__rope_theta": "1" * 30},
    "an expression": {"config__rope_theta": "2**9"},
    "a real number": {"config__rope_theta": 7},
    "another dtype": {"dtype": "float64"},
    "a family unknown": {"config__family": "evil"},
    "another family's names": {"config__family": "phi3"},
    "a window nowhere": {"config__sliding_window": 7},
    "a window without end": {"config__sliding_window": 2**40, "config__layer_types": ["sliding_attention"] * 5},
    "kinds of other layers": {"config__layer_types": ["full_attention"] * 4},
    "a kind unknown": {"config__layer_types": ["evil"] * 5},
    "more that turns than there is": {"config__rotary_dim": 64},
    "a scaling unknown": {"config__rope_scaling": {"rope_type": "dynamic", "factor": "2.0"}},
    "factors of another head": {
        "config__rope_scaling": {
            "rope_type": "longrope",
            "short_factor": ["1.0"],
            "long_factor": ["1.0"],
            "attention_factor": "1.0",
            "original_max_position_embeddings": 8,
        }
    },
    "experts without end": {"config__experts": {**EXPERTS, "num_experts": 2**40}},
    "millions of tensors": {
        "config__experts": EXPERTS,
        "config__num_hidden_layers": 1024,
        "first": 0,
        "last": 1024,
        "closes": True,
    },
    "more experts than there are": {"config__experts": {**EXPERTS, "num_experts": 1}},
    "a norm less one": {"config__norm_plus_one": 1},
    "a mean taken away from what is scaled": {"config__norm_bias": True},
    "an MLP without the gate that its tensors have": {"config__gated": False},
    "positions that no tensor holds": {"config__learned_positions": True},
    "no norm at all": {"config__pre_norms": False},
    "a norm of heads that are not normed": {"config__qk_norm_of": "heads"},
    "layers that are none and do not turn": {"config__nope_layers": [7]},
    "a multiplier that is none": {"config__residual_multiplier": "nan"},
    "at once, with norms behind": {"config__parallel": "one_norm", "config__sandwich_norms": True},
    "a ring that does not close": {"closes": True},
    "an edge to itself": {"edge_out": "hidden.0"},
    "no tensors": {"tensors": {}},
    "an unknown field": {"code": "import os"},
    "an end outside the vocabulary": {"config__eos_token_id": [10**6]},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_program_is_refused_before_its_weights_are_read(parts, changes, tmp_path):
    program, _ = parts("stage.0")
    with pytest.raises(BadTask):
        load(STAGE, edited(program, **changes), [tmp_path / "never opened"], ROOMY)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"[]", b"\xdc\xff\xff" * 9])
def test_bytes_that_are_no_program_are_refused(data, tmp_path):
    with pytest.raises(BadInput):
        load(STAGE, data, [tmp_path / "never opened"], ROOMY)


def test_a_later_version_is_refused_as_one(parts):
    program, weights = parts("stage.0")
    with pytest.raises(BadVersion):
        load(STAGE, edited(program, v=2), weights, ROOMY)


def test_another_engine_and_another_count_of_files_are_refused(parts):
    program, weights = parts("stage.0")
    with pytest.raises(BadTask, match="engine"):
        load("graph", program, weights, ROOMY)
    with pytest.raises(BadTask, match="weights"):
        load(STAGE, program, weights * 2, ROOMY)
    with pytest.raises(BadInput, match="device"):
        load(STAGE, program, weights, Limits(2**30, device="abacus"))


@pytest.mark.parametrize("name", ["driver", "stage.0", "stage.2"])
def test_a_task_loads_within_its_manifests_memory_and_not_within_less(registration, parts, name):
    program, weights = parts(name)
    task = registration.manifest.task(name)
    load(task.engine, program, weights, Limits(task.memory_bytes))
    with pytest.raises(OverMemory, match="memory_bytes"):
        load(task.engine, program, weights, Limits(task.memory_bytes - 1))


def test_slots_and_positions_are_counted_before_caches_are_made(parts, tmp_path):
    program, _ = parts("stage.0")
    huge = edited(program, slots=4096, positions=2**21, config__max_position_embeddings=2**21)
    with pytest.raises(OverMemory):
        load(STAGE, huge, [tmp_path / "never opened"], ROOMY)


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "dtype"])
def test_weights_that_are_not_the_programs_are_refused(parts, tmp_path, change):
    program, (path,) = parts("stage.0")
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    match change:
        case "missing":
            del tensors[name]
        case "extra":
            tensors["model.layers.0.evil"] = torch.zeros(2)
        case "shape":
            tensors[name] = tensors[name].T.contiguous()
        case "dtype":
            tensors[name] = tensors[name].half()
    save_file(tensors, tmp_path / "w")
    with pytest.raises(BadTask, match=r"weights\.model\.layers\.0"):
        load(STAGE, program, [tmp_path / "w"], ROOMY)


def test_the_programs_table_must_be_that_of_its_config(parts):
    program, weights = parts("stage.0")
    table = canonical.decode(program, max_bytes=2**24)["tensors"]
    name = "model.layers.0.mlp.up_proj.weight"
    for other in (
        {k: v for k, v in table.items() if k != name},
        table | {"model.layers.2.mlp.up_proj.weight": table[name]},
        table | {name: {"dtype": "float32", "shape": [2**20, 2**20]}},
        table | {name: {"dtype": "int64", "shape": table[name]["shape"]}},
    ):
        with pytest.raises(BadTask, match="tensors"):
            load(STAGE, edited(program, tensors=other), weights, ROOMY)


def test_a_weight_that_is_not_finite_is_refused(parts, tmp_path):
    program, (path,) = parts("stage.0")
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, tmp_path / "w")
    with pytest.raises(BadTask, match="finite"):
        load(STAGE, program, [tmp_path / "w"], ROOMY)


def test_another_tokenizer_is_refused(parts, tmp_path):
    program, (weights, tokenizer) = parts("driver")
    data = bytearray(tokenizer.read_bytes())
    data[-2] ^= 1
    (tmp_path / "other").write_bytes(data)
    with pytest.raises(BadHash, match="tokenizer"):
        load("decoder.driver", program, [weights, tmp_path / "other"], ROOMY)
    (tmp_path / "other").write_bytes(data + b" ")
    with pytest.raises(BadTask, match="tokenizer"):
        load("decoder.driver", program, [weights, tmp_path / "other"], ROOMY)


def test_a_driver_whose_edges_are_one_is_refused(parts):
    program, weights = parts("driver")
    with pytest.raises(BadTask):
        load("decoder.driver", edited(program, edge_tokens="prompt"), weights, ROOMY)


def test_programs_are_canonical(parts):
    for name, kind in (("stage.1", StageProgram), ("driver", DriverProgram)):
        program, _ = parts(name)
        assert kind.unpack(program).pack() == program


def safetensors_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


HEADERS = {
    "an empty file": b"",
    "a header that never comes": safetensors_bytes(b"{}", length=1_000),
    "not JSON": safetensors_bytes(b"{"),
    "a list": safetensors_bytes(b"[]"),
    "deep": safetensors_bytes(b"[" * 100_000),
    "no offsets": safetensors_bytes({"a": {"dtype": "F32", "shape": [1]}}),
    "an overlap": safetensors_bytes({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)),
    "a gap": safetensors_bytes({"a": entry(4, 8)}, bytes(8)),
    "past the end": safetensors_bytes({"a": entry(0, 4)}),
    "bytes behind": safetensors_bytes({"a": entry(0, 4)}, bytes(8)),
    "a negative offset": safetensors_bytes({"a": entry(-4, 0)}),
    "a shape of another size": safetensors_bytes({"a": entry(0, 4, (2,))}, bytes(4)),
    "a negative dimension": safetensors_bytes({"a": entry(0, 4, (-1, -1))}, bytes(4)),
    "a dimension that is no number": safetensors_bytes({"a": entry(0, 4, ("1",))}, bytes(4)),
    "a rank without end": safetensors_bytes({"a": entry(0, 4, (1,) * 9)}, bytes(4)),
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS)
def test_a_malformed_weights_file_is_refused(tmp_path, data):
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(BadTask, match="weights"):
        read_header(tmp_path / "w")


def test_a_header_over_its_cap_is_not_read(tmp_path):
    (tmp_path / "w").write_bytes(safetensors_bytes(b"{}", length=2**40))
    with pytest.raises(TooLarge):
        read_header(tmp_path / "w")


UNFILLED = {
    "a gate of GPT-2": ("gpt2", {"gated": True}, "gate_up"),
    "a gate of StarCoder2": ("starcoder2", {"gated": True}, "gate_up"),
    "experts of a Falcon": ("falcon, in groups", {"gated": True, "experts": EXPERTS | {"num_experts": 4}}, "router"),
    "norms of a GPT-NeoX's queries": ("gpt_neox", {"qk_norm": True}, "q_norm"),
    "sinks of GPT-2": ("gpt2", {"attention_sinks": True}, "sinks"),
    "positions of a Command": ("cohere", {"learned_positions": True}, "positions"),
    "biases of a Falcon": ("falcon, few keys", {"norm": "rms", "norm_bias": False, "qk_norm": True}, "q_norm"),
}


@pytest.mark.parametrize(("name", "part", "role"), UNFILLED.values(), ids=UNFILLED)
def test_a_parameter_that_a_familys_tensors_do_not_make_up_is_refused(made, name, part, role, tmp_path):
    """Though the table lists just these tensors: what nothing fills would be stale memory."""
    found = split_decoder(made(name), 2**30, tmp_path, slots=1)
    program = canonical.decode(found.blobs[found.manifest.tasks[1].program.sha256].read_bytes(), max_bytes=2**24)
    config = DecoderConfig.from_document({**program["config"], **part})
    kept = {
        stored: {"dtype": "float32", "shape": list(one.shape)}
        for piece in stage_tensors(config, 0, config.num_hidden_layers)
        for stored, one in piece.stored().items()
    }
    with pytest.raises(BadTask, match=f"make up no such {role}"):
        StageProgram.from_document({**program, "config": config.document(), "tensors": kept})
