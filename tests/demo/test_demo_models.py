"""The committed models are what their recipes make: weights are those that the transcripts beside them end with."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nodewire.training.engine import state
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.transcript import Transcript
from nodewire.training.verify import transcript as transcripts

MODEL = Path(__file__).parent.parent.parent / "demo" / "model"


@pytest.mark.parametrize(("folder", "toml"), [("pycoder", "pycoder.toml"), ("pycoder/draft", "draft.toml")])
def test_a_models_transcript_holds_and_ends_with_its_weights(folder, toml):
    recipe = Recipe.from_toml((MODEL / toml).read_text())
    reading = transcripts.check(Transcript.parse((MODEL / folder / "transcript.json").read_text()))
    assert reading.faults == []
    assert reading.recipe == recipe
    assert len(reading.transcript.rounds) == recipe.rounds
    weights = state.read(MODEL / folder / "model.safetensors", recipe.shapes())
    assert hashlib.sha256(state.pack(weights)).hexdigest() == reading.transcript.weights
    tokenizer = (MODEL / "pycoder" / "tokenizer.json").read_bytes()
    assert hashlib.sha256(tokenizer).hexdigest() == recipe.family.tokenizer.sha256
