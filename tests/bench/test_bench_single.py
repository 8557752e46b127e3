"""The arms of `bench.single`: each decodes in a process of its own what its library decodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.decode_model import write_llama
from nodewire.llm.sampling import Sampling
from nodewire.llm.whole import Whole

ROOT = Path(__file__).parents[2]
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
        [sys.executable, "-m", "bench.single_arm", arm, str(tmp_path / "model"), "float32", "1"],
        input=2 * asked,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    began, *runs = map(json.loads, process.stdout.splitlines())
    assert began["isa"] == torch.backends.cpu.get_cpu_capability()
    if arm == "ours":
        assert began["kernels"]["head [256, 64]"] == "PyTorch, float32 in columns"
    expected = list(Whole(tmp_path / "model").tokens(PROMPT, Sampling(12)))
    assert [one["made"] for one in runs] == [expected, expected]
    assert all(one["first_s"] > 0 and one["rest_s"] > 0 and one["cpu_s"] > 0 for one in runs)
