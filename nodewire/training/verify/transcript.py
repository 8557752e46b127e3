"""What a training's transcript says, held against itself: signatures, seals, commitments, draws, weights, payments.

Nothing is fetched and nothing computed here (`nodewire.training.verify.recomputation` does that); a fault names round
and provider.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from nodewire.errors import NodewireError
from nodewire.nostr import event as events
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.protocol import kinds
from nodewire.training.protocol import audit, outer_step, round_close
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.audit import AuditAnswer
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import Delivery, DeliveryDetails
from nodewire.training.protocol.round import BALANCE, DEPOSIT, RoundRequest, RoundTicket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nodewire.nostr.event import Event
    from nodewire.training.protocol.outer_step import OuterRequest
    from nodewire.training.protocol.round_close import CloseEvent, CountedResult
    from nodewire.training.protocol.transcript import BoughtSteps, OpenedShard, OuterStepRecord, Transcript

MAX_FAULTS = 1_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """`step` is one of what is checked, or of what is computed again.

    Checked: signature, recipe, request, result, close, draw, answer, round, undone, carried, weight, theta, weights,
    bought, payment. Computed again: update, theta, weights, loss, segment.
    """

    step: str
    reason: str
    round: int | None = None
    provider: str = ""
    segment: int | None = None


@dataclass
class TrainingAudit:
    """A transcript's events, parsed, and what contradicts what. `held` counts what was looked at, by step."""

    transcript: Transcript
    recipe: Recipe | None = None
    requests: dict[str, RoundRequest] = field(default_factory=dict)
    results: dict[tuple[str, str], Delivery] = field(default_factory=dict)
    """By request and provider."""
    opened: dict[tuple[str, str], DeliveryDetails] = field(default_factory=dict)
    counted: dict[tuple[str, str], tuple[CloseEvent, CountedResult]] = field(default_factory=dict)
    shown: dict[tuple[str, str], AuditAnswer] = field(default_factory=dict)
    shards: dict[tuple[str, str], OpenedShard] = field(default_factory=dict)
    data: dict[int, OpenedShard] = field(default_factory=dict)
    """By shard."""
    faults: list[Fault] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)

    @cached_property
    def begun(self) -> dict[int, set[str]]:
        """By round, what it may have begun with: also after steps that were undone."""
        found: dict[int, set[str]] = {0: {self.transcript.rounds[0].before}}
        steps = (*self.transcript.rounds, *(made for undone in self.transcript.undone for made in undone.rounds))
        for made in steps:
            found.setdefault(made.round + 1, set()).add(made.after)
        return found

    def wrong(
        self, step: str, reason: str, round_: int | None = None, provider: str = "", segment: int | None = None
    ) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(step, reason[:300], round_, provider, segment))

    def hold(self, step: str, look: Callable[[], T], round_: int | None = None, provider: str = "") -> T | None:
        """What looking at something gives; what it raises is a fault."""
        self.held[step] = self.held.get(step, 0) + 1
        try:
            return look()
        except NodewireError as error:
            self.wrong(step, str(error), round_, provider)
            return None

    def drawn(self, request: str, provider: str) -> tuple[int, ...]:
        """The segments of a result that its close draws; none if no close names it."""
        if (request, provider) not in self.counted or self.recipe is None:
            return ()
        closed, counted = self.counted[request, provider]
        assigned = self.requests[request].round.find_assignment(provider)
        return round_close.drawn(closed, counted, self.recipe, assigned.steps) if assigned is not None else ()

    def to_show(self, request: str, provider: str) -> tuple[int, ...]:
        """What its provider has to show of the segments that are drawn of a result."""
        assigned = self.requests[request].round.find_assignment(provider)
        if self.recipe is None or assigned is None:
            return ()
        return round_close.shown(self.drawn(request, provider), self.recipe, assigned.steps)


def check(transcript: Transcript) -> TrainingAudit:
    """Everything that can be seen in a transcript alone."""
    reading = TrainingAudit(transcript)
    reading.hold("signature", transcript.check_signature)
    reading.hold("recipe", lambda: _recipe(reading))
    for event in _events(reading, "request", transcript.requests):
        _request(reading, event)
    for event in _events(reading, "result", transcript.results):
        _result(reading, event)
    _opened(reading)
    for event in _events(reading, "close", transcript.closes):
        _close(reading, event)
    _rounds(reading)
    _undone(reading)
    _carried(reading)
    _audits(reading)
    receipts = _receipts(reading)
    _payments(reading, receipts)
    _bought(reading, receipts)
    return reading


def _events(reading: TrainingAudit, step: str, texts: Iterable[str]) -> list[Event]:
    """Those whose ids and signatures are good; none twice."""
    found: dict[str, Event] = {}
    for text in texts:
        event = reading.hold(step, partial(events.parse, text))
        if event is not None and event.id in found:
            reading.wrong(step, f"event {event.id[:16]} stands twice", provider=event.pubkey)
        elif event is not None:
            found[event.id] = event
    return list(found.values())


def _recipe(reading: TrainingAudit) -> None:
    transcript = reading.transcript
    reading.recipe = Recipe.from_document(transcript.recipe)
    if rounds.job_of(transcript.customer, transcript.salt) != transcript.job:
        reading.wrong("recipe", "the job is not that of its customer and salt")


def _request(reading: TrainingAudit, event: Event) -> None:
    transcript, recipe = reading.transcript, reading.recipe
    request = reading.hold("request", partial(rounds.parse, event))
    if request is None:
        return
    number = request.round.round
    if request.customer != transcript.customer or request.round.job != transcript.job:
        reading.wrong("request", f"{event.id[:16]} is of another training", number)
        return
    if recipe is not None and rounds.seal_of(recipe.digest(), transcript.salt) != request.round.seal:
        reading.wrong("recipe", f"not the one that request {event.id[:16]} has sealed", number)
    if recipe is not None and number >= recipe.rounds:
        reading.wrong("request", "more rounds than the recipe has", number)
    reading.requests[request.id] = request


def _result(reading: TrainingAudit, event: Event) -> None:
    delivered = reading.hold("result", partial(delivery.parse, event), provider=event.pubkey)
    if delivered is None:
        return
    request = reading.requests.get(delivered.request)
    if request is None:
        reading.wrong("result", f"{event.id[:16]} answers no request of this training", provider=event.pubkey)
        return
    number, key = request.round.round, (delivered.request, delivered.provider)
    assigned = request.round.find_assignment(delivered.provider)
    if assigned is None:
        reading.wrong("result", "by somebody who was not asked", number, event.pubkey)
    elif event.kind != kinds.result_of(request.kind) or delivered.customer != request.customer:
        reading.wrong("result", "of another kind, or for another customer", number, event.pubkey)
    elif key in reading.results:
        reading.wrong("result", "delivered twice", number, event.pubkey)
    else:
        reading.results[key] = delivered


def _opened(reading: TrainingAudit) -> None:
    opened = reading.transcript.opened
    if opened is None or reading.recipe is None:
        return
    for one in opened.shards:
        reading.hold("request", partial(_ticket, reading, one), provider=one.provider)
    for key, delivered in reading.results.items():
        request = reading.requests[key[0]]
        assigned = request.round.find_assignment(key[1])
        if delivered.id not in opened.results or assigned is None:
            continue
        number = request.round.round
        read = partial(DeliveryDetails.from_document, opened.results[delivered.id])
        opening = reading.hold("result", read, number, key[1])
        if opening is None:
            continue
        if opening.commitment(key[1], key[0], number, assigned.index) != delivered.commitment:
            reading.wrong("result", "not what was committed to", number, key[1])
        else:
            reading.opened[key] = opening


def _ticket(reading: TrainingAudit, one: OpenedShard) -> None:
    request, recipe = reading.requests.get(one.request), reading.recipe
    assigned = request.round.find_assignment(one.provider) if request is not None else None
    if request is None or assigned is None or recipe is None:
        reading.wrong("request", "a ticket for nothing that was asked", provider=one.provider)
        return
    ticket = RoundTicket(
        request=one.request,
        index=assigned.index,
        salt=reading.transcript.salt,
        recipe=reading.transcript.recipe,
        theta_key=one.theta_key,
        theta_sha256=one.theta_sha256,
        shard_key=one.shard_key,
        shard_sha256=one.shard_sha256,
        start_key=one.start_key,
        carried=one.carried,
    )
    if ticket.seal() != assigned.ticket:
        reading.wrong("request", "not the ticket that was sealed", request.round.round, one.provider)
        return
    number = request.round.round
    begun = reading.begun.get(number, set())
    if begun and one.theta_sha256 not in begun:
        reading.wrong("theta", "another than what the round was asked to begin with", number, one.provider)
    if reading.data.setdefault(assigned.index, one).shard_sha256 != one.shard_sha256:
        reading.wrong("request", f"shard {assigned.index} is another than before", request.round.round, one.provider)
    reading.shards[one.request, one.provider] = one


def _close(reading: TrainingAudit, event: Event) -> None:
    closed = reading.hold("close", partial(round_close.parse, event))
    if closed is None:
        return
    number = closed.close.round
    if closed.customer != reading.transcript.customer or closed.close.job != reading.transcript.job:
        reading.wrong("close", f"{event.id[:16]} is of another training", number)
        return
    for counted in closed.close.results:
        key, request = (counted.request, counted.provider), reading.requests.get(counted.request)
        delivered = reading.results.get(key)
        if request is None or request.round.round != number or delivered is None:
            reading.wrong("close", "names a result that is not of its round", number, counted.provider)
        elif (delivered.id, delivered.commitment) != (counted.result, counted.commitment):
            reading.wrong("close", "names another result than was delivered", number, counted.provider)
        elif key in reading.counted:
            reading.wrong("close", "a result is closed twice", number, counted.provider)
        else:
            reading.counted[key] = closed, counted


def _rounds(reading: TrainingAudit) -> None:
    transcript, recipe = reading.transcript, reading.recipe
    if not _chain(reading, transcript.rounds, 0, transcript.rounds[0].before):
        return
    if recipe is not None and len(transcript.rounds) < recipe.rounds:
        reading.wrong("round", f"{len(transcript.rounds)} rounds, the recipe has {recipe.rounds}")
    if transcript.weights != transcript.rounds[-1].after:
        reading.wrong("weights", "not what the last round has made")


def _undone(reading: TrainingAudit) -> None:
    """Steps that are no part of the weights: that they were as others are, and that what they are blamed on is."""
    transcript = reading.transcript
    begun = reading.begun
    counted = {(one.request, one.provider) for made in transcript.rounds for one in made.results}
    paid = {(one.request, one.provider) for one in transcript.payments if one.part == BALANCE}
    for undone in transcript.undone:
        reading.held["undone"] = reading.held.get("undone", 0) + 1
        first = undone.rounds[0]
        known = begun.get(first.round, set())
        _chain(reading, undone.rounds, first.round, first.before if first.before in known else "")
        failed = {(one.request, one.provider) for one in undone.failed}
        if not failed & {(one.request, one.provider) for one in first.results}:
            reading.wrong("undone", "for nothing that its first step was made of", first.round)
        for key in failed & counted:
            reading.wrong("undone", "what failed its audit counts all the same", _round_of(reading, key[0]), key[1])
        for key in failed & paid:
            reading.wrong("payment", "a balance for what failed its audit", _round_of(reading, key[0]), key[1])


def _chain(reading: TrainingAudit, rounds_: Sequence[OuterStepRecord], first: int, before: str) -> bool:
    """Steps that were made one after the other, and what they were made of; False: rounds are missing."""
    recipe = reading.recipe
    stepped: set[tuple[str, str]] = set()
    begun = {made.round: made.before for made in rounds_}
    for number, made in enumerate(rounds_, first):
        reading.held["round"] = reading.held.get("round", 0) + 1
        if made.round != number:
            reading.wrong("round", f"stands where {number} should", made.round)
            return False
        if made.before != before:
            reading.wrong("theta", "does not begin with what the round before has made", number)
        before = made.after
        for one in made.results:
            key, request = (one.request, one.provider), reading.requests.get(one.request)
            assigned = request.round.find_assignment(one.provider) if request is not None else None
            if request is None or assigned is None or key not in reading.results:
                reading.wrong("round", "counts a result that was not delivered", number, one.provider)
                continue
            late = number - one.round
            if request.round.round != one.round or not 0 <= late <= 1:
                reading.wrong("round", "counts a result of another round", number, one.provider)
            elif (one.index, one.steps) != (assigned.index, assigned.steps):
                reading.wrong("round", "counts another shard or other steps than were asked for", number, one.provider)
            elif recipe is not None and one.weight != recipe.weight(one.steps, late):
                reading.wrong("weight", f"{one.weight} for {one.steps} steps, {late} rounds late", number, one.provider)
            elif key in stepped:
                reading.wrong("round", "counts a result twice", number, one.provider)
            stepped.add(key)
            ticket = reading.shards.get(key)
            if ticket is not None and ticket.theta_sha256 != begun.get(one.round, ticket.theta_sha256):
                reading.wrong("theta", "counts what began with weights that are none of its row", number, one.provider)
            is_audited = recipe is not None and float(recipe.audit.fraction) > 0
            if is_audited and key not in reading.counted:
                reading.wrong("close", "no close names a result that counts", number, one.provider)
    return True


def _carried(reading: TrainingAudit) -> None:
    """That nobody was told to begin with anything but what it carried on from its result of the round before."""
    transcript = reading.transcript
    left: dict[tuple[str, int, str], str | None] = {}
    """By theta after the step that it counted in."""
    for made in (*transcript.rounds, *(made for undone in transcript.undone for made in undone.rounds)):
        for one in made.results:
            opening = reading.opened.get((one.request, one.provider))
            if one.round == made.round and opening is not None:
                left[made.after, one.index, one.provider] = opening.carried
    for (id_, provider), ticket in reading.shards.items():
        round_ = reading.requests[id_].round
        assigned = round_.find_assignment(provider)
        if ticket.carried is None or assigned is None:
            continue
        reading.held["carried"] = reading.held.get("carried", 0) + 1
        if left.get((ticket.theta_sha256, assigned.index, provider)) != ticket.carried:
            reading.wrong("carried", "not what was carried on from the round before", round_.round, provider)


def _audits(reading: TrainingAudit) -> None:
    """That snapshots were asked for as the closes draw them, and every balance had its answer before."""
    recipe = reading.recipe
    answered = _answers(reading, _asks(reading))
    if recipe is None or not float(recipe.audit.fraction):
        return
    for payment in reading.transcript.payments:
        key = payment.request, payment.provider
        if payment.part == BALANCE and key not in answered:
            reading.wrong("payment", "a balance without an audit", _round_of(reading, key[0]), payment.provider)


def _asks(reading: TrainingAudit) -> set[tuple[str, str]]:
    """Results of which the snapshots that their close draws were asked for, by request and provider."""
    asked: set[tuple[str, str]] = set()
    for event in _events(reading, "draw", reading.transcript.asks):
        one = reading.hold("draw", partial(audit.parse, event))
        if one is None:
            continue
        key, number = (one.request, one.provider), _round_of(reading, one.request)
        if one.customer != reading.transcript.customer or key not in reading.counted:
            reading.wrong("draw", "snapshots of what no close names", number, one.provider)
        elif one.close != reading.counted[key][0].id:
            reading.wrong("draw", "by another close than that of the result", number, one.provider)
        elif one.snapshots != reading.to_show(*key):
            reading.wrong("draw", "not the snapshots that the close draws", number, one.provider)
        else:
            asked.add(key)
    return asked


def _answers(reading: TrainingAudit, asked: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of those that were asked have answered; what they showed is noted where it was opened."""
    transcript = reading.transcript
    answered: set[tuple[str, str]] = set()
    for event in _events(reading, "answer", transcript.answers):
        key = event.tag("e") or "", event.pubkey
        if event.kind != kinds.result_of(kinds.VERIFICATION) or key not in asked:
            reading.wrong("answer", f"{event.id[:16]} answers nothing that was asked", provider=event.pubkey)
            continue
        answered.add(key)
        if transcript.opened is not None and event.id in transcript.opened.answers:
            read: partial[Any] = partial(AuditAnswer.from_document, transcript.opened.answers[event.id])
            showing = reading.hold("answer", read, provider=event.pubkey)
            if showing is not None:
                reading.shown[key] = showing
    return answered


def _receipts(reading: TrainingAudit) -> dict[tuple[str, str], list[Event]]:
    """By request and provider."""
    receipted: dict[tuple[str, str], list[Event]] = {}
    for event in _events(reading, "payment", reading.transcript.receipts):
        receipted.setdefault((event.tag("e") or "", event.pubkey), []).append(event)
    return receipted


def _payments(reading: TrainingAudit, receipted: dict[tuple[str, str], list[Event]]) -> None:
    paid = set()
    for one in reading.transcript.payments:
        reading.held["payment"] = reading.held.get("payment", 0) + 1
        request, number = reading.requests.get(one.request), _round_of(reading, one.request)
        assigned = request.round.find_assignment(one.provider) if request is not None else None
        if assigned is None:
            reading.wrong("payment", "to somebody who was not asked", number, one.provider)
            continue
        agreed = assigned.deposit_msat if one.part == DEPOSIT else assigned.balance_msat
        if one.amount_msat != agreed:
            reading.wrong("payment", f"{one.amount_msat} msat, agreed on {agreed}", number, one.provider)
        if (one.request, one.provider, one.part) in paid:
            reading.wrong("payment", "paid twice", number, one.provider)
            continue  # its receipts have been looked at, which takes long
        paid.add((one.request, one.provider, one.part))
        if one.part == BALANCE and (one.request, one.provider) not in reading.results:
            reading.wrong("payment", "a balance for nothing", number, one.provider)
        found = receipted.get((one.request, one.provider), [])
        _receipt(reading, found, Key(one.request, one.provider, one.part), agreed, number)


def _bought(reading: TrainingAudit, receipted: dict[tuple[str, str], list[Event]]) -> None:
    """Outer steps that others have made: asked for in this training, delivered by who was asked, paid as agreed."""
    bought = reading.transcript.bought
    if bought is None:
        return
    asked = _asked_steps(reading, bought)
    _pay_of_steps(reading, bought, asked, _delivered_steps(reading, bought, asked), receipted)


def _asked_steps(reading: TrainingAudit, bought: BoughtSteps) -> dict[str, OuterRequest]:
    """The requests of this training for outer steps, by id."""
    transcript, recipe = reading.transcript, reading.recipe
    asked: dict[str, OuterRequest] = {}
    for event in _events(reading, "bought", bought.requests):
        step = reading.hold("bought", partial(outer_step.parse, event))
        if step is None:
            continue
        if (step.customer, step.round.job) != (transcript.customer, transcript.job):
            reading.wrong("bought", f"{event.id[:16]} is of another training", step.round.round)
        elif recipe is not None and rounds.seal_of(recipe.digest(), transcript.salt) != step.round.seal:
            reading.wrong("bought", "of another recipe", step.round.round, step.round.provider)
        else:
            asked[step.id] = step
    return asked


def _delivered_steps(reading: TrainingAudit, bought: BoughtSteps, asked: Mapping[str, OuterRequest]) -> set[str]:
    """The requests that who was asked has answered with a step."""
    delivered: set[str] = set()
    for event in _events(reading, "bought", bought.results):
        result = reading.hold("bought", partial(outer_step.parse_result, event), provider=event.pubkey)
        known = asked.get(result.request) if result is not None else None
        if result is None or known is None or known.round.provider != result.provider:
            reading.wrong("bought", f"{event.id[:16]} is by nobody who was asked", provider=event.pubkey)
        elif result.customer != reading.transcript.customer or result.request in delivered:
            reading.wrong("bought", "delivered twice, or to another", known.round.round, result.provider)
        else:
            delivered.add(result.request)
    return delivered


def _pay_of_steps(
    reading: TrainingAudit,
    bought: BoughtSteps,
    asked: Mapping[str, OuterRequest],
    delivered: set[str],
    receipted: Mapping[tuple[str, str], list[Event]],
) -> None:
    """That steps were paid as agreed: once, to who was asked, and the balance for a step that came."""
    paid = set()
    for one in bought.payments:
        reading.held["payment"] = reading.held.get("payment", 0) + 1
        known = asked.get(one.request)
        if known is None or known.round.provider != one.provider:
            reading.wrong("payment", "of an outer step to somebody who was not asked", None, one.provider)
            continue
        number = known.round.round
        agreed = known.round.deposit_msat if one.part == DEPOSIT else known.round.balance_msat
        if one.amount_msat != agreed:
            reading.wrong("payment", f"{one.amount_msat} msat, agreed on {agreed}", number, one.provider)
        if (one.request, one.part) in paid:
            reading.wrong("payment", "paid twice", number, one.provider)
            continue
        paid.add((one.request, one.part))
        if one.part == BALANCE and one.request not in delivered:
            reading.wrong("payment", "a balance for nothing", number, one.provider)
        found = receipted.get((one.request, one.provider), [])
        _receipt(reading, found, Key(one.request, one.provider, one.part), agreed, number)


def _receipt(reading: TrainingAudit, found: list[Event], key: Key, agreed: int, number: int | None) -> None:
    """A zap receipt that names this very part, where one is present. What it is more than that has paid others."""
    for event in found:
        try:
            zap = zaps.check_receipt(event, key=key, nostr_pubkey=key.payee, network=reading.transcript.network)
        except NodewireError:
            continue  # of the other part, or none at all: what is missing is no fault
        reading.held["receipt"] = reading.held.get("receipt", 0) + 1
        if zap.invoice.amount_msat < agreed:
            reading.wrong("payment", f"{zap.invoice.amount_msat} msat receipted, agreed on {agreed}", number, key.payee)


def _round_of(reading: TrainingAudit, request: str) -> int | None:
    known = reading.requests.get(request)
    return known.round.round if known is not None else None
