"""A dry run of every family: from config.json alone it says what a registration makes, but for hashes of weights."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.tasks.tiny_decoders import FAMILIES, make_family
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.weights.blob_folder import UNREAD
from nodewire.weights.mxfp4 import GROUP

CASES = {name: (name, torch.float32) for name in FAMILIES} | {
    "qwen3_moe, bfloat16": ("qwen3_moe", torch.bfloat16),
    "gpt_oss, mxfp4": ("gpt_oss", torch.bfloat16),
}
METHOD = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def pack(folder):
    """The experts of a gpt-oss as bytes of the sizes that MXFP4 gives them; nobody reads them here."""
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            count, columns, rows = tensor.shape
            blocks = count, rows, columns // GROUP, GROUP // 2
            tensors[f"{name}_blocks"] = torch.zeros(blocks, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(blocks[:-1], dtype=torch.uint8)
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": METHOD}))


def weights_aside(manifest):
    """A manifest's document without hashes of weights; the driver's second blob is its tokenizer."""
    said = manifest.document()
    for task in said["tasks"]:
        del task["weights"][0]["sha256"]
    return said


@pytest.mark.parametrize("case", CASES)
def test_what_its_configuration_says_is_what_is_made_of_it(tmp_path, case):
    whole = make_family(tmp_path / "whole", *CASES[case])
    if "mxfp4" in case:
        pack(whole)
    bare = shutil.copytree(whole, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    target = 6_000_000 if "gpt_oss" in case or "deepseek" in case else 2_500_000
    real = split_decoder(whole, target, tmp_path / "out", slots=1, name="one")
    for folder, lacks in ((whole, ()), (bare, ("model.safetensors",))):
        dry = split_decoder(folder, target, None, slots=1, name="one")
        assert weights_aside(dry.manifest) == weights_aside(real.manifest)
        assert (dry.report, dry.pieces, dry.upload_bytes) == (real.report, real.pieces, real.upload_bytes)
        assert (dry.lacks, dry.blobs) == (lacks, {})
        assert all(task.weights[0].sha256.startswith(UNREAD) for task in dry.manifest.tasks)
    assert len(real.manifest.tasks) > 1
