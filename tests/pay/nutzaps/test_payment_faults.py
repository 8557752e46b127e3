"""A customer's nutzaps at a mint that refuses or is late, and beside another process of the same purse."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import orjson
import pytest

from nodewire.errors import NotFound
from nodewire.nostr import event as nostr_event
from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.ecash.mint import Mint
from nodewire.pay.ecash.proofs import parse_proof
from nodewire.pay.ecash.purse import Purse
from nodewire.pay.nutzaps import desk as desk_
from nodewire.pay.nutzaps.claims import NutzapClaims
from nodewire.pay.nutzaps.desk import NutzapDesk
from nodewire.pay.nutzaps.wallet import NutzapWallet
from nodewire.pay.wallets.cashu import CashuWallet
from relay import Config, serve
from tests.pay import nutzap_market as market
from tests.pay.nutzap_market import CUSTOMER, LOCK, PROVIDER, Shop
from tests.pay.wallets.services import mint_service
from tests.pay.wallets.services.mint_service import MintService, fill

KEY = Key("ab" * 32, PROVIDER.public, 0)
AWAY, REFUSAL = (503, {}), (400, {"code": 11005, "detail": "swaps are off"})
AT_ONCE_S = 0.0


class Trade:
    """A mint, a relay, and a customer with 64 satoshis; `open` is a new process of the customer's."""

    def __init__(self, folder, service, relay, stack):
        self.folder, self.service, self.relay, self.stack = folder, service, relay, stack

    async def open(self):
        wallet = CashuWallet(self.service.url, self.folder / "customer.purse")
        self.stack.push_async_callback(wallet.close)
        pool = await self.stack.enter_async_context(Pool([self.relay], CUSTOMER))
        return NutzapWallet(wallet, CUSTOMER, pool)

    async def announce(self, *mints):
        """The provider says on the relay that it takes ecash of these mints."""
        mints = [(url, "sat") for url in mints or (self.service.url,)]
        event = nip61.build_info(
            PROVIDER, relays=[self.relay], mints=mints, pubkey=LOCK.public, created_at=int(time.time())
        )
        async with Pool([self.relay], PROVIDER) as pool:
            await pool.publish(event)
        return event

    async def draft(self, own, amount_msat=20_000):
        """The invoice of a nutzap that is drawn up."""
        fetch = await own.route(PROVIDER.public, amount_msat)
        request = zaps.build_request(
            CUSTOMER, KEY, amount_msat, relays=[self.relay], lnurl=None, created_at=int(time.time())
        )
        return await fetch(request, amount_msat)

    async def published(self):
        async with Pool([self.relay], CUSTOMER) as pool:
            return await pool.fetch([Filter(kinds=frozenset({nip61.NUTZAP}))])


@pytest.fixture
async def trade(tmp_path):
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(MintService().serving())
        relay = await stack.enter_async_context(serve(Config(db=tmp_path / "relay.sqlite", port=0)))
        one = Trade(tmp_path, service, relay.url, stack)
        await fill(service, (await one.open())._wallet, 64)
        yield one


async def pay(own, invoice):
    return await own.pay(invoice.bolt11, max_fee_msat=0, timeout_s=AT_ONCE_S)


def purse(own):
    return own._wallet.purse


async def test_a_payee_that_takes_ecash_of_other_mints_gets_no_nutzap(trade):
    own = await trade.open()
    await trade.announce("https://mint.example", trade.service.url + "/other")
    asked = len(trade.service.asked)
    assert await own.route(PROVIDER.public, 20_000) is None and len(trade.service.asked) == asked


async def test_a_nutzap_is_looked_up_as_what_went_and_never_as_what_came(trade):
    own = await trade.open()
    await trade.announce()
    invoice = await trade.draft(own)
    with pytest.raises(NotFound) as unknown:
        await own.lookup(invoice.payment_hash, "in")
    assert unknown.value.field == "payment_hash"
    assert (await pay(own, invoice)).state == "pending"
    assert (await own.lookup(invoice.payment_hash, "out")).state == "pending"
    (event,) = await trade.published()
    trade.service.spent |= {parse_proof(orjson.loads(text)).y for text in event.values("proof")}
    settled = await own.lookup(invoice.payment_hash, "out")
    assert (settled.state, settled.amount_msat, settled.fee_msat) == ("settled", 20_000, 0)
    came = await own.invoice(5_000, description="x", expiry_s=60)
    assert (await own.lookup(came.payment_hash, "in")).state == "open"


async def test_ecash_that_the_mint_locked_in_an_answer_that_was_lost_is_restored_and_sent(trade):
    own = await trade.open()
    await trade.announce()
    invoice = await trade.draft(own)
    await pay_away(trade, own, invoice)
    assert await trade.published() == [] and len(purse(own).operations("lock")) == 1
    again = await trade.open()
    assert (await pay(again, invoice)).state == "pending"
    (event,) = await trade.published()
    assert sum(parse_proof(orjson.loads(text)).amount_sat for text in event.values("proof")) == 20
    assert purse(again).operations("lock") == [] and purse(again).balance_sat == 44


async def pay_away(trade, own, invoice):
    """The mint locks the ecash; its answer is lost. The purse has just the right pieces before."""

    def lost(do):
        do()
        return AWAY

    await exact(own)
    trade.service.instead[mint_service.SWAP] = lost
    assert (await pay(own, invoice)).state == "pending"


async def exact(own):
    """Change the purse into pieces of which 20 satoshis can be made."""
    async with own._wallet.chosen(20, amount_msat=20_000, max_fee_msat=0):
        pass


async def test_a_nutzap_that_two_processes_have_locked_is_one(trade):
    own, there = await trade.open(), await trade.open()
    await trade.announce()
    invoice = await trade.draft(own)
    await exact(own)

    async def late(do):
        answer = do()
        assert (await there.lookup(invoice.payment_hash, "out")).state == "pending"
        return answer

    trade.service.instead[mint_service.SWAP] = late
    assert (await pay(own, invoice)).state == "pending"
    (event,) = await trade.published()
    assert nostr_event.parse(purse(own).nutzaps.sent(invoice.payment_hash).event) == event
    assert purse(own).balance_sat == 44 and purse(own).operations("lock") == []


async def test_a_nutzap_that_the_mint_refuses_has_failed_once_and_its_money_is_there(trade):
    own, there = await trade.open(), await trade.open()
    await trade.announce()
    invoice = await trade.draft(own)
    await exact(own)

    async def late(do):
        trade.service.instead[mint_service.SWAP] = lambda do: REFUSAL
        assert (await there.lookup(invoice.payment_hash, "out")).state == "failed"
        return REFUSAL

    trade.service.instead[mint_service.SWAP] = late
    failed = await pay(own, invoice)
    assert (failed.state, failed.fee_msat, failed.reason) == ("failed", 0, "the mint refuses: swaps are off")
    assert purse(own).balance_sat == 64 and purse(own).operations("lock") == [] and await trade.published() == []


async def test_a_nutzap_that_another_process_begins_meanwhile_is_begun_once(trade):
    own, there = await trade.open(), await trade.open()
    await trade.announce()
    await fill(trade.service, there._wallet, 64)
    invoice = await trade.draft(own)

    async def late(do):
        answer = do()
        assert (await pay(there, invoice)).state == "pending"
        return answer

    trade.service.instead[mint_service.SWAP] = late
    assert (await pay(own, invoice)).state == "pending"
    (event,) = await trade.published()
    assert sum(parse_proof(orjson.loads(text)).amount_sat for text in event.values("proof")) == 20
    assert purse(own).balance_sat == 108 and purse(own).held_sat == 0


async def test_a_desk_that_nobody_listens_to_settles_all_the_same(trade, tmp_path, monkeypatch):
    """Also what its queue lost while it was busy: that is still on the relay."""
    monkeypatch.setattr(desk_, "_AGAIN_S", 0.01)
    subscriptions, shop = [], Shop(tmp_path, trade.service.url, trade.relay)

    class Narrow(Pool):
        def subscribe(self, filters, *, max_queued=1):
            subscriptions.append(super().subscribe(filters, max_queued=max_queued))
            return subscriptions[-1]

    ecash, nutzaps = (await trade.open())._wallet, []
    for number in range(6):
        shop.owe(Key("ab" * 32, PROVIDER.public, number), 1_000)
        told = {"created_at": int(time.time()), **market.chunk("ab" * 32, number)}
        nutzaps.append(market.event(await market.locked(ecash, 1), trade.service.url, **told))
    info, free = await trade.announce(), asyncio.Event()

    async def late(do):
        await free.wait()
        return do()

    trade.service.instead[mint_service.KEYS] = late
    claims = NutzapClaims(market.info(trade.service.url), Mint(trade.service.url), Purse(tmp_path / "in.purse"), LOCK)
    async with Narrow([trade.relay], PROVIDER) as pool, asyncio.timeout(20):
        running = asyncio.create_task(NutzapDesk(info, pool, shop.till, shop.ledger, [claims]).run())
        while not subscriptions:
            await asyncio.sleep(0.01)
        await subscriptions[0].eose
        for event in nutzaps:
            await shop.publish(event)
        while not subscriptions[0].dropped:
            await asyncio.sleep(0.01)
        free.set()
        while shop.ledger.paid_msat(CUSTOMER.public) < 6_000:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(subscriptions) > 1 and claims.claimed() == []
    await claims.close()
    shop.ledger.close()


async def test_what_a_copy_of_the_purse_has_spent_takes_nothing_else_with_it(trade):
    """A backup that was put back: of two coins one is spent, and both were struck out of the purse."""
    own = await trade.open()
    await trade.announce()
    await exact(own)
    small = next(one for one in purse(own).free() if one.amount_sat == 4)
    invoice = await trade.draft(own)
    trade.service.spent.add(small.y)
    failed = await pay(own, invoice)
    assert failed.state == "failed" and purse(own).operations("lock") == [] and await trade.published() == []
    assert purse(own).balance_sat == 60 and small not in purse(own).free()
