"""A step of one row: what it says is what the layer says that any number of rows goes through."""

import pytest
import torch

from nodewire.llm.kv.batch_view import Chain
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.quant.checkpoint_writer import quantize

PROMPT = [(11 * i) % 290 + 1 for i in range(70)]  # beyond the sliding window of the models that have one


def _steps(whole):
    layers = whole._layers.layers
    return [layer.step for layer in layers]


def _logits(whole, steps):
    """Of the prompt, and of each of 20 tokens after it."""
    for layer, step in zip(whole._layers.layers, steps, strict=True):
        layer.step = step
    return torch.stack([whole.logits(PROMPT), *(whole.logits([3 * i + 5], len(PROMPT) + i) for i in range(20))])


@pytest.mark.parametrize("family", ["llama, yarn", "qwen2", "qwen2, sliding", "mistral", "phi3"])
def test_a_step_says_what_the_layer_says(made, family):
    whole = LocalDecoder(made(family))
    steps = _steps(whole)
    assert all(step is not None for step in steps)
    found, expected = _logits(whole, steps), _logits(whole, [None] * len(steps))
    assert torch.equal(found[0], expected[0])  # a prompt does not go through it
    assert (found - expected).abs().max() <= 1e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("family", ["llama, biased, linear rope", "qwen3", "phi3, part turns", "gemma2", "mixtral"])
def test_layers_with_more_to_them_have_no_step(made, family):
    assert not any(_steps(LocalDecoder(made(family))))


@pytest.mark.parametrize("scheme", [None, "int8", "w8a8", "int4"])
def test_a_step_of_bfloat16_or_of_blocks_says_what_the_layer_says(made, scheme, tmp_path):
    """Within that arithmetic's tolerance, beside the layer in bfloat16; and nearer to the numbers in float32."""
    folder = made("qwen2")
    if scheme is not None:
        quantize(folder, tmp_path / scheme, scheme)
        folder = tmp_path / scheme
    whole = LocalDecoder(folder, dtype="bfloat16")
    steps = _steps(whole)
    assert all(step is not None for step in steps)
    found, expected = _logits(whole, steps), _logits(whole, [None] * len(steps))
    assert torch.equal(found[0], expected[0])
    exact = _logits(LocalDecoder(folder, dtype="float32"), [None] * len(steps))
    off, layers_off = ((one - exact).norm() / exact.norm() for one in (found, expected))
    assert 0 < off < max(0.02, 1.25 * float(layers_off))


def test_a_model_says_the_same_wherever_it_is_cut(made):
    """A row of bfloat16 is rounded between any two layers, as it is on an edge."""
    whole = LocalDecoder(made("qwen2"), dtype="bfloat16")
    whole.logits(PROMPT)
    layers = whole._layers
    x = torch.randn(1, whole.config.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        together = layers.run(x, Chain(whole._lane, len(PROMPT), 1))
        apart = x
        for layer in tuple(layers.layers):
            layers.layers = [layer]
            apart = layers.run(apart, Chain(whole._lane, len(PROMPT), 1))
            assert apart.dtype == torch.bfloat16
    assert torch.equal(together, apart)


def test_two_sessions_steps_leave_each_other_alone(plain):
    one, other = LocalDecoder(plain), LocalDecoder(plain)
    alone = _logits(one, _steps(one))
    one.logits(PROMPT)
    other.logits(PROMPT[::-1])
    for i in range(20):
        other.logits([7 * i + 2], len(PROMPT) + i)
        assert torch.equal(one.logits([3 * i + 5], len(PROMPT) + i), alone[1 + i])


def test_numbers_that_are_not_finite_come_out_so(plain):
    whole = LocalDecoder(plain)
    x = torch.full((1, 1, whole.config.hidden_size), torch.nan)
    assert whole._layers.forward(x, 0, whole._lane, only_last=True).isnan().all()
