"""A checkpoint is cut into the fewest stages under the target, evenly, and says what limited it."""

import hashlib
import json
import re
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from nodewire.errors import BadInput, BadTask, NotFound, OverMemory, TooLarge
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.families import parse_config
from nodewire.llm.programs.cuts import plan_cuts
from nodewire.llm.programs.memory_estimate import Footprint
from nodewire.llm.spec.config import DecoderConfig
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.model import layer_ranges
from nodewire.protocol.model.manifest import Manifest
from tests.llm.llm_models import PLAIN, make_model


def test_every_blob_is_named_by_its_hash_and_cited_with_its_size(registration):
    manifest = registration.manifest
    cited = {ref.sha256: ref.bytes for task in manifest.tasks for ref in (task.program, *task.weights)}
    assert cited.keys() == registration.blobs.keys()
    for digest, path in registration.blobs.items():
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest == path.name
        assert len(data) == cited[digest]
    assert Manifest.unpack(manifest.pack()) == manifest


def test_the_tasks_together_hold_the_checkpoint_as_it_was_stored(model, tmp_path):
    original = load_file(model / "model.safetensors")
    registration = split_decoder(model, 1_600_000, tmp_path, slots=1)
    found = {}
    for task in registration.manifest.tasks:
        found |= load_file(registration.blobs[task.weights[0].sha256])
    assert found.keys() == original.keys()
    for name, tensor in original.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tasks_stay_under_the_target_and_the_report_says_what_limits_them(registration):
    for task, line in zip(registration.manifest.tasks, registration.report, strict=True):
        assert task.memory_bytes <= 1_600_000
        assert task.name in line
        assert task.limit in line
        assert "weights" in task.limit


def test_splitting_again_gives_the_same_manifest(plain, registration, tmp_path):
    assert split_decoder(plain, 1_600_000, tmp_path, slots=2).manifest == registration.manifest
    assert not list(tmp_path.glob(".*"))


def test_what_does_not_fit_is_named_with_the_target_that_would_do(plain, tmp_path):
    with pytest.raises(OverMemory, match="driver") as caught:
        split_decoder(plain, 500_000, tmp_path, slots=2)
    said = re.fullmatch(r"needs [\d.]+ kB \(.*\); `--target-vram (\S+)` would do", caught.value.reason)[1]
    enough = parse_size(said)
    with pytest.raises(OverMemory, match=f"`--target-vram {said}` would do"):
        split_decoder(plain, enough * 99 // 100, tmp_path, slots=2)
    assert len(split_decoder(plain, enough, tmp_path, slots=2).manifest.tasks) == 6


def test_layers_may_be_given_and_the_cut_is_the_same_whoever_keeps_which_part(plain, tmp_path):
    whole = split_decoder(plain, None, tmp_path / "whole", slots=1, split=[(0, 0), (1, 3), (4, 4)])
    assert [p.holds for p in whole.pieces.values()] == [(), ("layer 0",), ("layers 1-3",), ("layer 4",)]
    part = split_decoder(plain, None, tmp_path / "part", slots=1, split=[(0, 0), (1, 3), (4, 4)], kept=["stage.1"])
    assert part.manifest.tasks == whole.manifest.tasks
    (mine,) = part.manifest.task("stage.1").weights
    others = {task.weights[0].sha256 for task in part.manifest.tasks} - {mine.sha256}
    assert (tmp_path / "part" / mine.sha256).read_bytes() == whole.blobs[mine.sha256].read_bytes()
    assert not any((tmp_path / "part" / sha256).exists() for sha256 in others)
    even = split_decoder(plain, None, tmp_path / "even", slots=1, split=2)
    assert [p.holds for p in even.pieces.values()][1:] == [("layers 0-1",), ("layers 2-4",)]


@pytest.mark.parametrize(
    ("split", "why"),
    [
        ([(0, 1), (3, 4)], "layer 2 stands in no stage"),
        ([(0, 2), (2, 4)], "layer 2 stands in two stages"),
        ([(1, 4)], "layer 0 stands in no stage"),
        ([(0, 2)], "layers 3-4 stand in no stage: the model has 5"),
        ([(0, 5)], "ends with layer 5, and the model's last is 4"),
        ([(0, 4), (3, 2)], "ends before it begins"),
        (6, "6 stages of a model that has 5 layers"),
        ([], "neither this nor a target"),
    ],
)
def test_a_split_that_is_not_the_models_says_why(plain, tmp_path, split, why):
    with pytest.raises(BadInput, match=why):
        split_decoder(plain, None, tmp_path, slots=1, split=split)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_borders_are_read_as_they_are_written(counts):
    ends = [sum(counts[:n]) for n in range(len(counts) + 1)]
    split = tuple((first, last - 1) for first, last in pairwise(ends))
    assert layer_ranges.parse(layer_ranges.written(split)) == split
    layer_ranges.check(split, ends[-1])


@pytest.mark.parametrize(
    "text", ["", "0-", "a-b", "0-1,,2", "0-99999", "1-2", "0-3,3-4", "0-1;2-3", ",".join("0" * 300)]
)
def test_what_is_no_split_is_refused(text):
    with pytest.raises(BadInput, match="split"):
        layer_ranges.parse(text)


def test_a_shorter_context_and_another_name_are_taken(plain, tmp_path):
    manifest = split_decoder(
        plain, 2_000_000, tmp_path, slots=1, options=DecoderOptions(context=64, chunk=16), name="My Model/7B"
    ).manifest
    assert (manifest.name, manifest.context, manifest.chunk) == ("my-model-7b", 64, 16)


@given(
    layers=st.integers(1, 40),
    weights=st.integers(1, 50),
    work=st.integers(0, 30),
    driver=st.integers(0, 60),
    target=st.integers(1, 400),
)
def test_cuts_are_whole_under_the_target_fewest_and_even(layers, weights, work, driver, target):
    def stage(first, last):
        return Footprint((last - first) * weights, 0, work)

    try:
        cuts = plan_cuts(layers, target, Footprint(driver, 0, 0), stage)
    except OverMemory:
        assert max(driver, weights + work) > target
        return
    assert [layer for first, last in cuts for layer in range(first, last)] == list(range(layers))
    sizes = [last - first for first, last in cuts]
    assert max(sizes) - min(sizes) <= 1
    most = (target - work) // weights
    assert len(cuts) == -(-layers // most)


@given(
    layers=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    driver=st.integers(0, 60),
    target=st.integers(1, 200),
)
def test_unlike_layers_are_cut_into_the_fewest_stages_too(layers, driver, target):
    def stage(first, last):
        return Footprint(sum(layers[first:last]), 0, 0)

    try:
        cuts = plan_cuts(len(layers), target, Footprint(driver, 0, 0), stage)
    except OverMemory:
        assert max(driver, *layers) > target
        return
    assert [layer for first, last in cuts for layer in range(first, last)] == list(range(len(layers)))
    assert all(stage(*cut).total <= target for cut in cuts)
    inner = range(1, len(layers))
    fewer = (bounds for count in range(len(cuts) - 1) for bounds in combinations(inner, count))
    assert all(any(stage(*cut).total > target for cut in pairwise((0, *bounds, len(layers)))) for bounds in fewer)


def test_a_directory_that_lacks_a_file_is_refused_by_its_name(plain, tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = tmp_path / name
        folder.mkdir()
        for path in plain.iterdir():
            if path.name != name:
                (folder / path.name).symlink_to(path)
        with pytest.raises(NotFound, match=name.replace(".", r"\.")):
            open_checkpoint(folder)


def test_an_index_may_not_point_out_of_its_directory(plain, tmp_path):
    for path in plain.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for shard in ("../x.safetensors", "/etc/passwd", 7):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(BadInput, match="index"):
            open_checkpoint(tmp_path)


def test_a_checkpoint_without_a_tensor_is_refused_by_its_name(tmp_path):
    folder = make_model(tmp_path / "m", PLAIN, torch.float32)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 6}))
    with pytest.raises(BadTask, match=r"layers\.5"):
        split_decoder(folder, 2_000_000, tmp_path / "out", slots=1)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    },
    "eos_token_id": [128_001, 128_008],
    "tie_word_embeddings": False,
}


def config_of(**changes) -> DecoderConfig:
    fields = {k: v for k, v in (LLAMA | changes).items() if v != "absent"}
    return parse_config(json.dumps(fields).encode())


def test_older_and_newer_files_say_the_same():
    newer = config_of(rope_parameters=LLAMA["rope_scaling"] | {"rope_theta": 5e5}, rope_theta="absent")
    assert newer == config_of(head_dim=128)
    assert newer.rope_scaling is not None
    assert newer.eos_token_id == (128_001, 128_008)


def test_the_generation_config_may_name_other_ends():
    data = json.dumps(LLAMA).encode()
    assert parse_config(data, b'{"eos_token_id": 5}').eos_token_id == (5,)
    assert parse_config(data, b"{}").eos_token_id == (128_001, 128_008)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["EvilForCausalLM"]),
        ("architectures", "absent"),
        ("hidden_size", "absent"),
        ("hidden_size", 2**60),
        ("hidden_size", -1),
        ("hidden_size", "64"),
        ("vocab_size", 2**21),
        ("num_hidden_layers", 0),
        ("num_attention_heads", 0),
        ("num_attention_heads", 3.5),
        ("num_key_value_heads", 5),
        ("head_dim", 7),
        ("head_dim", 10**6),
        ("max_position_embeddings", 10**9),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "1e-5"),
        ("rope_theta", 1e300),
        ("rope_scaling", {"rope_type": "yarn"}),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}),
        ("rope_scaling", {"rope_type": "llama3"}),
        ("rope_scaling", [1]),
        ("rope_parameters", "x"),
        ("hidden_act", "gelu"),
        ("attention_bias", "yes"),
        ("mlp_bias", True),
        ("rope_interleaved", True),
        ("of_tomorrow", 1),
        ("quantization_config", {}),
        ("tie_word_embeddings", "yes"),
        ("eos_token_id", [1] * 33),
        ("eos_token_id", 128_256),
    ],
)
def test_a_config_out_of_bounds_is_refused(field, value):
    with pytest.raises((BadTask, TooLarge)):
        config_of(**{field: value})


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000, b"null"])
def test_a_config_that_is_no_object_is_refused(data):
    with pytest.raises(BadInput):
        parse_config(data)
