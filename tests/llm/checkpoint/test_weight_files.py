"""A task's weights lie in files of a bounded size, and whoever loads them finds all: the ring says the same tokens."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import nodewire
from nodewire.errors import BadInput, BadTask, TooLarge
from nodewire.graph.entry import load
from nodewire.kind import Limits
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.programs.programs import TensorType
from nodewire.weights import blob_folder, tensorfile
from tests.llm.llm_models import Ring

PROMPT = [5, 77, 130, 9]
BOUND = 50_000


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(blob_folder, "FILE_BYTES", BOUND)


def files_of(made, task):
    return [made.blobs[blob.sha256] for blob in task.weights if blob.sha256 in made.blobs]


def test_weights_in_several_files_are_generated_from_as_from_one(plain, registration, small_files, tmp_path):
    made = split_decoder(plain, 1_600_000, tmp_path, slots=2)
    wanted = {task.name: task for task in registration.manifest.tasks}
    for task in made.manifest.tasks:
        one = wanted[task.name]
        assert len(task.weights) > len(one.weights)
        assert (task.memory_bytes, task.program, task.flops) == (one.memory_bytes, one.program, one.flops)
    stage = made.manifest.task("stage.0")
    parts = [load_file(path) for path in files_of(made, stage)]
    (whole,) = files_of(registration, wanted["stage.0"])
    order = list(tensorfile.read_header(whole))
    assert [name for path in files_of(made, stage) for name in tensorfile.read_header(path)] == order
    for part in parts:
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= BOUND
    assert Ring(made).generate(PROMPT, max_tokens=20) == Ring(registration).generate(PROMPT, max_tokens=20)


def test_a_dry_run_counts_the_same_files(plain, small_files, tmp_path):
    dry, wet = (split_decoder(plain, 1_600_000, out, slots=2).manifest for out in (None, tmp_path))
    assert [[b.bytes for b in t.weights] for t in dry.tasks] == [[b.bytes for b in t.weights] for t in wet.tasks]


@pytest.mark.parametrize("is_dry", [True, False])
@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("MAX_WEIGHT_FILES", 2, r"files for one piece, which may have 2: `--target-vram \S+` would do"),
        ("MAX_BLOB_BYTES", 1_000, r"and nodes fetch no blob over 1 kB: store the model in 16 bits, or .*--target-vram"),
    ],
)
def test_what_cannot_be_published_is_refused_before_it_is_cut(
    plain, small_files, tmp_path, monkeypatch, limit, value, why, is_dry
):
    monkeypatch.setattr(blob_folder, limit, value)
    with pytest.raises(TooLarge, match=why):
        split_decoder(plain, 1_600_000, None if is_dry else tmp_path, slots=2)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_room_is_named_before_anything_is_written(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(blob_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
    with pytest.raises(BadInput, match=r"pieces: the pieces need \S+ kB, and 1 kB are free there: .*--scratch"):
        split_decoder(plain, 1_600_000, tmp_path / "pieces", slots=2)
    assert not (tmp_path / "pieces").exists()


def test_a_tensor_lies_in_one_file_and_a_file_has_tensors(tmp_path):
    table = {name: TensorType(dtype="float32", shape=(2,)) for name in "ab"}
    one, two, none = (tmp_path / name for name in ("one", "two", "none"))
    save_file({"a": torch.zeros(2)}, one)
    save_file({"b": torch.ones(2)}, two)
    save_file({}, none)
    target = torch.zeros(2)
    open_weights([one, two], table)("b", target)
    assert target.tolist() == [1, 1]
    for files, why in (([one, two, one], "a: in two files"), ([one], "b: missing"), ([one, two, none], "no tensors")):
        with pytest.raises(BadTask, match=why):
            open_weights(files, table)


def test_a_graphs_own_weights_are_parted_like_a_decoders(small_files, tmp_path):
    module = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)).eval()
    calls = [torch.zeros(1, 96), torch.zeros(4, 96)]
    made = nodewire.register(module, calls, target_vram="2MB", out=tmp_path, name="tiny")
    assert max(len(task.weights) for task in made.manifest.tasks) > 1
    for task in made.manifest.tasks:
        program = made.blobs[task.program.sha256].read_bytes()
        load(task.engine, program, files_of(made, task), Limits(memory_bytes=task.memory_bytes))
