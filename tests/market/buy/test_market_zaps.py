"""Zaps on a running market: a customer's is its deposit, anybody else's a tip, and each has a receipt on the relay."""

from __future__ import annotations

import asyncio
import json

from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts import zaps
from tests.market.market_process import NODEWIRE


async def zap(config, to, *options):
    """What `nodewire wallet zap` says, and its exit status."""
    command = [*NODEWIRE, "wallet", "zap", to, *options, "--config", str(config), "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    return json.loads(said), process.returncode


async def booked(market, name, read):
    """Wait until a provider's ledger says something, and return it."""
    ledger = market.ledger(name)
    try:
        async with asyncio.timeout(300):
            while not (found := read(ledger)):
                await asyncio.sleep(0.05)
        return found
    finally:
        ledger.close()


async def test_a_customer_pays_ahead_and_a_stranger_gives_and_both_have_their_receipts(market):
    async with market.customer("donor") as donor:
        await donor.embed(market.encoder["address"], ["a cat"])
        payee = next(iter(donor.last["paid_msat"]))
    name = next(name for name, public in market.public.items() if public == payee)
    await market.settled("donor")
    before_msat = (await market.balances_msat(name))[name]

    said, status = await zap(market.config_of("donor"), payee, "1000sat", "--comment", "ahead")
    assert (status, [one["paid"] for one in said["shares"]]) == (0, [True])
    key = market.keys("donor").public
    assert await booked(market, name, lambda ledger: ledger.deposit_msat(key)) == 1_000_000

    stranger = await market.customer_config("stranger")
    _, status = await zap(stranger, payee, "21sat", "--comment", "thank you")
    assert status == 0
    (tip,) = await booked(market, name, lambda ledger: ledger.unbilled.tips(9))
    assert (tip.sender, tip.amount_msat, tip.comment) == (market.keys("stranger").public, 21_000, "thank you")
    assert (await market.balances_msat(name))[name] == before_msat + 1_021_000

    async with asyncio.timeout(300):
        while len(found := await receipts(market, payee, {key, tip.sender})) < 2:
            await asyncio.sleep(0.1)
    assert sorted(found.values()) == [21_000, 1_000_000]

    process = await asyncio.create_subprocess_exec(
        *NODEWIRE, "wallet", "balance", "--config", str(market.config_of(name)), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert b"thank you" in told and b"deposits" in told


async def receipts(market, payee, senders):
    """By sender, what a provider's receipts of ordinary zaps on the relay say was paid."""
    found = {}
    for event in await market.events(Filter(kinds=frozenset({9735}), authors=frozenset({payee}))):
        request, invoice = zaps.read_receipt(event, recipient=payee, nostr_pubkey=payee, network="bcrt")
        if request.sender in senders and not zaps.is_for_chunk(request):
            found[request.sender] = invoice.amount_msat
    return found
