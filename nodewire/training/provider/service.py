"""The training half of a provider: announces itself, follows its relays, runs the shards that it admits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from nodewire.core.job_task_group import typed_fault
from nodewire.errors import BadInput, Busy, NodeFailed, NodewireError, PaymentRequired, WorkerFailed
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.provider.admission.checks import feedback_for
from nodewire.provider.admission.refusals import Refusals, is_answered
from nodewire.provider.admission.request_matcher import WAITING_S, RequestMatcher
from nodewire.provider.job_counters import Figures
from nodewire.provider.outage import Check, Outage
from nodewire.store.bounded_cache import BoundedBlobs
from nodewire.training.protocol import audit, outer_step
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.outer_step import OuterRequest, OuterTicket
from nodewire.training.protocol.round import BALANCE, RoundRequest, RoundTicket
from nodewire.training.provider.admission import AdmittedShard, TrainingAdmission
from nodewire.training.provider.announcer import TrainerAnnouncer
from nodewire.training.provider.audit_responder import AuditResponder
from nodewire.training.provider.carried_store import CarriedFiles
from nodewire.training.provider.clock_watch import CLOCKS_S, until_set
from nodewire.training.provider.outer_admission import AdmittedOuter
from nodewire.training.provider.outer_job import OuterRun
from nodewire.training.provider.paid_job import RunResources
from nodewire.training.provider.shard_job import ShardRun
from nodewire.training.provider.undelivered_results import MadeResults
from nodewire.training.provider.worker_slots import Slots

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from nodewire.kind import Worker
    from nodewire.nostr.subscription import Subscription
    from nodewire.pay.accounts.dues import Due
    from nodewire.training.protocol.trainer_ad import Trainer
    from nodewire.training.provider.node import TrainerNode
    from nodewire.training.provider.store import KeptShards

log = logging.getLogger("nodewire.provider")

MAX_REFUSING = 64
CARRIED_TIMES = 8
"""So many times the largest weights may be kept for later rounds, for every shard that is trained at a time."""
CACHED_TIMES = 4
"""So many times the largest blob stays in the cache for every shard that is trained at a time: weights, frozen ones,
the shard, the result."""


class TrainingService:
    """Made with everything open; `run` serves until it is cancelled. `workers` have the trainer loaded, one a slot."""

    def __init__(
        self,
        *,
        node: TrainerNode,
        ad: Trainer,
        admission: TrainingAdmission,
        kept: KeptShards,
        workers: Sequence[Worker],
        folder: Path,
        checks: Sequence[Check] = (),
    ) -> None:
        """`checks` find whether this node can serve (`provider.outage`)."""
        self._keys = node.keys
        self._pool = node.pool
        self._blobs = BoundedBlobs(node.blobs, folder / "blobs.db", CACHED_TIMES * ad.concurrency * ad.most_bytes)
        self._ledger = node.ledger
        self._ad = ad
        self._admission = admission
        self._kept = kept
        self._workers = tuple(workers)
        self.figures = Figures()
        self._refusals = Refusals(self._publish, self.figures)
        self._slots = Slots(workers)
        self._folder = folder
        self._carried = CarriedFiles(folder / "carried", CARRIED_TIMES * ad.concurrency * ad.most_bytes)
        self._made = MadeResults(folder / "made")
        self._patience_s = node.patience_s
        self._announcing = TrainerAnnouncer(node.keys, node.pool, ad)
        self.outage = Outage(checks, lambda: self._announcing.pause(is_paused=self.outage.cause is not None))
        self._matcher = RequestMatcher[tuple[Event, RoundRequest | OuterRequest]]()
        self._runs: dict[str, ShardRun | OuterRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = 0
        self._settled = asyncio.Condition()
        self._revealing = AuditResponder(node.keys.public, node.pool, self._runs, self._workers[0])

    @property
    def name(self) -> str:
        """The ad's."""
        return self._ad.name

    @property
    def in_flight(self) -> dict[int, int]:
        """Rounds and steps that are open here, deposits and balances that are waited for included, by kind."""
        return dict(Counter(run.job.request.kind for run in self._runs.values()))

    @property
    def free(self) -> asyncio.Queue[Worker]:
        """The workers that are not training: who takes one puts it back."""
        return self._slots.free

    async def run(self) -> None:
        """Announce, then serve until cancelled."""
        await self._announcing.announce()
        beside = [asyncio.create_task(work()) for work in (self._announcing.renew, self.outage.run)]
        try:
            self._go_on()
            while await self._listen():
                log.warning("the clock was set")
        finally:
            for task in beside:
                task.cancel()

    async def withdraw(self) -> None:
        """Take the ad back. To be called when `run` was cancelled, while the relays are still connected."""
        await self._announcing.end()

    async def _listen(self) -> bool:
        """Serve until relays send nothing more; or, True, the clock was set.

        Old requests are told from new ones by the clock, and relays are to be asked anew.
        """
        mine = {"p": frozenset({self._keys.public})}
        asked = frozenset({*self._ad.kinds, kinds.VERIFICATION})
        wanted = [
            Filter(kinds=asked, tags=mine, since=int(time.time() - WAITING_S - CLOCKS_S)),
            Filter(kinds=frozenset({nip59.EPHEMERAL_GIFT_WRAP}), tags=mine),
        ]
        async with self._pool.subscribe(wanted) as subscription:
            is_set = asyncio.create_task(until_set())
            is_set.add_done_callback(lambda _: subscription.close())
            try:
                await self._hear(subscription)
                return is_set.done()
            finally:
                is_set.cancel()

    async def _hear(self, subscription: Subscription) -> None:
        async for event in subscription:
            self._matcher.forget_old()
            try:
                if event.kind == nip59.EPHEMERAL_GIFT_WRAP:
                    self._ticketed(event)
                elif event.kind == kinds.VERIFICATION:
                    self._audited(event)
                else:
                    self._requested(event)
            except NodewireError as error:
                log.info("%s %s refused: %s", event.kind, event.id[:8], error)

    def settled(self, due: Due) -> None:
        """The provider's own wallet says that something is paid."""
        if (run := self._runs.get(due.key.job)) is not None:
            self._spawn(run.paid())
        self._spawn(self._notify())

    async def _notify(self) -> None:
        async with self._settled:
            self._settled.notify_all()

    def _requested(self, event: Event) -> None:
        if not self._matcher.is_new(event.id):
            return
        try:
            request = self._admission.glance(event, time.time())
        except NodewireError as error:
            self.figures.refused(event.kind, error)
            if is_answered(event, error, self._keys.public) and self._refusing < MAX_REFUSING:
                self._spawn(self._refuse(event, error))
            raise
        self._begin(self._matcher.add_request(request.id, request.customer, (event, request)))

    def _ticketed(self, event: Event) -> None:
        rumor = nip59.unwrap(event, self._keys)
        if rumor.kind != kinds.TICKET or not rounds.is_ticket(rumor.content):
            return
        request = _ticket(rumor.content).request
        if request in self._runs:
            return
        self._begin(self._matcher.add_ticket(request, rumor.pubkey, rumor.content))

    def _audited(self, event: Event) -> None:
        """A customer wants to see some of the work that it has not paid for yet; a few times."""
        if event.tag("k") not in {str(kind) for kind in self._ad.kinds} or not self._matcher.is_new(event.id):
            return  # of inference, or answered
        asked = audit.parse(event)
        self._spawn(self._revealing.reveal(self._revealing.asked_of(asked), asked))

    def _begin(self, found: tuple[tuple[Event, RoundRequest | OuterRequest], str] | None) -> None:
        if found is not None:
            (event, request), ticket = found
            self._spawn(self._serve(event, request, _ticket(ticket)))

    def _go_on(self) -> None:
        """Begin again what was under way when this provider died."""
        self._made.only([shard.event.id for shard in self._kept.all()])
        for shard in self._kept.all():
            self._matcher.is_new(shard.event.id)
            try:
                job = self._checked(_parsed(shard.event), shard.ticket)
            except NodewireError as error:
                log.warning("round %s is not gone on with: %s", shard.event.id[:8], error)
                self._kept.remove(shard.event.id)
                continue
            self._spawn(self._run(job, is_delivered=shard.delivered))

    def _checked(
        self, request: RoundRequest | OuterRequest, ticket: RoundTicket | OuterTicket
    ) -> AdmittedShard | AdmittedOuter:
        """The shard or the step, if it is taken. Raises as admission does."""
        match request, ticket:
            case OuterRequest(), OuterTicket():
                return self._admission.check_outer(request, ticket)
            case RoundRequest(), RoundTicket():
                return self._admission.check(request, ticket)
        raise BadInput("ticket", "of another kind of job")

    async def _serve(
        self, event: Event, request: RoundRequest | OuterRequest, ticket: RoundTicket | OuterTicket
    ) -> None:
        try:
            self.outage.check_admission()
            job = self._checked(request, ticket)
            if isinstance(job, AdmittedShard):
                self._carried.begun(job)
            if isinstance(job, AdmittedShard) and not self._admission.has_deposit(job.assigned):
                await self._until_paid_before(job)
            worker = None
            if job.assigned.deposit_msat:
                await self._slots.room()
            else:
                worker = await self._slots.soon()
        except NodewireError as error:
            log.info("round %s refused: %s", request.id[:8], error)
            self.figures.refused(event.kind, error)
            await self._tell(request.id, request.customer, request.kind, error)
            return
        try:
            self._kept.begun(event, ticket, paid_before=job.assigned.deposit_msat > 0)
        except BaseException:  # a disk that is full must not take a slot with it
            if worker is not None:
                self._slots.free.put_nowait(worker)
            await self._tell(request.id, request.customer, request.kind, Busy("disk", "cannot be written"))
            self.outage.note(NodeFailed("disk", "cannot be written"))
            raise
        await self._run(job, worker)

    async def _run(
        self, job: AdmittedShard | AdmittedOuter, worker: Worker | None = None, *, is_delivered: bool = False
    ) -> None:
        """Do a job's work, with this worker or one that it gets when its deposit is here.

        If that is done, only wait for the balance.
        """
        request = job.request
        resources = RunResources(self._keys, self._blobs, self._ledger, self._publish, self._folder, self._patience_s)
        run: ShardRun | OuterRun
        if isinstance(job, AdmittedOuter):
            run = OuterRun(job, resources)
        else:
            run = ShardRun(job, resources, self._carried, self._made)
        self._runs[request.id] = run
        try:
            with self.figures.job(request.kind):
                if not is_delivered:
                    await self._work(run, worker)
                    self.figures.steps += job.assigned.steps if isinstance(job, AdmittedShard) else 0
                await run.balance()
        except NodewireError as error:
            self.outage.note(error)
            log.warning("round %s ended: %s", request.id[:8], error)
        except Exception as raised:
            self.outage.note(typed_fault(raised))
            log.exception("round %s ended by a fault of this machine", request.id[:8])
        else:
            log.info(
                "round %d of %s served: %s, %.3f sat earned",
                request.round.round,
                request.round.job[:8],
                "the outer step"
                if isinstance(job, AdmittedOuter)
                else f"shard {job.assigned.index}, {job.assigned.steps} steps",
                job.assigned.price_msat / 1000,
            )
        finally:
            del self._runs[request.id]
            await run.close()
        self._kept.remove(request.id)
        self._made.remove(request.id)
        if isinstance(job, AdmittedShard):
            self._carried.prune(job)

    async def _work(self, run: ShardRun | OuterRun, worker: Worker | None) -> None:
        """A slot is for the work alone; who waits for a deposit or balance trains another shard meanwhile."""
        try:
            try:
                await self._slots.after(run.deposit(), run.has_deposit)
            except NodewireError:
                run.forgo_deposit()
                raise
            if worker is None:
                worker = await self._slots.paid(run.wait)
            began_s = time.monotonic()
            await run.train(worker)
            self._note_work(run.job, time.monotonic() - began_s)
        except NodewireError as error:
            await run.refuse(error)
            raise
        except Exception:  # of this machine, such as a full disk: the customer need not wait for its deadline
            await run.refuse(WorkerFailed("round", "this provider's fault"))
            raise
        finally:
            if worker is not None:
                self._slots.free.put_nowait(worker)
        self._kept.delivered(run.job.request.id)
        self._made.remove(run.job.request.id)  # not before: who dies between the two would train again

    def _note_work(self, job: AdmittedShard | AdmittedOuter, work_s: float) -> None:
        """Keep in the ledger how long a round's work took."""
        task = "outer step" if isinstance(job, AdmittedOuter) else "round"
        self._ledger.work.note(job.request.id, job.recipe.name, {task: (1, int(work_s * 1e6))}, time.time())

    async def _until_paid_before(self, job: AdmittedShard) -> None:
        """Return when rounds before the one before are paid for: its balance stands for a deposit.

        Raises:
            PaymentRequired: they are not, within the patience; or it stands for another request's deposit already.

        """
        previous = self._admission.before(job)
        if not self._kept.stands_for(previous.key.job, job.request.id):
            raise PaymentRequired("previous", "its payment stands for another request's deposit")
        # What is delivered while this waits had a deposit of its own, and may wait for this very round.
        # A deposit that nobody paid is no debt: nothing was done for it.
        then = {key for key in self._ledger.unpaid_dues(previous.customer) if key.chunk == BALANCE} - {previous.key}

        def is_paid() -> bool:
            """All but the round before itself, which may be under audit, and what is given credit for."""
            unpaid = self._ledger.unpaid_dues(previous.customer)
            return sum(unpaid[key] for key in then & set(unpaid)) <= self._ad.credit_msat

        try:
            async with asyncio.timeout(self._patience_s), self._settled:
                await self._settled.wait_for(is_paid)
        except TimeoutError as error:
            raise PaymentRequired("previous", "rounds before it are not paid") from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refuse(self, event: Event, error: NodewireError) -> None:
        self._refusing += 1
        try:
            await self._tell(event.id, event.pubkey, event.kind, error)
        finally:
            self._refusing -= 1

    async def _tell(self, request: str, customer: str, kind: int, error: NodewireError) -> None:
        status, text = feedback_for(error)
        now_s = int(time.time())
        await self._refusals.tell(
            feedback.build(
                self._keys, request, customer, status, created_at=now_s, remarks=feedback.Remarks(text=text), kind=kind
            )
        )

    async def _publish(self, event: Event) -> None:
        await self._pool.publish(event, timeout_s=10.0)


def _ticket(text: str) -> RoundTicket | OuterTicket:
    """The ticket in JSON text, of either kind. Raises as `Schema.parse`."""
    return (OuterTicket if outer_step.is_ticket(text) else RoundTicket).parse(text)


def _parsed(event: Event) -> RoundRequest | OuterRequest:
    return outer_step.parse(event) if event.kind == kinds.OUTER else rounds.parse(event)
