"""Families that can be trained: their tensors, what a sample costs, and descriptions that fit no model."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from nodewire.protocol.model.families import READING_TOML, Cnn, Decoder, Encoder, Family, Linear, Lora, Mlp, count

FAMILY = TypeAdapter(Family)
BLOB = {"sha256": "ab" * 32, "bytes": 10}
DECODER = {
    "name": "decoder",
    "tokens": "byte",
    "width": 8,
    "inner": 16,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 2,
    "positions": 32,
}
ENCODER = {
    "name": "encoder",
    "vocabulary": 30,
    "width": 8,
    "inner": 12,
    "layers": 1,
    "heads": 2,
    "positions": 16,
    "tokenizer": BLOB,
}
CNN = {"name": "cnn", "channels": 1, "height": 8, "width": 4, "filters": (3, 5), "classes": 2}


def test_a_linear_model_multiplies_every_input_with_every_class():
    model = FAMILY.validate_python({"name": "linear", "inputs": 5, "classes": 3})
    assert isinstance(model, Linear)
    assert model.shapes() == {"weight": (3, 5), "bias": (3,)}
    assert model.flops_per_sample(1) == 2 * 15
    assert model.activations_per_sample(1) == 5 + 9


def test_an_mlps_layers_lead_from_its_inputs_to_its_classes():
    model = FAMILY.validate_python({"name": "mlp", "inputs": 5, "hidden": (4, 6), "classes": 3})
    assert isinstance(model, Mlp)
    assert model.shapes() == {
        "layers.0.weight": (4, 5),
        "layers.0.bias": (4,),
        "layers.1.weight": (6, 4),
        "layers.1.bias": (6,),
        "layers.2.weight": (3, 6),
        "layers.2.bias": (3,),
    }
    assert model.flops_per_sample(1) == 2 * (20 + 24 + 18)
    assert model.activations_per_sample(1) == 5 + 2 * 10 + 9


@pytest.mark.parametrize(("pool", "second", "pixels"), [(False, 32, 32), (True, 8, 2)])
def test_a_cnns_head_gets_what_pooling_leaves(pool, second, pixels):
    model = FAMILY.validate_python({**CNN, "pool": pool})
    assert isinstance(model, Cnn)
    assert model.inputs == 32
    assert model.shapes() == {
        "convolutions.0.weight": (3, 1, 3, 3),
        "convolutions.0.bias": (3,),
        "convolutions.1.weight": (5, 3, 3, 3),
        "convolutions.1.bias": (5,),
        "head.weight": (2, 5 * pixels),
        "head.bias": (2,),
    }
    assert model.flops_per_sample(1) == 2 * (27 * 32 + 135 * second + 2 * 5 * pixels)
    kept = (4 if pool else 2) * (3 * 32 + 5 * second)
    assert model.activations_per_sample(1) == 32 + kept + 5 * pixels + 6


def test_an_image_cannot_be_pooled_away():
    with pytest.raises(ValidationError, match="pool: halves the image to nothing"):
        FAMILY.validate_python({**CNN, "pool": True, "filters": (1, 1, 1)})


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_has_llamas_tensors(tied):
    model = FAMILY.validate_python({**DECODER, "tied": tied})
    assert isinstance(model, Decoder)
    shapes = model.shapes()
    layer = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 16 * 8
    assert count(shapes) == 256 * 8 * (1 if tied else 2) + 2 * (layer + 16) + 8
    assert ("lm_head.weight" in shapes) is not tied
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (4, 8)
    assert model.flops_per_sample(3) == 3 * (2 * (2 * layer + 256 * 8) + 2 * 2 * 8 * 3)
    assert model.activations_per_sample(3) == 3 * (2 * (64 + 48 + 24 + 80 + 4) + 32 + 3 * 256)


SCALING = {
    "factor": "8.0",
    "low_freq_factor": "1.0",
    "high_freq_factor": "4.0",
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_heads": 3}, "kv_heads: does not divide heads"),
        ({"heads": 1024, "kv_heads": 1, "head_dim": 1024}, "head_dim: the heads together are wider"),
        ({"ends": (256,)}, "ends: out of the vocabulary"),
        ({"vocabulary": 255}, "vocabulary: a byte decoder"),
        ({"tokenizer": BLOB}, "vocabulary: a byte decoder"),
        ({"tokens": "bpe"}, "tokenizer: missing"),
        ({"rope_scaling": {**SCALING, "low_freq_factor": "4.0"}}, "low_freq_factor: not below"),
        ({"rope_theta": "0.0"}, "not from 1e-06 to"),
        ({"rope_theta": "1e4"}, "not the shortest form"),
        ({"rope_theta": "inf"}, "not the shortest form"),
        ({"rope_theta": "ten"}, "not a decimal number"),
        ({"rope_theta": 10000}, "valid string"),
    ],
)
def test_a_decoder_that_does_not_fit_together_is_refused(change, reason):
    with pytest.raises(ValidationError, match=reason):
        FAMILY.validate_python({**DECODER, **change})


def test_a_decoder_of_pairs_of_bytes_has_a_tokenizer():
    model = FAMILY.validate_python({**DECODER, "tokens": "bpe", "vocabulary": 20, "tokenizer": BLOB})
    assert model.shapes()["model.embed_tokens.weight"] == (20, 8)
    stretched = FAMILY.validate_python({**DECODER, "rope_scaling": SCALING})
    assert stretched.rope_scaling.factor == "8.0"


@pytest.mark.parametrize(("number", "text"), [(500, "500.0"), (1e-5, "1e-05")])
def test_a_recipe_may_have_bare_numbers(number, text):
    model = FAMILY.validate_python({**DECODER, "rope_theta": number}, context=READING_TOML)
    assert model.rope_theta == text


@pytest.mark.parametrize("number", [True, 1e13, "1e5"])
def test_a_recipes_number_is_one_and_not_too_large(number):
    with pytest.raises(ValidationError):
        FAMILY.validate_python({**DECODER, "rope_theta": number}, context=READING_TOML)


def test_an_encoder_has_berts_tensors():
    model = FAMILY.validate_python(ENCODER)
    assert isinstance(model, Encoder)
    shapes = model.shapes()
    matrices = 4 * 64 + 2 * 12 * 8
    biases = 4 * 8 + 12 + 8 + 2 * 2 * 8
    assert count(shapes) == (30 + 16 + 2 + 2) * 8 + matrices + biases
    assert shapes["encoder.layer.0.output.LayerNorm.weight"] == (8,)
    assert model.flops_per_sample(5) == 10 * (2 * matrices + 4 * 8 * 5)
    assert model.activations_per_sample(5) == 10 * (12 * 8 + 3 * 12 + 2 * 5 + 48)


@pytest.mark.parametrize(
    ("change", "reason"), [({"heads": 3}, "heads: do not divide"), ({"pad": 30}, "pad: out of the vocabulary")]
)
def test_an_encoder_that_does_not_fit_together_is_refused(change, reason):
    with pytest.raises(ValidationError, match=reason):
        FAMILY.validate_python({**ENCODER, **change})


def test_adapters_stand_beside_the_matrices_that_they_name():
    whole = FAMILY.validate_python(DECODER).shapes()
    lora = Lora(rank=3, alpha=6, targets=("q_proj", "down_proj", "norm"))
    assert list(lora.adapted(whole)) == [
        f"model.layers.{i}.{name}.weight" for i in range(2) for name in ("self_attn.q_proj", "mlp.down_proj")
    ]
    shapes = lora.shapes(whole)
    assert shapes["model.layers.0.mlp.down_proj.lora_a"] == (3, 16)
    assert shapes["model.layers.0.mlp.down_proj.lora_b"] == (8, 3)
    assert count(shapes) == 2 * 3 * (8 + 8 + 16 + 8)


def test_an_adapters_target_is_a_modules_last_name():
    with pytest.raises(ValidationError, match=r"targets\.0"):
        Lora(rank=1, alpha=1, targets=("mlp.up_proj",))
