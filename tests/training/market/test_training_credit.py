"""Where a provider gives credit, audits and payments come after the rounds; nothing of them is left out."""

from __future__ import annotations

from contextlib import AsyncExitStack

from nodewire.training.customer.machine import events as happened
from nodewire.training.customer.machine.state import State
from nodewire.training.engine import bare_loop, state
from nodewire.training.protocol.recipe import Recipe
from tests.kinds.digits import TOML, dataset
from tests.training.small_market import LEAST_MSAT, opened, provider, train

ROUNDS = 8
RECIPE = Recipe.from_toml(TOML.replace("rounds = 3", f"rounds = {ROUNDS}"))


async def bought(folder, credit_msat: int) -> tuple[State, bytes, list[object], dict[str, int]]:
    seen: list[object] = []
    async with opened(folder) as market, AsyncExitStack() as stack:
        for name in ("ada", "bea"):
            await stack.enter_async_context(provider(market, name, credit_msat=credit_msat))
        done, weights = await train(market, "dora", RECIPE, on_change=lambda state, event, who: seen.append(event))
        return done, weights, seen, {name: await market.balance_msat(name) for name in ("ada", "bea")}


def before_the_end(seen: list[object], *types: type) -> int:
    last = max(at for at, event in enumerate(seen) if isinstance(event, happened.StepCompletion))
    return sum(isinstance(event, types) for event in seen[:last])


async def test_with_credit_enough_the_rounds_come_first_and_then_everything_is_audited_and_paid(tmp_path):
    done, weights, seen, earned = await bought(tmp_path, 100 * LEAST_MSAT)
    assert weights == state.pack(bare_loop.run(RECIPE, dataset(), 2)[0])
    assert before_the_end(seen, happened.AuditOutcome) == 0
    assert before_the_end(seen, happened.ResultPayment) == 2  # deposits
    audits = [event for event in seen if isinstance(event, happened.AuditOutcome)]
    assert len(audits) == 2 * ROUNDS
    assert all(event.passed for event in audits), audits
    assert earned == {"ada": ROUNDS * LEAST_MSAT, "bea": ROUNDS * LEAST_MSAT}
    assert done.failures == ()


async def test_a_customer_uses_no_more_than_half_of_the_credit_before_it_pays(tmp_path):
    done, weights, seen, earned = await bought(tmp_path, 4 * LEAST_MSAT)
    assert weights == state.pack(bare_loop.run(RECIPE, dataset(), 2)[0])
    open_msat, most_msat = 0, 0
    for event in seen:
        match event:
            case happened.ResultJudgement(accepted=True):
                open_msat += LEAST_MSAT
            case happened.ResultPayment(part=1):
                open_msat -= LEAST_MSAT
        most_msat = max(most_msat, open_msat)
    assert before_the_end(seen, happened.ResultPayment) > 2 + 2
    assert most_msat <= 2 * (4 + 2) * LEAST_MSAT  # of both: the credit, and two rounds
    assert earned == {"ada": ROUNDS * LEAST_MSAT, "bea": ROUNDS * LEAST_MSAT}
    assert done.failures == ()
