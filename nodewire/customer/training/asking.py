"""Getting a shard of a round to a provider: whom to ask, the request, its ticket, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping

from nodewire.customer.training import carrying, choosing, watching
from nodewire.customer.training.choosing import Need
from nodewire.customer.training.course import Course
from nodewire.customer.training.machine import Lost
from nodewire.customer.training.requesting import Ask
from nodewire.errors import NodewireError, NoProvider, OverBudget
from nodewire.nostr import event as events
from nodewire.nostr import nip59
from nodewire.protocol import kinds
from nodewire.protocol import round as rounds
from nodewire.protocol.trainer import Trainer

log = logging.getLogger("nodewire.customer")

ANSWER_S = 20.0
"""Within which a provider must answer a request."""
FIND_S = 30.0
"""For how long providers are looked for."""
_TICKET_S = 1.0
_AGAIN_S = 2.0


async def publish(course: Course, round_: int, indices: tuple[int, ...]) -> None:
    """Find providers for shards, sign the requests and send them out."""
    state = course.state
    assert state.theta is not None
    gflop = rounds.work_gflop(course.recipe, course.recipe.steps)
    needs = {
        index: choosing.need_of(
            course.recipe, course.kind, blob_bytes=max(state.shards[index].bytes, state.theta.bytes), gflop=gflop
        )
        for index in indices
    }
    market, dealt = await _find(course, needs)
    # Who has a shard of this round already gets a deposit for another: what it is owed for the first is paid later.
    taken = {work.provider for work in course.state.works if work.status != "idle"}
    last = {known: request for known, request in course.state.paid_last.items() if known not in taken}
    groups = choosing.grouped(dealt, last)
    price_msat = sum(course.requests.price(provider, market, None)[0] for provider in dealt.values())
    if state.committed_msat + price_msat > course.budget_msat:
        raise OverBudget(
            "budget", f"{state.committed_msat + price_msat} msat with round {round_}, at most {course.budget_msat}"
        )
    made = []
    for previous, some in groups:
        carried = {index: kept for index in some if (kept := carrying.left(course, index, dealt[index])) is not None}
        ask = Ask(round_, [(index, dealt[index]) for index in some], previous, carried)
        made.append(await course.requests.make(ask, market, state.theta, state.shards))
    for published in made:
        course.asked_s[published.request] = time.monotonic()
        course.take(published)
    for published in made:
        await course.session.pool.publish(events.parse(published.event))


async def _find(course: Course, needs: Mapping[int, Need]) -> tuple[Mapping[str, Trainer], dict[int, str]]:
    """The trainers' ads, and one of them for every shard; waited for, for a while. Raises NoProvider."""
    until_s = time.monotonic() + FIND_S
    while True:
        market = await choosing.trainers(course.session.pool)
        works = {work.index: work for work in course.state.works}
        try:
            return market, choosing.deal(
                needs,
                market,
                busy=Counter(work.provider for work in works.values() if work.status in ("asked", "working")),
                before={index: works[index].provider for index in needs if works[index].provider},
                excluded={index: works[index].excluded for index in needs},
                failures=Counter(provider for provider, _ in course.state.failures),
            )
        except NoProvider:
            if time.monotonic() > until_s:
                raise
        await asyncio.sleep(_AGAIN_S)


async def call(course: Course, request: str, provider: str) -> None:
    """Send the ticket, again and again: relays keep none."""
    keys, pool = course.session.keys, course.session.pool
    ticket = course.state.debts[request, provider].row.ticket
    until_s = time.monotonic() + ANSWER_S
    while time.monotonic() < until_s:
        now_s = int(time.time())
        rumor = nip59.rumor(keys.public, kinds.TICKET, created_at=now_s, content=ticket)
        try:
            await pool.publish(nip59.wrap(rumor, keys, provider, now_s=now_s, ephemeral=True), timeout_s=5.0)
        except NodewireError as error:
            log.debug("ticket: %s", error)
        await asyncio.sleep(_TICKET_S)
    course.take(Lost(request, provider, "no answer"))


async def wait(course: Course, request: str, provider: str) -> None:
    """Wait as long as results take here, then give the provider up."""
    begun_s = course.asked_s.setdefault(request, time.monotonic())
    while True:
        patience_s = watching.patience_s(course.state.took_ms, course.recipe.deadline)
        left_s = begun_s + patience_s - time.monotonic()
        if left_s <= 0:
            break
        await asyncio.sleep(min(1.0, left_s))  # what others take may shorten it meanwhile
    course.take(Lost(request, provider, f"no result within {patience_s:.0f} s"))
