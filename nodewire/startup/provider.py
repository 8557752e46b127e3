"""Opens everything a provider needs from its configuration, and sets it to work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nodewire.core.stop import stop
from nodewire.errors import BadConfig, NotAllowed
from nodewire.market import open_market
from nodewire.metrics.endpoint import MetricsExposition
from nodewire.net import host_port
from nodewire.net.http_server import listening_socket
from nodewire.nostr.keys import Keys
from nodewire.pay import registry
from nodewire.pay.accounts.dues import CreditTerms, Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import Till
from nodewire.pay.lightning import lnurl_server
from nodewire.protocol.market.ad import MAX_UNIT_MSAT
from nodewire.provider import metrics
from nodewire.provider.inference.claim_retry import claim_again
from nodewire.provider.inference.service import Provider
from nodewire.provider.market.bond import check_bond
from nodewire.startup.inference import ProviderResources, open_inference
from nodewire.startup.nutzaps import open_nutzaps
from nodewire.startup.receipts import ReceiptRelays, address_signer, follow_address
from nodewire.store.state_lock import held
from nodewire.training.provider.node import TrainerNode
from nodewire.training.provider_bootstrap import open_training
from nodewire.wire.transport import congestion
from nodewire.worker import devices
from nodewire.worker.metrics import Machines, Workers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from prometheus_client.registry import Collector

    from nodewire.config import ProviderConfig
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.lightning.wallet import Wallet
    from nodewire.training.fedstr.service import Fedstr
    from nodewire.training.provider.service import TrainingService
    from nodewire.worker.persistent_worker import LastingWorker


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
    unit_msat = await _check_wallet(wallet, config)
    keys, pool, market = await open_market(stack, config)
    ledger = Ledger(config.ledger, CreditTerms(config.credit.first_msat, config.credit.most_msat))
    stack.callback(ledger.close)
    ledger.interrupted()

    receipts = await ReceiptRelays.open(pool, config, keys)
    till = Till(keys, wallet, ledger, receipts.publish, own_relays=receipts.own)
    nutzaps = open_nutzaps(stack, config, keys, pool, till, ledger)
    signer = await address_signer(config.lnurl.address, wallet, allow_private=receipts.allows_private)
    lnurl = await _serve_lnurl(stack, config, keys, till)
    ready: dict[str, Any] = {"ready": "provider", "npub": keys.npub, "public": keys.public, "lnurl": lnurl}
    halves: list[Provider | TrainingService | Fedstr] = []
    here: list[Collector] = [metrics.Jobs(halves)]
    serving: list[LastingWorker] = []
    training_workers: list[LastingWorker] = []
    if config.serve or config.specialize is not None:
        resources = ProviderResources(config, keys, pool, market, ledger, wallet, lnurl, unit_msat)
        inference = await open_inference(stack, resources)
        halves.append(inference.provider)
        here += inference.collectors
        ready |= inference.ready
        serving = inference.workers
    if config.train is not None:
        trainer = TrainerNode(keys, pool, market.blobs, ledger, config.patience_s)
        training, fedstr, training_workers = await open_training(
            stack, config, config.train, trainer, till=till, lnurl=lnurl, unit_msat=unit_msat
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
            if nutzaps is not None:
                group.create_task(nutzaps.run(settled))
            group.create_task(follow_address(pool, till, keys.public, signer, settled))
            group.create_task(claim_again(ledger, lambda claim: receipts.publish(claim, ())))
            for half in halves:
                group.create_task(half.run())

    running = asyncio.create_task(run())
    stack.push_async_callback(stop, running)
    await _announced(running, [half for half in halves if isinstance(half, Provider)])

    exposition = _exposition(config, here, {"serve": serving, "train": training_workers})
    return {**ready, "wait": running, "metrics": exposition}


def _exposition(
    config: ProviderConfig, here: Sequence[Collector], workers: Mapping[str, Sequence[LastingWorker]]
) -> MetricsExposition:
    """What Prometheus is shown: collectors of this process, its `workers` by what they do, and its ledger."""

    def named() -> list[tuple[str, LastingWorker]]:
        return [(f"{what}-{number}", one) for what, some in workers.items() for number, one in enumerate(some)]

    apart = (metrics.Till(config.ledger), Machines(named, config.worker.memory))
    return MetricsExposition("provider", config.metrics.listen, [*here, Workers(named)], apart)


async def _check_wallet(wallet: Wallet, config: ProviderConfig) -> int:
    """Before anything is loaded or published; what payments to it are whole multiples of (msat). Raises as `start`."""
    try:
        await registry.check_network(wallet, config.wallet.kind, config.wallet.network)
        balance_msat = await wallet.balance_msat() if config.bond.amount_msat else 0
    except NotAllowed as error:
        said = f"{config.wallet.url} does not know the token in {config.wallet.token_file}"
        raise BadConfig("wallet.token_file", said) from error
    if config.bond.amount_msat:
        public = Keys.from_file(config.key).public
        holder = registry.bond_holder(config.wallet.kind, wallet, config.holder)
        await check_bond(holder, public, config.bond.amount_msat, balance_msat)
    info = await wallet.info()
    return min(MAX_UNIT_MSAT, max(info.unit_msat, info.least_msat))


async def _announced(running: asyncio.Task[None], halves: Sequence[Provider]) -> None:
    """Wait until what is offered stands in an ad on the relays. Raises what ended the daemon before."""
    waiting = asyncio.gather(*(half.announced() for half in halves))
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        running.result()


async def _serve_lnurl(stack: AsyncExitStack, config: ProviderConfig, keys: Keys, till: Till) -> str:
    """Serve the provider's LNURL-pay endpoint; its payRequest URL."""
    sock = listening_socket("lnurl.listen", config.lnurl.listen)
    host, _ = host_port.parse(config.lnurl.listen, "lnurl.listen", least_port=0, error=BadConfig)
    base = config.lnurl.url.rstrip("/") or f"http://{host_port.written(host, sock.getsockname()[1])}"
    endpoint = lnurl_server.Endpoint("nodewire", base, keys.public, till.quote, tip=till.tip)
    await stack.enter_async_context(lnurl_server.serve_endpoint(endpoint, sock))
    return endpoint.pay_url
