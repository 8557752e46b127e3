"""Judging a round's results beside each other, and having parts of them shown and computed again."""

from __future__ import annotations

import asyncio
import logging
import time
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from nodewire.errors import NodewireError, TooLarge, Withheld
from nodewire.nostr import event as events
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.customer.machine.events import AuditOutcome, ResultJudgement
from nodewire.training.customer.market import results
from nodewire.training.customer.market.coordinator_client import LateResult, Past, Verdict
from nodewire.training.protocol import audit as audits
from nodewire.training.protocol import round_close
from nodewire.training.protocol.round import RoundTicket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from nodewire.nostr.event import Event
    from nodewire.training.customer.market.context import Course
    from nodewire.training.protocol.audit import AuditAnswer, SnapshotCiphertext

log = logging.getLogger("nodewire.customer")

Fetched = TypeVar("Fetched")

AUDIT_S = 60.0
AUDIT_TIMES = 3
"""Within which a provider must show what is audited, and so many times what its rounds take: it may have to compute all
of the round again, beside the next one."""
FETCH_AGAIN_S = 2.0
ASK_AGAIN_S = 20.0
"""A provider that was restarted has heard nothing."""


async def judge(course: Course, round_: int, waiting: Sequence[tuple[str, str]]) -> None:
    """Judge the results (request, provider) of a round beside each other, or a late one by its own round's weights."""
    if round_ < course.state.round or course.state.debts[waiting[0]].undone:
        for request, provider in waiting:
            await _judge_late(course, LateResult(request, round_), provider)
        return
    debts = course.state.debts
    judged = await course.coordinator.judge(round_, [debts[key].row.index for key in waiting])
    is_audited = float(course.recipe.audit.fraction) > 0
    for request, provider in waiting:
        said = judged[course.state.debts[request, provider].row.index]
        course.record(_judged(request, provider, said, is_audited))


async def _judge_late(course: Course, late: LateResult, provider: str) -> None:
    debt = course.state.debts[late.request, provider]
    assert debt.theta is not None
    said = await course.coordinator.judge_late(late, debt.row.index, debt.theta, alone=debt.undone)
    course.record(_judged(late.request, provider, said, float(course.recipe.audit.fraction) > 0))


def _judged(request: str, provider: str, said: Verdict, is_audited: bool) -> ResultJudgement:
    audit_ = said.accepted and is_audited
    return ResultJudgement(
        request, provider, said.accepted, said.reason, audit_, audit_ and said.doubted, audit_ and said.harms
    )


async def audit(course: Course, request: str, provider: str) -> None:
    """Have the ends of the segments shown that the round's close draws, and compute them again.

    All that it needs outlives this process: the close in the journal, theta and update as sealed blobs, the provider's
    answer at the relays. So there is no way to a balance around it. When another audit of the same provider has failed
    meanwhile, nothing depends on this one any more.
    """
    debt = course.state.debts[request, provider]
    if debt.balance != "held":
        return
    delivered = course.deliveries.get(debt.result)
    close = events.parse(course.state.closes[debt.close])
    closed = round_close.parse(close)
    counted = closed.close.find_result(request, provider)
    assert counted is not None, debt.close
    drawn = round_close.drawn(closed, counted, course.recipe, debt.row.steps)
    opened, index = course.deliveries.opened(debt.result), debt.row.index
    wanted = round_close.shown(drawn, course.recipe, debt.row.steps)
    patience_s = AUDIT_S + AUDIT_TIMES * debt.row.steps * _step_s(course, provider)
    ask, answer = await _answer(course, request, provider, close, wanted, patience_s)
    course.answers.pop((request, provider), None)
    if course.state.debts[request, provider].balance != "held":
        return
    try:
        if answer is None:
            raise Withheld("snapshots", "it shows nothing")
        showing, until_s = results.shown(course, answer), time.monotonic() + patience_s
        files = await _patiently(lambda: _files(course, showing, wanted), until_s)
        update = await _patiently(lambda: course.session.blobs.get(delivered.blob, inline=delivered.result), until_s)
    except NodewireError as error:
        passed, reason = False, f"{error.code}: {error}"[:200]
    else:
        begun = RoundTicket.parse(debt.row.ticket).carried
        assert debt.theta is not None
        past = Past(debt.round, index, debt.row.steps, update, opened, debt.theta, begun)

        def is_undone() -> bool:
            return course.state.debts[request, provider].undone

        passed, reason = await course.coordinator.audit(past, drawn, files, is_undone)
    course.record(AuditOutcome(request, provider, passed, reason, ask.to_json(), answer.to_json() if answer else ""))


def _step_s(course: Course, provider: str) -> float:
    """Seconds that a step takes at a provider, from what its results took here."""
    return median(course.state.step_us.get(provider, (0,))) / 1e6


async def _answer(
    course: Course, request: str, provider: str, close: Event, wanted: Sequence[int], patience_s: float
) -> tuple[Event, Event | None]:
    """What is asked, and what the provider says to it; it may have said so before a crash of this customer.

    A relay that takes nothing is not the provider's fault: its time runs from when the question is out.
    """
    pool, keys = course.session.pool, course.session.keys
    heard = course.answers.setdefault((request, provider), asyncio.get_running_loop().create_future())
    until_s: float | None = None
    while True:
        asked = audits.ask(keys, course.kind, request, provider, close.id, wanted, created_at=int(time.time()))
        if not heard.done():
            try:
                await pool.publish(close, timeout_s=10.0)
                await pool.publish(asked, timeout_s=10.0)
            except NodewireError as error:
                log.warning("round %s: %s is not asked for snapshots yet: %s", request[:8], provider[:8], error)
            else:
                until_s = until_s or time.monotonic() + patience_s
        left_s = ASK_AGAIN_S if until_s is None else min(ASK_AGAIN_S, until_s - time.monotonic())
        await asyncio.wait([heard], timeout=max(0.0, left_s))
        if heard.done():
            return asked, heard.result()
        is_held = course.state.debts[request, provider].balance == "held"
        if not is_held or (until_s is not None and time.monotonic() >= until_s):
            return asked, None


async def _patiently(fetch: Callable[[], Awaitable[Fetched]], until_s: float) -> Fetched:
    """What is fetched, tried again while it is only out of reach: a server that is down is not the provider's fault.

    Raises:
        NodewireError: it is not what was said; or not to be had by `until_s` (monotonic).

    """
    while True:
        try:
            return await fetch()
        except NodewireError as error:
            if not error.retryable or time.monotonic() > until_s:
                raise
            log.warning("what a provider shows is not to be had yet: %s", error)
        await asyncio.sleep(FETCH_AGAIN_S)


async def _files(
    course: Course, showing: AuditAnswer, wanted: Sequence[int]
) -> dict[int, tuple[Path, SnapshotCiphertext]]:
    """The snapshots' ciphertexts, as far as they are shown. Raises NodewireError: one is not to be had."""
    shown, most = {one.segment: one for one in showing.shown}, sealed_bytes(audits.most_bytes(course.recipe))
    for n in wanted:
        if n in shown and shown[n].blob.bytes > most:
            raise TooLarge("snapshot", f"{shown[n].blob.bytes} bytes, at most {most}")
    return {n: (await course.session.blobs.get(shown[n].blob), shown[n]) for n in wanted if n in shown}
