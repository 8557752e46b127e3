"""What may happen next in a run.

The real code decides: which frame is admitted and which is sent (`wire.job.edge_window`), which chunk a turn is of
(`protocol.job.chunk`), and what a debt becomes (`pay.accounts.debts`). All else is written out plainly here: links,
presence, credit, what may be paid. tests/bench/model/test_model_check.py holds the last two against the provider and
the customer.

Three reductions keep the search small, and hide no run that differs in more than its order: a stage computes and sends
in the step in which it receives; payments to different claims are made one after the other; a job begins when the one
before it has ended at every live node, since the two share nothing but the ledger and the wallet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, TypeVar

from bench.model.state import (
    CUSTOMER,
    DRIVER,
    ENDS,
    FIRST,
    SECOND,
    Broken,
    Budget,
    Claim,
    Edge,
    Message,
    Rules,
    Run,
    Status,
)
from nodewire.errors import NodewireError
from nodewire.pay.accounts import debts
from nodewire.protocol.job.chunk import AHEAD
from nodewire.protocol.tensors.frame import chunk_of_turn
from nodewire.wire.framing.headers import DataHeader
from nodewire.wire.job.edge_window import IncomingEdge, Window

CHUNK: Final = 2
_PREIMAGE = "00" * 32
_HASH = hashlib.sha256(bytes(32)).hexdigest()
_FAILED_HASH = "ff" * 32
_EVENTS = {
    "paying": debts.PaymentAttempt("wallet"),
    "paid": debts.PaymentSettlement(_PREIMAGE, 0),
    "failed": debts.PaymentFailure("no route"),
}
Step = tuple[str, Run]
_T = TypeVar("_T")


def chunk(turn: int) -> int:
    return chunk_of_turn(turn, CHUNK)


def last_turn(number: int) -> int:
    return number * CHUNK


def may_compute(number: int, paid: frozenset[int] | set[int]) -> bool:
    """Whether a provider begins chunk `number` (`provider.inference.credit.Credit`)."""
    return all(n in paid for n in range(number - AHEAD + 1))


def may_pay(number: int, closed: int, delivered: int, is_over: bool) -> bool:
    """Whether a customer pays chunk `number` (`customer.payments.job_payments.JobPayments`)."""
    return number < closed and (delivered >= number or is_over)


class Steps:
    """`wanted` tokens are bought. `rules` is the protocol, or a mutant of it."""

    def __init__(self, rules: Rules, wanted: int) -> None:
        self._rules = rules
        self._wanted = wanted

    def of(self, run: Run) -> Iterator[Step]:
        """Every step that `run` may take, and what it comes to. Raises Broken."""
        if urgent := next(self._urgent(run), None):
            yield urgent
            return
        yield from self._messages(run)
        yield from self._driver(run)
        yield from self._links(run)
        yield from self._ends(run)
        yield from self._payments(run)
        yield from self._faults(run)
        yield from self._next_job(run)

    def _urgent(self, run: Run) -> Iterator[Step]:
        """What only lets others go on, and is undone by nobody, comes first."""
        if not run.budget.failed_zaps and not run.budget.crashes:
            yield from self._payments(run)
        yield from self._completes(run)

    # frames and documents

    def _messages(self, run: Run) -> Iterator[Step]:
        for number, edge in enumerate(run.edges):
            producer, consumer = ENDS[number]
            if edge.ahead and _is_held(run, consumer):
                message, left = edge.ahead[0], edge._replace(ahead=edge.ahead[1:])
                if message.kind == "close":
                    yield (
                        f"{consumer} hears close {message.number}",
                        self._heard(_with(run, number, left), consumer, message),
                    )
                elif self._may_begin(run, consumer, message.turn):
                    yield f"{consumer} gets turn {message.turn}", self._received(run, number, left, message)
            if edge.back and _is_held(run, producer):
                message, left = edge.back[0], edge._replace(back=edge.back[1:])
                after = _with(run, number, left)
                if message.kind == "close":
                    yield f"{producer} hears close {message.number}", self._heard(after, producer, message)
                else:
                    window = Window("", edge.sends)
                    if window.resume(message.number):
                        left = left._replace(sends=window.next_seq)
                    yield f"{producer} resumes at {message.number}", _with(run, number, _flush(left))

    def _may_begin(self, run: Run, role: int, turn: int) -> bool:
        if role in (DRIVER, CUSTOMER) or not self._rules.waits_for_credit:
            return True
        return may_compute(chunk(turn), _paid(run, run.plan[role]))

    def _received(self, run: Run, number: int, edge: Edge, message: Message) -> Run:
        consumer = ENDS[number][1]
        incoming = IncomingEdge("", "", 1, anew=edge.is_anew, next_seq=edge.lacks)
        try:
            incoming.admit(DataHeader("", "", 0, message.number, b"", (), {}, 0))
        except NodewireError as error:
            raise Broken(f"an honest node is refused: {error}") from error
        run = _with(run, number, edge._replace(lacks=incoming.next_seq, is_anew=False))
        if consumer == CUSTOMER:
            return run._replace(tokens=(*run.tokens, message.is_true))
        if consumer == DRIVER:
            return self._took(run, message)
        if not may_compute(chunk(message.turn), _paid(run, run.plan[consumer])):
            raise Broken(f"chunk {chunk(message.turn)} is computed before it may")
        rows = run.rows[consumer - FIRST]
        if message.turn > len(rows):
            raise Broken(f"row {message.turn} comes after {len(rows)} rows")
        if message.turn == len(rows):
            rows = (*rows, message.is_true)
        elif self._rules.overwrites_rows:
            rows = (*rows[: message.turn], message.is_true)
        run = run._replace(rows=(rows, run.rows[1]) if consumer == FIRST else (run.rows[0], rows))
        return self._put(run, consumer, message.turn, all(rows[: message.turn + 1]))

    def _put(self, run: Run, edge: int, turn: int, is_true: bool) -> Run:
        one = run.edges[edge]
        return _with(run, edge, _flush(one._replace(kept=(*one.kept, (turn, is_true)))))

    def _heard(self, run: Run, role: int, message: Message) -> Run:
        known = run.closed[role]
        if message.number < known:
            return run
        if message.number > known:
            raise Broken(f"close {message.number} comes before {known}")
        run = run._replace(closed=_set(run.closed, role, known + 1))
        return run if role == CUSTOMER or not self._rules.claims_closed else _claimed(run, role, known)

    # the driver

    def _driver(self, run: Run) -> Iterator[Step]:
        if run.roles[DRIVER] != "open":
            return
        turns, sent = self._turns(run), run.edges[0].kept
        ready = run.accepted < turns and may_compute(chunk(run.accepted), _paid(run, run.plan[DRIVER]))
        if ready and not self._is_under_way(run, run.accepted):
            yield f"turn {run.accepted}", self._put(run, 0, run.accepted, True)
        guess = run.accepted + 1
        is_waiting = len(sent) > 0 and sent[-1] == (run.accepted, True) and not self._came(run)
        may_guess = run.budget.wrong_guesses > 0 and ready and is_waiting and guess < turns
        if may_guess and may_compute(chunk(guess), _paid(run, run.plan[DRIVER])):
            yield f"guess {guess}", self._put(run, 0, guess, True)
            budget = run.budget._replace(wrong_guesses=run.budget.wrong_guesses - 1)
            yield f"wrong guess {guess}", self._put(run._replace(budget=budget), 0, guess, False)

    def _turns(self, run: Run) -> int:
        return self._wanted - run.first

    def _is_under_way(self, run: Run, turn: int) -> bool:
        """Whether the driver has sent this turn, and sees no fault in it."""
        sent, came = run.edges[0].kept, run.edges[2].lacks
        return any(one == turn and (good or not self._rules.checks_guesses) for one, good in sent[came:])

    def _came(self, run: Run) -> bool:
        return len(run.edges[0].kept) == run.edges[2].lacks

    def _took(self, run: Run, message: Message) -> Run:
        """A result came: it is accepted if it is of the next turn, and that turn was no guess that proved wrong."""
        _, was_right = run.edges[0].kept[message.number]
        if message.turn != run.accepted or not (was_right or not self._rules.checks_guesses):
            return run
        run = self._put(run._replace(accepted=run.accepted + 1), 3, message.turn, message.is_true)
        number = chunk(message.turn)
        if message.turn == last_turn(number) or run.accepted == self._turns(run):
            run = _claimed(run._replace(closed=_set(run.closed, DRIVER, number + 1)), DRIVER, number)
            for edge in (0, 2, 3):
                run = _documents(run, edge, (number,))
        return run

    # links

    def _links(self, run: Run) -> Iterator[Step]:
        for number, edge in enumerate(run.edges):
            if edge.is_up:
                continue
            for role, other in (ENDS[number], ENDS[number][::-1]):
                if run.roles[role] == "open":
                    yield from self._look_after(run, number, role, other)

    def _look_after(self, run: Run, number: int, role: int, other: int) -> Iterator[Step]:
        there = other == CUSTOMER or run.alive[run.plan[other]]
        holds = _is_held(run, other) or (there and run.roles[other] == "dead" and not self._rules.denies_lost_memory)
        if not self._rules.asks_presence:
            there = holds = False
        if holds:
            yield f"{role} has {other} back", self._back(run, number)
            return
        is_gone = not there or not self._rules.spares_restarted
        if is_gone and (other == CUSTOMER or run.alive[run.plan[other]]):
            raise Broken(f"{role} takes {other} for gone, and it is alive")
        missed = run.missed | {run.plan[other]} if is_gone else run.missed
        yield f"{role} ends without {other}", self._end(run._replace(missed=missed), role)

    def _back(self, run: Run, number: int) -> Run:
        edge = run.edges[number]
        first = edge.lacks + (not self._rules.names_first_lacking)
        run = _with(run, number, edge._replace(is_up=True, back=(Message("resume", first),)))
        if number != 1 and self._rules.repeats_closes:
            run = _documents(run, number, range(run.closed[DRIVER]))
        return _with(run, number, _flush(run.edges[number]))

    # ends

    def _completes(self, run: Run) -> Iterator[Step]:
        last = chunk(self._turns(run) - 1) + 1
        for role, status in enumerate(run.roles):
            has_all = role != CUSTOMER or len(run.tokens) == self._wanted
            if status == "open" and run.closed[role] == last and has_all:
                yield f"{role} is done", run._replace(roles=_set(run.roles, role, "done"))

    def _ends(self, run: Run) -> Iterator[Step]:
        for role, status in enumerate(run.roles):
            if status != "open" or not self._rules.tells_neighbours:
                continue
            for number, ends in enumerate(ENDS):
                if role in ends and run.edges[number].is_up:
                    other = ends[ends[0] == role]
                    if run.roles[other] == "broken":
                        yield f"{role} is told by {other}", self._end(run, role)

    def _end(self, run: Run, role: int) -> Run:
        run = run._replace(roles=_set(run.roles, role, "broken"))
        if role in (FIRST, SECOND):  # what is complete, and not closed
            turns = len(run.rows[role - FIRST])
            begun = chunk(turns - 1) if turns else 0
            for number in range(run.closed[role], begun):
                run = _claimed(run, role, number)
                run = run._replace(unsigned=run.unsigned | {(run.job, run.plan[role], number)})
        return _forgotten(run, role)

    # money

    def _payments(self, run: Run) -> Iterator[Step]:
        book = dict(run.debts)
        paying = next((key for key, state in book.items() if state == "paying"), None)
        if paying is not None:
            yield from self._paying(run, paying)
            return
        for key in sorted(run.claims):
            state = book.get(key)
            if state == "paid" or (run.has_quit and state is None) or not self._is_payable(run, key):
                continue
            if not self._has_come(run, key):
                raise Broken(f"{key} is paid without a close, or before its output came")
            began = _booked(run, key, "invoiced", "paying")
            yield f"pays {key}", began
            return

    def _paying(self, run: Run, key: Claim) -> Iterator[Step]:
        settled = run._replace(zaps=tuple(sorted((*run.zaps, key))))
        if len(set(settled.zaps)) < len(settled.zaps):
            raise Broken(f"{key} is paid twice")
        yield f"{key} settles", _booked(settled, key, "paid")
        if run.budget.failed_zaps:
            budget = run.budget._replace(failed_zaps=run.budget.failed_zaps - 1)
            yield f"{key} fails", _booked(run._replace(budget=budget), key, "failed")
        if run.budget.crashes:
            for word, crashed in (("before", run), ("after", settled)):
                crashed = crashed._replace(budget=run.budget._replace(crashes=run.budget.crashes - 1), has_quit=True)
                crashed = _dropped(crashed._replace(roles=_set(run.roles, CUSTOMER, "dead")), CUSTOMER)
                did_pay = word == "after" and self._rules.asks_wallet
                yield f"customer dies {word} the zap of {key}", _booked(crashed, key, "paid" if did_pay else "failed")

    def _known(self, run: Run, job: int) -> int:
        heard = run.closed[CUSTOMER] if job == run.job else dict(run.heard)[job]
        if not self._rules.claims_carry_closes:
            return heard
        return max([heard, *(key[2] + 1 for key in run.claims - run.unsigned if key[0] == job)])

    def _is_payable(self, run: Run, key: Claim) -> bool:
        return not self._rules.pays_closed_alone or self._has_come(run, key)

    def _has_come(self, run: Run, key: Claim) -> bool:
        is_over = key[0] != run.job or run.roles[CUSTOMER] != "open"
        came = len(run.tokens) - run.first
        delivered = chunk(came - 1) if came > 0 else -1
        return may_pay(key[2], self._known(run, key[0]), delivered, is_over)

    # faults

    def _faults(self, run: Run) -> Iterator[Step]:
        if run.budget.deaths and run.roles[CUSTOMER] != "done":  # what strikes afterwards changes no token
            for node, is_alive in enumerate(run.alive):
                if is_alive:
                    yield f"node {node} dies", _died(run, node)
        if run.budget.losses:
            for number, edge in enumerate(run.edges):
                if edge.is_up and any(run.roles[role] == "open" for role in ENDS[number]):
                    lost = _with(run, number, self._lost(edge))
                    budget = run.budget._replace(losses=run.budget.losses - 1)
                    yield f"link {number} is lost", lost._replace(budget=budget)
        yield from self._restarts(run)

    def _lost(self, edge: Edge) -> Edge:
        return _cut(edge, pauses=self._rules.pauses)

    def _restarts(self, run: Run) -> Iterator[Step]:
        for node, is_alive in enumerate(run.alive):
            if not is_alive:
                yield f"node {node} is back", run._replace(alive=_set(run.alive, node, True))

    # the next job

    def _next_job(self, run: Run) -> Iterator[Step]:
        if run.has_quit or run.roles[CUSTOMER] != "broken" or "open" in run.roles:
            return
        live = [node for node, is_alive in enumerate(run.alive) if is_alive]
        good = [node for node in live if node not in run.missed]
        chosen = good if len(good) >= 3 else live  # each that was left out is taken back
        if len(chosen) < 3:
            return
        heard = (*run.heard, (run.job, run.closed[CUSTOMER]))
        first = len(run.tokens) if self._rules.goes_on_from_tokens else run.first + run.accepted
        if first >= self._wanted:
            if len(run.tokens) < self._wanted:
                raise Broken("a token is lost")
            return
        if first != len(run.tokens):
            raise Broken(f"the next job begins at token {first}, {len(run.tokens)} came")
        yield "another job", begun(run._replace(job=run.job + 1, heard=heard, first=first, plan=tuple(chosen[:3])))


def begun(run: Run) -> Run:
    """`run` at the begin of its job."""
    return run._replace(
        roles=("open",) * 4, edges=(Edge(),) * 4, rows=((), ()), accepted=0, closed=(0, 0, 0, 0), missed=frozenset()
    )


def check_end(run: Run, wanted: int) -> None:
    """A run that can take no further step has come to a good end. Raises Broken."""
    if "open" in run.roles:
        raise Broken(f"waits for ever: {run.roles}")
    if not run.has_quit and len(run.tokens) != wanted:
        raise Broken(f"{len(run.tokens)} tokens of {wanted} came")
    known = {**dict(run.heard), run.job: run.closed[CUSTOMER]}
    book = dict(run.debts)
    for key in run.claims:
        is_owed = key not in run.unsigned or key[2] < known[key[0]]
        if is_owed and book.get(key) != "paid" and not (run.has_quit and key not in book):
            raise Broken(f"{key} is closed and claimed, and not paid")
    for role in (DRIVER, FIRST, SECOND):
        for number in range(run.closed[role]):
            if run.roles[role] != "dead" and (run.job, run.plan[role], number) not in run.claims:
                raise Broken(f"{number} is closed at {role}, and not claimed")


def check(run: Run) -> None:
    """What holds at every moment. Raises Broken."""
    if not all(run.tokens):
        raise Broken(f"a token is another: {run.tokens}")


def _set(values: tuple[_T, ...], at: int, value: _T) -> tuple[_T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _with(run: Run, number: int, edge: Edge) -> Run:
    return run._replace(edges=_set(run.edges, number, edge))


def _is_held(run: Run, role: int) -> bool:
    return run.roles[role] in ("open", "done")


def _paid(run: Run, node: int) -> frozenset[int]:
    return frozenset(number for job, payee, number in run.zaps if job == run.job and payee == node)


def _claimed(run: Run, role: int, number: int) -> Run:
    return run._replace(claims=run.claims | {(run.job, run.plan[role], number)})


def _flush(edge: Edge) -> Edge:
    """The producer sends what its window lets it."""
    if not edge.is_up:
        return edge
    window, ahead = Window("", edge.sends), list(edge.ahead)
    for seq, (turn, is_true) in enumerate(edge.kept):
        if window.next_seq is not None and window.lacks(seq):
            if window.next_seq > seq:
                continue
            ahead.append(Message("frame", seq, turn, is_true))
            window.send(seq, 0)
    return edge._replace(ahead=tuple(ahead), sends=window.next_seq)


def _documents(run: Run, number: int, closes: range | tuple[int, ...]) -> Run:
    """The driver sends closes over an edge's link, if that is there."""
    edge = run.edges[number]
    if not edge.is_up:
        return run
    said = tuple(Message("close", one) for one in closes)
    if ENDS[number][0] == DRIVER:
        return _with(run, number, edge._replace(ahead=(*edge.ahead, *said)))
    return _with(run, number, edge._replace(back=(*edge.back, *said)))


def _cut(edge: Edge, *, pauses: bool = True) -> Edge:
    window, incoming = Window("", edge.sends), IncomingEdge("", "", 1, next_seq=edge.lacks)
    if pauses:
        window.pause()
    incoming.restart()
    return edge._replace(
        is_up=False, ahead=(), back=(), sends=window.next_seq, lacks=incoming.next_seq, is_anew=incoming.anew
    )


def _forgotten(run: Run, role: int) -> Run:
    """What a role that has ended holds is read no more; so runs that differ in it alone are one."""
    edges = list(run.edges)
    for number, (producer, consumer) in enumerate(ENDS):
        if producer == role:
            edges[number] = edges[number]._replace(kept=(), back=(), sends=None)
        if consumer == role:
            edges[number] = edges[number]._replace(ahead=(), lacks=0, is_anew=False)
    rows = (() if role == FIRST else run.rows[0], () if role == SECOND else run.rows[1])
    return run._replace(edges=tuple(edges), rows=rows)


def _dropped(run: Run, role: int) -> Run:
    """All links of a role's process are lost."""
    edges = tuple(_cut(edge) if role in ENDS[number] and edge.is_up else edge for number, edge in enumerate(run.edges))
    return run._replace(edges=edges)


def _died(run: Run, node: int) -> Run:
    run = run._replace(alive=_set(run.alive, node, False), budget=run.budget._replace(deaths=run.budget.deaths - 1))
    if node in run.plan:
        role = run.plan.index(node)
        run = _forgotten(_dropped(run._replace(roles=_set(run.roles, role, "dead")), role), role)
    return run


def _booked(run: Run, key: Claim, *events: str) -> Run:
    book = dict(run.debts)
    state = book.get(key, "planned")
    # Each invoice has a hash of its own; one whose payment failed is not tried again.
    parts = [] if state == "planned" else [debts.Part(_payment(state), 1)]
    for event in events:
        if event == "invoiced":
            parts.append(debts.Part(_payment("invoiced"), 1))
        else:
            parts[-1] = debts.Part(debts.apply(_EVENTS[event], parts[-1].payment), 1)
    debt = debts.Debt(debts.Key(str(key[0]), str(key[1]), key[2]), 1, tuple(parts))
    return run._replace(debts=tuple(sorted({**book, key: debt.state}.items())))


def _payment(state: debts.PaymentState) -> debts.Payment:
    return debts.Payment(_FAILED_HASH if state == "failed" else _HASH, "lnbc", 1, state)


def first_run(nodes: int, budget: tuple[int, ...]) -> Run:
    blank: tuple[Status, ...] = ("open",) * 4
    none: frozenset[Claim] = frozenset()
    return begun(
        Run(
            Budget(*budget),
            (True,) * nodes,
            0,
            (0, 1, 2),
            blank,
            (),
            ((), ()),
            0,
            (0, 0, 0, 0),
            0,
            (),
            (),
            none,
            none,
            (),
            (),
            frozenset(),
        )
    )
