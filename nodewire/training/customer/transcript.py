"""A training's transcript, from its journal: so it can be written again at any time. nips/36."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip44
from nodewire.nostr.nips.nip01 import Filter
from nodewire.training.customer.machine import events as happened
from nodewire.training.protocol.audit import AuditAnswer
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

if TYPE_CHECKING:
    from nodewire.training.customer.market.context import Course
    from nodewire.training.protocol.recipe import Recipe

log = logging.getLogger("nodewire.customer")

_ZAPPED = 9735


class JournalSummary:
    """What a training's journal says, up to the event that was added last.

    Of outer steps the requests are kept apart: a step is made again from its results, whoever made it.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.requests: dict[str, happened.RequestPublication] = {}
        """Of rounds, by their ids."""
        self.results: dict[tuple[str, str], str] = {}
        """By request and provider."""
        self.steps: dict[str, str] = {}
        """Requests for outer steps, by their ids."""
        self.step_results: dict[str, str] = {}
        self.closes: list[str] = []
        self.asks: list[str] = []
        self.answers: list[str] = []
        self.payments: list[Payment] = []
        self.shards = 0
        self.weights = ""
        """The SHA-256 of those that stand now."""
        self.rounds: list[OuterStepRecord] = []
        self.rollbacks: list[UndoneSteps] = []

    def add(self, event: happened.Event) -> None:
        """Take note of the journal's next event."""
        match event:
            case happened.TrainingStart():
                self.weights, self.shards = event.theta.plain_sha256, len(event.shards)
            case happened.RequestPublication():
                self.requests[event.request] = event
            case happened.StepPublication():
                self.steps[event.request] = event.event
            case happened.ResultArrival() if event.request in self.steps:
                self.step_results.setdefault(event.request, event.event)
            case happened.ResultArrival():
                self.results.setdefault((event.request, event.provider), event.event)
            case happened.ClosePublication():
                self.closes.append(event.event)
            case happened.AuditOutcome():
                self.asks += [event.ask] if event.ask else []
                self.answers += [event.answer] if event.answer else []
            case happened.ResultPayment():
                self._add_payment(event)
            case happened.StepCompletion():
                self._add_step(event)
            case happened.StepRollback():
                self._roll_back(event)

    def bought(self) -> BoughtSteps | None:
        """The outer steps that providers made; None if the customer made all."""
        if not self.steps:
            return None
        return BoughtSteps(
            requests=tuple(self.steps.values()),
            results=tuple(self.step_results.values()),
            payments=tuple(one for one in self.payments if one.request in self.steps),
        )

    def _add_payment(self, payment: happened.ResultPayment) -> None:
        self.payments.append(
            Payment(
                request=payment.request, provider=payment.provider, part=payment.part, amount_msat=payment.amount_msat
            )
        )

    def _add_step(self, step: happened.StepCompletion) -> None:
        results = tuple(_weighed(one, step.round, self._recipe) for one in step.counted)
        after = step.theta.plain_sha256
        self.rounds.append(
            OuterStepRecord(round=step.round, before=self.weights, after=after, loss=step.loss, results=results)
        )
        self.weights = after

    def _roll_back(self, rollback: happened.StepRollback) -> None:
        blamed = tuple(BlamedResult(request=request, provider=provider) for request, provider in rollback.failed)
        self.rollbacks.append(UndoneSteps(failed=blamed, rounds=tuple(self.rounds[rollback.round :])))
        self.weights = self.rounds[rollback.round].before
        del self.rounds[rollback.round :]


async def transcribe(course: Course, salt: str) -> Transcript:
    """All that happened so far, signed; after at least one outer step."""
    summary = JournalSummary(course.recipe)
    for event in course.journal.events():
        summary.add(event)
    return Transcript(
        customer=course.session.keys.public,
        job=course.requests.job,
        salt=salt,
        recipe=course.recipe.document(),
        shards=summary.shards,
        network=course.session.network,
        requests=tuple(one.event for one in summary.requests.values()),
        results=tuple(summary.results.values()),
        closes=tuple(summary.closes),
        asks=tuple(summary.asks),
        answers=tuple(summary.answers),
        receipts=await _receipts(course, [*summary.requests, *summary.steps]),
        payments=tuple(one for one in summary.payments if one.request not in summary.steps),
        rounds=tuple(summary.rounds),
        undone=tuple(summary.rollbacks),
        weights=summary.weights,
        bought=summary.bought(),
        opened=_opened(course, list(summary.requests.values()), list(summary.results.values()), summary.answers),
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
