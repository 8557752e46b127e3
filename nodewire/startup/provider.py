"""Opens everything a provider needs from its configuration, and sets it to work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from prometheus_client.registry import Collector

from nodewire.config import ProviderConfig
from nodewire.core.stop import stop
from nodewire.errors import BadConfig, NotAllowed
from nodewire.kind import MakeWorker, installed
from nodewire.market import Market, open_market
from nodewire.metrics.endpoint import MetricsExposition
from nodewire.net import host_port
from nodewire.net.address_policy import are_private
from nodewire.net.http_server import listening_socket
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.pay import registry
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import Till
from nodewire.pay.bond.bond_holder import is_share_paid
from nodewire.pay.bond.presentation_store import PresentationStore
from nodewire.pay.bond.presenter import Presenter
from nodewire.pay.lightning import lnurl_server
from nodewire.pay.lightning.wallet import Wallet
from nodewire.protocol.job.request import Request
from nodewire.protocol.market.coordinates import in_ms
from nodewire.protocol.model.manifest import Manifest
from nodewire.provider import metrics
from nodewire.provider.admission.cancellations import Withdrawals
from nodewire.provider.admission.checks import Admission, CertifiedPlanner
from nodewire.provider.admission.free_chunks import FreeChunks
from nodewire.provider.autoscale.bootstrap import open_following
from nodewire.provider.evidence.committer import Committer
from nodewire.provider.evidence.grants import Grants
from nodewire.provider.evidence.server import EvidenceServer, recall_from
from nodewire.provider.evidence.store import KeptWork
from nodewire.provider.evidence.verifier import JobVerifier
from nodewire.provider.inference.claim_retry import claim_again
from nodewire.provider.inference.proof import SPOOL_EPOCHS, CommitteeProof
from nodewire.provider.inference.service import Provider
from nodewire.provider.market.announcer import Announcer, describe, name_of
from nodewire.provider.market.bond import BondKeeper, check_bond
from nodewire.provider.market.listener import open_wire
from nodewire.provider.market.observer import Observer
from nodewire.provider.market.peer_sampler import Acquaintance, is_private
from nodewire.provider.outage import Outage, disk_check, ledger_check, worker_check
from nodewire.provider.profile import node_profile
from nodewire.provider.tasks import queue_report
from nodewire.provider.tasks.loader import specialize
from nodewire.provider.tasks.registry import Specializations
from nodewire.store.state_lock import held
from nodewire.store.sweep import sweeping
from nodewire.training.fedstr.service import Fedstr
from nodewire.training.provider.node import TrainerNode
from nodewire.training.provider.service import TrainingService
from nodewire.training.provider_bootstrap import open_training
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.measure import link_health_store
from nodewire.wire.metrics import Links, SpoolCollector
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.transport import congestion
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker import devices
from nodewire.worker.metrics import Machines, Workers
from nodewire.worker.persistent_worker import LastingWorker, maker
from nodewire.worker.worker_group import several


async def start(stack: AsyncExitStack, config: ProviderConfig) -> dict[str, Any]:
    """Start a provider; returns its ready line with `wait`, which ends only by an error, and with its `metrics`.

    It is ready when its wallet answers, its bond is locked and its first ad is on its relays.

    Raises:
        LinkLost, TimedOut: the wallet's service does not answer.
        NotAllowed, PaymentFailed: the bond was asked back or slashed, or is larger than the wallet.
        BadConfig: the wallet's service does not know the token, or a device or congestion control is not there.
        Busy: another daemon works in its state folder.

    """
    congestion.check(config.wire.congestion)
    await devices.check(config.worker.device)
    stack.enter_context(held(config.state))
    wallet = registry.wallet_class(config.wallet.kind).from_file(config.wallet.url, config.wallet.token_file)
    stack.push_async_callback(wallet.close)
    await _check_wallet(wallet, config)
    keys, pool, market = await open_market(stack, config)
    ledger = Ledger(config.ledger)
    stack.callback(ledger.close)
    ledger.interrupted()

    async def publish(event: Event, relays: tuple[str, ...]) -> None:
        await pool.publish(event, timeout_s=10.0)

    till = Till(keys, wallet, ledger, publish)
    lnurl = await _serve_lnurl(stack, config, keys, till)
    ready: dict[str, Any] = {"ready": "provider", "npub": keys.npub, "public": keys.public, "lnurl": lnurl}
    halves: list[Provider | TrainingService | Fedstr] = []
    here: list[Collector] = [metrics.Jobs(halves)]
    serving: list[LastingWorker] = []
    training_workers: list[LastingWorker] = []
    if config.serve or config.specialize is not None:
        provider, said, shown, serving = await _open_inference(stack, config, keys, pool, market, ledger, wallet, lnurl)
        halves.append(provider)
        here += shown
        ready |= said
    if config.train is not None:
        trainer = TrainerNode(keys, pool, market.blobs, ledger, config.patience_s)
        training, fedstr, training_workers = await open_training(
            stack, config, config.train, trainer, till=till, lnurl=lnurl
        )
        halves += [training, *([fedstr] if fedstr else [])]
        here.append(metrics.Bench(training.free, training.outage if halves[0] is training else None))
        stack.push_async_callback(training.withdraw)
        ready |= {"trains": list(config.train.families), "name": ready.get("name", training.name)}

    def settled(due: Due) -> None:
        for half in halves:
            half.settled(due)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(till.run(settled))
            group.create_task(claim_again(ledger, lambda claim: publish(claim, ())))
            for half in halves:
                group.create_task(half.run())

    running = asyncio.create_task(run())
    stack.push_async_callback(stop, running)
    await _announced(running, [half for half in halves if isinstance(half, Provider)])

    def named() -> list[tuple[str, LastingWorker]]:
        both = {"serve": list(serving), "train": training_workers}
        return [(f"{what}-{number}", one) for what, workers in both.items() for number, one in enumerate(workers)]

    here.append(Workers(named))
    apart = (metrics.Till(config.ledger), Machines(named, config.worker.memory))
    return {**ready, "wait": running, "metrics": MetricsExposition("provider", config.metrics.listen, here, apart)}


async def _check_wallet(wallet: Wallet, config: ProviderConfig) -> None:
    """Before anything is loaded or published. Raises as `start`."""
    try:
        balance_msat = await wallet.balance_msat()
    except NotAllowed as error:
        said = f"{config.wallet.url} does not know the token in {config.wallet.token_file}"
        raise BadConfig("wallet.token_file", said) from error
    if config.bond.amount_msat:
        public = Keys.from_file(config.key).public
        holder = registry.bond_holder(config.wallet.kind, wallet)
        await check_bond(holder, public, config.bond.amount_msat, balance_msat)


async def _announced(running: asyncio.Task[None], halves: Sequence[Provider]) -> None:
    """Wait until what is offered stands in an ad on the relays. Raises what ended the daemon before."""
    waiting = asyncio.gather(*(half.announced() for half in halves))
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        running.result()


async def _open_inference(
    stack: AsyncExitStack,
    config: ProviderConfig,
    keys: Keys,
    pool: Pool,
    market: Market,
    ledger: Ledger,
    wallet: Wallet,
    lnurl: str,
) -> tuple[Provider, dict[str, Any], list[Collector], list[LastingWorker]]:
    """What serves the tasks in [[serve]] and those that it follows demand to, what its ready line says of them, what it
    shows Prometheus, and its workers, of which there may be others later.
    """
    job_kinds = installed()
    made = list[LastingWorker]()

    def workers_on(stack: AsyncExitStack) -> MakeWorker:
        """Workers that end with `stack`."""
        make = maker(stack, config.limits, config.blobs, batch=config.worker.batch)

        def make_one(entry: str) -> LastingWorker:
            made.append(make(entry))
            stack.callback(made.remove, made[-1])
            return made[-1]

        return several(make_one, config.worker.processes)

    profiled = node_profile.kept(config.state, config.limits)
    room = config.worker.for_sessions
    served = await specialize(market, config.serve, job_kinds, workers_on(stack), profiled.speeds, room)
    held = Specializations(served)
    swept = asyncio.create_task(sweeping(config.blobs, None, but=lambda: held.blobs))
    stack.callback(swept.cancel)
    follower = None
    if config.specialize is not None:
        follower = await open_following(
            stack, config, keys.public, pool, market, held, job_kinds, workers_on, profiled.speeds
        )
    reporting = asyncio.create_task(queue_report.report(made))
    stack.callback(reporting.cancel)

    async def publish_here(event: Event) -> None:
        await pool.publish(event, timeout_s=10.0)

    withdrawals = Withdrawals()
    provider: Provider | None = None

    def controlled(peer: str, document: Mapping[str, Any]) -> None:
        if provider is not None:
            provider.controlled(peer, document)

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
    holding = EvidenceServer(keys, market.committee, spool, Grants(pool, market.committee).find_samples, recall)
    judges = [oracle.pubkey for oracle in market.committee.oracles]
    beside = SameHost(keys) if config.wire.same_host else None
    node = Node(
        keys,
        on_control=controlled,
        holder=holding.show,
        judges=judges,
        expect=market.lists,
        beside=beside,
        transport=TcpTls(
            config.wire.congestion or None, allow_private=config.wire.private or await are_private(config.relays)
        ),
    )
    stack.push_async_callback(node.close)
    await stack.enter_async_context(link_health_store.kept(node.survey, config.state))
    wire = await open_wire(stack, config.wire, node, keys, pool)

    ad = partial(describe, config, keys.public, wire=wire, lnurl=lnurl, committee=market.committee_digest)
    holder = registry.bond_holder(config.wallet.kind, wallet)
    bonding = BondKeeper(keys, holder, config.bond)
    presenter = None
    if config.bond.amount_msat:  # who has none never verifies
        presented = PresentationStore(config.state / "presented.db", market.committee_digest)
        stack.callback(presented.close)
        presenter = Presenter(keys, market.committee, pool, holder, presented, collects=True)
    private = config.wire.private or all(map(is_private, wire))
    observer = Observer(node, market, allow_private=private)
    announcer = Announcer(
        keys,
        pool,
        market,
        ad,
        held,
        bonding,
        lambda: in_ms(node.survey.place.claim.at),
        profiled.published,
        observer.report,
    )
    meeting = asyncio.create_task(Acquaintance(node, market, allow_private=private).run())
    stack.callback(meeting.cancel)
    committing = Committer(keys, pool, market.blobs, market, kept)
    verifying = JobVerifier(
        keys=keys,
        market=market,
        relays=pool,
        node=node,
        job_kinds=job_kinds,
        held=held,
        commit=committing.commit,
        keep=holding.verified,
        publish=publish_here,
        is_paid=lambda request, chunk, epoch, number: is_share_paid(
            holder, request, chunk, epoch, market.committee, number
        ),
    )
    outage = Outage(
        [disk_check(config.state), ledger_check(ledger), worker_check(lambda: [w.revived() for w in made])],
        lambda: held.pause(is_paused=outage.cause is not None),
    )
    admission = Admission(
        keys.public,
        CertifiedPlanner(market, pool),
        ledger,
        held.manifest,
        config.pow_bits,
        config.lookahead,
        FreeChunks(config.pow_bits, ledger.has_paid),
    )
    services = [market.run, announcer.run, observer.run, committing.run, verifying.run]
    services += [one.run for one in (follower, presenter) if one is not None]
    provider = Provider(
        keys=keys,
        relays=pool,
        record=market,
        node=node,
        ledger=ledger,
        held=held,
        admission=admission,
        withdrawals=withdrawals,
        spool=spool,
        proof=CommitteeProof(keys.public, kept, holding, committing, spool, market.committee.epoch_ms),
        patience_s=config.patience_s,
        outage=outage,
        prefixes=config.prefixes,
        beside=services,
    )
    ready = {
        "name": name_of(config, keys.public),
        "wire": list(wire),
        "serves": {s.manifest.name: list(s.tasks) for s in served},
        "prices_msat": {s.manifest.name: dict(s.prices_msat) for s in served},
        **({"specialize": config.specialize} if follower is not None else {}),
    }
    stall = metrics.Stall(keys.public, held, bonding, market, outage)
    return provider, ready, [Links(node), SpoolCollector(spool, config.spool), stall], made


async def _serve_lnurl(stack: AsyncExitStack, config: ProviderConfig, keys: Keys, till: Till) -> str:
    """Serve the provider's LNURL-pay endpoint; its payRequest URL."""
    sock = listening_socket("lnurl.listen", config.lnurl.listen)
    host, _ = host_port.parse(config.lnurl.listen, "lnurl.listen", least_port=0, error=BadConfig)
    base = config.lnurl.url.rstrip("/") or f"http://{host_port.written(host, sock.getsockname()[1])}"
    endpoint = lnurl_server.Endpoint("nodewire", base, keys.public, till.quote)
    await stack.enter_async_context(lnurl_server.serving(endpoint, sock))
    return endpoint.pay_url
