"""A training market in one process: real relay, wallets and daemons' halves; only the workers are no processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import relay
from kinds import training_worker
from kinds.k8840 import KIND as FEDAVG
from kinds.k8841 import KIND as DILOCO
from kinds.k8842 import KIND as OUTER
from nodewire.config import CustomerConfig, WalletConfig
from nodewire.kind import Limits
from nodewire.net.http_server import listening_socket
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.accounts.till import Till
from nodewire.pay.lightning import lnurl_server
from nodewire.provider.outage import Check
from nodewire.store.blobs import Blobs
from nodewire.training.customer import files
from nodewire.training.customer.driver import Rounds
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.market.context import Course, OnChange, TrainingOrder
from nodewire.training.customer.market.coordinator_client import Coordinator
from nodewire.training.customer.market.round_request import Requests
from nodewire.training.customer.market.session import TrainingSession
from nodewire.training.customer.transcript import transcribe
from nodewire.training.engine import state
from nodewire.training.fedstr.job import Transfer
from nodewire.training.fedstr.service import Fedstr
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.protocol.transcript import Transcript
from nodewire.training.provider.admission import TrainingAdmission
from nodewire.training.provider.node import TrainerNode
from nodewire.training.provider.service import TrainingService
from nodewire.training.provider.store import KeptShards
from simnet import http
from simnet.service import Fees, Simnet
from simnet.wallet import SimWallet
from tests.kinds.digits import dataset
from tests.kinds.inprocess import to_arrays, to_torch
from tests.sessions import SessionOf

LEAST_MSAT, DEPOSIT_PPM = 7_001, 250_000
DEPOSIT_MSAT = 1_751
OPENING_MSAT = 10_000_000
BUDGET_MSAT = 10**6
ON_TWO_SHARDS = TrainingOrder(2, BUDGET_MSAT)


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a worker differs from an honest one. `alter` makes a cheat: it gets every answer's edge and frames; so does
    `feed`, which gets what comes in: a session's parameters at "open", and frames. `hold` makes a slow one: it gets the
    edge."""

    alter: Callable[[str, Any], Any] | None = None
    hold: Callable[[str], Awaitable[None]] | None = None
    feed: Callable[[str, Any], Any] | None = None


HONEST = Conduct()


class Local:
    """A worker where it stands. `receive` gives way to others, as a call to a process does."""

    def __init__(self, conduct: Conduct = HONEST) -> None:
        self.actors: dict[str, Any] = {}
        self._alter = conduct.alter
        self._feed = conduct.feed or (lambda edge, given: given)
        self._hold = conduct.hold

    async def load(self, task, engine, program, weights, slots=0):
        self.actors[task] = training_worker.load(engine, program.read_bytes(), weights, Limits(10**9))
        return {}

    async def open(self, task, session, params, codings=None):
        self.actors[task].open(session, self._feed("open", params))
        return SessionOf(self, task, session)

    async def receive(self, task, session, frame):
        await (self._hold(frame.edge) if self._hold else asyncio.sleep(0))
        frames = [to_arrays(one) for one in self.actors[task].receive(session, to_torch(self._feed(frame.edge, frame)))]
        if not self._alter:
            return frames
        update = [one for one in frames if one.edge == "update" != frame.edge]  # comes with a round's last segment
        altered = self._alter(frame.edge, frames[: len(frames) - len(update)])
        return [*altered, *(self._alter("update", update) if update else ())]

    async def close(self, task, session):
        self.actors[task].close(session)


class Market:
    """Where everybody meets."""

    def __init__(self, folder: Path, relay_url: str, blossom: str, simnet: str, unit_msat: int) -> None:
        self.folder, self.relay, self.blossom, self.simnet = folder, relay_url, blossom, simnet
        self.unit_msat = unit_msat
        self.ports: dict[str, int] = {}
        """Of providers' endpoints: one that is restarted has the address that its ad says."""
        self.transcript: Transcript
        """Of the training that ended last."""
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "digits.safetensors").write_bytes(state.pack(dataset()))

    async def wallet(self, name: str, msat: int = 0) -> SimWallet:
        """The wallet of that name, opened at the first call."""
        token = self.folder / f"{name}.token"
        if not token.exists():
            wallet, text = await SimWallet.open_account(self.simnet, name, msat)
            token.write_text(text)
            return wallet
        return SimWallet.from_file(self.simnet, token)

    async def balance_msat(self, name: str) -> int:
        wallet = await self.wallet(name)
        try:
            return await wallet.balance_msat()
        finally:
            await wallet.close()

    async def booked(self, name: str, msat: int) -> None:
        """Wait until the provider of that name knows that it has earned so much."""
        book = Ledger(self.folder / name / "ledger.db")
        try:
            async with asyncio.timeout(60):
                while book.earned_msat() < msat:
                    await asyncio.sleep(0.01)
        finally:
            book.close()


@asynccontextmanager
async def opened(folder: Path, unit_msat: int = 1) -> AsyncIterator[Market]:
    """Wallets take whole multiples of `unit_msat`."""
    config = relay.Config(port=0, db=folder / "relay.db", blobs=folder / "blobs", synchronous="NORMAL")
    async with relay.serve(config) as running:
        network = Simnet(folder / "simnet.db", Fees(10, 1_000), 10**9, unit_msat=unit_msat)
        runner, simnet = await http.start(network, "127.0.0.1", 0)
        try:
            yield Market(folder, running.url, running.http_url, simnet, unit_msat)
        finally:
            await runner.cleanup()


@asynccontextmanager
async def provider(
    market: Market,
    name: str,
    conduct: Conduct = HONEST,
    *,
    published: Callable[[Event], None] | None = None,
    patience_s: float = 20.0,
    fedstr: bool = False,
    allow_private: bool = True,
    checks: Sequence[Check] = (),
    **changes: Any,
) -> AsyncIterator[Keys]:
    """A trainer that runs until the block is left; entered again, it is the same one, restarted.

    `published` is told of everything that it has published; what it raises kills the provider.
    """
    folder = market.folder / name
    folder.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        node = await _node(stack, market, folder, patience_s)
        till = await _till(stack, market, name, node)
        url = await _pay_url(stack, market, name, till, node.keys)
        ad = trainer(name, **{"lnurl": url, "unit_msat": market.unit_msat, **changes})
        kept = KeptShards(folder / "shards.db")
        stack.callback(kept.close)
        kinds = {8840: FEDAVG, 8841: DILOCO, 8842: OUTER}
        training = TrainingService(
            node=node,
            ad=ad,
            admission=TrainingAdmission(node.keys.public, ad, kinds, node.ledger),
            kept=kept,
            workers=await _workers(conduct, ad.concurrency, folder),
            folder=folder,
            checks=checks,
        )
        halves: list[TrainingService | Fedstr] = [training]
        if fedstr:
            beside = Fedstr(
                node=node,
                till=till,
                ad=ad,
                admission=training._admission,
                free=training.free,
                folder=folder / "fedstr",
                transfer=Transfer((market.blossom,), allow_private, fetch_s=5.0),
            )
            halves.append(beside)
        if published is not None:
            for half in halves:
                half._publish = half._refusals._publish = _watched(half._publish, published)

        def settled(due: Due) -> None:
            for half in halves:
                half.settled(due)

        running = [asyncio.create_task(till.run(settled)), *(asyncio.create_task(half.run()) for half in halves)]
        try:
            yield node.keys
        finally:
            left = [*running, *(task for half in halves for task in half._tasks)]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def trainer(name: str, **changes: Any) -> Trainer:
    """The ad of that name."""
    fields = {
        "name": name,
        "kinds": (8840, 8841),
        "families": ("mlp",),
        "msat_per_pflop": 1,
        "least_msat": LEAST_MSAT,
        "gflops": 10,
        "memory_bytes": 10**9,
        "most_bytes": 10**8,
        "concurrency": 1,
        "deposit_ppm": DEPOSIT_PPM,
    }
    return Trainer(**{**fields, **changes})


async def _node(stack: AsyncExitStack, market: Market, folder: Path, patience_s: float) -> TrainerNode:
    keys = Keys.from_file(folder / "key")
    pool = await stack.enter_async_context(Pool([market.relay], keys=keys))
    blobs = await stack.enter_async_context(Blobs([market.blossom], folder / "blobs", keys=keys))
    ledger = Ledger(folder / "ledger.db")
    stack.callback(ledger.close)
    return TrainerNode(keys, pool, blobs, ledger, patience_s)


async def _till(stack: AsyncExitStack, market: Market, name: str, node: TrainerNode) -> Till:
    wallet = await market.wallet(name)
    stack.push_async_callback(wallet.close)

    async def publish(event: Event, relays: tuple[str, ...]) -> None:
        await node.pool.publish(event)

    return Till(node.keys, wallet, node.ledger, publish)


async def _pay_url(stack: AsyncExitStack, market: Market, name: str, till: Till, keys: Keys) -> str:
    """Of an endpoint that serves until the stack is left; of one provider the port stays the same."""
    sock = listening_socket("lnurl.listen", f"127.0.0.1:{market.ports.get(name, 0)}")
    market.ports[name] = sock.getsockname()[1]
    endpoint = lnurl_server.Endpoint("nodewire", f"http://127.0.0.1:{market.ports[name]}", keys.public, till.quote)
    await stack.enter_async_context(lnurl_server.serve_endpoint(endpoint, sock))
    return endpoint.pay_url


async def _workers(conduct: Conduct, count: int, folder: Path) -> list[Local]:
    """Workers with both tasks loaded."""
    workers, empty = [Local(conduct) for _ in range(count)], folder / "empty"
    empty.touch()
    for worker in workers:
        for task in ("trainer", "outer"):
            await worker.load(task, task, empty, [])
    return workers


def _watched(publish, published):
    async def watched(event: Event) -> None:
        await publish(event)
        published(event)

    return watched


async def train(
    market: Market,
    name: str,
    recipe: Recipe,
    order: TrainingOrder = ON_TWO_SHARDS,
    *,
    on_change: OnChange | None = None,
    data: Path | None = None,
    start: Path | None = None,
    model: Path | None = None,
) -> tuple[State, bytes]:
    """As a customer of that name, to the end; called again after a crash, it goes on. `start` is what a recipe cites,
    `model` where what was trained is written."""
    folder = market.folder / name
    folder.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        keys = Keys.from_file(folder / "key")
        pool = await stack.enter_async_context(Pool([market.relay], keys=keys))
        blobs = await stack.enter_async_context(Blobs([market.blossom], folder / "blobs", keys=keys))
        ledger = Ledger(folder / "ledger.db")
        stack.callback(ledger.close)
        wallet = await market.wallet(name, OPENING_MSAT)
        stack.push_async_callback(wallet.close)
        config = CustomerConfig(
            key=folder / "key",
            relays=(market.relay,),
            blossom=(market.blossom,),
            committee=f"38841:{'0' * 64}:none",
            state=folder,
            wallet=WalletConfig(url=market.simnet, token_file=market.folder / f"{name}.token"),
            private_endpoints=True,
        )
        payer = Payer(keys, wallet, ledger)
        await payer.recover()
        session = TrainingSession(keys, pool, blobs, payer, ledger, config, "bcrt")
        journal = Journal(folder / "journal.db")
        stack.callback(journal.close)
        kind = FEDAVG.request if recipe.outer.method == "average" else DILOCO.request
        requests = Requests(keys, recipe, kind, journal.fact("salt", "5a" * 32), config.relays)
        coordinator = Coordinator(Local(), blobs, folder)
        await coordinator.open(recipe.pack(), data or market.data, order.shards, start)
        course = Course(session, recipe, kind, journal, coordinator, requests, order, on_change=on_change)
        done = await Rounds(course).run()
        market.transcript = await transcribe(course, journal.fact("salt", ""))
        if model is not None:
            files.write(model, await coordinator.model())
        return done, await coordinator.weights()
