"""Opens a customer's session from its configuration."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nodewire.customer.job.session import Session
from nodewire.customer.models.names import ModelNames
from nodewire.customer.payments.debt_collector import Settler
from nodewire.customer.payments.purse import Purse
from nodewire.customer.payments.receipt_finalizer import Closings
from nodewire.customer.payments.refunds import Refunds
from nodewire.customer.payments.share_account import ShareAccount
from nodewire.customer.planning.planner import MarketPlanner
from nodewire.market import open_market
from nodewire.net.address_policy import are_private
from nodewire.pay import registry
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.nutzaps import wallet as nutzap_wallet
from nodewire.store.state_lock import sole_key
from nodewire.store.sweep import sweep_beside
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.measure import link_health_store
from nodewire.wire.nat.rendezvous import Reach
from nodewire.wire.node import Node
from nodewire.wire.shm import SameHost
from nodewire.wire.transport import congestion
from nodewire.wire.transport.tcp import TcpTls
from nodewire.worker.persistent_worker import maker

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from nodewire.config import CustomerConfig
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool

SPOOL_BYTES = 2**30
"""Of prompts, and with a local driver of hidden states, while jobs are under way."""

_DAY_S = 86_400.0


async def start(stack: AsyncExitStack, config: CustomerConfig, *, is_buyer: bool = True) -> Session:
    """Connect to the relays, learn what became of payments that an earlier run was making, and follow the committee.

    Who is no buyer only settles what is owed, beside whatever buys with the same key.

    Raises:
        Busy: another process buys with the same key.
        BadConfig: a file of the configuration cannot be used.
        NotFound: no relay knows the committee.

    """
    congestion.check(config.wire.congestion)
    wallets = registry.wallet_class(config.wallet.kind)
    network = registry.network_of(config.wallet.kind, config.wallet.network)
    keys, pool, market = await open_market(stack, config)
    if is_buyer:
        stack.enter_context(sole_key(config.key))
    wallet = wallets.from_file(config.wallet.url, config.wallet.token_file)
    stack.push_async_callback(wallet.close)
    ledger = Ledger(config.ledger)
    stack.callback(ledger.close)
    payer = nutzap_wallet.open_payer(keys, wallet, ledger, pool, network=network, lump_msat=config.lump_msat)
    recovered = await payer.recover()
    spool = _open_spool(stack, config)
    swept = asyncio.create_task(sweep_beside(config.blobs, None))
    stack.callback(swept.cancel)
    node = await _open_node(stack, config, keys, pool)
    following = asyncio.create_task(market.follow())
    stack.callback(following.cancel)
    settler = Settler(
        pool, payer, keys.public, relays=config.relays, network=network, private_endpoints=config.private_endpoints
    )
    settler.recovered(recovered)
    settling = asyncio.create_task(settler.run())
    stack.callback(settling.cancel)
    holder = registry.bond_holder(config.wallet.kind, wallet, config.holder)
    share_account = ShareAccount(keys, Purse(payer, config.relays, network, config.private_endpoints), holder)
    stack.push_async_callback(share_account.close)
    refunds = Refunds(keys, market, pool, holder)
    refunding = asyncio.create_task(refunds.run())
    stack.callback(refunding.cancel)
    closings = Closings(keys, ledger, market, pool, network, settler.under_way, refunds)
    closing = asyncio.create_task(closings.run())
    stack.callback(closing.cancel)
    session = Session(
        keys=keys,
        pool=pool,
        relays=config.relays,
        public_record=market,
        planner=MarketPlanner(market, keys.public, node.survey.health),
        payer=payer,
        network=network,
        node=node,
        spool=spool,
        settler=settler,
        models=ModelNames(keys.public, pool, market, config.names),
        closings=closings,
        refunds=refunds,
        holder=holder,
        share_account=share_account,
        make_worker=maker(stack, config.limits, config.blobs),
        private_endpoints=config.private_endpoints,
    )
    stack.push_async_callback(session.close)
    return session


def _open_spool(stack: AsyncExitStack, config: CustomerConfig) -> Spool:
    """Frames of generations under way, without those that a crash left behind a day ago or more."""
    spool = Spool(config.state / "spool", SPOOL_BYTES)
    stack.callback(spool.close)
    # A generation takes its own away; who died in the midst of one did not. Another process may be in one here.
    spool.sweep(time.time() - _DAY_S)
    return spool


async def _open_node(stack: AsyncExitStack, config: CustomerConfig, keys: Keys, pool: Pool) -> Node:
    """A node that dials, and does not listen."""
    private = config.wire.private or await are_private(config.relays)
    node = Node(
        keys,
        policy=LinkPolicy(
            transport=TcpTls(config.wire.congestion or None, allow_private=private),
            beside=SameHost(keys) if config.wire.same_host else None,
        ),
    )
    node.ladder = Reach(node, keys, pool, allow_private=config.wire.private)
    stack.push_async_callback(node.close)
    await stack.enter_async_context(link_health_store.kept(node.survey, config.state))
    return node
