"""`bench.decode --only ring`: the daemon's own parts, in processes of their own, make as many tokens as asked
for."""

from __future__ import annotations

from bench.decode import __main__ as decode
from bench.tasks.decode_model import write_model


async def test_a_ring_of_two_stages_makes_all_tokens_and_every_hop_is_timed(tmp_path):
    write_model(tmp_path / "model", layers=2)
    ring = tmp_path / "ring"
    manifest = decode._split(tmp_path / "model", ring, 2)
    (ring / "manifest.json").write_text(manifest.to_json())
    assert len(manifest.tasks) == 3
    hops_us, turns_us = await decode._ring(ring, 2, tokens=12)
    assert len(hops_us) == len(turns_us) == 11
    assert all(turn > 0 for turn in turns_us)  # a hop is what a turn takes beside computing: below 0 where both overlap
