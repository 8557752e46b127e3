"""Starts a gateway from its configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from nodewire.chat.folder import template_file
from nodewire.chat.renderer import Renderer
from nodewire.config import CustomerConfig
from nodewire.customer.api import Customer
from nodewire.errors import BadConfig, Busy
from nodewire.gateway.accounts import Accounts
from nodewire.gateway.app import Gateway
from nodewire.gateway.counters import Figures, GatewayCollector
from nodewire.gateway.desk import Desk
from nodewire.gateway.keys import Keys
from nodewire.gateway.market import CustomerMarket
from nodewire.gateway.openai import refusals
from nodewire.metrics.endpoint import MetricsExposition, Scrapes
from nodewire.net import host_port, http_server
from nodewire.store.state_lock import held

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from nodewire.gateway.config import GatewayConfig

_STRANGER_S = 45.0
"""In which a connection must have come with a request that counts."""
_CONNECTION_S = 90.0
"""What a connection has besides the time that a request may take: to send it, and to settle what was bought."""
log = logging.getLogger("nodewire.gateway")


async def start(stack: AsyncExitStack, config: GatewayConfig) -> dict[str, Any]:
    """Start it; returns its ready line.

    Raises:
        BadConfig: a file, an environment variable or the address of the configuration cannot be used.
        Busy: another gateway works in its state folder.

    """
    keys = Keys(config.keys)
    templates = {model.name: template_file(model.template) for model in config.models if model.template is not None}
    listening = http_server.listening_socket("listen", config.listen)
    stack.callback(listening.close)
    config.state.mkdir(parents=True, exist_ok=True)
    stack.enter_context(held(config.state))
    accounts = Accounts(config.accounts)
    stack.callback(accounts.close)
    customer = await stack.enter_async_context(Customer.open(CustomerConfig.load(config.customer)))
    buyer, figures, renderer = CustomerMarket(customer), Figures(), Renderer()
    stack.push_async_callback(renderer.close)
    if left := accounts.recover(buyer.cost_msat):
        log.info("%d requests that an earlier process left are settled", left)
    desk = Desk(config, buyer, accounts, figures)
    exposed = MetricsExposition(
        "gateway", config.metrics.listen, [GatewayCollector(figures, lambda: desk.in_flight, lambda: desk.waiting)]
    )
    gateway = Gateway(config, buyer, desk, keys, figures, renderer, templates, Scrapes(exposed))
    most, each_s = 4 * config.max_requests + 64, config.request_s + _CONNECTION_S
    await stack.enter_async_context(
        http_server.serve_app(
            gateway.application(),
            listening,
            most=most,
            each_s=each_s,
            first_s=_STRANGER_S,
            refusals=http_server.Refusals(refusals.document(Busy("connections", "others need the room"))),
            cancels=True,
        )
    )
    stack.push_async_callback(desk.close)  # before the server waits for its handlers
    host, _ = host_port.parse(config.listen, "listen", least_port=0, error=BadConfig)
    return {
        "ready": "gateway",
        "url": f"http://{host_port.written(host, listening.getsockname()[1])}/v1",
        "models": [model.name for model in config.models],
        "keys": len(config.keys),
        "metrics": exposed,
    }
