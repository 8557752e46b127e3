"""The arms of `bench.decode.single`: each decodes in a process of its own what its library decodes."""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from bench.decode import single
from bench.report import Report
from bench.tasks.decode_model import write_large, write_llama
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import Sampling

ROOT = Path(__file__).parents[3]
SHAPE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
PROMPT = list(range(3, 40))


@pytest.mark.parametrize("arm", ["ours", "transformers"])
def test_an_arm_says_its_kernels_then_what_it_made_and_how_long_it_took(arm, tmp_path):
    write_llama(tmp_path / "model", SHAPE, torch.float32)
    asked = json.dumps({"prompt": PROMPT, "tokens": 12}) + "\n"
    process = subprocess.run(
        [sys.executable, "-m", "bench.decode.single_arm", arm, str(tmp_path / "model"), "float32", "1"],
        input=2 * asked,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    began, *runs = map(json.loads, process.stdout.splitlines())
    assert began["isa"] == torch.backends.cpu.get_cpu_capability()
    if arm == "ours":
        assert began["kernels"]["head [256, 64]"] == "PyTorch, float32 in columns"
    expected = list(LocalDecoder(tmp_path / "model").tokens(PROMPT, Sampling(12)))
    assert [one["made"] for one in runs] == [expected, expected]
    assert all(one["first_s"] > 0 and one["rest_s"] > 0 and one["cpu_s"] > 0 for one in runs)


@pytest.mark.parametrize(("memory", "at_once"), [("1000", 7), ("0.0005", 1)])
def test_arms_that_do_not_fit_together_run_one_at_a_time(memory, at_once, tmp_path, monkeypatch):
    write_llama(tmp_path / "model", SHAPE, torch.float32)
    parser = argparse.ArgumentParser()
    single._add(parser)
    options, report, most = parser.parse_args(["--memory", memory]), Report("single", 1, True), [0]

    async def rounds(report, options, arms, prompt, count):
        most.append(len(arms))
        return {name: {} for name in arms}

    monkeypatch.setattr(single, "_rounds", rounds)
    monkeypatch.setattr(single, "_lines", lambda *_: None)
    asyncio.run(single._model(report, options, "tiny", tmp_path / "model", None, [1]))
    found = report.arms["tiny"]
    assert max(most) == found["arms_at_once"] == at_once
    assert len(found["1"]["read_gb_s"]) == 2
    assert all(rate > 0 for rate in found["1"]["read_gb_s"])
    assert set(found["1"]) == {"read_gb_s", "float32", "bfloat16", "transformers", *single.SCHEMES}


def test_the_large_model_is_one_that_transformers_knows(tmp_path):
    write_large(tmp_path / "model", 0)
    assert AutoConfig.from_pretrained(tmp_path / "model").model_type == "llama"
