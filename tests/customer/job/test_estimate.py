"""What a job would come to: exact sums of the plan's prices, and never more than its parts allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodewire.customer.job.estimate import estimate
from nodewire.pay.bond.settlement import share_msat
from nodewire.protocol.job.plan import Verification
from nodewire.protocol.tensors.frame import Array, Frame
from tests.protocol.documents import manifest, plan

SAMPLED = Verification(policy="sampled", rate_ppm=50_000, share_ppm=150_000)
RICH_MSAT = 10**12


def prompt(size: int) -> list[Frame[Array]]:
    return [Frame("prompt", 0, (Array("uint8", (size,), b"x" * size),), {"chunk": 0})]


def test_a_generation_is_its_prompts_units_and_its_answers():
    found = estimate(plan(), manifest(), prompt(400), max_tokens=66, budget_msat=RICH_MSAT)
    assert found.units == 2 + 2  # 100 tokens of 400 bytes; it makes the first of 66, and the others are in chunks of 64
    assert found.about_msat == 4 * 3_000
    assert found.most_units == 4 + 2  # no more tokens than the context has positions
    assert found.most_msat == 6 * 3_000
    # Each of three providers is paid for the prompt, and for two chunks of the answer, at 1 sat of routing or less.
    assert found.most_fees_msat == 3 * 3 * 2_000


def test_the_verification_share_is_in_it_and_grows_with_the_context():
    sampled = plan(verification=SAMPLED)
    long = manifest().model_copy(update={"context": 64 * 64})
    for tokens in (64, 40 * 64):
        found = estimate(sampled, long, prompt(4), max_tokens=tokens, budget_msat=RICH_MSAT)
        assert found.about_msat == found.units * 3_000 + share_msat(sampled, found.units)
    flat_msat = found.units * share_msat(sampled)
    assert share_msat(sampled, found.units) > flat_msat
    assert found.most_fees_msat == 41 * 4 * 2_000  # the share is paid by a zap of its own


def test_a_budget_bounds_it():
    found = estimate(plan(), manifest(), prompt(400), max_tokens=256, budget_msat=7_000)
    assert (found.about_msat, found.most_msat, found.budget_msat) == (7_000, 7_000, 7_000)


def test_of_calls_each_is_one_unit():
    calls = manifest().model_copy(update={"mode": "embed", "context": 0, "chunk": 1})
    inputs = [Frame("prompt", seq, (), {"chunk": seq}) for seq in range(3)]
    found = estimate(plan(), calls, inputs, max_tokens=0, budget_msat=RICH_MSAT)
    assert (found.units, found.most_units, found.about_msat, found.most_msat) == (3, 3, 9_000, 9_000)


@given(size=st.integers(1, 5_000), tokens=st.integers(1, 5_000), budget_msat=st.integers(3_000, 10**7))
def test_about_is_never_more_than_most_nor_most_than_the_budget(size, tokens, budget_msat):
    for by in (plan(), plan(verification=SAMPLED)):
        found = estimate(by, manifest(), prompt(size), max_tokens=tokens, budget_msat=budget_msat)
        assert 0 < found.about_msat <= found.most_msat <= found.budget_msat == budget_msat
        assert found.units <= found.most_units


def test_what_is_free_costs_no_fees():
    tasks = tuple(one.model_copy(update={"price_msat": 0}) for one in plan().tasks)
    found = estimate(plan(tasks=tasks, chunk_msat=0), manifest(), prompt(9), max_tokens=9, budget_msat=RICH_MSAT)
    assert (found.about_msat, found.most_msat, found.most_fees_msat) == (0, 0, 0)
