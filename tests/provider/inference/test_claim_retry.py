"""A provider that died between writing down a claim and telling it tells it when it is back; until then nobody owes."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from nodewire.errors import TimedOut
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.job import feedback
from nodewire.provider.inference import claim_retry

JOB, HASH = "0a" * 32, "ab" * 32
PROVIDER, CUSTOMER = Keys(bytes([3]) * 32), Keys(bytes([4]) * 32)


def claim_of(chunk):
    due = feedback.Due(chunk, 0, 1, 3_000, HASH, 0)
    return feedback.build(PROVIDER, JOB, CUSTOMER.public, "payment-required", created_at=int(time.time()), due=due)


def owed(ledger, chunk, by_s=1):
    key = Key(JOB, PROVIDER.public, chunk)
    ledger.owe(Due(key, CUSTOMER.public, 3_000, by_s), claim=claim_of(chunk).to_json())
    return key


async def told(ledger, publish, seconds=0.2):
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await claim_retry.claim_again(ledger, publish)


async def test_a_claim_that_nobody_heard_is_told_after_a_restart_and_then_there_is_time_to_pay(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    key = owed(ledger, 0)
    ledger.close()  # and nothing was told
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.interrupted()
    assert not ledger.in_debt(CUSTOMER.public, time.time())
    came = []

    async def publish(event):
        came.append(event)

    await told(ledger, publish)
    (event,) = came
    assert feedback.parse(event).due == feedback.Due(0, 0, 1, 3_000, HASH, 0)
    assert ledger.untold() == [] and ledger.due(key).state == "due"
    assert not ledger.in_debt(CUSTOMER.public, time.time())
    assert ledger.in_debt(CUSTOMER.public, time.time() + claim_retry.TO_PAY_S + 1)
    await told(ledger, publish)
    assert len(came) == 1
    ledger.close()


async def test_what_no_relay_takes_is_told_again(monkeypatch):
    monkeypatch.setattr(claim_retry, "EVERY_S", 0.02)
    ledger, tries = Ledger(":memory:"), []
    for chunk in range(3):
        owed(ledger, chunk)

    async def publish(event):
        tries.append(feedback.parse(event).due.chunk)
        if len(tries) < 4:
            raise TimedOut("relay", "none took it")

    await told(ledger, publish)
    assert tries == [0, 0, 0, 0, 1, 2] and ledger.untold() == []


async def test_what_was_told_at_once_or_is_entered_again_is_not_told_twice():
    ledger = Ledger(":memory:")
    key = owed(ledger, 0)
    ledger.mark_claimed(key)
    owed(ledger, 0)
    assert ledger.untold() == []
    assert ledger.in_debt(CUSTOMER.public, time.time())
