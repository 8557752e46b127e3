"""Opens what serves a provider's tasks: its workers, its evidence, its node, and its presence on the market."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nodewire.kind import JobKind, MakeWorker, installed
from nodewire.net.address_policy import are_private
from nodewire.pay import registry
from nodewire.pay.bond.bond_holder import BondHolder, is_share_paid
from nodewire.pay.bond.presentation_store import PresentationStore
from nodewire.pay.bond.presenter import Presenter
from nodewire.protocol.market.coordinates import in_ms
from nodewire.provider import metrics
from nodewire.provider.admission.checks import Admission, CertifiedPlanner
from nodewire.provider.admission.free_chunks import FreeChunks
from nodewire.provider.admission.withdrawals import Withdrawals
from nodewire.provider.autoscale.bootstrap import InstalledKinds, open_following
from nodewire.provider.evidence.committer import Committer
from nodewire.provider.evidence.grants import Grants
from nodewire.provider.evidence.server import EvidenceServer, recall_from
from nodewire.provider.evidence.store import KeptWork
from nodewire.provider.evidence.verifier import JobVerifier, VerifierPorts
from nodewire.provider.inference.job_factory import JobResources
from nodewire.provider.inference.proof import SPOOL_EPOCHS, CommitteeProof
from nodewire.provider.inference.service import Provider
from nodewire.provider.market.announcer import Announcer, Measurements, describe, name_of
from nodewire.provider.market.bond import BondKeeper
from nodewire.provider.market.listener import open_wire
from nodewire.provider.market.observer import Observer
from nodewire.provider.market.peer_sampler import Acquaintance, is_private
from nodewire.provider.outage import Outage, disk_check, ledger_check, worker_check
from nodewire.provider.profile import node_profile
from nodewire.provider.tasks import queue_report
from nodewire.provider.tasks.loader import ServedManifest, specialize
from nodewire.provider.tasks.registry import Specializations
from nodewire.store.sweep import sweep_beside
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.measure import link_health_store
from nodewire.wire.metrics import Links, SpoolCollector
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker.persistent_worker import LastingWorker, maker
from nodewire.worker.worker_group import several

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from prometheus_client.registry import Collector

    from nodewire.config import ProviderConfig
    from nodewire.market import Market
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.lightning.wallet import Wallet
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.market.ad_profile import PublishedProfile
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.provider.autoscale.follower import Follower


@dataclass(frozen=True, slots=True)
class ProviderResources:
    """What a provider opens before it serves anything."""

    config: ProviderConfig
    keys: Keys
    pool: Pool
    market: Market
    ledger: Ledger
    wallet: Wallet
    lnurl: str
    """The URL of its payRequest."""
    unit_msat: int
    """What payments to it are whole multiples of."""


@dataclass(frozen=True, slots=True)
class Inference:
    """What serves the tasks in [[serve]] and those that it follows demand to."""

    provider: Provider
    ready: dict[str, Any]
    """What the provider's ready line says of it."""
    collectors: list[Collector]
    """What it shows Prometheus."""
    workers: list[LastingWorker]
    """Its workers, of which there may be others later."""


async def open_inference(stack: AsyncExitStack, resources: ProviderResources) -> Inference:
    """What serves tasks, which is not running yet.

    Raises:
        NotFound, BadHash, BadManifest: a model in [[serve]] is not to be had, or not what was cited.
        BadTask, OverMemory, WorkerFailed, NotAllowed: a task cannot be loaded.
        BadConfig: it cannot listen, or no way leads to it.

    """
    config = resources.config
    workers = WorkerPool(config)
    tasks = await _open_tasks(stack, resources, workers)
    evidence = _open_evidence(stack, resources, tasks.held)
    control = ControlHandler()
    linked = await _open_node(stack, resources, control, evidence.server)
    presence = _open_presence(stack, resources, tasks, linked)
    outage = _outage(resources, tasks.held, workers)
    verifier = _verifier(resources, tasks, evidence, linked.node, presence.holder)
    jobs = _job_resources(resources, tasks.held, evidence, linked.node)
    market, beside = resources.market, (tasks.follower, presence.presenter)
    services = [market.run, presence.announcer.run, presence.observer.run, evidence.committer.run, verifier.run]
    services += [one.run for one in beside if one is not None]
    provider = Provider(jobs, relays=resources.pool, held=tasks.held, outage=outage, services=services)
    control.provider = provider
    stall = metrics.Stall(resources.keys.public, tasks.held, presence.bonding, market, outage)
    return Inference(
        provider,
        _ready(resources, tasks, linked.wire),
        [Links(linked.node), SpoolCollector(evidence.spool, config.spool), stall],
        workers.workers,
    )


class WorkerPool:
    """The workers of all tasks here."""

    def __init__(self, config: ProviderConfig) -> None:
        self.workers: list[LastingWorker] = []
        self._config = config

    def make_on(self, stack: AsyncExitStack) -> MakeWorker:
        """What makes workers that end with `stack`."""
        make = maker(stack, self._config.limits, self._config.blobs, batch=self._config.worker.batch)

        def make_one(entry: str) -> LastingWorker:
            worker = make(entry)
            self.workers.append(worker)
            stack.callback(self.workers.remove, worker)
            return worker

        return several(make_one, self._config.worker.processes)


@dataclass(frozen=True, slots=True)
class OpenTasks:
    """The tasks that are served, and what follows demand to others."""

    job_kinds: Mapping[int, JobKind]
    profile: PublishedProfile
    """What was measured here."""
    served: Sequence[ServedManifest]
    """What [[serve]] names."""
    held: Specializations
    follower: Follower | None


async def _open_tasks(stack: AsyncExitStack, resources: ProviderResources, workers: WorkerPool) -> OpenTasks:
    """Raises as `specialize` and `open_following`."""
    config, market = resources.config, resources.market
    job_kinds = installed()
    profiled = node_profile.kept(config.state, config.limits)
    room = config.worker.for_sessions
    served = await specialize(market, config.serve, job_kinds, workers.make_on(stack), profiled.speeds, room)
    held = Specializations(served)
    swept = asyncio.create_task(sweep_beside(config.blobs, None, but=lambda: held.blobs))
    stack.callback(swept.cancel)
    follower = None
    if config.specialize is not None:
        here = InstalledKinds(job_kinds, workers.make_on, profiled.speeds)
        follower = await open_following(stack, config, resources.keys.public, resources.pool, market, held, here)
    reporting = asyncio.create_task(queue_report.report(workers.workers))
    stack.callback(reporting.cancel)
    return OpenTasks(job_kinds, profiled.published, served, held, follower)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What proves the work done here, as long as somebody may ask for it."""

    spool: Spool
    kept: KeptWork
    server: EvidenceServer
    committer: Committer


def _open_evidence(stack: AsyncExitStack, resources: ProviderResources, held: Specializations) -> Evidence:
    config, keys, pool, market = resources.config, resources.keys, resources.pool, resources.market
    spool = Spool(config.state / "spool", config.spool)
    stack.callback(spool.close)
    kept = KeptWork(config.state / f"kept-{market.committee_digest[:16]}.db")
    stack.callback(kept.close)
    kept.interrupted(time.time() + SPOOL_EPOCHS * market.committee.epoch_ms / 1000)

    async def manifest_of(request: Request) -> Manifest:
        digest = request.plan.manifest
        if (known := held.manifest(digest)) is not None:
            return known
        return await market.manifest(request.manifest_address, digest)

    recall = recall_from(kept, manifest_of)
    server = EvidenceServer(keys, market.committee, spool, Grants(pool, market.committee).find_samples, recall)
    return Evidence(spool, kept, server, Committer(keys, pool, market.blobs, market, kept))


class ControlHandler:
    """Gives the provider, once there is one, what comes over links and is no open job's."""

    def __init__(self) -> None:
        self.provider: Provider | None = None

    def handle(self, peer: str, document: Mapping[str, Any]) -> None:
        if self.provider is not None:
            self.provider.controlled(peer, document)


@dataclass(frozen=True, slots=True)
class LinkedNode:
    """A node that listens, and the addresses of it that the ad says."""

    node: Node
    wire: tuple[str, ...]


async def _open_node(
    stack: AsyncExitStack, resources: ProviderResources, control: ControlHandler, evidence: EvidenceServer
) -> LinkedNode:
    """Raises as `open_wire`."""
    config, keys, market = resources.config, resources.keys, resources.market
    judges = frozenset(oracle.pubkey for oracle in market.committee.oracles)
    beside = SameHost(keys) if config.wire.same_host else None
    node = Node(
        keys,
        on_control=control.handle,
        holder=evidence.show,
        policy=LinkPolicy(
            judges=judges,
            transport=TcpTls(
                config.wire.congestion or None, allow_private=config.wire.private or await are_private(config.relays)
            ),
            beside=beside,
        ),
        expect=market.lists,
    )
    stack.push_async_callback(node.close)
    await stack.enter_async_context(link_health_store.kept(node.survey, config.state))
    return LinkedNode(node, await open_wire(stack, config.wire, node, keys, resources.pool))


@dataclass(frozen=True, slots=True)
class MarketPresence:
    """A provider's bond, its ad and beats, and what it says of others."""

    holder: BondHolder
    bonding: BondKeeper
    presenter: Presenter | None
    """None without a bond: who has none never verifies."""
    observer: Observer
    announcer: Announcer


def _open_presence(
    stack: AsyncExitStack, resources: ProviderResources, tasks: OpenTasks, linked: LinkedNode
) -> MarketPresence:
    config, keys, pool, market = resources.config, resources.keys, resources.pool, resources.market
    node, wire = linked.node, linked.wire
    committee = market.committee_digest
    paid_at = partial(describe, lnurl=resources.lnurl, unit_msat=resources.unit_msat)
    ad = partial(paid_at, config, keys.public, wire=wire, committee=committee)
    holder = registry.bond_holder(config.wallet.kind, resources.wallet, config.holder)
    bonding = BondKeeper(keys, holder, config.bond)
    presenter = None
    if config.bond.amount_msat:
        presented = PresentationStore(config.state / "presented.db", committee)
        stack.callback(presented.close)
        presenter = Presenter(keys, market.committee, pool, holder, presented, collects=True)
    private = config.wire.private or all(map(is_private, wire))
    observer = Observer(node, market, allow_private=private)
    measured = Measurements(lambda: in_ms(node.survey.place.claim.at), tasks.profile, observer.report)
    announcer = Announcer(keys, pool, market, ad, tasks.held, bonding, measured)
    meeting = asyncio.create_task(Acquaintance(node, market, allow_private=private).run())
    stack.callback(meeting.cancel)
    return MarketPresence(holder, bonding, presenter, observer, announcer)


def _verifier(
    resources: ProviderResources, tasks: OpenTasks, evidence: Evidence, node: Node, holder: BondHolder
) -> JobVerifier:
    pool, market = resources.pool, resources.market

    return JobVerifier(
        keys=resources.keys,
        market=market,
        relays=pool,
        node=node,
        job_kinds=tasks.job_kinds,
        held=tasks.held,
        ports=VerifierPorts(
            commit=evidence.committer.commit,
            keep=evidence.server.verified,
            is_paid=lambda request, chunk, epoch, number: is_share_paid(
                holder, request, chunk, epoch, market.committee, number
            ),
        ),
    )


def _outage(resources: ProviderResources, held: Specializations, workers: WorkerPool) -> Outage:
    """What keeps this node from serving, and takes its slots from the market meanwhile."""
    lives = worker_check(lambda: [worker.revived() for worker in workers.workers])
    outage = Outage(
        [disk_check(resources.config.state), ledger_check(resources.ledger), lives],
        lambda: held.pause(is_paused=outage.cause is not None),
    )
    return outage


def _job_resources(resources: ProviderResources, held: Specializations, evidence: Evidence, node: Node) -> JobResources:
    config, keys, market, ledger = resources.config, resources.keys, resources.market, resources.ledger
    admission = Admission(
        keys.public,
        CertifiedPlanner(market, resources.pool),
        ledger,
        held.manifest,
        config.pow_bits,
        config.lookahead,
        FreeChunks(config.pow_bits, ledger.has_paid),
    )
    proof = CommitteeProof(
        keys.public, evidence.kept, evidence.server, evidence.committer, evidence.spool, market.committee
    )
    return JobResources(
        keys=keys,
        public_record=market,
        node=node,
        ledger=ledger,
        admission=admission,
        withdrawals=Withdrawals(),
        spool=evidence.spool,
        proof=proof,
        patience_s=config.patience_s,
        prefixes=config.prefixes,
    )


def _ready(resources: ProviderResources, tasks: OpenTasks, wire: Sequence[str]) -> dict[str, Any]:
    config = resources.config
    return {
        "name": name_of(config, resources.keys.public),
        "wire": list(wire),
        "serves": {s.manifest.name: list(s.tasks) for s in tasks.served},
        "prices_msat": {s.manifest.name: dict(s.prices_msat) for s in tasks.served},
        "units": {s.manifest.name: (s.manifest.mode, s.manifest.chunk) for s in tasks.served},
        **({"specialize": config.specialize} if tasks.follower is not None else {}),
    }
