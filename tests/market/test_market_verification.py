"""Chunks of sampled jobs are drawn, computed again, and judged by the committee."""

from __future__ import annotations

from nodewire.nostr.nip01 import Filter
from nodewire.protocol import kinds, verdict

PROMPT = "the cat sat on the mat"


async def test_honest_work_passes_and_the_customer_learns_it(market):
    async with market.customer("careful") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        ids: list[int] = []
        async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms, wait=True):
            ids += piece.ids
        done = customer.last
    assert len(ids) == 3
    assert done["repaired"] == []
    assert {(one["task"], one["chunk"]) for one in done["verdicts"]} == {
        (task["task"], chunk) for task in done["tasks"] for chunk in (0, 1)
    }
    assert {one["outcome"] for one in done["verdicts"]} == {"pass"}
    assert done["share_msat"] > 0
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": frozenset({done["request"]})})
    certified = [verdict.parse(event) for event in await market.events(about)]
    assert {one.verdict.outcome for one in certified} == {"pass"}
