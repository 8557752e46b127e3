"""A model whose ends are lent is bought as any: ids go around, guesses too, who dies is replaced, the tokens stay."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.errors import BadPlan, Unsupported
from tests.market.buy.test_market_dag import BOND_MSAT, Dag
from tests.market.failure.test_market_failures import whole_tokens

pytestmark = pytest.mark.timeout(600)
PROMPT = "the cat sat on the mat while the cat sat on the mat"
FAST_US, SLOW_US = 1_000, 200_000


@pytest.fixture(scope="module")
def lent(market):
    where = ["--relay", market.relay, "--blossom", market.blossom, "--key", str(market.folder / "author.nsec")]
    cut = ["--split", "0,1-2", "--lend", "--name", "lent"]
    made = market.command("register", str(market.decoder_folder), *cut, *where)
    assert [task["name"] for task in made["tasks"]] == ["driver", "stage.0", "stage.1"]
    dag = Dag(market, made["address"], made["digest"], {})
    sold = {"yva": (["driver"], FAST_US), "zed": (["stage.0", "stage.1"], FAST_US), "abe": (None, SLOW_US)}
    for name, (tasks, us) in sold.items():
        dag.start(name, tasks or ["driver", "stage.0", "stage.1"], us, BOND_MSAT)
    for name in sold:
        dag.public[name] = market.ready(name)["public"]
    asyncio.run(dag.live(*sold))
    yield dag
    for name in dag.public:
        market.stop_one(name)


async def bought(customer, lent, count, *, at=0, strike=None, **asked):
    ids = []
    async for piece in customer.generate(lent.address, PROMPT, max_tokens=count, **asked):
        ids += piece.ids
        if strike and len(ids) >= at:
            lent.market.processes[strike].kill()
            strike = None
    return ids


async def test_plain_and_guessed_tokens_are_those_of_the_whole_model(lent):
    expected = whole_tokens(lent.market, PROMPT, 140)
    for name, lookahead in (("lent-plain", 1), ("lent-guesser", 8)):
        async with lent.market.customer(name, lookahead=lookahead) as customer:
            await customer.session.market.epoch(timeout_s=30, after=await lent.live("yva", "zed") - 1)
            terms = customer.terms.model_copy(update={"excluded": (lent.public["abe"],)})
            assert await bought(customer, lent, 140, terms=terms) == expected
            done = customer.last
            assert {one["provider"] for one in done["tasks"]} == {lent.public["yva"], lent.public["zed"]}
            assert sum(done["paid_msat"].values()) > 0


async def test_what_needs_logits_or_a_sample_is_refused_before_anything_is_bought(lent):
    async with lent.market.customer("lent-picky") as customer:
        with pytest.raises(Unsupported):
            await bought(customer, lent, 5, temperature=0.7)
        with pytest.raises(BadPlan, match="honest nodes may differ"):
            await bought(customer, lent, 5, terms=customer.terms.model_copy(update={"verify": "sampled"}))
    ledger = lent.market.ledger("lent-picky")
    assert ledger.spent().paid_msat == 0
    ledger.close()


async def test_who_dies_amid_guesses_is_gone_on_without_with_the_same_tokens(lent):
    expected = whole_tokens(lent.market, PROMPT, 200)
    async with lent.market.customer("lent-mourner", lookahead=8) as customer:
        await customer.session.market.epoch(timeout_s=30, after=await lent.live("yva", "zed", "abe") - 1)
        assert await bought(customer, lent, 200, at=80, strike="zed") == expected
