"""What a customer says that a job may cost is all that it costs, the verification share with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodewire.customer.planning.planner import MarketPlanner
from nodewire.pay.bond.settlement import job_share_ppm, share_msat
from nodewire.protocol.job.plan import Verification
from tests.protocol import documents


def for_providers(terms, share_ppm, units=1):
    market = SimpleNamespace(committee=SimpleNamespace(verify_share_ppm=share_ppm))
    return MarketPlanner(market, "00" * 32, {}).terms(terms, units)


@pytest.mark.parametrize("total_msat", [1_000, 168_000, 190_001, 10**8])
@pytest.mark.parametrize("units", [1, 21, 22, 100, 2_048])
def test_shares_that_grow_with_the_context_come_out_of_the_budget(total_msat, units):
    """Whatever of its units a job comes to."""
    plan = documents.plan()
    terms = plan.terms.model_copy(update={"max_total_msat": total_msat, "verify": "sampled"})
    left_msat = for_providers(terms, 150_000, units).max_total_msat
    sampled = plan.model_copy(update={"verification": Verification(policy="sampled", rate_ppm=1, share_ppm=150_000)})
    paid_msat = 0
    for chunks in range(1, units + 1):
        if chunks * plan.chunk_msat > left_msat:
            break
        paid_msat += plan.chunk_msat + share_msat(sampled, 1, chunks)
        assert paid_msat <= total_msat + 2 * chunks  # shares are rounded up


@pytest.mark.parametrize("total_msat", [1_000, 168_000, 190_001])
def test_the_share_comes_out_of_the_budget(total_msat):
    plan = documents.plan()
    terms = plan.terms.model_copy(update={"max_total_msat": total_msat, "verify": "sampled"})
    left_msat = for_providers(terms, 150_000).max_total_msat
    sampled = plan.model_copy(update={"verification": Verification(policy="sampled", rate_ppm=1, share_ppm=150_000)})
    chunks = left_msat // plan.chunk_msat
    assert chunks * (plan.chunk_msat + share_msat(sampled)) <= total_msat + chunks  # shares are rounded up
    assert (left_msat + 1) * 1_150_000 > total_msat * 1_000_000


def test_who_has_nothing_verified_pays_no_share():
    terms = documents.plan().terms.model_copy(update={"verify": "none"})
    assert for_providers(terms, 150_000) == terms


@pytest.mark.parametrize("units", [1, 21, 22, 23, 100, 2_048])
def test_what_a_job_pays_in_shares_at_most_is_the_sum_of_its_units(units):
    """Of a price that no rounding touches. Whoever reserves for a job counts with it."""
    verified = Verification(policy="sampled", rate_ppm=1, share_ppm=150_000)
    plan = documents.plan().model_copy(update={"chunk_msat": 32_000_000, "verification": verified})
    most_msat = units * plan.chunk_msat * job_share_ppm(150_000, units) / 1_000_000
    assert 0 <= most_msat - share_msat(plan, units) < units * plan.chunk_msat / 1_000_000
