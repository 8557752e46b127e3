"""The model of recovery and payment: no run breaks it, each rule is missed when left out, and the real code agrees."""

from __future__ import annotations

import asyncio

import pytest

from bench.model.model_check import ARMS, MUTANTS, arm, mutant
from bench.model.search import search
from bench.model.state import Budget, Rules
from bench.model.steps import may_compute, may_pay
from nodewire.errors import PaymentRequired
from nodewire.provider.inference.credit import Credit
from tests.customer.paid_job import DRIVER, asks, job

QUICK = ("undisturbed", "wrong guess", "payment")


@pytest.mark.parametrize("name", QUICK)
def test_model_no_run_loses_or_doubles_a_chunk_or_changes_a_token(name):
    assert name in ARMS
    found = arm(name)
    assert (found.fault, found.is_whole) == ("", True), found.way
    assert found.ends


@pytest.mark.parametrize("budget", [Budget(losses=1), Budget(deaths=1)], ids=["lost link", "death"])
def test_model_with_two_tokens_recovers(budget):
    found = search(Rules(), budget, wanted=2)
    assert (found.fault, found.is_whole) == ("", True), found.way


@pytest.mark.parametrize("rule", MUTANTS)
def test_model_without_a_rule_is_broken(rule):
    found = mutant(rule)
    assert found.fault


@pytest.mark.parametrize("paid", [set(), {0}, {1}, {0, 1}, {0, 2}], ids=str)
def test_model_begins_the_chunks_that_a_provider_begins(paid):
    async def begins(chunk):
        credit = Credit(patience_s=0)
        for number in paid:
            await credit.paid(number)
        try:
            await credit.admit(chunk)
        except PaymentRequired:
            return False
        return True

    for chunk in range(5):
        assert asyncio.run(begins(chunk)) == may_compute(chunk, paid), chunk


@pytest.mark.parametrize("closed", range(3))
@pytest.mark.parametrize("delivered", range(-1, 3))
@pytest.mark.parametrize("is_over", [False, True])
def test_model_pays_the_chunks_that_a_customer_pays(closed, delivered, is_over):
    async def pays(chunk):
        payments, payer = job()
        for number in range(closed):
            await payments.closed(number, 1)
        await payments.delivered(delivered)
        if is_over:
            await payments.close()
        task = asyncio.create_task(payments.asked(asks(DRIVER, chunk)))
        for _ in range(20):  # turns of the loop: all that does not wait for something else
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return bool(payer.paid_msat)

    for chunk in range(3):
        assert asyncio.run(pays(chunk)) == may_pay(chunk, closed, delivered, is_over), chunk
