"""Getting a shard of a round to a provider: whom to ask, the request, its ticket, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NoProvider, OverBudget
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip59
from nodewire.protocol import kinds
from nodewire.protocol.model import inline_blob
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.customer.machine import unresponsive
from nodewire.training.customer.machine.events import CiphertextRef, ResultTimeout, RoundQuorum, ShardLoss
from nodewire.training.customer.market import carried_state
from nodewire.training.customer.market.round_request import Ask
from nodewire.training.customer.policy import (
    expected_cost,
    provider_selection,
    result_deadline,
    step_counts,
    stranger_budget,
)
from nodewire.training.customer.policy.provider_selection import Exclusion, Need, Speeds
from nodewire.training.protocol import round as rounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.training.customer.machine.state import State
    from nodewire.training.customer.market.context import Course
    from nodewire.training.protocol.trainer_ad import Trainer

log = logging.getLogger("nodewire.customer")

ANSWER_S = 20.0
"""Within which a provider must answer a request."""
FIND_S = 30.0
"""For how long providers are looked for."""
_TICKET_S, _MOST_TICKET_S = 1.0, 4.0
"""Until a ticket is sent again; each time after twice as long."""
UNDER_WAY = ("asked", "working", "delivered")
"""Shards at somebody who may be free when they are done."""
_LOOK_S = 0.05
"""Between two looks at who is free."""


async def publish(course: Course, round_: int) -> None:
    """Find providers for the shards that have none, sign the requests and send them out.

    Where there are fewer free providers than shards, some of the shards; the others are still pending then.

    Raises:
        NoProvider: nobody is found for a shard, and nobody is at one who could be free later.
        OverBudget: it would cost more than there is.

    """
    while (found := await _find(course, round_)) is not None:
        market, dealt, steps = found
        state = course.state
        assert state.theta is not None
        price_msat = sum(course.requests.price(one, market, steps[one], None)[0] for one in dealt.values())
        if state.committed_msat + price_msat > course.budget_msat:
            raise OverBudget(
                "budget",
                f"{state.committed_msat + price_msat} msat with round {round_}, at most {course.budget_msat} msat",
            )
        # Who has a shard of this round already gets a deposit for another: what it is owed for the first is paid later.
        taken = {work.provider for work in state.works if work.status not in ("idle", "missed")}
        taken |= {work.provider for work in state.late if work.status != "accepted"}
        last = {known: request for known, request in state.paid_last.items() if known not in taken}
        made, small = [], await _small(course, state.theta)
        # Who makes outer steps fetches weights and results from servers.
        shown, most = (None, 0) if course.buys_steps else (small, inline_blob.MAX_BYTES)
        for previous, some in provider_selection.grouped(dealt, last):
            ask = Ask(
                round_,
                [(index, dealt[index]) for index in some],
                steps,
                previous,
                carried_state.find_carried(state, dealt, some),
                most,
            )
            made.append(await course.requests.make(ask, market, state.theta, state.shards, state.start, shown))
        if small is not None and any(event.tag(inline_blob.TAG) is None for _, event in made):
            await course.session.blobs.put(small)  # so many shards stand in a request that there is no room
        if not set(dealt) <= set(_idle(course, round_)):
            continue  # while a request was mined, enough results came
        for published, _ in made:
            course.asked_s[published.request] = time.monotonic()
            course.record(published)
        await asyncio.gather(*(course.session.pool.publish(event) for _, event in made))
        return


async def _small(course: Course, theta: CiphertextRef) -> bytes | None:
    """The weights' ciphertext, if it may stand in requests."""
    if theta.bytes > inline_blob.MAX_BYTES:
        return None
    path = await course.session.blobs.get(BlobRef(sha256=theta.sha256, bytes=theta.bytes))
    return path.read_bytes()


async def _find(course: Course, round_: int) -> tuple[Mapping[str, Trainer], dict[int, str], Mapping[str, int]] | None:
    """The trainers' ads, one of them for every shard that has none, and the steps that each makes in this round.

    Waits for a while; for as long as somebody is at a shard who may be free then. None: it is not needed any more.
    """
    until_s = time.monotonic() + FIND_S
    seen: tuple[State, Mapping[str, Trainer]] | None = None
    asked: Mapping[str, Trainer] = {}
    is_wary = True
    while _idle(course, round_):
        market = await course.ads.now()
        if seen is None or course.state is not seen[0] or market is not seen[1]:  # nobody becomes free otherwise
            seen = course.state, market
            asked = stranger_budget.asked(market, course.state, course.budget_msat) if is_wary else market
            if dealt := _dealt(course, asked, _idle(course, round_)):
                return market, *dealt
        if any(work.status in UNDER_WAY for work in (*course.state.works, *course.state.late)):
            until_s = time.monotonic() + FIND_S
        elif time.monotonic() > until_s and is_wary and asked is not market:  # rather strangers than nobody
            is_wary, until_s, seen = False, time.monotonic() + FIND_S, None
        elif time.monotonic() > until_s:
            raise NoProvider(f"round {round_}", "nobody on the market trains it, or all who do are busy or have failed")
        await asyncio.sleep(_LOOK_S)
    return None


def _dealt(
    course: Course, market: Mapping[str, Trainer], idle: Sequence[int]
) -> tuple[dict[int, str], Mapping[str, int]] | None:
    """One of the market for each of these shards, as far as somebody is free, and their steps; None: nobody is."""
    recipe, state = course.recipe, course.state
    each_us = step_counts.step_us(market, state.step_us, recipe.flops_per_round() // recipe.steps)
    failed = frozenset().union(*(work.excluded for work in state.works))
    silent = unresponsive.passed_over(state)
    under_way = {work.provider for work in (*state.works, *state.late) if work.status in UNDER_WAY}
    dealt = provider_selection.deal(
        {index: _need(course, index) for index in idle},
        market,
        busy=Counter(work.provider for work in (*state.works, *state.late) if work.status in ("asked", "working")),
        before={work.index: work.provider for work in state.works if work.provider},
        record=expected_cost.record_of(state, course.budget_msat),
        speeds=Speeds(
            {one: each_us[one] for one in state.step_us if one in each_us}, each_us, step_counts.late(recipe, each_us)
        ),
        exclusion=Exclusion((failed - course.forgiven) | state.banned, silent, under_way <= silent),
    )
    if not dealt:
        return None
    training = {work.provider for work in state.works if work.request} | set(dealt.values())
    return dealt, step_counts.steps(recipe, training, each_us)


def _need(course: Course, index: int) -> Need:
    state, recipe = course.state, course.recipe
    assert state.theta is not None
    weights = max(state.theta.bytes, state.start.bytes if state.start else 0)
    gflop = rounds.work_gflop(recipe, recipe.steps)
    return provider_selection.need_of(
        recipe, course.kind, shard_bytes=state.shards[index].bytes, weights_bytes=weights, gflop=gflop
    )


def _idle(course: Course, round_: int) -> list[int]:
    """The shards that somebody is to be found for."""
    state = course.state
    if state.round != round_ or state.is_quorate or state.spoilt is not None:
        return []
    return [work.index for work in state.works if work.status == "idle"]


async def call(course: Course, request: str, provider: str) -> None:
    """Send the ticket, again and again: relays keep none."""
    keys, pool = course.session.keys, course.session.pool
    ticket = course.state.debts[request, provider].row.ticket
    until_s, pause_s = time.monotonic() + ANSWER_S, _TICKET_S
    while time.monotonic() < until_s:
        now_s = int(time.time())
        rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=ticket)
        try:
            await pool.publish(nip59.wrap(rumor, keys, provider, now_s=now_s, ephemeral=True), timeout_s=5.0)
        except NodewireError as error:
            log.debug("ticket: %s", error)
        await asyncio.sleep(min(pause_s, max(0.0, until_s - time.monotonic())))
        pause_s = min(2 * pause_s, _MOST_TICKET_S)
    course.record(ShardLoss(request, provider, unresponsive.NO_ANSWER))


async def wait(course: Course, request: str, provider: str) -> None:
    """Wait as long as results take here, and while there are signs of life; what comes by its deadline comes late."""
    begun_s = course.asked_s.get(request, course.begun_s)
    while True:
        now_s = time.monotonic()
        patience_s = result_deadline.patience_s(course.state.took_ms, course.recipe.deadline)
        by_patience_s = begun_s + patience_s
        quiet_s = max(begun_s, course.hearing.silent_since_s(request, provider)) + result_deadline.QUIET_S
        if by_patience_s <= now_s:
            course.record(ResultTimeout(request, provider, f"no result within {patience_s:.0f} s"))
            return
        if quiet_s <= now_s:
            course.record(ResultTimeout(request, provider, f"{unresponsive.NO_WORD} {result_deadline.QUIET_S:.0f} s"))
            return
        await asyncio.sleep(min(1.0, by_patience_s - now_s, quiet_s - now_s))  # what others take may shorten it


async def wait_late(course: Course, request: str, provider: str) -> None:
    """Wait for a late result up to its deadline, as long as there is a sign of life; then it is lost."""
    given_s = course.recipe.deadline + result_deadline.GRACE_S
    if request in course.asked_s:  # a clock that is set meanwhile changes nothing of what its provider was told
        by_deadline_s = course.asked_s[request] + given_s
    else:  # who was dead itself hears first what came meanwhile
        deadline_s = events.parse(course.state.requests[request]).created_at + given_s
        by_deadline_s = max(time.monotonic() + deadline_s - time.time(), course.begun_s + result_deadline.GRACE_S)
    while True:
        now_s = time.monotonic()
        heard_s = max(course.asked_s.get(request, 0.0), course.hearing.silent_since_s(request, provider))
        silent_s = heard_s + result_deadline.SILENT_S
        if by_deadline_s <= now_s:
            course.record(ShardLoss(request, provider, f"no result by its deadline of {course.recipe.deadline} s"))
            return
        if silent_s <= now_s:
            course.record(ShardLoss(request, provider, f"{unresponsive.NO_WORD} {result_deadline.SILENT_S:.0f} s"))
            return
        await asyncio.sleep(min(1.0, by_deadline_s - now_s, silent_s - now_s))


async def linger(course: Course, round_: int) -> None:
    """Enough results are there: wait for the others a little, if anybody is at one."""
    requests = {work.request for work in course.state.works if work.request}
    begun_s = min((course.asked_s.get(request, course.begun_s) for request in requests), default=course.begun_s)
    while any(work.status in UNDER_WAY for work in course.state.works):
        left_s = begun_s + result_deadline.linger_s(course.state.took_ms, course.recipe.deadline) - time.monotonic()
        if left_s <= 0:
            break
        await asyncio.sleep(min(0.5, left_s))
    course.record(RoundQuorum(round_))
