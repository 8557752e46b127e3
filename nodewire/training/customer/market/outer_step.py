"""Outer steps: made by this customer's own worker, or bought, checked and taken over (8842)."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING

from nodewire.errors import BadCiphertext, BadHash, BadInput, NodewireError, TooLarge
from nodewire.nostr import event as events
from nodewire.training.customer.machine import late_results, rollback, unresponsive
from nodewire.training.customer.machine.events import (
    CiphertextRef,
    Contribution,
    LocalStepChoice,
    ResultJudgement,
    ShardLoss,
    StepCompletion,
    StepPublication,
)
from nodewire.training.customer.market import results
from nodewire.training.customer.market.round_request import StepInput
from nodewire.training.customer.policy import expected_cost, provider_selection, result_deadline
from nodewire.training.customer.policy.provider_selection import Exclusion
from nodewire.training.protocol import outer_step
from nodewire.training.protocol.outer_step import MAX_INPUTS, Input, OuterDelivery, OuterDeliveryDetails

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import BlobRef
    from nodewire.training.customer.market.context import Course
    from nodewire.training.protocol.trainer_ad import Trainer


async def here(course: Course, round_: int) -> bool:
    """Make the step of `round_`; False: the coordinator is ahead of a training that has come to another end."""
    counted = late_results.counted(course.state)
    loss = await course.coordinator.step(round_, counted)
    theta = await course.coordinator.theta()
    if course.state.spoilt is not None or not set(counted) <= set(late_results.counted(course.state)):
        return False  # one of them, or of a round before, was found out meanwhile
    course.record(StepCompletion(round_, loss, theta, counted))
    course.coordinator.forget(rollback.oldest(course.state))
    return True


async def buy(course: Course, round_: int) -> None:
    """Ask a provider for the step of `round_`; where there is none that is good enough, it is to be made here."""
    state = course.state
    assert state.theta is not None
    counted = late_results.counted(state)
    used = [_used(course, one, weight) for one in counted if (weight := _weight(course, one))]
    if not 0 < len(used) <= MAX_INPUTS:
        course.record(LocalStepChoice(round_, f"{len(used)} results, a request takes {MAX_INPUTS}"))
        return
    ad = await _provider(course, used)
    if ad is None:
        course.record(LocalStepChoice(round_, "nobody on the market makes it"))
        return
    price_msat = ad[1].price_msat(outer_step.work_gflop(course.recipe, len(used)))
    if price_msat > _left_msat(course, counted):
        course.record(
            LocalStepChoice(round_, f"{price_msat} msat are more than the rounds to come leave of the budget")
        )
        return
    momenta = state.outer.momenta
    if momenta is None and round_ and outer_step.momenta_rows(course.recipe):
        momenta = await course.coordinator.momenta()
    try:
        event, row = await course.requests.make_step(round_, used, ad, state.theta, momenta)
    except (TooLarge, BadInput) as error:
        course.record(LocalStepChoice(round_, str(error)))
        return
    if late_results.counted(course.state) != counted or course.state.spoilt is not None:
        return  # another result came, or one was found out: it is pending again
    course.asked_s[event.id] = time.monotonic()
    course.record(StepPublication(round_, event.id, event.to_json(), row, counted, momenta))
    await course.session.pool.publish(event)


def _weight(course: Course, counted: Contribution) -> int:
    """Of what weighs nothing the step is not made."""
    return course.recipe.weight(counted.steps, course.state.round - counted.round)


def _used(course: Course, counted: Contribution, weight: int) -> StepInput:
    """What the step's provider needs of one result."""
    work = course.state.work(counted.request, counted.provider)
    assert work is not None
    delivered, opening = course.deliveries.get(work.result), course.deliveries.opened(work.result)
    made_of = Input(result=delivered.id, index=counted.index, weight=weight, update=delivered.blob)
    return StepInput(made_of, opening.key, opening.sha256)


def _left_msat(course: Course, counted: tuple[Contribution, ...]) -> int:
    """What the budget has left if the rounds to come cost as much as this one.

    No training ends for want of a step that could be made here.
    """
    rows = [course.state.debts[one.request, one.provider].row for one in counted]
    round_msat = sum(row.deposit_msat + row.balance_msat for row in rows)
    to_come = course.state.rounds - course.state.round - 1
    return course.budget_msat - course.state.committed_msat - to_come * round_msat


async def _provider(course: Course, used: list[StepInput]) -> tuple[str, Trainer] | None:
    """Who makes the step, and its ad: who made the last one, or the cheapest."""
    state = course.state
    try:
        market = await course.ads.now()
    except NodewireError:
        return None
    updates_bytes = max(one.input.update.bytes for one in used)
    need = provider_selection.step_need_of(course.recipe, len(used), updates_bytes=updates_bytes)
    dealt = provider_selection.deal(
        {0: need},
        market,
        busy=Counter(work.provider for work in state.late if work.status in ("asked", "working")),
        before={0: state.outer.provider},
        record=expected_cost.record_of(state, course.budget_msat),
        exclusion=Exclusion(state.outer.lost_by | state.banned | unresponsive.passed_over(state)),
    )
    return (dealt[0], market[dealt[0]]) if dealt else None


async def wait(course: Course, request: str, provider: str) -> None:
    """Wait as long as steps, or else rounds, take here, then give the provider up."""
    begun_s = course.asked_s.get(request, course.begun_s)
    while True:
        state = course.state
        took_ms = state.outer.took_ms if len(state.outer.took_ms) > 1 else state.took_ms
        patience_s = result_deadline.patience_s(took_ms, course.recipe.deadline)
        left_s = begun_s + patience_s - time.monotonic()
        if left_s <= 0:
            break
        await asyncio.sleep(min(1.0, left_s))
    course.record(ShardLoss(request, provider, f"no outer step within {patience_s:.0f} s"))


async def check(course: Course, request: str, provider: str) -> bool:
    """Fetch a bought step, compute a drawn part of it again, and take it over; False: as `here`."""
    state, job = course.state, course.state.outer
    try:
        delivered = outer_step.parse_result(events.parse(job.result))
        opening = OuterDeliveryDetails.parse(results.decrypted(course, delivered.ciphertext, provider))
        blobs = _blobs(course, delivered, opening, request)
    except NodewireError as error:
        course.record(ResultJudgement(request, provider, False, f"{error.code}: {error}"[:200]))
        return True
    try:
        paths = {what: await course.session.blobs.get(ref) for what, (ref, _) in blobs.items()}
    except NodewireError as error:
        course.record(ShardLoss(request, provider, f"{error.code}: {error}"[:200]))
        return True
    try:
        for what, (_, sealed) in blobs.items():
            await course.coordinator.bought(what, paths[what], sealed.key, sealed.plain_sha256)
    except (BadCiphertext, BadHash, TooLarge) as error:
        course.record(ResultJudgement(request, provider, False, f"{error.code}: {error}"[:200]))
        return True
    # What is computed again was not known to anybody when the provider committed to its work.
    seed = secrets.token_bytes(32)
    fine, reason, loss = await course.coordinator.check(state.round, job.counted, seed, opening.root)
    if not fine:
        course.record(ResultJudgement(request, provider, False, reason))
        return True
    if not set(job.counted) <= set(late_results.counted(course.state)):
        course.record(ResultJudgement(request, provider, True, "a result that it is made of was found out"))
        return False
    theta, momenta = blobs["theta"][1], blobs["momenta"][1] if "momenta" in blobs else None
    course.record(StepCompletion(state.round, loss, theta, job.counted, request, provider, momenta))
    course.coordinator.forget(rollback.oldest(course.state))
    return True


def _blobs(
    course: Course, delivered: OuterDelivery, opening: OuterDeliveryDetails, request: str
) -> dict[str, tuple[BlobRef, CiphertextRef]]:
    """What was delivered: weights, and momenta if the method has any.

    Raises:
        BadHash, BadInput, TooLarge: not what was asked for, or more than it can be.

    """
    row = course.state.debts[request, delivered.provider].row
    if opening.commitment(delivered.provider, request, course.state.round) != delivered.commitment:
        raise BadHash("x", "not what the result commits to")
    if delivered.amount_msat != row.balance_msat:
        raise BadInput("amount", f"{delivered.amount_msat} msat, agreed on {row.balance_msat} msat")
    rows = outer_step.momenta_rows(course.recipe)
    found = {"theta": (delivered.theta, opening.theta_key, opening.theta_sha256, 1)}
    has = [delivered.momenta is not None, opening.momenta_key is not None, opening.momenta_sha256 is not None]
    if has != [rows > 0] * 3:
        raise BadInput("momenta", f"{course.recipe.outer.method} has {rows or 'none'} of them")
    if delivered.momenta and opening.momenta_key and opening.momenta_sha256:
        found["momenta"] = (delivered.momenta, opening.momenta_key, opening.momenta_sha256, rows)
    for what, (ref, _, _, times) in found.items():
        if ref.bytes > (most := provider_selection.most_bytes(course.recipe, times)):
            raise TooLarge(what, f"{ref.bytes} bytes, at most {most}")
    return {
        what: (ref, CiphertextRef(ref.sha256, ref.bytes, key, sha256)) for what, (ref, key, sha256, _) in found.items()
    }
