"""A customer, a provider and the simulated network as processes that die: the real payer, till, ledgers, LNURL endpoint
and wallets, and nothing else of a market. Part of bench.market.chaos_pay.

A provider delivers a chunk, with its claim, to whoever asks for it again until it hears of it: so do relays. It works
ahead of its money as `provider.inference.credit` says. A customer's life ends when all jobs have ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nodewire.errors import (
    BadInvoice,
    Busy,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    PaymentRequired,
    TimedOut,
)
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import debts, payer, till
from nodewire.pay.accounts.debts import Debt, Key, Payment
from nodewire.pay.accounts.dues import CreditTerms, Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import PAID, Payer, ZapTerms
from nodewire.pay.accounts.till import Till
from nodewire.pay.lightning import invoices, lnurl
from nodewire.pay.lightning.lnurl_server import Endpoint, serve_endpoint
from nodewire.pay.lightning.wallet import Receipt
from nodewire.pay.wallets.electrum import ElectrumWallet
from nodewire.provider.inference.credit import Credit
from simnet.__main__ import simnet as run_simnet
from simnet.conditions import Conditions
from simnet.journal import Journal
from simnet.wallet import SimWallet

RELAYS = ("wss://relay.invalid",)
CREDIT = CreditTerms(8_000, 40_000)
MOST_CHUNKS, MOST_MSAT = 7, 8_000
AT_ONCE = 6
"""Jobs that the customer has at a time."""
WAIT_S, EXPIRY_S = payer._WAIT_S, 60.0
"""How long a payer waits for a payment, and how long an invoice lives, before `Setup.scale`."""
TROUBLE = (Busy, LinkLost, PaymentFailed, TimedOut)
"""What a customer meets where others die and payments fail. Anything else is a fault. Busy: eight invoices of a chunk
are unpaid, since payments of them failed."""
AGAIN_S = 0.05
LATE_S = 4.0
"""How long a claim is on its way at most, before `Setup.scale`: claims come in another order than they were made."""


@dataclass(frozen=True, slots=True)
class Account:
    """A wallet of the simulated network, or of an Electrum daemon, which has a user's name."""

    url: str
    secret: str
    user: str = ""

    def open(self) -> SimWallet | ElectrumWallet:
        return ElectrumWallet(self.url, self.user, self.secret) if self.user else SimWallet(self.url, self.secret)


@dataclass(frozen=True, slots=True)
class Setup:
    """What every life knows. `conditions` are of the network; `scale` shortens every wait of the roles alike."""

    folder: Path
    seed: int
    jobs: int
    scale: float
    conditions: Conditions
    ports: tuple[int, int, int]
    """The simulated network's, the LNURL endpoint's, and that of the provider's work."""
    accounts: Sequence[Account] = ()
    """The customer's and the provider's, once they are open."""
    mutant: str = ""

    @property
    def customer(self) -> Keys:
        return Keys(b"\x01" * 32)

    @property
    def provider(self) -> Keys:
        return Keys(b"\x02" * 32)

    @property
    def network_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def lnurl(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}/.well-known/lnurlp/node"

    def ledger(self, role: str) -> Ledger:
        return LEDGERS[self.mutant](self.folder / f"{role}.db", CREDIT)

    def amounts(self, number: int) -> list[int]:
        """The prices of a job's chunks, in msat."""
        rng = random.Random(f"{self.seed}/job/{number}")
        return [rng.randint(1, MOST_MSAT) for _ in range(rng.randint(1, MOST_CHUNKS))]

    def job(self, number: int) -> str:
        return f"{number:064x}"


# Faults.


class Steps:
    """Counts the steps of a process that leave a mark, and kills it before one of them; never where `last` is below 0.

    What it died before stands in deaths.jsonl.
    """

    def __init__(self, setup: Setup, role: str, last: int) -> None:
        self._file, self._role, self._left = setup.folder / "deaths.jsonl", role, last

    def before(self, target: Any, *names: str) -> None:
        for name in names:
            setattr(target, name, self._wrap(getattr(target, name), name))

    def _wrap(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def mortal(*arguments: Any, **options: Any) -> Any:
            if self._left == 0:
                with self._file.open("a") as file:
                    file.write(json.dumps({"role": self._role, "step": name.lstrip("_")}) + "\n")
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            return method(*arguments, **options)

        return mortal


class ForgetsAttempt(Ledger):
    """It has in memory alone that a wallet was told to pay: whoever dies then does not know that money may move."""

    _told: dict[str, Payment]

    def record(self, payment_hash: str, event: debts.Event) -> Payment:
        told: dict[str, Payment] = self.__dict__.setdefault("_told", {})
        if isinstance(event, debts.PaymentAttempt):
            return told.setdefault(payment_hash, debts.apply(event, self.payment(payment_hash)))
        if (attempt := told.pop(payment_hash, None)) is not None:
            super().record(payment_hash, debts.PaymentAttempt(attempt.wallet))
        return super().record(payment_hash, event)

    def payment(self, payment_hash: str) -> Payment:
        return self.__dict__.get("_told", {}).get(payment_hash) or super().payment(payment_hash)


class LosesRest(Ledger):
    """It takes what a payment was more than the debts for nothing."""

    def _settle_dues(
        self, customer: str, came_msat: int, named: Key | None, payment_hash: str | None, at_s: int
    ) -> list[Due]:
        settled = super()._settle_dues(customer, came_msat, named, payment_hash, at_s)
        if came_msat:
            self._db.execute("UPDATE balances SET msat = 0 WHERE customer = ?", (customer,))
        return settled


class CountsTwice(Ledger):
    """It counts a payment whenever a wallet tells of it, and forgets how far it has listened."""

    def settled(self, came: Receipt, wallet: str) -> list[Due]:
        with self._transaction():
            self._db.execute("UPDATE quotes SET state = 'open' WHERE payment_hash = ?", (came.payment_hash,))
            self._db.execute("DELETE FROM cursors")
        return super().settled(came, wallet)

    def cursor(self, wallet: str) -> str:
        return ""


LEDGERS: dict[str, type[Ledger]] = {
    "": Ledger,
    "forgets-attempt": ForgetsAttempt,
    "loses-rest": LosesRest,
    "counts-twice": CountsTwice,
}
"""The real one, and mutants that the bench must catch."""


def live(role: str, setup: Setup, last: int) -> None:
    """One life of a role, in this process; what it says goes to ROLE.log."""
    with (setup.folder / f"{role}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.disable(logging.INFO)
    {"network": network, "provider": provider, "customer": customer}[role](setup, last)


# The network.


def network(setup: Setup, last: int) -> None:
    """The simulated Lightning network, which dies before its `last` write."""
    steps = Steps(setup, "network", last)
    steps.before(Journal, "_insert")
    at = setup.conditions
    run_simnet(
        host="127.0.0.1", port=setup.ports[0], db=setup.folder / "simnet.db", faucet=True, base_fee_msat=500,
        fee_ppm=1_000, payment_s=at.payment_s, most_payment_s=at.most_s, failing_ppm=at.failing_ppm,
        stuck_ppm=at.stuck_ppm, stuck_s=at.stuck_s, unit_msat=1_000, json=True,
    )  # fmt: skip


# The provider.


def provider(setup: Setup, last: int) -> None:
    asyncio.run(ProviderLife(setup, last).run())


class ProviderLife:
    def __init__(self, setup: Setup, last: int) -> None:
        self._setup = setup
        self._steps = Steps(setup, "provider", last)
        self._ledger = setup.ledger("provider")
        self._wallet = setup.accounts[1].open()
        till.EXPIRY_S = max(2, round(EXPIRY_S * setup.scale))
        self._till = Till(setup.provider, self._wallet, self._ledger, self._publish)
        self._credits: dict[str, Credit] = {}
        self._steps.before(self._wallet, "invoice")
        self._steps.before(self._ledger, "owe", "mark_claimed", "quoted", "settled", "receipted")
        self._steps.before(self._till._courier, "_publish")

    async def run(self) -> None:
        setup = self._setup
        endpoint = Endpoint("node", f"http://127.0.0.1:{setup.ports[1]}", setup.provider.public, self._quote)
        app = web.Application()
        app.add_routes([web.post("/chunk", self._chunk)])
        async with serve_endpoint(endpoint, _listen(setup.ports[1])):
            runner = web.AppRunner(app)
            await runner.setup()
            await web.SockSite(runner, _listen(setup.ports[2])).start()
            while True:
                with suppress(NodewireError):  # the network is away
                    await self._till.run(self._settled)
                await asyncio.sleep(AGAIN_S)

    async def _quote(self, zap_request: str, amount_msat: int, origin: str) -> invoices.Invoice:
        return await self._till.quote(zap_request, amount_msat, origin)

    async def _chunk(self, request: web.Request) -> web.Response:
        """Compute a chunk of a job, and claim it: {number, chunk} -> {amount_msat}."""
        asked = await request.json()
        number, chunk = int(asked["number"]), int(asked["chunk"])
        setup, job = self._setup, self._setup.job(number)
        key = Key(job, setup.provider.public, chunk)
        credit = self._credits.setdefault(job, Credit(patience_s=30.0 * setup.scale))
        for earlier in range(chunk):  # after a restart it is read from the ledger
            await self._count(credit, self._ledger.due(Key(job, setup.provider.public, earlier)))
        try:
            await credit.admit(chunk)
        except PaymentRequired:
            return web.json_response({}, status=402)
        amount_msat = setup.amounts(number)[chunk]
        due = Due(key, setup.customer.public, amount_msat, int(time.time()) + 30)
        try:
            await self._count(credit, self._ledger.due(key))
        except NotFound:
            await self._count(credit, self._ledger.owe(due, claim="claimed"))
            await self._ledger.flushed()
            self._ledger.mark_claimed(key)
        return web.json_response({"amount_msat": amount_msat})

    async def _count(self, credit: Credit, due: Due) -> None:
        await credit.due(due.key.chunk)
        if due.state == "settled" or self._ledger.is_covered(due.customer):
            await credit.paid(due.key.chunk)

    def _settled(self, due: Due) -> None:
        """As `provider.inference.service` does."""
        tasks = [self._credits[due.key.job].paid(due.key.chunk)] if due.key.job in self._credits else []
        if self._ledger.is_covered(due.customer):
            tasks += [credit.cover() for credit in self._credits.values()]
        for task in tasks:
            _keep(asyncio.create_task(task))

    async def _publish(self, event: Event, relays: tuple[str, ...]) -> None:
        with (self._setup.folder / "receipts").open("a") as file:
            file.write(event.id + "\n")


# The customer.


def customer(setup: Setup, last: int) -> None:
    asyncio.run(CustomerLife(setup, last).run())


class CustomerLife:
    def __init__(self, setup: Setup, last: int) -> None:
        payer._WAIT_S = WAIT_S * setup.scale
        self._setup = setup
        self._late = random.Random(f"{setup.seed}/late")
        self._ledger = setup.ledger("customer")
        self._wallet = setup.accounts[0].open()
        self._payer = Payer(setup.customer, self._wallet, self._ledger, network=invoices.REGTEST)
        self._fetch = lnurl.over_lnurl(
            setup.lnurl, nostr_pubkey=setup.provider.public, network=invoices.REGTEST, allow_private=True
        )
        steps = Steps(setup, "customer", last)
        steps.before(self._wallet, "pay", "lookup")
        steps.before(self._ledger, "plan", "set_credit", "begin", "record", "end_job")

    async def run(self) -> None:
        setup = self._setup
        async with aiohttp.ClientSession() as session:
            await self._recover()
            left = [number for number in range(setup.jobs) if not self._ledger.has_ended(setup.job(number))]
            turns = asyncio.Semaphore(AT_ONCE)

            async def bought(number: int) -> None:
                async with turns:
                    await self._buy(session, number)

            await asyncio.gather(*map(bought, left))
        while owed := self._payer.unpaid():  # as `nodewire wallet settle` does
            for debt in owed:
                await self._pay(debt.key, debt.amount_msat, None)
        await self._wallet.close()

    async def _recover(self) -> None:
        """What an earlier life left: its payments, then its debts where they are more than may stand."""
        while True:
            try:
                await self._payer.recover()
                break
            except NodewireError:
                await asyncio.sleep(AGAIN_S)
        for debt in self._payer.unpaid():
            if self._payer.is_due(debt.key.payee):
                await self._pay(debt.key, debt.amount_msat, None)

    async def _buy(self, session: aiohttp.ClientSession, number: int) -> None:
        setup, paying = self._setup, []
        heard = {debt.key.chunk for debt in self._payer.debts_of(setup.job(number))}  # by an earlier life
        for chunk in range(len(setup.amounts(number))):
            if chunk in heard:
                continue
            amount_msat = await self._delivered(session, number, chunk)
            key = Key(setup.job(number), setup.provider.public, chunk)
            paying.append(asyncio.create_task(self._hear(key, amount_msat)))
        await asyncio.gather(*paying)
        self._payer.end(setup.job(number), len(setup.amounts(number)))
        if self._payer.is_due(setup.provider.public):
            for debt in self._payer.debts_of(setup.job(number))[-1:]:
                await self._pay(debt.key, debt.amount_msat, None)

    async def _delivered(self, session: aiohttp.ClientSession, number: int, chunk: int) -> int:
        """The price that the provider claims for a chunk; it is asked until it answers."""
        url = f"http://127.0.0.1:{self._setup.ports[2]}/chunk"
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(url, json={"number": number, "chunk": chunk}) as answer:
                    if answer.status == 200:
                        return int((await answer.json())["amount_msat"])
            await asyncio.sleep(AGAIN_S)

    async def _hear(self, key: Key, amount_msat: int) -> None:
        await asyncio.sleep(self._late.random() * LATE_S * self._setup.scale)
        await self._pay(key, amount_msat, CREDIT)

    async def _pay(self, key: Key, amount_msat: int, credit: CreditTerms | None) -> Debt | None:
        """Pay a chunk, again after every error; None if the payee says that it is paid."""
        while True:
            try:
                return await self._payer.pay(
                    key,
                    amount_msat,
                    self._fetch,
                    relays=RELAYS,
                    lnurl=lnurl.encode(self._setup.lnurl),
                    terms=ZapTerms(credit=credit),
                )
            except NodewireError as error:
                if isinstance(error, NotAllowed) and error.field == PAID:
                    self._note("forgiven", f"{key.job} {key.chunk}")
                    return None
                is_late = isinstance(error, BadInvoice) and error.field == "expiry"  # the machine is slow
                if not isinstance(error, TROUBLE) and not is_late:
                    self._note("surprises", f"{type(error).__name__}: {error}")
                await asyncio.sleep(AGAIN_S)

    def _note(self, name: str, line: str) -> None:
        with (self._setup.folder / name).open("a") as file:
            file.write(line + "\n")


def _listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


_kept: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    _kept.add(task)
    task.add_done_callback(_kept.discard)
