"""A worker that is capped at exactly what admission counts makes a round, and the next; with less it says so."""

from __future__ import annotations

import pytest

from bench.training import train_memory


@pytest.mark.parametrize(
    ("family", "optimizer", "compression", "precision"),
    [
        ("square", "adamw", "int8", "f32"),
        ("wide", "adamw", "topk_ef", "f32"),
        ("linear", "adamw", "int8", "bf16"),
    ],
)
async def test_a_round_fits_into_what_is_counted(family, optimizer, compression, precision):
    taken = await train_memory.measured(train_memory.point(family, optimizer, compression, precision))
    assert not taken.error, taken


async def test_less_than_a_round_needs_is_a_typed_error():
    taken = await train_memory.measured(train_memory.point("wide", "adamw", "int8"), cap=0.5)
    assert taken.error.startswith("over-memory"), taken


def test_what_is_kept_and_carried_counts():
    plain = train_memory.recipe("square", "adamw", "f32")
    silent = plain.model_copy(update={"audit": plain.audit.model_copy(update={"fraction": "0.0"})})
    assert plain.memory_bytes() - silent.memory_bytes() == plain.snapshot_bytes() == 12 * plain.trained()
    fed = train_memory.recipe("square", "adamw", "topk_ef")
    assert fed.memory_bytes() - plain.memory_bytes() == 3 * plain.state_bytes()
    assert plain.round_bytes(10**6) - plain.round_bytes(0) == 10**6 + 32 * (10**6 // (4 * 1024 + 8))
