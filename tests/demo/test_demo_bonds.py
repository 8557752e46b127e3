"""The demo's bonds count: nobody in it stands where free keys do."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodewire.protocol.committee.committee import STAKE, Committee

DEMO = Path(__file__).parents[2] / "demo"
UNIT_MSAT = Committee.model_fields["bond_unit_msat"].default
DECODER = {"address": "decoder", "tasks": [{"name": "driver"}, *({"name": f"stage.{k}"} for k in range(2))]}
ENCODER = {"address": "encoder", "tasks": [{"name": "driver"}, *({"name": f"graph.{k}"} for k in range(2))]}


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(DEMO))
    import dishonest_provider as cheating
    import market

    return market, cheating


def test_demo_bonds_count_for_every_slot(demo):
    market, cheating = demo
    assert min(market.BOND_MSAT, cheating.BOND_MSAT) >= UNIT_MSAT
    for serve in market.specializations(DECODER, ENCODER):
        assert market.BOND_MSAT // (STAKE * sum(price for _, _, price in serve)) >= market.SLOTS
    assert cheating.BOND_MSAT // (STAKE * cheating.PRICE_MSAT) >= market.SLOTS


def test_demo_no_machine_has_two_pieces_of_a_model_and_each_piece_has_two(demo):
    market, _ = demo
    plan = market.specializations(DECODER, ENCODER)
    for model in (DECODER, ENCODER):
        held = [[task for address, task, _ in serve if address == model["address"]] for serve in plan]
        assert all(len(tasks) == 1 for tasks in held)
        for task in model["tasks"]:
            assert sum(task["name"] in tasks for tasks in held) >= 2


def test_demo_cheater_is_placed_soon(demo):
    """Beside the one honest holder of its stage, by `assign/2`: a newcomer counts 5, and 9 whoever has 16 epochs."""
    market, cheating = demo
    hers, theirs = 5 * cheating.BOND_MSAT, 9 * 2 * market.BOND_MSAT
    assert hers / (hers + theirs) > 0.8
    assert (theirs / (hers + theirs)) ** cheating.MAX_TRIES < 1e-6
