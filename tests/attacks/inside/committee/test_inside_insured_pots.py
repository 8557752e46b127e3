"""A customer, its provider and the only verifier of its model in one hand: the treasury's pool as a machine for money.

A model of one's own is held by nobody else, so whatever a verifier is paid comes back to the dealer. What it may
choose is its plan's document, when it claims, and who of the plan commits.
"""

from __future__ import annotations

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadPlan, PaymentFailed
from nodewire.nostr import event as events
from nodewire.protocol import kinds
from nodewire.protocol.job import request as job
from nodewire.protocol.job.plan import Plan, Verification
from simnet.shares import QUOTE_S
from simnet.treasurer import Rules
from tests.pay.accounts.test_treasurer import World
from tests.pay.bond_market import FEE_PPM, OTHER, PROVIDER, RATE_PPM, SHARE_MSAT, STRANGER, VERIFIERS

EVERY = 1_000_000 // RATE_PPM
"""Chunks for each that is drawn."""


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "simnet.db", Rules.for_committee(bm.COMMITTEE, statement_s=60, delay_s=10 * QUOTE_S))
    yield world
    world.check()
    world.simnet.close()


def fill_pool(world):
    """What others' bonds left."""
    world.treasurer.lock(world.nodes["provider"], STRANGER.public, "k", 900_000, world.until_s)
    request = bm.request(driver=STRANGER)
    world.present(bm.failed(request, culprit=STRANGER), request)
    world.clock.now_s = world.treasurer.bond(STRANGER.public).bond.frees_at_s
    assert world.treasurer.pool_msat == 0 < world.treasurer.bond(STRANGER.public).bond.remainder_msat


async def claimed(world, request, drawn, epoch):
    """What the dealer's verifier takes for these chunks of both tasks, the dearest claim first."""
    cases = []
    for task, provider in (("driver", PROVIDER), ("stage.0", OTHER)):
        for chunk in drawn:
            said = bm.verdict_of(request, task=task, chunk=chunk, provider=provider.public, agreed=(0,), epoch=epoch)
            cases.append(world.present(said, request).case)
    got_msat = 0
    for case in sorted(cases, key=lambda one: -world.treasurer.case_due_msat(one, VERIFIERS[0].public)):
        due_msat = world.treasurer.case_due_msat(case, VERIFIERS[0].public)
        try:
            got_msat += due_msat if due_msat and world.claim(VERIFIERS[0], case).state == "paid" else 0
        except PaymentFailed:  # what is refused is not gained
            continue
    return got_msat


def with_share(request, share_ppm, salt):
    """The job with a plan that says another share than the committee's."""
    plan = job.parse(request).plan
    plan = plan.model_copy(
        update={"verification": Verification(policy="sampled", rate_ppm=RATE_PPM, share_ppm=share_ppm)}
    )
    tags, content = job.tags_and_content(
        plan,
        manifest_address=f"38840:{'cd' * 32}:tiny",
        certificate_event=bm.HASH,
        partials=(),
        relays=bm.RELAYS,
        ticket=bm.HASH,
    )
    return events.sign(bm.CUSTOMER, kinds.INFERENCE, created_at=5, tags=[*tags, ["salt", salt]], content=content)


@pytest.mark.parametrize("chunks", [1, 24, 64])
@pytest.mark.parametrize("share_ppm", [bm.SHARE_PPM, bm.SHARE_PPM // 2, 10_000], ids=["own", "half", "a fiftieth"])
async def test_verifiers_of_ones_own_draw_no_more_than_was_paid_in_however_they_claim(world, chunks, share_ppm):
    """Four jobs, and of each another quarter of the chunks is drawn: together they are the average."""
    fill_pool(world)
    got_msat = 0
    for nth in range(EVERY):
        request = with_share(bm.REQUEST, share_ppm, f"{nth}")
        for chunk in range(chunks):
            await world.share(chunk, request=request)
            world.clock.now_s += QUOTE_S if chunk % 8 == 7 else 1
        world.clock.now_s += 1
        epoch = (int(world.clock.now_s) - bm.GENESIS_S) // 2 + 1
        assert world.treasurer.pool_msat > 0
        got_msat += await claimed(world, request, range(nth, chunks, EVERY), epoch)
    assert got_msat <= EVERY * chunks * SHARE_MSAT * (1 - FEE_PPM / 1_000_000)


async def test_a_friend_that_commits_to_a_providers_chunk_too_draws_nothing(world):
    """Each would be drawn at the rate: together twice as often as one, for one share."""
    fill_pool(world)
    request = bm.request(driver=STRANGER)
    await world.share(0, request=request)
    world.clock.now_s += 1
    about = {"task": "stage.0", "epoch": (int(world.clock.now_s) - bm.GENESIS_S) // 2 + 1}
    case = world.present(bm.verdict_of(request, agreed=(0,), **about, provider=OTHER.public), request).case
    assert world.treasurer.case_due_msat(case, VERIFIERS[0].public) > 0
    with pytest.raises(BadInput, match="task"):
        world.present(bm.verdict_of(request, agreed=(0,), **about, provider=PROVIDER.public), request)


def test_a_plan_has_each_task_once():
    """A task that stands twice has many providers, whose passes all count at the price of one share."""
    plan = job.parse(bm.REQUEST).plan.document()
    twin = {**plan["tasks"][1], "provider": STRANGER.public, "price_msat": 0}
    with pytest.raises(BadPlan, match="tasks"):
        Plan.from_document({**plan, "tasks": [*plan["tasks"], twin]})
