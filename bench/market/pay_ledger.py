"""Ledgers under load: a chunk's metering on a long tab, and durable entries of many jobs at once. Part of
bench.market.pay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from nodewire.pay.accounts.debts import JobBudget, Key
from nodewire.pay.accounts.dues import CreditTerms, Due
from nodewire.pay.accounts.ledger import Ledger

CREDIT = CreditTerms(10**9, 10**9)
PAYEE, OTHER, CUSTOMER = "aa" * 32, "bb" * 32, "cc" * 32
CHUNKS_A_JOB = 50


class OneByOne(Ledger):
    """Each entry is one transaction and one fsync: what a ledger does that nobody has thought about."""

    @contextmanager
    def _transaction(self, *, is_flushed: bool = True) -> Iterator[None]:
        with super()._transaction(is_flushed=True):
            yield


def metered_ms(folder: Path, chunks: int, looks: int) -> dict[str, float]:
    """Medians of a chunk's metering at both sides, in ms of CPU, with so many chunks on the tab."""
    own, theirs = Ledger(folder / f"own-{chunks}.db"), Ledger(folder / f"theirs-{chunks}.db", CREDIT)
    own.set_credit(PAYEE, CREDIT)
    budget = JobBudget(10**9, frozenset({PAYEE, OTHER}))
    customer_ms, provider_ms = [], []
    for number in range(chunks + looks):
        key = Key(f"{number // CHUNKS_A_JOB:064x}", PAYEE, number % CHUNKS_A_JOB)
        began = time.thread_time()
        own.plan(key, 5, budget=budget, lnurl="lnurl1x", at_s=1)
        own.set_credit(PAYEE, CREDIT)
        own.is_due(PAYEE, 2.0, running=True)
        between = time.thread_time()
        theirs.owe(Due(key, CUSTOMER, 5, 2**40), claim="x" * 800)
        theirs.is_covered(CUSTOMER)
        after = time.thread_time()
        if number >= chunks:
            customer_ms.append((between - began) * 1_000)
            provider_ms.append((after - between) * 1_000)
    own.close()
    theirs.close()
    return {"customer_ms": round(median(customer_ms), 4), "provider_ms": round(median(provider_ms), 4)}


async def durable_per_s(path: Path, jobs: int, chunks: int, *, at_customer: bool) -> float:
    """Entries a second of so many jobs at once; each is on disk before its job goes on."""
    ledger = Ledger(path, CREDIT)
    payees = [f"{n:064x}" for n in range(4)]

    async def job(number: int) -> None:
        for chunk in range(chunks):
            key = Key(f"{number:064x}", payees[number % 4], chunk)
            if at_customer:
                ledger.plan(key, 5)
                ledger.is_due(key.payee, 2.0, running=True)
            else:
                customer = f"{number:064x}"
                ledger.owe(Due(key, customer, 5, 2**40))
                ledger.is_covered(customer)
            await ledger.flushed()

    began = time.monotonic()
    await asyncio.gather(*map(job, range(jobs)))
    took_s = time.monotonic() - began
    ledger.close()
    return jobs * chunks / took_s


def naive_per_s(path: Path, entries: int, *, at_customer: bool) -> float:
    """The same entries, one transaction and one fsync each."""
    ledger = OneByOne(path, CREDIT)
    began = time.monotonic()
    for number in range(entries):
        key = Key(f"{number:064x}", PAYEE, 0)
        if at_customer:
            ledger.plan(key, 5)
            ledger.is_due(key.payee, 2.0, running=True)
        else:
            ledger.owe(Due(key, f"{number:064x}", 5, 2**40))
            ledger.is_covered(f"{number:064x}")
    took_s = time.monotonic() - began
    ledger.close()
    return entries / took_s
