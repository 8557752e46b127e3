"""Results that are not waited for any more: which they are, and what becomes of them. Pure, as all of the machine.

A late result is fetched, judged by its own round's weights, audited and paid like any other, and counts in the step
after its own round's if the training says so and that step was not made yet.
"""

from __future__ import annotations

from dataclasses import replace

from nodewire.training.customer.machine import shard_transitions
from nodewire.training.customer.machine.events import Contribution, ResultArrival, ResultJudgement, Worked
from nodewire.training.customer.machine.state import State, Work
from nodewire.training.customer.machine.throughput import measured


def spared(state: State) -> State:
    """Where nothing is waited for any more: what is still out is late, and its shard is missed in this round."""
    if not (state.is_enough and state.is_quorate):
        return state
    late = tuple(work for work in state.works if work.status in ("asked", "working"))
    works = tuple(
        Work(work.index, "missed", work.provider, excluded=work.excluded)
        if work.status in ("idle", "asked", "working")
        else work
        for work in state.works
    )
    return state if works == state.works else replace(state, works=works, late=(*state.late, *late))


def after(event: Worked, work: Work, state: State) -> State:
    """The state after something of a late shard. A deposit is not paid any more: nothing is begun for what is late."""
    key = work.request, work.provider
    if isinstance(event, ResultArrival) and work.status in ("asked", "working") and _is_free(work, state):
        return _taken_back(event, work, state)
    now, following = shard_transitions.apply_event(event, work, state)
    if now is work:
        return state
    if isinstance(event, ResultJudgement) and not _may_count(work, state):
        now = None
    late = tuple(now if (one.request, one.provider) == key else one for one in state.late)
    return replace(following, late=tuple(one for one in late if one is not None))


def _is_free(work: Work, state: State) -> bool:
    """Whether it is of this very round, and nobody has taken its shard over yet."""
    debt = state.debts[work.request, work.provider]
    return debt.round == state.round and not debt.undone and state.works[work.index].status == "idle"


def _taken_back(event: ResultArrival, work: Work, state: State) -> State:
    """The state after a late result has come in time none the less: its shard is this provider's again."""
    key, present = (work.request, work.provider), state.works[work.index]
    debt = replace(state.debts[key], result=event.event, took_ms=event.took_ms)
    work = replace(work, status="delivered", result=event.event, excluded=present.excluded)
    return replace(
        measured(state, debt.row, event.took_ms),
        works=tuple(work if one is present else one for one in state.works),
        late=tuple(one for one in state.late if (one.request, one.provider) != key),
        debts={**state.debts, key: debt},
    )


def _may_count(work: Work, state: State) -> bool:
    """Only in the step after its own round's; and not if another's result of the same shard counted there, or will."""
    debt = state.debts[work.request, work.provider]
    round_ = debt.round
    if not state.late_counts or debt.undone or state.is_trained or state.round != round_ + 1:
        return False
    return (work.index, round_) not in {(one.index, one.round) for one in (*state.counted, *counted(state))}


def counted(state: State) -> tuple[Contribution, ...]:
    """What this round's outer step is made of: by shard, of one shard the late result first."""
    works = [work for work in (*state.late, *state.works) if work.status == "accepted"]
    found = []
    for work in works:
        debt = state.debts[work.request, work.provider]
        found.append(Contribution(work.index, debt.round, debt.row.steps, work.request, work.provider))
    return tuple(sorted(found, key=lambda one: (one.index, one.round)))
