"""What the benches of payment rest on: the price of a chunk, CPU of a coroutine, and mutants that differ."""

from __future__ import annotations

import asyncio
import hashlib
import time

import pytest

from bench.market.pay_chat import Prices
from bench.market.pay_ledger import OneByOne
from bench.tools.pay_roles import LEDGERS, CountsTwice, ForgetsAttempt, LosesRest
from bench.tools.stepped import stepped
from nodewire.pay.accounts import debts
from nodewire.pay.accounts.debts import Key, Payment
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import NO_CREDIT, Due
from nodewire.pay.lightning.wallet import Receipt

PREIMAGE = "11" * 32
HASH = hashlib.sha256(bytes.fromhex(PREIMAGE)).hexdigest()
KEY, CUSTOMER = Key("10" * 32, "aa" * 32, 0), "cc" * 32


@pytest.mark.parametrize(("btc_usd", "msat"), [(100_000, 18), (50_000, 36), (179_200, 10)])
def test_a_chunk_costs_what_64_tokens_do(btc_usd, msat):
    assert Prices(28, btc_usd, 0, 0, 0, NO_CREDIT).chunk_msat == msat


async def test_cpu_is_counted_and_time_that_is_waited_is_not():
    told = []

    async def work(answer):
        await asyncio.sleep(0.2)
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return answer

    assert await stepped(work, lambda ms, answer: told.append((ms, answer)))("done") == "done"
    ((ms, answer),) = told
    assert answer == "done"
    assert 19 < ms < 150


async def test_a_counted_coroutine_is_cancelled_as_any():
    heard = []

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    task = asyncio.create_task(stepped(work, lambda *_: None)())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]


def test_a_ledger_that_forgets_an_attempt_does_so_only_where_its_process_dies(tmp_path):
    for kind, after in ((LEDGERS[""], "paying"), (ForgetsAttempt, "invoiced")):
        path = tmp_path / f"{kind.__name__}.db"
        ledger = kind(path)
        ledger.plan(KEY, 10)
        ledger.begin(KEY.payee, [KEY], Payment(HASH, "lnbcrt", 10))
        assert ledger.record(HASH, debts.PaymentAttempt("w")).state == "paying"
        ledger.close()
        again = kind(path)
        assert again.payment(HASH).state == after
        again.close()


def test_mutants_of_the_providers_book_lose_a_rest_or_count_twice():
    balances = {}
    for kind in (LEDGERS[""], LosesRest, CountsTwice):
        ledger = kind(":memory:")
        ledger.owe(Due(KEY, CUSTOMER, 10, 100))
        ledger.quoted(Quote(KEY, HASH, "{}", "lnbcrt"))
        for _ in range(2):
            ledger.settled(Receipt("1", HASH, PREIMAGE, 15, 5), "w")
        balances[kind.__name__] = ledger.balance_msat(CUSTOMER)
        ledger.close()
    assert balances == {"Ledger": 5, "LosesRest": 0, "CountsTwice": 20}


def test_the_naive_ledger_leaves_nothing_to_flush(tmp_path):
    ledger = OneByOne(tmp_path / "ledger.db")
    ledger.plan(KEY, 10)
    assert ledger._unflushed == 0
    ledger.close()
