"""A training's transcript, from its journal: so it can be written again at any time. nips/36."""

from __future__ import annotations

import logging

from nodewire.errors import NodewireError
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip44
from nodewire.nostr.nips.nip01 import Filter
from nodewire.training.customer.machine import events as happened
from nodewire.training.customer.market.context import Course
from nodewire.training.protocol.audit import AuditAnswer
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails
from nodewire.training.protocol.round import RoundTicket
from nodewire.training.protocol.transcript import (
    BlamedResult,
    BoughtSteps,
    OpenedShard,
    OuterStepRecord,
    Payment,
    RevealedDocuments,
    Transcript,
    UndoneSteps,
    WeighedResult,
)

log = logging.getLogger("nodewire.customer")

_ZAPPED = 9735


async def transcribe(course: Course, salt: str) -> Transcript:
    """All that happened so far, signed; after at least one outer step."""
    requests: dict[str, happened.RequestPublication] = {}
    delivered: dict[tuple[str, str], str] = {}
    steps: dict[str, str] = {}
    """Requests for outer steps: a step is made again from its results, whoever made it."""
    step_results: dict[str, str] = {}
    closes, asks, answers, payments = [], [], [], []
    made: list[OuterStepRecord] = []
    undone: list[UndoneSteps] = []
    recipe, before, shards = course.recipe, "", 0
    for event in course.journal.events():
        match event:
            case happened.TrainingStart():
                before, shards = event.theta.plain_sha256, len(event.shards)
            case happened.RequestPublication():
                requests[event.request] = event
            case happened.StepPublication():
                steps[event.request] = event.event
            case happened.ResultArrival() if event.request in steps:
                step_results.setdefault(event.request, event.event)
            case happened.ResultArrival():
                delivered.setdefault((event.request, event.provider), event.event)
            case happened.ClosePublication():
                closes.append(event.event)
            case happened.AuditOutcome():
                asks += [event.ask] if event.ask else []
                answers += [event.answer] if event.answer else []
            case happened.ResultPayment():
                payments.append(
                    Payment(
                        request=event.request, provider=event.provider, part=event.part, amount_msat=event.amount_msat
                    )
                )
            case happened.StepCompletion():
                results = tuple(_weighed(one, event.round, recipe) for one in event.counted)
                after = event.theta.plain_sha256
                made.append(
                    OuterStepRecord(round=event.round, before=before, after=after, loss=event.loss, results=results)
                )
                before = after
            case happened.StepRollback(round_, failed):
                blamed = tuple(BlamedResult(request=request, provider=provider) for request, provider in failed)
                undone.append(UndoneSteps(failed=blamed, rounds=tuple(made[round_:])))
                before = made[round_].before
                del made[round_:]
    return Transcript(
        customer=course.session.keys.public,
        job=course.requests.job,
        salt=salt,
        recipe=recipe.document(),
        shards=shards,
        network=course.session.network,
        requests=tuple(one.event for one in requests.values()),
        results=tuple(delivered.values()),
        closes=tuple(closes),
        asks=tuple(asks),
        answers=tuple(answers),
        receipts=await _receipts(course, [*requests, *steps]),
        payments=tuple(one for one in payments if one.request not in steps),
        rounds=tuple(made),
        undone=tuple(undone),
        weights=before,
        bought=BoughtSteps(
            requests=tuple(steps.values()),
            results=tuple(step_results.values()),
            payments=tuple(one for one in payments if one.request in steps),
        )
        if steps
        else None,
        opened=_opened(course, list(requests.values()), list(delivered.values()), answers),
    ).signed(course.session.keys)


def _weighed(counted: happened.Contribution, round_: int, recipe: Recipe) -> WeighedResult:
    return WeighedResult(
        request=counted.request,
        provider=counted.provider,
        index=counted.index,
        round=counted.round,
        steps=counted.steps,
        weight=recipe.weight(counted.steps, round_ - counted.round),
    )


def _opened(
    course: Course, requests: list[happened.RequestPublication], results: list[str], answers: list[str]
) -> RevealedDocuments:
    def plain(text: str) -> tuple[str, str]:
        event = events.parse(text)
        key = nip44.conversation_key(course.session.keys, event.pubkey)
        return event.id, nip44.decrypt(event.content, key)

    shards, found = [], {}
    for published in requests:
        for row in published.rows:
            ticket = RoundTicket.parse(row.ticket)
            shards.append(
                OpenedShard(
                    request=published.request,
                    provider=row.provider,
                    theta_key=ticket.theta_key,
                    theta_sha256=ticket.theta_sha256,
                    shard_key=ticket.shard_key,
                    shard_sha256=ticket.shard_sha256,
                    start_key=ticket.start_key,
                    carried=ticket.carried,
                )
            )
    for text in results:
        try:
            id_, said = plain(text)
            found[id_] = DeliveryDetails.parse(said).document()
        except NodewireError as error:  # it was rejected for that
            log.info("a result cannot be opened for the transcript: %s", error)
    shown = {}
    for text in answers:
        try:
            id_, said = plain(text)
            shown[id_] = AuditAnswer.parse(said).document()
        except NodewireError as error:
            log.info("an answer cannot be opened for the transcript: %s", error)
    return RevealedDocuments(results=found, answers=shown, shards=tuple(shards))


async def _receipts(course: Course, requests: list[str]) -> tuple[str, ...]:
    """The zap receipts that the relays have; none if they do not answer."""
    wanted = Filter(kinds=frozenset({_ZAPPED}), tags={"e": frozenset(requests[-256:])})
    try:
        found = await course.session.pool.fetch([wanted])
    except NodewireError as error:
        log.warning("no zap receipts for the transcript: %s", error)
        return ()
    providers = {provider for _, provider in course.state.debts}
    return tuple(event.to_json() for event in reversed(found) if event.pubkey in providers)
