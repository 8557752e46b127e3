"""What providers say of their shards, and what they deliver: heard, fetched, opened, and seen to be what it should."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, BadHash, BadInput, NodewireError, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip44
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.model.families import HEADER_BYTES
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.customer.machine.events import DepositRequest, ResultArrival, ResultReceipt, ShardLoss, WorkStart
from nodewire.training.customer.market.coordinator_client import LateResult
from nodewire.training.protocol import outer_step
from nodewire.training.protocol.audit import AuditAnswer
from nodewire.training.protocol.result import Progress
from nodewire.training.protocol.round import DEPOSIT

if TYPE_CHECKING:
    from nodewire.nostr.subscription import Subscription
    from nodewire.training.customer.market.context import Course

log = logging.getLogger("nodewire.customer")

_LEAST_TOLD_MS = 500
"""What is known of two events of the same second."""


async def fetch(course: Course, request: str, provider: str) -> None:
    """Get what was delivered; what is no result is lost, and its reason is the error's code and text."""
    work = course.state.work(request, provider)
    if work is None:
        return
    fine, reason = await fetched(course, request, provider, work.result)
    if not fine:
        course.record(ShardLoss(request, provider, reason))
        return
    carried = course.deliveries.opened(work.result).carried
    course.record(ResultReceipt(request, provider, carried or ""))


async def fetched(course: Course, request: str, provider: str, result: str) -> tuple[bool, str]:
    """Fetch and open what was delivered, and give it to the coordinator; if it is no result, why."""
    row = course.state.debts[request, provider].row
    try:
        delivered, opening = course.deliveries.get(result), course.deliveries.opened(result)
        round_ = course.state.debts[request, provider].round
        if opening.commitment(provider, request, round_, row.index) != delivered.commitment:
            raise BadHash("x", "not what the result commits to")
        if len(opening.states) != -(-row.steps // course.recipe.audit.segment):
            raise BadInput("states", f"{len(opening.states)} for {row.steps} steps")
        if (opening.carried is None) == course.recipe.compression.carries:
            raise BadInput("carried", "to be said where the recipe carries something, and only there")
        most = sealed_bytes(course.recipe.upload_bytes() + HEADER_BYTES * (len(course.recipe.shapes()) + 1))
        if delivered.blob.bytes > most:
            raise TooLarge("result", f"{delivered.blob.bytes} bytes, at most {most}")
        if delivered.amount_msat != row.balance_msat:
            raise BadInput("amount", f"{delivered.amount_msat} msat, agreed on {row.balance_msat} msat")
        update = delivered.result if delivered.result is not None else await course.session.blobs.get(delivered.blob)
    except NodewireError as error:
        return False, f"{error.code}: {error}"[:200]
    late = LateResult(request, round_) if course.state.is_late(request, provider) else None
    return await course.coordinator.result(round_, row.index, row.steps, update, opening.key, opening.sha256, late)


def shown(course: Course, answer: events.Event) -> AuditAnswer:
    """What a provider shows for an audit. Raises BadCiphertext, BadEvent ...: it cannot be read."""
    return AuditAnswer.parse(decrypted(course, answer.content, answer.pubkey))


def decrypted(course: Course, ciphertext: str, provider: str) -> str:
    """What a provider tells this customer alone."""
    return nip44.decrypt(ciphertext, nip44.conversation_key(course.session.keys, provider))


async def listen(course: Course, subscription: Subscription) -> None:
    """Take what providers say, until the subscription ends. Raises BadConfig: the journal cannot be written."""
    async for event in subscription:
        try:
            _heard(course, event)
        except BadConfig:  # the journal cannot be written
            raise
        except NodewireError as error:
            log.info("%d by %s ignored: %s", event.kind, event.pubkey[:8], error)


def _took_ms(course: Course, request: str, event: events.Event) -> int:
    """Since the request; by what the events say, in whole seconds, if that was before a crash of this customer."""
    asked_s = course.asked_s.get(request)
    if asked_s is not None:
        return max(1, round((time.monotonic() - asked_s) * 1000))
    created_s = events.parse(course.state.requests[request]).created_at
    return max(_LEAST_TOLD_MS, 1000 * (min(event.created_at, int(time.time())) - created_s))


def _heard(course: Course, event: events.Event) -> None:
    """A provider's word about a shard; of strangers, or of what is over, nothing is taken."""
    request = event.tag("e") or ""
    if (request, event.pubkey) not in course.state.debts:
        return
    course.hearing.record(request, event.pubkey)
    if event.kind == kinds.result_of(kinds.VERIFICATION):
        _answered(course, request, event)
    elif event.kind == kinds.FEEDBACK:
        _told(course, request, event)
    else:
        _delivered(course, request, event)


def _answered(course: Course, request: str, event: events.Event) -> None:
    """What a provider shows for an audit, for who waits for it."""
    key = request, event.pubkey
    if course.state.debts[key].balance == "held":  # also what was said before this customer died
        answer = course.answers.setdefault(key, asyncio.get_running_loop().create_future())
        if not answer.done():
            answer.set_result(event)


def _delivered(course: Course, request: str, event: events.Event) -> None:
    """A result of a shard's round, or of an outer step."""
    if event.kind == kinds.result_of(kinds.OUTER):
        outer_step.parse_result(event)
        result = event.to_json()
    else:
        result = course.deliveries.add(event)
    course.record(ResultArrival(request, event.pubkey, result, _took_ms(course, request, event)))


def _told(course: Course, request: str, event: events.Event) -> None:
    """Feedback: how far a provider is, or that it gives up."""
    said = feedback.parse(event)
    match said.status:
        case "payment-required":
            row = course.state.debts[request, event.pubkey].row
            if said.due is None or (said.due.chunk, said.due.amount_msat) != (DEPOSIT, row.deposit_msat):
                raise BadInput("payment-required", "not the deposit that was agreed on")
            course.record(DepositRequest(request, event.pubkey))
        case "processing":
            course.record(WorkStart(request, event.pubkey))
        case "error" | "busy":
            course.record(ShardLoss(request, event.pubkey, said.text or said.status))
        case "partial":
            progress = Progress.parse(decrypted(course, said.ciphertext, event.pubkey))
            course.on_change(course.state, progress, event.pubkey)
        case "success":
            return
