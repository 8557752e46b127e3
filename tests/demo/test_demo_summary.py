"""What the demo says at its end is what its report has; pieces that it keeps are those of this very file."""

from __future__ import annotations

from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demo"
REPORT = {
    "weights_bytes": 540_000_000,
    "most_held_bytes": 216_000_000,
    "most_held_percent": 40.0,
    "machine_memory_bytes": 700_000_000,
    "single_process_memory_bytes": 1_100_000_000,
    "tokens": 77,
    "tokens_identical_after_failover": True,
    "failover_ms": 1_340.0,
    "slashed": [{"provider": "provider-6", "amount_msat": 20_000_000}],
    "customer_spent_msat": 72,
    "msat_per_token": 0.6,
    "tokens_per_s": 10.0,
    "single_process_tokens_per_s": 12.5,
    "hop_ms_p50": 2.0,
    "generation_providers": {"driver": "provider-0", "stage.0": "provider-1", "stage.1": "provider-2"},
    "load": 4.2,
}


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(DEMO))
    import market
    import models
    import summary as ending

    return ending, market, models


def test_the_table_says_what_the_report_has(demo):
    ending, _, _ = demo
    rows = {what: (ours, alone) for what, ours, alone in ending.rows(REPORT)}
    assert rows["holds the whole model"] == ("nobody: 40 % at most, 216 of 540 MB", "yes: 540 MB")
    assert rows["memory of a machine, libraries included"] == ("700 MB", "1100 MB")
    assert rows["the answer"] == ("the same, 77 tokens", "77 tokens")
    assert rows["its machine dies"][0] == "goes on within 1.3 s"
    assert rows["a machine cheats"][0] == "convicted, loses 20,000.000 sat"
    assert rows["a token cost"][0] == "0.60 msat, a million 600 sat"
    way, cores = ending.speed(REPORT, 13)
    assert "took 100 ms" in way and "3 machines" in way and "6 ms" in way
    assert "13 daemons" in cores and "4.2 processes" in cores


def test_the_table_hides_no_failure(demo):
    ending, _, _ = demo
    bad = REPORT | {"tokens_identical_after_failover": False, "slashed": [], "tokens_per_s": 0.0}
    rows = {what: ours for what, ours, _ in ending.rows(bad)}
    assert rows["the answer"].startswith("ANOTHER") and rows["a machine cheats"] == "NOT CONVICTED"


async def test_pieces_are_cut_again_where_the_models_file_is_another(demo, tmp_path):
    _, market, models = demo
    cut = []

    class Cutting(market.Market):
        async def command(self, *command):
            cut.append(command)
            Path(command[command.index("--out") + 1]).mkdir()
            return {}

    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    model = models.Model("m", file, file, ("--slots", "2"))
    running, kept = Cutting(tmp_path), tmp_path / "kept"
    first, was_kept = await models.pieces(running, model, kept)
    assert not was_kept
    assert await models.pieces(running, model, kept) == (first, True)
    file.write_bytes(b"two")
    second, was_kept = await models.pieces(running, model, kept)
    assert (second != first, was_kept, len(cut)) == (True, False, 2)
    assert list(kept.iterdir()) == [second]
