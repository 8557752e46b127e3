"""Steps that are undone because a result failed its audit after it had counted in one. Pure, as all of the machine.

The training goes back to before the first step that was made of it. The other results of that round count again as they
did; the culprit's shard is idle. What later rounds have made is no part of the weights any more: whoever worked at it
is late with something that never counts, and is judged, audited and paid as any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.training.customer.machine.state import Before, Outer, State, Work

if TYPE_CHECKING:
    from nodewire.training.customer.machine.events import StepCompletion, StepRollback

Key = tuple[str, str]
"""Request and provider."""


def before(event: StepCompletion, state: State) -> Before:
    """What it takes to go back to before a step."""
    late = tuple(work for work in state.late if work.status == "accepted")
    return Before(state.works, late, state.is_enough, event.counted, state.counted, state.outer.momenta)


def oldest(state: State) -> int:
    """The first round whose step may still be undone; the present one if none."""
    return min(state.past, default=state.round)


def pruned(state: State) -> State:
    """Without what no audit can lead back to any more: audits that fail are of what is held now."""
    held = [debt.round for debt in state.debts.values() if debt.balance == "held" and not debt.undone]
    first = min([state.round, *held] if state.spoilt is None else [state.round, *held, state.spoilt])
    return replace(state, past={number: one for number, one in state.past.items() if number >= first})


def spoilt(state: State) -> State:
    """The state that knows which step is to be undone, after somebody failed an audit."""
    rounds = [
        number
        for number, one in state.past.items()
        if any(_failed(state, (c.request, c.provider)) for c in one.counted)
    ]
    return replace(state, spoilt=min(rounds)) if rounds else state


def culprits(state: State, round_: int) -> tuple[Key, ...]:
    """The results that the steps from a round on were made of, and must not have been; in the order of the steps."""
    counted = [one for number in sorted(state.past) if number >= round_ for one in state.past[number].counted]
    keys = [(one.request, one.provider) for one in counted]
    return tuple(dict.fromkeys(key for key in keys if _failed(state, key)))


def undone(event: StepRollback, state: State) -> State:
    """The state before the step of that round, with all that happened beside it since."""
    if state.spoilt is None or event.round not in state.past:
        return state
    was = state.past[event.round]
    debts = {key: replace(debt, undone=True) if debt.round > event.round else debt for key, debt in state.debts.items()}
    # A late result of this very round is in time now.
    late_ones = [*state.late, *(work for one in state.past.values() for work in one.late)]
    in_time = {
        work.index: work
        for work in late_ones
        if work.status == "accepted" and debts[_key(work)].round == event.round and not _failed(state, _key(work))
    }
    under_way = ("asked", "working", "delivered", "received")
    late = [
        *(work for work in was.late if not _failed(state, _key(work))),
        *(work for work in state.late if work.status in under_way),
        *(work for work in state.works if work.status in under_way),
    ]
    following = replace(
        state,
        round=event.round,
        theta=state.thetas[event.round],
        thetas=state.thetas[: event.round + 1],
        losses=state.losses[: event.round],
        works=tuple(_again(work, in_time, state) for work in was.works),
        is_enough=was.is_enough,
        late=tuple(late),
        counted=was.earlier,
        debts=debts,
        outer=Outer(
            state.outer.bought, provider=state.outer.provider, momenta=was.momenta, took_ms=state.outer.took_ms
        ),
        past={number: one for number, one in state.past.items() if number < event.round},
        spoilt=None,
    )
    return spoilt(following)


def _again(work: Work, in_time: dict[int, Work], state: State) -> Work:
    """A shard as it was when its round was stepped, without what has failed since."""
    if work.status == "missed" and work.index in in_time:
        return replace(in_time[work.index], excluded=work.excluded)
    if work.status == "accepted" and _failed(state, _key(work)):
        return Work(work.index, excluded=work.excluded | {work.provider})
    return work


def _key(work: Work) -> Key:
    return work.request, work.provider


def _failed(state: State, key: Key) -> bool:
    return state.debts[key].failed
