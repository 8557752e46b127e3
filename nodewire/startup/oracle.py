"""Opens everything an oracle needs from its configuration, and sets it to work."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from nodewire.core.stop import stop
from nodewire.kind import installed
from nodewire.market import Market
from nodewire.metrics.endpoint import MetricsExposition
from nodewire.net.address_policy import are_private
from nodewire.nostr.pool import Pool
from nodewire.oracle import metrics as measuring
from nodewire.oracle.clock_watch import ClockWatch
from nodewire.oracle.court.court import Court
from nodewire.oracle.court.docket import Docket
from nodewire.oracle.court.library import Library
from nodewire.oracle.court.shares import Shares
from nodewire.oracle.court.workbench import Workbench
from nodewire.oracle.daemon import Oracle, Readers
from nodewire.oracle.journal import Journal
from nodewire.oracle.setup import load_committee, load_seat
from nodewire.pay import registry
from nodewire.pay.bond.presentation_store import PresentationStore
from nodewire.pay.bond.presenter import Presenter
from nodewire.pay.lightning.no_wallet import NoWallet
from nodewire.pay.lightning.wallet import Wallet
from nodewire.protocol.committee.committee import Committee
from nodewire.store import clock_offset
from nodewire.store.blobs import Blobs
from nodewire.store.state_lock import held
from nodewire.store.sweep import YOUNG_S, sweep_beside
from nodewire.verify.inquiry import Inquiry
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.measure import link_health_store
from nodewire.wire.metrics import Links
from nodewire.wire.nat.rendezvous import Reach
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker.metrics import Machines, Workers

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from prometheus_client.registry import Collector

    from nodewire.config import BondsConfig, OracleConfig
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.pay.lightning.wallet import Wallet
    from nodewire.protocol.committee.committee import Committee
    from nodewire.worker.persistent_worker import LastingWorker

WARMING_S = 4.0
"""Between the starts of two oracles' workers: about what one takes on an idle core."""
_YOUNG_EPOCHS = 8
"""A sample is decided within six of its draw: until then no blob that was read for it goes."""


async def start(stack: AsyncExitStack, config: OracleConfig) -> dict[str, Any]:
    """Start an oracle; returns its ready line with `wait`, which ends only by an error, and with its `metrics`.

    Raises:
        Busy: another daemon works in its state folder.

    """
    stack.enter_context(held(config.state))
    committee = load_committee(config.committee)
    seat = load_seat(config.seat, committee)
    pool = await stack.enter_async_context(Pool(config.relays, keys=seat.keys))
    blobs = await stack.enter_async_context(Blobs(config.blossom, config.state / "blobs", keys=seat.keys))
    journal = Journal(config.state / "journal.db")
    stack.callback(journal.close)
    clock = SystemClock()
    market = Market(pool, blobs, committee)
    holder = _open_holder(stack, config)
    shares = Shares(committee, pool, holder)
    readers = Readers(market.keep, market.keep_snapshot)
    oracle = Oracle(seat, committee, pool, blobs, journal, clock, shares.counts, readers)
    following = asyncio.create_task(market.follow())
    stack.callback(following.cancel)
    node = await _open_node(stack, config, seat.keys, pool)
    docket, library = Docket(market, pool), Library(market, pool)
    workbench = _open_workbench(stack, config, market, seat.keys.public)
    _sweep(stack, config, committee, workbench)
    loads = (workbench.loaded, workbench.reference) if workbench is not None else (None, None)
    inquiry = Inquiry(market, pool, docket, node, installed(), *loads)
    court = Court(seat.keys, pool, market, docket, inquiry, journal, clock, oracle.expel)
    presenter = None
    if holder is not None:
        presented = PresentationStore(config.state / "presented.db", committee.digest())
        stack.callback(presented.close)
        collects = config.wallet is not None
        presenter = Presenter(seat.keys, committee, pool, holder, presented, collects=collects)
    watch = ClockWatch(committee, lambda: clock_offset.measured_s((*config.relays, *config.blossom)))

    async def all_of_it() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(oracle.run())
            group.create_task(court.run())
            group.create_task(library.run())
            group.create_task(watch.run())
            if presenter is not None:
                group.create_task(presenter.run())

    running = asyncio.create_task(all_of_it())
    stack.push_async_callback(stop, running)
    return {
        "ready": "oracle",
        "npub": seat.keys.npub,
        "committee": committee.name,
        "wait": running,
        "metrics": _metrics(config, [Links(node), measuring.Committee(oracle, court, watch)], workbench),
    }


def _open_holder(stack: AsyncExitStack, config: OracleConfig) -> BondHolder | None:
    """Who holds the providers' bonds; None if this oracle leaves them to others."""
    if config.bonds is None and config.holder is None:
        return None
    wallet: Wallet = wallet_of(config.bonds) if config.bonds is not None else NoWallet()
    stack.push_async_callback(wallet.close)
    holder = registry.bond_holder(config.bonds.kind if config.bonds is not None else "", wallet, config.holder)
    stack.push_async_callback(holder.close)
    return holder


async def _open_node(stack: AsyncExitStack, config: OracleConfig, keys: Keys, pool: Pool) -> Node:
    """A node that dials, and does not listen."""
    private = await are_private(config.relays)
    node = Node(keys, policy=LinkPolicy(transport=TcpTls(allow_private=private), beside=SameHost(keys)))
    node.ladder = Reach(node, keys, pool)
    stack.push_async_callback(node.close)
    await stack.enter_async_context(link_health_store.kept(node.survey, config.state))
    return node


def _open_workbench(stack: AsyncExitStack, config: OracleConfig, market: Market, public: str) -> Workbench | None:
    """What judges work, where the configuration has workers for it.

    Where chunks are drawn its workers start, one oracle's after another's.
    """
    if config.limits is None:
        return None
    workbench = Workbench(market, config.limits, config.state / "blobs")
    stack.push_async_callback(workbench.close)
    if market.committee.verify_rate_ppm:
        after_s = (_number(market.committee, public) - 1) * WARMING_S
        warming = asyncio.create_task(workbench.warm(installed().values(), after_s))
        stack.callback(warming.cancel)
    return workbench


def _sweep(stack: AsyncExitStack, config: OracleConfig, committee: Committee, workbench: Workbench | None) -> None:
    """Keep the blobs' folder within its limit, but for what the workers have loaded."""
    young_s = max(YOUNG_S, _YOUNG_EPOCHS * committee.epoch_ms / 1000)
    loaded_blobs = (lambda: workbench.blobs) if workbench is not None else frozenset[str]
    swept = asyncio.create_task(sweep_beside(config.blobs, config.disk, young_s=young_s, but=loaded_blobs))
    stack.callback(swept.cancel)


def _metrics(config: OracleConfig, here: list[Collector], workbench: Workbench | None) -> MetricsExposition:
    apart: list[Collector] = []
    if workbench is not None and config.worker is not None:
        here.append(Workers(partial(_named, workbench)))
        apart.append(Machines(partial(_named, workbench), config.worker.memory))
    return MetricsExposition("oracle", config.metrics.listen, here, apart)


def _named(workbench: Workbench) -> list[tuple[str, LastingWorker]]:
    return [(f"judge-{number}", worker) for number, worker in enumerate(workbench.workers)]


def wallet_of(bonds: BondsConfig) -> Wallet:
    """The account at the holder; without a token it can ask and present, and nothing is paid into it."""
    return registry.wallet_class(bonds.kind, "bonds.kind").from_file(bonds.url, bonds.token_file)


def _number(committee: Committee, pubkey: str) -> int:
    """Which oracle of the committee it is, from 1 on."""
    oracle = committee.oracle(pubkey)
    return oracle.share_index if oracle is not None else 1


class SystemClock:
    def time_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()
