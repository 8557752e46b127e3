"""Serves requests in FEDSTR's layout (kind 8000) beside the training half, with the same workers and the same book."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from typing import TYPE_CHECKING, Any

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadTag, Busy, LinkLost, NodewireError, NotFound, TimedOut
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.provider.admission.checks import feedback_for
from nodewire.provider.admission.refusals import Refusals
from nodewire.provider.job_counters import Figures
from nodewire.training.fedstr import events
from nodewire.training.fedstr.admission import FedstrAdmission
from nodewire.training.fedstr.events import FedstrRequest, Source
from nodewire.training.fedstr.job import FETCHED, FedstrRun, Transfer
from nodewire.training.fedstr.store import KeptRequests
from nodewire.training.provider.carried_store import CarriedFiles
from nodewire.training.provider.paid_job import RunResources
from nodewire.training.provider.undelivered_results import MadeResults
from nodewire.training.provider.worker_slots import SLOT_S

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from nodewire.kind import Worker
    from nodewire.nostr.event import Event
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.accounts.till import Till
    from nodewire.provider.outage import Outage
    from nodewire.training.protocol.trainer_ad import Trainer
    from nodewire.training.provider.admission import TrainingAdmission
    from nodewire.training.provider.node import TrainerNode

log = logging.getLogger("nodewire.provider")

MAX_SEEN = 8_192
MAX_TASKS = 256
"""Requests that are looked at, under way or unpaid at a time; of more nothing is said."""
MAX_HOPS = 16
"""Requests that are looked up, each naming the one before it, until one cites its data itself."""
MAX_KNOWN = 1_024
WAITING_S = 30.0
AGAIN_S = 3.0
"""Between two tries to fetch what was begun before this provider died."""


class Fedstr:
    """Made with everything open; `run` serves until it is cancelled. `free` has the workers that are not training."""

    def __init__(
        self,
        *,
        node: TrainerNode,
        till: Till,
        ad: Trainer,
        admission: TrainingAdmission,
        free: asyncio.Queue[Worker],
        folder: Path,
        transfer: Transfer,
        outage: Outage | None = None,
    ) -> None:
        self._keys = node.keys
        self._pool = node.pool
        self._blobs = node.blobs
        self._ledger = node.ledger
        self._till = till
        self._ad = ad
        self._admission = FedstrAdmission(node.keys, ad, admission, node.ledger)
        self._free = free
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._made = MadeResults(folder / "made")
        self._carried = CarriedFiles(folder / "carried", 0)
        self._kept = KeptRequests(folder / "requests")
        shutil.rmtree(folder / FETCHED, ignore_errors=True)
        (folder / FETCHED).mkdir(mode=0o700)
        self._fetching = asyncio.Semaphore(ad.concurrency)
        """So many requests at a time have something on the disk that no worker has."""
        self._patience_s = node.patience_s
        self._transfer = transfer
        self._outage = outage
        self.figures = Figures()
        self._refusals = Refusals(self._publish, self.figures)
        self._runs: dict[str, FedstrRun] = {}
        self._known = BoundedDict[str, Source](MAX_KNOWN)
        """The data of requests that were served, for those that name them."""
        self._seen = BoundedDict[str, None](MAX_SEEN)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> dict[int, int]:
        """Requests that are open here, by kind."""
        return {kinds.FEDSTR: len(self._runs)}

    async def run(self) -> None:
        """Announce, then serve until cancelled."""
        await self._publish(events.ad(self._keys, self._ad, created_at=int(time.time())))
        kept = self._kept.all()
        self._made.only([event.id for event in kept])
        for event in kept:
            self._seen[event.id] = None
            self._spawn(self._serve(event, again=True))
        mine = {"p": frozenset({self._keys.public})}
        wanted = Filter(kinds=frozenset({kinds.FEDSTR}), tags=mine, since=int(time.time() - WAITING_S))
        async for event in self._pool.subscribe([wanted]):
            if event.id in self._seen or len(self._tasks) >= MAX_TASKS or not events.is_ours(event, self._keys):
                continue
            if self._ledger.has_job(event.id):  # served before this provider was started: its customer knows
                continue
            self._seen[event.id] = None
            self._spawn(self._serve(event, again=False))

    def settled(self, due: Due) -> None:
        """The provider's own wallet says that something is paid."""
        if (run := self._runs.get(due.key.job)) is not None:
            self._spawn(run.paid())

    async def _serve(self, event: Event, *, again: bool) -> None:
        """A request from its first look to its balance. `again`: it was under way when this provider died."""
        try:
            if self._outage is not None and not again:
                self._outage.check_admission()
            asked = events.parse(event, self._keys) if again else self._admission.glance(event, time.time())
            run, worker = await self._begun(asked, again=again)
        except NodewireError as error:
            log.info("fedstr %s refused: %s", event.id[:8], error)
            self.figures.refused(event.kind, error)
            self._kept.remove(event.id)
            await self._tell(event, error)
            return
        self._runs[event.id] = run
        try:
            with self.figures.job(event.kind):
                await self._work(event, run, worker)
                self.figures.steps += run.job.assigned.steps
                await run.balance()
        except NodewireError as error:
            log.warning("fedstr %s ended: %s", event.id[:8], error)
        except Exception:
            log.exception("fedstr %s ended by a fault of this software", event.id[:8])
        else:
            log.info("fedstr %s served, %.3f sat earned", event.id[:8], run.job.assigned.price_msat / 1000)
        finally:
            del self._runs[event.id]
            await run.close()
        self._kept.remove(event.id)
        self._made.remove(event.id)

    async def _begun(self, asked: FedstrRequest, *, again: bool) -> tuple[FedstrRun, Worker]:
        """What the request needs, fetched, and a worker for it. Raises as admission and `FedstrRun.fetch`; Busy."""
        while True:
            left_s = asked.created_at + asked.deadline_s - time.time()
            try:
                async with self._fetching:
                    return await self._fetched(asked, max(SLOT_S, left_s) if again else SLOT_S)
            except (LinkLost, TimedOut):
                if not again or left_s <= 0:  # what was begun may have its deposit paid
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _fetched(self, asked: FedstrRequest, wait_s: float) -> tuple[FedstrRun, Worker]:
        run = await self._translated(asked)
        try:
            await run.fetch()
            return run, await self._slot(wait_s)
        except BaseException:
            run.forget()
            raise

    async def _translated(self, asked: FedstrRequest) -> FedstrRun:
        data = asked.data if isinstance(asked.data, Source) else await self._data_of(asked.data, asked.customer)
        job = self._admission.check(asked, asked.state, data)
        if not data.inline:
            self._known[asked.id] = data
        resources = RunResources(self._keys, self._blobs, self._ledger, self._publish, self._folder, self._patience_s)
        return FedstrRun(
            asked, data, job, resources, self._carried, self._made, till=self._till, transfer=self._transfer
        )

    async def _data_of(self, job: str, customer: str) -> Source:
        """The data of an earlier request of the same customer to this provider, named by it or by its result.

        Raises:
            NotFound: no relay has it, or it is somebody else's.
            BadTag: it names too long a row of others.

        """
        for _ in range(MAX_HOPS):
            event = await self._event(job)
            if (request := events.earlier(event, self._keys.public)) is not None:
                event = await self._event(request)
            if event.pubkey != customer or not events.is_ours(event, self._keys):
                raise NotFound("i", "no request of this customer to this provider")
            data = self._known.get(event.id) or events.source(event, self._keys, "data")
            if isinstance(data, Source):
                return data
            job = data
        raise BadTag("i", f"more than {MAX_HOPS} jobs until one cites its data")

    async def _event(self, id_: str) -> Event:
        found = await self._pool.fetch([Filter(ids=frozenset({id_}))], timeout_s=10.0)
        if not found:
            raise NotFound("i", f"no relay has {id_[:16]}")
        return found[0]

    async def _work(self, event: Event, run: FedstrRun, worker: Worker) -> None:
        """A slot is for the deposit and the work."""
        try:
            self._kept.begun(event)
            await run.prepare(worker)
            try:
                await run.deposit()
            except NodewireError:
                run.forgo_deposit()
                raise
            await run.train(worker)
        except NodewireError as error:
            await run.refuse(error)
            raise
        finally:
            run.forget()
            self._free.put_nowait(worker)
        self._kept.remove(event.id)

    async def _slot(self, wait_s: float) -> Worker:
        """A worker that is free, or will be in a moment. Raises Busy: none is."""
        try:
            return await asyncio.wait_for(self._free.get(), wait_s)
        except TimeoutError as error:
            raise Busy("concurrency", "all workers are training") from error

    async def _tell(self, event: Event, error: NodewireError) -> None:
        status, text = feedback_for(error)
        now_s = int(time.time())
        await self._refusals.tell(
            events.feedback(self._keys, event.id, event.pubkey, status, created_at=now_s, text=text)
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, event: Event) -> None:
        await self._pool.publish(event, timeout_s=10.0)
