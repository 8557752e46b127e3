"""What payment costs: `python -m bench.market.pay [--json] [--quick] [--only generation|meter|ledger|chat]`.

- generation: a generation that is paid, each payment of which takes 3 s, beside the same one whose price is 0, in turn,
  in one market and by the same providers. Tokens/s, and how long drivers waited for credit.
- meter: a chunk's metering at the customer (`Payer.pay` up to where it decides that nothing need be paid) and at the
  provider (entry and cover), in ms of CPU, the disk apart; on a tab of 20,000 chunks, too.
- ledger: entries of 1,000 jobs at once, each on disk before its job goes on, beside one transaction and fsync each.
- chat: a talk of 100 turns at a market price over four providers, and more by the same key. Wallets have whole
  satoshis, and routing costs 1 sat + 0.1 %. Lumps grow as providers earn them, until fees are a hundredth.
- chat_ahead: one such talk by a new key that pays 120 sat at a time, as `lump_msat` of customer.toml has it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.market.pay_chat import Prices, talks
from bench.market.pay_ledger import durable_per_s, metered_ms, naive_per_s
from bench.report import Report, run, spread
from bench.tools.jobs import PROMPTS, Generated, generate
from bench.tools.stepped import stepped
from bench.tools.task_counter import FOLDER
from nodewire import Customer
from nodewire.pay.accounts.debts import Debt
from nodewire.pay.accounts.dues import CreditTerms
from nodewire.pay.accounts.payer import Payer
from processes.market import Market, Model, ProviderSetup, Stock
from processes.progress import say

COUNTED = (sys.executable, "-m", "bench.tools.pay_counter")
CREDIT_CHUNKS, MOST_CHUNKS = 16, 48
"""How many chunks of a provider its credit is for: at market prices it is for more."""
PIECE_MSAT = 100
PARTS = ("generation", "meter", "ledger", "chat")
LEAST_CHUNKS = 4.0
"""So many chunks a payment lasts at least, or its latency would not be seen."""
TAB_CHUNKS = 20_000
AHEAD_MSAT = 120_000


async def measure(report: Report, options: argparse.Namespace) -> None:
    wanted = options.only or PARTS
    with tempfile.TemporaryDirectory(prefix="nodewire-pay-") as root:
        for part in PARTS:
            if part in wanted:
                folder = Path(root) / part
                folder.mkdir()
                say(part)
                await MEASURED[part](report, folder, options)


# A generation.


async def _generation(report: Report, folder: Path, options: argparse.Namespace) -> None:
    rounds, tokens = (2, 640) if report.quick else (options.rounds, options.tokens)
    counts = folder / "counts"
    counts.mkdir()
    os.environ[FOLDER] = str(counts)
    said: dict[str, list[Generated]] = {"paid": [], "free": []}
    metered: list[float] = []
    _count_customer(metered)
    async with _selling(folder, options.payment_s) as (market, customer):
        for number in range(rounds + 1):  # the first ones warm everything up
            for model in ("paid", "free") if number % 2 else ("free", "paid"):
                done = await generate(customer, market.models[model]["address"], PROMPTS[0], tokens, timeout_s=600)
                if done.error:
                    raise RuntimeError(f"a generation failed: {done.error}")
                if number:
                    said[model].append(done)
                say(f"{model}: {_rate(done):.1f} tokens/s")
        payments = market.rows("customer", "SELECT amount_msat FROM payments WHERE state = 'paid'")
    lines = [line.split() for path in counts.glob("*.pay") for line in path.read_text().splitlines()]
    waits = [float(ms) for what, ms in lines if what == "wait"]
    rates = {model: [_rate(one) for one in done] for model, done in said.items()}
    slower = 1.0 - median(rates["paid"]) / median(rates["free"])
    chunk_s = 64 / median(rates["paid"])
    report.arms["generation"] = {
        "tokens": tokens,
        "tokens_per_s": {model: spread(found) for model, found in rates.items()},
        "pairs": [round(p / f, 4) for p, f in zip(rates["paid"], rates["free"], strict=True)],
        "payments": len(payments),
        "payment_s": options.payment_s,
        "payment_in_chunks": round(options.payment_s / chunk_s, 2),
        "waits_ms": spread(waits),
        "customer_ms": spread(metered),
        "provider_with_claim_ms": spread([float(ms) for what, ms in lines if what == "ask"]),
        "load_1m": round(os.getloadavg()[0], 1),
    }
    report.line("slower_when_paid", round(slower, 4), "<=", 0.01)
    report.line("stalled_ms", round(sum(waits), 1), "==", 0)
    report.line("payments_on_the_way", len(payments), ">", 0)
    report.line("payment_in_chunks", report.arms["generation"]["payment_in_chunks"], ">=", LEAST_CHUNKS)


def _rate(done: Generated) -> float:
    """Tokens a second after the first."""
    return (len(done.ids) - 1) / (done.moments[-1] - done.moments[0])


def _count_customer(metered: list[float]) -> None:
    """Have `Payer.pay` tell what it takes where nothing need be paid."""

    def tell(ms: float, debt: Debt) -> None:
        if debt.state == "planned":
            metered.append(ms)

    setattr(Payer, "pay", stepped(Payer.pay, tell))  # noqa: B010 - mypy would not have it assigned


@asynccontextmanager
async def _selling(folder: Path, payment_s: float) -> AsyncIterator[tuple[Market, Customer]]:
    """A market that sells one model twice, once for nothing, and its customer."""
    from tests.kinds.llama import make_llama

    decoder = make_llama(folder / "llama", max_position_embeddings=4_096, seed=5, eos_token_id=None)
    models = tuple(Model(decoder, "8MB", name) for name in ("paid", "free"))
    setup = ProviderSetup(
        prices={"paid": PIECE_MSAT, "free": 0},
        credit_msat=(CREDIT_CHUNKS * 2 * PIECE_MSAT, MOST_CHUNKS * 2 * PIECE_MSAT),
        network=("--payment-s", str(payment_s)),
    )
    stock = Stock(models=models, holders=1)
    async with (
        Market(folder / "market", providers=2, stock=stock, setup=setup, program=COUNTED) as market,
        market.customer("customer") as customer,
    ):
        yield market, customer


# Books.


async def _meter(report: Report, folder: Path, options: argparse.Namespace) -> None:
    looks = 200 if report.quick else 1_000
    found = {str(chunks): metered_ms(folder, chunks, looks) for chunks in (10, TAB_CHUNKS)}
    report.arms["meter"] = found
    for side in ("customer_ms", "provider_ms"):
        report.line(f"meter_{side}", max(one[side] for one in found.values()), "<=", 0.3)


async def _ledger(report: Report, folder: Path, options: argparse.Namespace) -> None:
    rounds, chunks = (1, 3) if report.quick else (5, 10)
    found: dict[str, dict[str, list[float]]] = {}
    for side in ("provider", "customer"):
        found[side] = {"durable_per_s": [], "naive_per_s": []}
        for number in range(rounds):
            at_customer = side == "customer"
            path = folder / f"{side}-{number}.db"
            durable = await durable_per_s(path, 1_000, chunks, at_customer=at_customer)
            naive = naive_per_s(path.with_suffix(".naive"), 1_000, at_customer=at_customer)
            found[side]["durable_per_s"].append(round(durable))
            found[side]["naive_per_s"].append(round(naive))
        report.line(f"{side}_entries_per_s", median(found[side]["durable_per_s"]), ">=", 2_000)
    report.arms["ledger"] = {**found, "load_1m": round(os.getloadavg()[0], 1)}


async def _chat(report: Report, folder: Path, options: argparse.Namespace) -> None:
    prices = Prices(28, options.btc_usd, 1_000, 1_000, 2_000, CreditTerms(1_000, 1_000_000))
    payment_s, arms = options.chat_payment_s, {}
    for name, chats, lump_msat in (("chat", 3 if report.quick else options.chats, 0), ("chat_ahead", 1, AHEAD_MSAT)):
        say(name)
        (own := folder / name).mkdir()
        found = arms[name] = await talks(own, prices, payment_s, chats, lump_msat)
        report.arms[name] = {"btc_usd": options.btc_usd, "fees": "1 sat + 0.1 %", "lump_msat": lump_msat, **found}
    for line, bound in (("over_credit_msat", "<="), ("ahead_beyond_lump_msat", "<="), ("unaccounted_msat", "==")):
        report.line(line, max(found[line] for found in arms.values()), bound, 0)
    report.line("fees_of_newest_lumps", arms["chat"]["newest_lump_of_each"]["fees_share"], "<=", 0.01)
    report.line("fees_of_a_talk_paid_ahead", arms["chat_ahead"]["all"]["fees_share"], "<=", 0.01)


MEASURED: dict[str, Any] = {"generation": _generation, "meter": _meter, "ledger": _ledger, "chat": _chat}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, nargs="*", help="some of the parts")
    parser.add_argument("--payment-s", type=float, default=3.0, help="how long a payment takes in the generation")
    parser.add_argument("--rounds", type=int, default=7, help="generations of each kind")
    parser.add_argument("--tokens", type=int, default=1_920, help="of a generation")
    parser.add_argument("--btc-usd", type=int, default=100_000, help="what a bitcoin costs, in dollars")
    parser.add_argument("--chats", type=int, default=5, help="talks of 100 turns by the same key")
    parser.add_argument("--chat-payment-s", type=float, default=0.2, help="how long a payment takes in the talks")


if __name__ == "__main__":
    run("pay", __doc__, measure, add=_options)
