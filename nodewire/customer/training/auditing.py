"""Judging a round's results beside each other, and having parts of them shown and computed again."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from nodewire.customer.training import receiving
from nodewire.customer.training.coordinating import Late
from nodewire.customer.training.course import Course
from nodewire.customer.training.machine import Audited, Judged
from nodewire.errors import NodewireError
from nodewire.nostr import event as events
from nodewire.protocol import audit as audits
from nodewire.protocol import delivery
from nodewire.protocol.audit import Showing

AUDIT_S = 60.0
"""Within which a provider must show what is audited."""


async def judge(course: Course, round_: int, waiting: Sequence[tuple[str, str]]) -> None:
    if round_ < course.state.round:
        for request, provider in waiting:
            await _judge_late(course, Late(request, round_), provider)
        return
    judged = await course.coordinator.judge(round_)
    for request, provider in waiting:
        accepted, reason = judged[course.state.debts[request, provider].row.index]
        audit_ = accepted and float(course.recipe.audit.fraction) > 0
        course.take(Judged(request, provider, accepted, reason, audit_))


async def _judge_late(course: Course, late: Late, provider: str) -> None:
    index = course.state.debts[late.request, provider].row.index
    accepted, reason = await course.coordinator.judge_late(late, index, course.state.thetas[late.round])
    audit_ = accepted and float(course.recipe.audit.fraction) > 0
    course.take(Judged(late.request, provider, accepted, reason, audit_))


async def audit(course: Course, request: str, provider: str) -> None:
    """Draw segments, now that the work is committed to; ask for their ends, and compute them again."""
    debt = course.state.debts[request, provider]
    delivered = delivery.parse(events.parse(debt.result))
    opened, index = receiving.opened(course, delivered), debt.row.index
    wanted = await course.coordinator.draw(debt.round, index, secrets.token_bytes(32), delivered.commitment)
    if not wanted:  # a customer that died has forgotten what it would need
        course.take(Audited(request, provider, True, ""))
        return
    answer: asyncio.Future[Showing] = asyncio.get_running_loop().create_future()
    course.showing[request, provider] = answer
    keys, now_s = course.session.keys, int(time.time())
    try:
        await course.session.pool.publish(
            audits.ask(keys, course.kind, request, provider, wanted, created_at=now_s), timeout_s=10.0
        )
        async with asyncio.timeout(AUDIT_S):
            shown = {one.segment: one for one in (await answer).shown}
        files = {n: (await course.session.blobs.get(shown[n].blob), shown[n]) for n in wanted if n in shown}
    except TimeoutError:
        course.take(Audited(request, provider, False, "withheld: it shows nothing"))
        return
    except NodewireError as error:
        course.take(Audited(request, provider, False, f"{error.code}: {error}"[:200]))
        return
    passed, reason = await course.coordinator.audit(delivered, debt.round, index, opened, files)
    course.take(Audited(request, provider, passed, reason))
