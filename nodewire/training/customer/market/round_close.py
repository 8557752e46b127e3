"""Closing a round: signed and published when all its results are there, and before anything is drawn of them."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from nodewire.training.customer.machine.events import ClosePublication
from nodewire.training.protocol import round_close
from nodewire.training.protocol.round_close import MAX_COUNTED, MAX_OTHERS, CountedResult

if TYPE_CHECKING:
    from nodewire.training.customer.market.context import Course


async def close(course: Course, round_: int, undone: bool = False) -> None:
    """Name the results that count. What was signed is written down first: there is never a second draw of a result."""
    state = course.state
    keys = state.unclosed(round_, undone)[:MAX_COUNTED]
    if not keys:
        return
    counted = []
    for request, provider in keys:
        debt = state.debts[request, provider]
        delivered = course.deliveries.get(debt.result)
        counted.append(
            CountedResult(
                request=request,
                provider=provider,
                index=debt.row.index,
                result=delivered.id,
                commitment=delivered.commitment,
                doubted=debt.doubted,
            )
        )
    others = [
        course.deliveries.get(debt.result).id
        for (request, provider), debt in state.debts.items()
        if (debt.round, debt.undone) == (round_, undone)
        and debt.result
        and debt.balance == "none"
        and state.work(request, provider) is None
    ]
    made = round_close.Close(
        job=course.requests.job,
        round=round_,
        nonce=secrets.token_hex(32),
        results=tuple(counted),
        others=tuple(others[-MAX_OTHERS:]),
    )
    event = round_close.build(course.session.keys, course.kind, made, created_at=int(time.time()))
    course.record(ClosePublication(round_, event.id, event.to_json(), keys))
