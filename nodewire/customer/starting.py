"""Opens a customer's session from its configuration."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from nodewire.config import CustomerConfig
from nodewire.customer.session import Session
from nodewire.market import open_market
from nodewire.pay.ledger import Ledger
from nodewire.pay.payer import Payer
from nodewire.pay.sim_wallet import SimWallet
from nodewire.wire.node import Node
from nodewire.worker.lasting import maker

_NETWORKS = {"sim": "bcrt"}


async def start(stack: AsyncExitStack, config: CustomerConfig) -> Session:
    """Connect to the relays, recover what an earlier run left unpaid, and follow the committee.

    Raises:
        BadConfig: a file of the configuration cannot be used.
        NotFound: no relay knows the committee.
    """
    keys, pool, market = await open_market(stack, config)
    wallet = SimWallet.from_file(config.wallet.url, config.wallet.token_file)
    stack.push_async_callback(wallet.close)
    ledger = Ledger(config.ledger)
    stack.callback(ledger.close)
    payer = Payer(keys, wallet, ledger)
    await payer.recover()
    node = Node(keys)
    stack.push_async_callback(node.close)

    following = asyncio.create_task(market.run())
    stack.callback(following.cancel)
    session = Session(
        keys=keys,
        pool=pool,
        relays=config.relays,
        market=market,
        payer=payer,
        network=_NETWORKS[config.wallet.kind],
        node=node,
        make_worker=maker(stack, config.worker.limits, config.blobs),
        private_endpoints=config.private_endpoints,
    )
    stack.push_async_callback(session.close)
    return session
