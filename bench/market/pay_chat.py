"""Chats at market prices over the accounts layer and the simulated network, without a model. Part of bench.market.pay.

One customer and four providers: real payer, tills, ledgers, LNURL endpoints and credit, wallets in whole satoshis.
After each entry, and after each payment that a provider counts, both sides' risks are looked at.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.tools.stepped import stepped
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Debt, Key
from nodewire.pay.accounts.dues import CreditTerms, Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Fees, Payer, ZapTerms
from nodewire.pay.accounts.till import Till
from nodewire.pay.accounts.zaps import split
from nodewire.pay.lightning import invoices, lnurl
from nodewire.pay.lightning.lnurl_server import Endpoint, serve_endpoint
from nodewire.protocol.job.chunk import AHEAD
from nodewire.provider.inference.credit import Credit
from simnet.wallet import SimWallet

PROVIDERS, TURNS = 4, 100
CHUNK, QUESTION, ANSWER, CONTEXT = 64, 40, 200, 32_768
"""Positions: of a unit, of what a turn asks and answers, and the most that a turn's prompt has of the talk before."""
RICH_MSAT = 10**10
MSAT_PER_BTC = 10**11
RELAYS = ("wss://relay.invalid",)


@dataclass(frozen=True, slots=True)
class Prices:
    """What is charged. Dollars are whole cents and bitcoins whole dollars, so that msat are exact."""

    cents_per_million: int
    btc_usd: int
    base_fee_msat: int
    fee_ppm: int
    most_fee_msat: int
    credit: CreditTerms

    @property
    def chunk_msat(self) -> int:
        """Of all providers, rounded to a msat."""
        return round(CHUNK * self.cents_per_million * MSAT_PER_BTC / (100 * 1_000_000 * self.btc_usd))


class Seller:
    """One provider: its book, its till, its endpoint, and how far it works ahead."""

    def __init__(self, number: int, folder: Path, wallet: SimWallet, prices: Prices, customer: str) -> None:
        self.keys = Keys(bytes([2 + number]) * 32)
        self.ledger = Ledger(folder / f"seller-{number}.db", prices.credit)
        self.wallet = wallet
        self.lnurl = ""
        self.took_ms: list[float] = []
        self.over_credit_msat = 0
        """The most that was owed beyond credit, two chunks apart."""
        self.waited_s = 0.0
        self._till = Till(self.keys, wallet, self.ledger, self._publish)
        self._customer, self._prices = customer, prices
        self._credit = Credit(patience_s=600.0)
        self._newest: list[int] = []
        self._came = asyncio.Event()

    async def open(self, stack: AsyncExitStack) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        endpoint = Endpoint("seller", f"http://127.0.0.1:{listening.getsockname()[1]}", self.keys.public, self._quote)
        self.lnurl = endpoint.pay_url
        await stack.enter_async_context(serve_endpoint(endpoint, listening))
        running = asyncio.create_task(self._till.run(self._settled))
        stack.callback(running.cancel)

    def begin(self) -> None:
        """A turn is a job of its own."""
        self._credit, self._newest = Credit(patience_s=600.0), []

    async def compute(self, job: str, chunk: int, amount_msat: int) -> None:
        """A chunk: waited for until there is credit for it, metered, and claimed."""
        began = time.monotonic()
        await self._credit.admit(chunk)
        self.waited_s += time.monotonic() - began
        due = Due(Key(job, self.keys.public, chunk), self._customer, amount_msat, int(time.time()) + 30)
        await stepped(self._meter, lambda ms, _: self.took_ms.append(ms))(due)
        await self.ledger.flushed()
        self._newest = [*self._newest, amount_msat][-AHEAD:]
        self.look()

    async def _meter(self, due: Due) -> None:
        """What `ChunkBiller` does, its claim's signature apart."""
        owed = self.ledger.owe(due, claim="claim")
        await self._credit.due(due.key.chunk)
        if owed.state == "settled" or self.ledger.is_covered(due.customer):
            await self._credit.paid(due.key.chunk)

    async def heard(self, paid_msat: int) -> None:
        """Return when its wallet has told of so much."""
        while self.ledger.paid_msat(self._customer) < paid_msat:
            self._came.clear()
            await self._came.wait()

    def look(self) -> None:
        owed_msat = self.ledger.tab_msat(self._customer) - sum(self._newest)
        allowed_msat = self._prices.credit.allowed_msat(self.ledger.paid_msat(self._customer))
        self.over_credit_msat = max(self.over_credit_msat, owed_msat - allowed_msat)

    def _settled(self, due: Due) -> None:
        """As `provider.inference.service` does."""
        self._came.set()
        asyncio.get_running_loop().create_task(self._credit.paid(due.key.chunk))
        if self.ledger.is_covered(due.customer):
            asyncio.get_running_loop().create_task(self._credit.cover())
        self.look()

    async def _quote(self, zap_request: str, amount_msat: int, origin: str) -> invoices.Invoice:
        return await self._till.quote(zap_request, amount_msat, origin)

    async def _publish(self, event: Event, relays: tuple[str, ...]) -> None:
        """No relay is there, so none refuses it."""


@dataclass
class Chats:
    """A customer that talks with four providers, and what came of it."""

    prices: Prices
    sellers: list[Seller]
    ledger: Ledger
    payer: Payer
    took_ms: list[float] = field(default_factory=list)
    worst_ahead_msat: int = 0
    """The most that any provider held of the customer's beyond its largest lump."""
    turns: int = 0

    async def talk(self, turns: int) -> None:
        """A talk, whose every turn has what came before for its prompt."""
        for turn in range(turns):
            positions = min(CONTEXT, turn * (QUESTION + ANSWER) + QUESTION)
            units = [-(-positions // CHUNK), *[1] * -(-ANSWER // CHUNK)]
            job = f"{self.turns:064x}"
            self.turns += 1
            for seller in self.sellers:
                seller.begin()
            shares = split(self.prices.chunk_msat, [1] * len(self.sellers))
            paying = []
            for chunk, count in enumerate(units):
                amounts = [count * share for share in shares]
                await asyncio.gather(
                    *(s.compute(job, chunk, msat) for s, msat in zip(self.sellers, amounts, strict=True))
                )
                for seller, amount_msat in zip(self.sellers, amounts, strict=True):
                    paying.append(
                        asyncio.create_task(self._pay(seller, Key(job, seller.keys.public, chunk), amount_msat))
                    )
            await asyncio.gather(*paying)
            for seller, share in zip(self.sellers, shares, strict=True):
                if self.payer.is_due(seller.keys.public):  # at a job's end no more stands than half of what is earned
                    await self._pay(seller, Key(job, seller.keys.public, len(units) - 1), share, is_over=True)

    async def _pay(self, seller: Seller, key: Key, amount_msat: int, *, is_over: bool = False) -> Debt:
        fetch = lnurl.over_lnurl(
            seller.lnurl, nostr_pubkey=seller.keys.public, network=invoices.REGTEST, allow_private=True
        )
        pay = stepped(self.payer.pay, lambda ms, debt: self._note(ms, debt))
        debt: Debt = await pay(
            key,
            amount_msat,
            fetch,
            relays=RELAYS,
            lnurl=lnurl.encode(seller.lnurl),
            terms=ZapTerms(goes_ahead=True, credit=None if is_over else self.prices.credit),
        )
        tab = self.ledger.tab(key.payee)
        (largest_msat,) = self.ledger._db.execute(
            "SELECT coalesce(max(amount_msat), 0) FROM payments WHERE payee = ?", (key.payee,)
        ).fetchone()
        self.worst_ahead_msat = max(self.worst_ahead_msat, tab.ahead_msat - largest_msat)
        return debt

    def _note(self, ms: float, debt: Debt) -> None:
        named = [part for part in debt.parts if part.bears_fee]
        if debt.state == "planned" or (debt.state == "paid" and not named):  # no payment was made for it
            self.took_ms.append(ms)

    def lumps(self) -> list[tuple[int, int]]:
        """The payments: amounts and fees, in msat, in order."""
        sql = "SELECT amount_msat, fee_msat FROM payments WHERE state = 'paid' ORDER BY rowid"
        return [(int(msat), int(fee)) for msat, fee in self.ledger._db.execute(sql)]

    def failed(self) -> int:
        return int(self.ledger._db.execute("SELECT count(*) FROM payments WHERE state <> 'paid'").fetchone()[0])

    async def unaccounted_msat(self, wallet: SimWallet) -> int:
        """Differences between books and wallets, in all."""
        lumps = self.lumps()
        spent_msat = sum(msat + fee for msat, fee in lumps)
        off = abs(RICH_MSAT - await wallet.balance_msat() - spent_msat)
        for seller in self.sellers:
            tab, customer = self.ledger.tab(seller.keys.public), seller._customer
            book = seller.ledger
            off += abs(tab.paid_msat - await seller.wallet.balance_msat())
            off += abs(tab.paid_msat - book.paid_msat(customer))
            off += abs(tab.owed_msat - tab.ahead_msat - book.tab_msat(customer) + book.balance_msat(customer))
            off += abs(book.paid_msat(customer) - book.balance_msat(customer) - book.earned_msat())
        return off


async def talks(folder: Path, prices: Prices, payment_s: float, chats: int, lump_msat: int) -> dict[str, Any]:
    """So many talks of a hundred turns by one key, and what the lines of `bench.market.pay` are held against.

    `lump_msat`: the least of a payment.
    """
    async with AsyncExitStack() as stack:
        url = await _network(stack, folder, prices, payment_s)
        own, _ = await SimWallet.open_account(url, "customer", RICH_MSAT)
        stack.push_async_callback(own.close)
        keys, sellers = Keys(b"\x01" * 32), []
        for number in range(PROVIDERS):
            wallet, _ = await SimWallet.open_account(url, f"seller-{number}", 0)
            stack.push_async_callback(wallet.close)
            sellers.append(Seller(number, folder, wallet, prices, keys.public))
            await sellers[-1].open(stack)
        ledger = Ledger(folder / "customer.db")
        fees = Fees(flat_msat=prices.most_fee_msat)
        payer = Payer(keys, own, ledger, network=invoices.REGTEST, fees=fees, lump_msat=lump_msat)
        talk = Chats(prices, sellers, ledger, payer)
        began = time.monotonic()
        await talk.talk(TURNS)
        first = _costs(talk.lumps())
        for _ in range(chats - 1):
            await talk.talk(TURNS)
        lumps = talk.lumps()
        for seller in sellers:
            await seller.heard(ledger.tab(seller.keys.public).paid_msat)
        grown = [(msat, fee) for msat, fee in lumps if 100 * fee < msat]
        return {
            "chunk_msat": prices.chunk_msat,
            "turns": talk.turns,
            "seconds": round(time.monotonic() - began, 1),
            "first_talk": first,
            "all": _costs(lumps),
            "grown": _costs(grown),
            "newest_lump_of_each": _costs(lumps[-PROVIDERS:]),
            "lumps_msat": [msat for msat, _ in lumps[:8]] + [msat for msat, _ in lumps[-4:]],
            "failed": talk.failed(),
            "over_credit_msat": max(s.over_credit_msat for s in sellers),
            "ahead_beyond_lump_msat": talk.worst_ahead_msat,
            "unaccounted_msat": await talk.unaccounted_msat(own),
            "waited_s": round(sum(s.waited_s for s in sellers), 3),
            "customer_ms": round(median(talk.took_ms), 4),
            "provider_ms": round(median([ms for s in sellers for ms in s.took_ms]), 4),
            "metered": len(talk.took_ms),
        }


def _costs(lumps: list[tuple[int, int]]) -> dict[str, Any]:
    paid_msat, fees_msat = sum(msat for msat, _ in lumps), sum(fee for _, fee in lumps)
    share = round(fees_msat / paid_msat, 5) if paid_msat else None
    return {"lumps": len(lumps), "paid_msat": paid_msat, "fees_msat": fees_msat, "fees_share": share}


async def _network(stack: AsyncExitStack, folder: Path, prices: Prices, payment_s: float) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simnet", "--port", "0", "--db", str(folder / "simnet.db"), "--faucet", "--json",
        "--base-fee-msat", str(prices.base_fee_msat), "--fee-ppm", str(prices.fee_ppm),
        "--payment-s", str(payment_s), "--unit-msat", "1000",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip

    async def stop() -> None:
        process.terminate()
        await process.wait()

    stack.push_async_callback(stop)
    assert process.stdout is not None
    return str(json.loads(await process.stdout.readline())["url"])
