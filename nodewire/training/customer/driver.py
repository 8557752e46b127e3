"""Drives a training: does what its state says is pending, writes down what came of it, and looks again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nodewire.errors import RelayRefused, first_of
from nodewire.nostr import event as events
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.training.customer.machine import rollback
from nodewire.training.customer.machine.actions import (
    Action,
    Audit,
    Await,
    AwaitStep,
    BuyStep,
    Call,
    CheckStep,
    Close,
    Fetch,
    Judge,
    Linger,
    Pay,
    Publish,
    Step,
    Undo,
)
from nodewire.training.customer.machine.events import ShardLoss, StepOwnerChange, StepRollback, TrainingStart
from nodewire.training.customer.machine.pending_actions import next_actions
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.market import (
    audits,
    deferred_balances,
    outer_step,
    payments,
    round_close,
    shard_assignment,
)
from nodewire.training.customer.market import results as receiving
from nodewire.training.customer.policy import payment_retry
from nodewire.training.protocol.retention import kept_rounds

if TYPE_CHECKING:
    from nodewire.training.customer.machine.state import State
    from nodewire.training.customer.market.context import Course

_CLOCKS_S = 65
"""Providers take requests that are dated a minute ahead of their clocks, and relays have their time."""


class Rounds:
    """One training, new or from its journal. `run` ends when it is trained and paid."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._running: dict[Action, asyncio.Task[None]] = {}

    async def run(self) -> State:
        """Train to the end; the coordinator has the weights then.

        Raises:
            NoProvider, OverBudget: it cannot go on, and may be begun again where it stands.
            NodewireError: data, worker or relays failed.

        """
        course = self._course
        for event in course.journal.events():
            course.state = apply(event, course.state)
        if not course.state.rounds:
            await self._open()
        else:
            await self._resume()
        course.record(StepOwnerChange(course.buys_steps))
        mine = {"p": frozenset({course.session.keys.public})}
        answered = (course.kind, kinds.OUTER, kinds.VERIFICATION)
        results = frozenset({kinds.FEEDBACK, *map(kinds.result_of, answered)})
        # Providers' clocks may be behind, and this one may have been ahead when the training was begun.
        now_s = int(time.time())
        since = min(int(course.journal.fact("since", str(now_s - _CLOCKS_S))), now_s - _CLOCKS_S)
        following = Filter(kinds=results, tags=mine, since=since)
        try:
            await self._follow(following)
        except BaseExceptionGroup as together:
            raise first_of(together) from together
        payments.forget_deposits(course)
        owed = {request for request, _ in course.state.owed}
        for request in course.state.requests:
            if request not in owed:
                course.session.ledger.close_job(request)
        return course.state

    async def _follow(self, wanted: Filter) -> None:
        """Until it is over: do what is pending, hear what providers say.

        Who cannot be paid, for its endpoint gives no invoice that is right, does not keep the model from its customer:
        what it is owed stays in the journal, and is tried again whenever the training is taken up.
        """
        course = self._course
        async with course.session.pool.subscribe([wanted]) as subscription, asyncio.TaskGroup() as group:
            listening = group.create_task(receiving.listen(course, subscription))
            told, since, since_s = None, course.state, time.monotonic()
            while not course.state.is_over:
                course.changed.clear()
                self._begin(group)
                if course.state is not since:
                    since, since_s = course.state, time.monotonic()
                waiting = payment_retry.payment_wait(course.state, course.refused)
                if waiting not in (None, told):
                    told = waiting
                    course.on_change(course.state, waiting, "")
                patience_s = payment_retry.patience_s(course.state, course.refused)
                try:
                    async with asyncio.timeout(patience_s and max(0.0, since_s + patience_s - time.monotonic())):
                        await course.changed.wait()
                except TimeoutError:
                    break
            listening.cancel()
            course.ads.close()
            for task in self._running.values():
                task.cancel()

    async def _open(self) -> None:
        """Split the data, seal the shards and the first weights."""
        course = self._course
        sealed = [await course.coordinator.shard(index) for index in range(course.shards)]
        frozen = await course.coordinator.start() if course.recipe.adapter is not None else None
        theta = await course.coordinator.theta()
        recipe, late = course.recipe, course.recipe.late == "half"
        needed, kept = recipe.needed(course.shards), kept_rounds(recipe.state_bytes(), course.shards)
        course.record(TrainingStart(recipe.rounds, tuple(sealed), theta, needed, late, frozen, kept))

    async def _resume(self) -> None:
        """Bring the coordinator to where the journal ends, and ask again what may not have been heard."""
        course = self._course
        await self._ask_again()
        state = course.state
        course.forgiven = frozenset().union(*(work.excluded for work in state.works)) - state.banned
        await self._restore()

    async def _ask_again(self) -> None:
        """Publish requests that may not have got out; what relays refuse (it is of another time, say) is over."""
        course = self._course
        asked = [(work.request, work.provider) for work in course.state.works if work.status == "asked"]
        if course.state.outer.status == "asked":
            asked.append((course.state.outer.request, course.state.outer.provider))
        for request, provider in asked:
            try:
                await course.session.pool.publish(events.parse(course.state.requests[request]))
            except RelayRefused as error:
                course.record(ShardLoss(request, provider, f"{error.code}: {error}"[:200]))

    async def _restore(self) -> None:
        """Weights, momenta and results of the present round into the coordinator, and late results."""
        course, state = self._course, self._course.state
        assert state.theta is not None
        await course.coordinator.restore(state.theta, state.round)
        for work in (*state.works, *state.late):
            if work.status in ("received", "accepted"):
                await receiving.fetched(course, work.request, work.provider, work.result)

    def _begin(self, group: asyncio.TaskGroup) -> None:
        """Begin what is pending, end what is not any more."""
        if any(isinstance(action, Undo) and not task.done() for action, task in self._running.items()):
            return
        wanted = deferred_balances.without_put_off(next_actions(self._course.state), self._course.state)
        for action in list(self._running):
            task = self._running[action]
            if action not in wanted and isinstance(action, Call | Await | Linger | AwaitStep):
                task.cancel()
            if task.done() or task.cancelling():
                del self._running[action]
        if any(isinstance(action, Undo) for action in wanted) and not all(
            isinstance(action, Audit | Pay | Close) for action in self._running
        ):  # what the coordinator is given for the present round must not come after it went back
            wanted = [action for action in wanted if not isinstance(action, Undo)]
        publishing = any(isinstance(action, Publish) for action in self._running)
        for action in wanted:
            if action not in self._running and not (publishing and isinstance(action, Publish)):
                self._running[action] = group.create_task(self._do(action))
                self._running[action].add_done_callback(lambda _: self._course.changed.set())

    async def _do(self, action: Action) -> None:
        match action:
            case Publish() | Call() | Await() | Linger():
                await self._assign(action)
            case Fetch() | Judge() | Close() | Audit() | Pay():
                await self._settle(action)
            case Step() | Undo() | BuyStep() | AwaitStep() | CheckStep():
                await self._step(action)

    async def _assign(self, action: Publish | Call | Await | Linger) -> None:
        """Have providers work on the round's shards."""
        course = self._course
        match action:
            case Publish(round_, _):
                await shard_assignment.publish(course, round_)
            case Call(request, provider):
                await shard_assignment.call(course, request, provider)
            case Await(request, provider, late):
                await (shard_assignment.wait_late if late else shard_assignment.wait)(course, request, provider)
            case Linger(round_):
                await shard_assignment.linger(course, round_)

    async def _settle(self, action: Fetch | Judge | Close | Audit | Pay) -> None:
        """Find what a result is worth, and pay it."""
        course = self._course
        match action:
            case Fetch(request, provider):
                await receiving.fetch(course, request, provider)
            case Judge(round_, waiting):
                await audits.judge(course, round_, waiting)
            case Close(round_, undone):
                await round_close.close(course, round_, undone)
            case Audit(request, provider):
                await audits.audit(course, request, provider)
            case Pay(request, provider, part):
                await payments.pay(course, request, provider, part)

    async def _step(self, action: Step | Undo | BuyStep | AwaitStep | CheckStep) -> None:
        """Go from one round to the next, or back; what does not succeed leaves the coordinator where the state is."""
        course = self._course
        match action:
            case Step(round_):
                if not await outer_step.here(course, round_):
                    await self._restore()
            case Undo(round_):
                async with course.coordinator.alone():
                    course.record(StepRollback(round_, rollback.culprits(course.state, round_)))
                    await self._restore()
            case BuyStep(round_):
                await outer_step.buy(course, round_)
            case AwaitStep(request, provider):
                await outer_step.wait(course, request, provider)
            case CheckStep(request, provider):
                if not await outer_step.check(course, request, provider):
                    await self._restore()
