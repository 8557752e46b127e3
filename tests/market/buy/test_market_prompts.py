"""Two people with API keys of one gateway: to providers they are one customer, and one asks what the other has sent."""

from __future__ import annotations

from nodewire.customer.api import CallListener

GUESS = "the cat sat on the mat, and what it thought of the dog was said to nobody. " * 6


async def test_who_sends_a_prompt_again_for_another_finds_nothing_of_it(market):
    """Without `apart` the second of them was told, by time and price, that its guess was right."""
    found = []
    async with market.customer("two-keys") as customer:
        others = tuple(market.public[name] for name in ("dan", "eve"))  # every job comes to the same providers
        terms = customer.terms.model_copy(update={"excluded": others})
        for apart in ("01", "01", "02", "02"):
            jobs = []
            made = customer.generate(
                market.decoder["address"],
                GUESS,
                max_tokens=2,
                terms=terms,
                apart=apart,
                listener=CallListener(jobs.append),
            )
            async for _ in made:
                pass
            found.append(max(job.cached_tokens for job in jobs))
    assert found[0] == found[2] == 0
    assert found[1] == found[3] > 0
