"""The demo's bonds count: nobody in it stands where free keys do."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

from nodewire.cli.register import register
from nodewire.protocol.committee import STAKE

DEMO = Path(__file__).parents[2] / "demo"
DECODER = {"address": "decoder", "tasks": [{"name": "driver"}, *({"name": f"stage.{k}"} for k in range(6))]}
ENCODER = {"address": "encoder", "tasks": [{"name": "driver"}, *({"name": f"embed.{k}"} for k in range(4))]}


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(DEMO))
    import cheating
    import market

    return market, cheating


def test_demo_bonds_count_for_every_slot(demo):
    market, cheating = demo
    slots = signature(register).parameters["sessions"].default
    for serve in market.specializations(DECODER, ENCODER):
        assert market.BOND_MSAT // (STAKE * sum(price for _, _, price in serve)) >= slots
    assert slots <= cheating.BOND_MSAT // (STAKE * cheating.PRICE_MSAT)


def test_demo_cheater_is_placed_neither_always_nor_never(demo):
    """Beside the one honest holder of its stage, by `assign/2`: a newcomer counts 5, and 9 whoever has 16 epochs."""
    market, cheating = demo
    hers, theirs = 5 * cheating.BOND_MSAT, 9 * market.BOND_MSAT
    assert 0.4 < hers / (hers + theirs) < 0.7
    assert (theirs / (hers + theirs)) ** cheating.MAX_TRIES < 0.001
