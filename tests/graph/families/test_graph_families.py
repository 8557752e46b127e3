"""Directories of every architecture family, cut into tasks, compute what the library's own classes do."""

import functools

import pytest
import torch
from safetensors.torch import load_file

from bench.tasks.architectures import APPROXIMATE, CONFIGS, VOCABULARY, cut, inputs, make, sizes
from bench.tools.task_chain import Carved
from nodewire.errors import BadInput, Unsupported
from nodewire.graph.families.builder import build
from nodewire.graph.families.checkpoint import Checkpoint
from nodewire.graph.families.inputs import IMAGES, SEQUENCE, Largest
from nodewire.graph.registration.directory_splitter import split_directory
from nodewire.graph.registration.register import TaskOptions
from nodewire.graph.trace.examples import BATCH
from nodewire.taskgraph import batch_axis
from nodewire.taskgraph.program import GraphProgram
from nodewire.weights.directory import stored_tensors

LARGEST = Largest(batch=4, length=40)
COVERED = ("bert", "clip", "resnet", "t5", "whisper", "qwen3", "gemma2", "mixtral", "qwen2_moe")
COVERED += ("gpt2", "cohere2", "mpnet", "modernbert", "nomic_bert")
COVERED += ("swin", "swinv2", "segformer", "dpt", "deberta-v2", "siglip")
"""The others differ from one of these in sizes, or are a part of one; bench.tasks.split has them all."""


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """By family, its model as the library runs it, its directory, and what was made of that; made once."""

    @functools.cache
    def made(name):
        folder = tmp_path_factory.mktemp("models") / name
        folder.mkdir()
        model = make(name, folder)
        return model, folder, cut(folder, folder / "blobs", LARGEST)

    return made


@pytest.mark.parametrize("name", COVERED)
def test_a_family_cut_into_tasks_computes_what_its_own_class_does(registered, name):
    model, _, found = registered(name)
    assert len(found.made.manifest.tasks) > 1
    carved = Carved(found.made)
    for batch, length in ((2, 12), (3, 31)):
        given = inputs(found.called, sizes(found.called, batch, length), VOCABULARY)
        with torch.no_grad():
            whole = found.called.call(model, given)
        for key, tensor in carved(given).items():
            difference = (tensor - whole[key]).abs().max()
            assert difference <= (5e-6 if name in APPROXIMATE else 0), (key, batch, length)


@pytest.mark.parametrize("name", COVERED)
def test_a_family_runs_beside_its_tasks_with_weights_read_one_by_one(registered, name):
    made = registered(name)[2].compared
    assert made.startswith("beside the model itself in 1 call: ")
    assert name in APPROXIMATE or made.endswith(": bit for bit the same")


def test_a_call_of_clip_is_cut_along_its_texts_and_what_its_images_are_comes_with_any_part(registered):
    found = registered("clip")[2]
    blobs, manifest = found.made.blobs, found.made.manifest
    programs = {task.name: GraphProgram.decode(blobs[task.program.sha256].read_bytes()) for task in manifest.tasks}
    axes = batch_axis.axes(manifest, programs, BATCH)
    assert axes == {"logits_per_image": 1, "logits_per_text": 0, "text_embeds": 0, "image_embeds": None}
    assert batch_axis.axes(manifest, programs, IMAGES)["text_embeds"] is None
    with pytest.raises(batch_axis.Unproven):
        batch_axis.axes(manifest, programs, SEQUENCE)
    carved, given = Carved(found.made), inputs(found.called, {BATCH: 4, SEQUENCE: 12, IMAGES: 3}, VOCABULARY)
    texts = {one.name for one in found.called.inputs if BATCH in one.shape}
    whole = carved(given)
    parts = [carved({k: one[at : at + 2] if k in texts else one for k, one in given.items()}) for at in (0, 2)]
    for name, axis in axes.items():
        joined = parts[1][name] if axis is None else torch.cat([part[name] for part in parts], axis)
        assert torch.allclose(joined, whole[name], atol=1e-5), name


def test_weights_that_a_model_ties_are_stored_once(registered):
    made = registered("t5")[2].made
    held = [blob.sha256 for task in made.manifest.tasks for blob in task.weights]
    assert len(set(held)) == len(made.blobs) - len(made.manifest.tasks)


def test_shards_and_experts_that_a_checkpoint_keeps_apart_are_read_from_where_they_lie(registered, tmp_path):
    model, folder, found = registered("mixtral")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert any(".experts.0." in name for name in stored_tensors(tmp_path))
    target = max(task.memory_bytes for task in found.made.manifest.tasks)
    again = split_directory(
        tmp_path, target, tmp_path / "blobs", name="mixtral", options=TaskOptions(slots=1), largest=LARGEST
    )
    held = [
        {
            name: tensor
            for task in one.manifest.tasks
            for blob in task.weights
            for name, tensor in load_file(one.blobs[blob.sha256]).items()
        }
        for one in (again, found.made)
    ]
    shared = held[0].keys() & held[1].keys()
    assert any("experts" in name for name in shared)
    assert all(torch.equal(held[0][name], held[1][name]) for name in shared)


def test_a_checkpoint_without_a_weight_or_an_expert_is_refused_by_name(registered):
    folder = registered("mixtral")[1]
    stored = stored_tensors(folder)
    module = build(CONFIGS["mixtral"], LARGEST).module
    for lacking in ("model.norm.weight", next(name for name in stored if ".experts.1." in name)):
        checkpoint = Checkpoint(module, {n: s for n, s in stored.items() if n != lacking}, {})
        with pytest.raises(BadInput, match=r"norm\.weight: is not in|lacks some of its experts"):
            for name in module.state_dict():
                checkpoint.parts(name)


def test_an_unknown_architecture_is_refused_with_those_that_are_known():
    with pytest.raises(Unsupported, match=r"'MambaForCausalLM' is not one of .*BertModel"):
        build({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    with pytest.raises(BadInput, match=r"^config\.json: "):
        build({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": "wide"})
