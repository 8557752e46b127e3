"""Lossless: transformers, the unsplit reference and the ring of actors say the same tokens."""

import pytest
import torch
from transformers import LlamaForCausalLM

from nodewire.kind import Limits
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.reference import LocalDecoder, generate
from nodewire.llm.tokens.sampling_params import Sampling
from tests.llm.llm_models import PLAIN, ROOMY, Ring, make_model

PROMPT = [5, 77, 130, 9, 201, 44, 12]
LONG = [(7 * i * i + 3 * i) % 299 + 1 for i in range(150)]  # more than two blocks of a prompt


def theirs(directory, prompt, count):
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
        return out[0, len(prompt) :].tolist(), model(ids).logits[0, -1]


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "long"])
def test_transformers_the_reference_and_the_ring_say_the_same_tokens(model, prompt, tmp_path):
    expected, logits = theirs(model, prompt, 80)
    assert len(set(expected)) > 10  # the model wanders, so that equality says something
    whole = LocalDecoder(model, dtype="float32")
    assert (whole.logits(prompt) - logits).abs().max() <= 1e-4
    ends = [i for i, token in enumerate(expected) if token in whole.config.eos_token_id]
    expected = expected[: ends[0] + 1] if ends else expected
    assert list(whole.tokens(prompt, Sampling(80))) == expected
    registration = split_decoder(model, 1_500_000, tmp_path, slots=1, options=DecoderOptions(dtype="float32"))
    assert len(registration.manifest.tasks) >= 4
    ids, text, _ = Ring(registration).generate(prompt, max_tokens=80)
    assert ids == expected
    assert text == whole.tokenizer.decode(ids)


def test_the_ring_equals_the_reference_to_the_last_bit(plain, registration, whole):
    ring = Ring(registration)
    ring.open("s", max_tokens=12)
    returned = []
    step = ring.step
    ring.step = lambda session, frame: returned.append(frame) or step(session, frame)
    ids = [int(frame.tensors[0]) for frame in ring.frames("s", LONG)]
    states = [frame.tensors[0] for frame in returned if frame.edge == "return"]
    driver = ring.actors["driver"]
    expected = [whole.logits(LONG)] + [whole.logits([t], len(LONG) + i) for i, t in enumerate(ids[:-1])]
    for state, logits in zip(states, expected, strict=True):
        assert torch.equal(driver._vocabulary.logits(state), logits)


def test_sampling_is_repeated_by_its_seed_and_equal_in_ring_and_reference(ring, whole):
    params = {"max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 11}
    first = ring.generate(PROMPT, **params)
    assert ring.generate(PROMPT, **params) == first
    assert list(whole.tokens(PROMPT, Sampling(40, 0.9, 0.95, 11))) == first[0]
    assert ring.generate(PROMPT, **params | {"seed": 12}) != first
    assert ring.generate(PROMPT, **params | {"temperature": "0.9", "top_p": "0.95"}) == first


def test_text_in_text_out(plain, ring):
    _, text, reason = ring.generate("the quick brown 你", max_tokens=30)
    assert text == "".join(generate(plain, "the quick brown 你", 30))
    assert reason == "length"


def test_shards_with_an_index_are_one_model(plain, registration, tmp_path):
    sharded = make_model(tmp_path / "sharded", PLAIN, torch.float32, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    other = split_decoder(sharded, 1_600_000, tmp_path / "out", slots=2, name=registration.manifest.name)
    assert other.manifest == registration.manifest


def test_bfloat16_arithmetic_runs_around_the_ring_as_in_the_reference(plain, tmp_path):
    registration = split_decoder(plain, 1_500_000, tmp_path, slots=1, options=DecoderOptions(dtype="bfloat16"))
    ids, _, _ = Ring(registration, Limits(memory_bytes=1_500_000)).generate(PROMPT, max_tokens=30)
    assert ids == list(LocalDecoder(plain, dtype="bfloat16").tokens(PROMPT, Sampling(30)))
    assert ROOMY.threads == 1
