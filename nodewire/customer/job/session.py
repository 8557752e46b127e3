"""What a customer holds open between jobs: relays, wallet, its end of the wire, a worker if it needs one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.customer.job.order import JobOrder
from nodewire.customer.models.names import ModelNames
from nodewire.customer.payments.debt_collector import Settler
from nodewire.customer.payments.purse import Purse
from nodewire.errors import BadFrame, LinkLost, NodewireError, NotAllowed, first_of
from nodewire.kind import Job, JobKind, MakeWorker, Worker
from nodewire.market import Market
from nodewire.protocol.job.chunk_close import WITHDRAW, Close
from nodewire.protocol.job.plan import LOCAL, Plan
from nodewire.protocol.model.edge_codec import codings
from nodewire.protocol.verification.statement import hashed
from nodewire.wire.evidence.output_signer import OutputSigner, tell

if TYPE_CHECKING:
    from nodewire.customer.job.estimate import Estimate
    from nodewire.customer.job.order import JobOrder
    from nodewire.customer.models.names import ModelNames
    from nodewire.customer.payments.debt_collector import Settler
    from nodewire.customer.payments.receipt_finalizer import Closings
    from nodewire.customer.payments.refunds import Refunds
    from nodewire.customer.payments.share_account import ShareAccount
    from nodewire.customer.planning.planner import Planner
    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.payer import Payer
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.protocol.model.manifest import Edge, Manifest
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.protocol.tensors.inbox import Inbox
    from nodewire.public_record import PublicRecord
    from nodewire.wire.evidence.spool import Spool
    from nodewire.wire.job.generation_tape import GenerationTape
    from nodewire.wire.job.mailbox import JobMailbox
    from nodewire.wire.node import Node

_FAREWELL_S = 3.5

OnClose = Callable[[int, int], Awaitable[None]]
"""Told each chunk's number and units."""


class PlannedJob(Protocol):
    """A purchase whose plan is drawn, as it is before its job is requested."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def request(self) -> Event: ...
    @property
    def holders(self) -> Mapping[str, int]:
        """The number of live providers that held each task."""

    @property
    def estimate(self) -> Estimate:
        """What the job comes to, about and at most."""

    @property
    def most_units(self) -> int:
        """The most chunks that the job can have."""

    @property
    def is_second(self) -> bool:
        """Whether another job of the same generation goes on until this one has caught up."""


@dataclass(slots=True)
class Session:
    keys: Keys
    pool: EventTransport
    relays: tuple[str, ...]
    public_record: PublicRecord
    planner: Planner
    payer: Payer
    network: str
    """The wallet's network as bolt11 writes it after "ln"."""
    node: Node
    make_worker: MakeWorker
    spool: Spool
    settler: Settler
    models: ModelNames | None = None
    """What names of models stand for; in a swarm its file names the one that there is."""
    closings: Closings | None = None
    refunds: Refunds | None = None
    holder: BondHolder | None = None
    """The key that keeps the committee's treasury."""
    share_account: ShareAccount | None = None
    """The parts that pay verification shares. Where there is no committee there are none of the five."""
    named: Callable[[NodewireError], NodewireError] = lambda error: error
    """An error with people's names for the nodes that it is about, where there are such."""
    announce: Callable[[PlannedJob], Awaitable[None]] | None = None
    """Told every plan before its job is requested."""
    private_endpoints: bool = False
    """Whether LNURL endpoints on loopback and private networks may be asked."""
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("nodewire.customer"))
    _workers: dict[tuple[str, str], Worker] = field(default_factory=dict)
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _background: set[asyncio.Task[None]] = field(default_factory=set)
    """Words to the providers of jobs that are given up, and payments of those that broke off."""

    @property
    def purse(self) -> Purse:
        return Purse(self.payer, self.relays, self.network, self.private_endpoints)

    @property
    def market(self) -> Market:
        """What a committee certifies. Raises NotAllowed: there is none here."""
        if not isinstance(self.public_record, Market):
            raise NotAllowed("market", "a swarm has no committee, so nothing of it is certified")
        return self.public_record

    def withdraw(self, request: str, providers: Mapping[str, Sequence[str]]) -> None:
        """Tell all `providers` (public keys and addresses) in the background that a job is given up.

        The wire's own cancel reaches a job's neighbours, and goes on from there only where they have opened the job.
        """
        for public, addresses in providers.items():
            self.run_in_background(self._withdraw(request, public, addresses))

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside whatever is bought next."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Give what is done beside the jobs a moment, then leave."""
        if self._background:
            await asyncio.wait(self._background, timeout=_FAREWELL_S)
        for task in self._background:
            task.cancel()

    async def _withdraw(self, request: str, public: str, addresses: Sequence[str]) -> None:
        try:
            link = await self.node.link(public, addresses)
            link.send_control({"t": WITHDRAW, "job": request})
        except NodewireError as error:
            self.log.debug("withdrawing %s from %s: %s", request[:8], public[:8], error)

    async def prepare(self, kind: JobKind, manifest: Manifest, tasks: tuple[str, ...]) -> None:
        """Have a plan's local tasks loaded here before anybody waits for them. Raises as a worker's start and load."""
        if tasks:
            await self._worker(kind, manifest, tasks)

    async def serve_locally(
        self,
        order: JobOrder,
        request: str,
        plan: Plan,
        mailbox: LocalMailbox,
        on_close: OnClose,
        signing: OutputSigner | None,
        tape: GenerationTape | None = None,
    ) -> None:
        """Run the plan's local tasks here, in a worker, until the job's end; a local driver's closes go to `on_close`.

        `signing`: of a job that may be judged, what those tasks put out. `tape`: a generation's.

        Raises:
            NodewireError: a task refused its input, the worker failed, or a provider cannot be reached.

        """
        manifest, tasks = order.manifest, plan.tasks_of(LOCAL)
        worker = await self._worker(order.kind, manifest, tasks)
        desk = _LocalDesk(self.keys, request, manifest, plan, mailbox, on_close, signing, tape)
        try:
            narrowed = codings(manifest, plan.terms.codecs)
            job = Job(request, manifest, tasks, order.params, narrowed, plan.terms.lookahead)
            await order.kind.serve(job, mailbox, worker, desk)
            await desk.wait_sent()
        except ExceptionGroup as group:
            raise first_of(group) from group
        finally:
            desk.leave()

    async def _worker(self, kind: JobKind, manifest: Manifest, tasks: tuple[str, ...]) -> Worker:
        """A worker with these tasks loaded; it is kept for the next job of the same manifest."""
        key = (manifest.digest(), ",".join(tasks))
        async with self._loading:
            if key not in self._workers:
                worker = self.make_worker(kind.worker_entry)
                for name in tasks:
                    task = manifest.task(name)
                    program = await self.public_record.fetch_blob(task.program.sha256, task.program.bytes)
                    weights = [await self.public_record.fetch_blob(w.sha256, w.bytes) for w in task.weights]
                    await worker.load(name, task.engine, program, weights)
                self._workers[key] = worker
            return self._workers[key]


MAX_LOCAL_FRAMES = 8
"""Of each task that runs here: it awaits one at a time, or so many times as many as may be guessed."""


class LocalMailbox:
    """A job's mailbox as the customer's own tasks see it: whoever reads the job's hands them their frames."""

    def __init__(self, mailbox: JobMailbox, manifest: Manifest, plan: Plan) -> None:
        own = plan.tasks_of(LOCAL)
        self._edges = {edge.name for edge in manifest.edges if edge.target in own}
        self._frames: asyncio.Queue[Frame[Array]] = asyncio.Queue(MAX_LOCAL_FRAMES * len(own) * plan.terms.lookahead)
        self._inbox: Inbox | None = None
        self.put = mailbox.put
        self.control = mailbox.control

    def accept(self, frame: Frame[Array]) -> bool:
        """Whether the frame is for one of the customer's own tasks; then they have it."""
        if frame.edge not in self._edges:
            return False
        if self._inbox is not None and self._inbox.put(frame):
            return True
        if self._frames.full():
            raise BadFrame(frame.edge, f"{self._frames.maxsize} frames wait for tasks that run here")
        self._frames.put_nowait(frame)
        return True

    async def get(self) -> Frame[Array]:
        return await self._frames.get()

    def deliver_to(self, inbox: Inbox) -> None:
        """As the port. What ends the job ends those tasks, too, so that the inbox need not hear it."""
        self._inbox = inbox
        while not self._frames.empty() and inbox.put(self._frames.get_nowait()):
            pass


def signing_of(keys: Keys, request: str, manifest: Manifest, plan: Plan) -> OutputSigner | None:
    """For what the customer's own tasks put out in a job that may be judged; None if there is nothing to sign."""
    if plan.verification.policy != "sampled" or all(a.provider != LOCAL for a in plan.tasks):
        return None

    providers = {a.task: a.provider for a in plan.tasks}

    def consumer(edge: Edge) -> str | None:
        provider = providers.get(edge.target, LOCAL)
        return provider if provider != LOCAL else None

    return OutputSigner(keys, request, manifest, consumer)


class _LocalDesk:
    """The customer's own tasks earn nothing, and a local driver still closes the chunks of a generation.

    In a job that may be judged the customer signs what they put out. Who computes on it is judged by that.
    """

    def __init__(
        self,
        keys: Keys,
        request: str,
        manifest: Manifest,
        plan: Plan,
        mailbox: LocalMailbox,
        on_close: OnClose,
        signing: OutputSigner | None,
        tape: GenerationTape | None = None,
    ) -> None:
        own = plan.tasks_of(LOCAL)
        self._providers = plan.providers()
        self._tape = tape
        self._outputs = {edge.name for edge in manifest.edges if edge.source in own}
        if tape is not None:
            touched = {edge.name for edge in manifest.inner_edges if edge.source in own or edge.target in own}
            tape.attend(touched, self._plain, self._say)
        self._on_close = on_close
        self._keys = keys
        self._request = request
        self._generates = manifest.mode == "generate"
        self._mailbox = mailbox
        self._signing = signing
        self._saying: set[asyncio.Task[None]] = set()

    async def admit(self, chunk: int, units: int = 1) -> None:
        return

    def produced(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        if self._signing is not None and (self._tape is None or frame.edge not in self._tape.inner):
            self._signing.produced(chunk, frame.edge, hashed(frame))
            if not self._generates:  # a call's part is whole
                self._say(chunk)

    def received(self, task: str, frame: Frame[Array]) -> None:
        assert self._tape is not None
        if frame.edge in self._tape.inner:
            self._tape.record_frame(frame.edge, frame)

    def _plain(self, edge: str, chunk: int, frame: Frame[Array]) -> None:
        """What went on an inner edge is final."""
        if self._signing is not None and edge in self._outputs:
            self._signing.produced(chunk, edge, hashed(frame))

    async def completed(self, chunk: int, units: int, end: bool, positions: int | None = None) -> None:
        if not self._generates:
            return
        close = Close.sign(
            self._keys,
            request=self._request,
            attempt=0,
            chunk=chunk,
            units=units,
            end=end,
            positions=positions,
        )
        await self._on_close(chunk, units)
        for provider in self._providers:
            with suppress(LinkLost):  # one who has just died does not keep the others from hearing it
                await self._mailbox.control(provider, close.control())
        if self._tape is not None:
            self._tape.on_signed(chunk, positions)  # which says it
        else:
            self._say(chunk)

    async def wait_sent(self) -> None:
        """Return when what is signed has been told, as far as that goes."""
        if self._saying:
            await asyncio.wait(self._saying, timeout=_FAREWELL_S)

    def leave(self) -> None:
        for task in self._saying:
            task.cancel()

    def _say(self, chunk: int) -> None:
        """Sign what was put out of a chunk, and tell the consumers beside the work."""
        told = self._signing.sign(chunk) if self._signing is not None else {}
        for provider, said in told.items():
            task = asyncio.create_task(tell(self._mailbox.control, provider, said))
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)
