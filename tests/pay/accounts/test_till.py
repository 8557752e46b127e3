"""The till: one invoice for a request, nothing cleared by less than is due, receipts that stand on relays in the end.

The wallet here stands for a node that does what a test tells it to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

import pytest

from nodewire.errors import Busy, NotAllowed, RelayRefused, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import EXPIRY_S, Till
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import ABILITIES, Receipt, WalletInfo

PROVIDER, CUSTOMER = Keys(b"\x02" * 32), Keys(b"\x01" * 32)
KEY = Key("ab" * 32, PROVIDER.public, 0)
DUE_MSAT = 21_000
NODE_SECRET = b"\x09" * 32


class Node:
    """Makes invoices, slowly, and reports as settled what a test puts into `came`."""

    def __init__(self, name="w"):
        self.name, self.preimages = name, {}
        self.came, self.asked_after = asyncio.Queue(), None

    async def info(self):
        return WalletInfo(self.name, "bcrt", 1, 1, 10**9, ABILITIES)

    async def invoice(self, amount_msat, *, description, expiry_s):
        preimage = os.urandom(32).hex()
        payment_hash = invoices.hash_of(preimage)
        self.preimages[payment_hash] = preimage
        await asyncio.sleep(0.01)
        return invoices.issue(
            NODE_SECRET,
            network="bcrt",
            amount_msat=amount_msat,
            payment_hash=payment_hash,
            created_at_s=int(time.time()),
            expiry_s=expiry_s,
            description_hash=zaps.description_hash(description),
        )

    async def settled(self, after=""):
        self.asked_after = after
        while True:
            yield await self.came.get()

    def receipt(self, payment_hash, cursor=1, **changes):
        facts = {"preimage": self.preimages[payment_hash], "amount_msat": DUE_MSAT, "settled_at_s": int(time.time())}
        return Receipt(cursor=str(cursor), payment_hash=payment_hash, **{**facts, **changes})


class Shop:
    def __init__(self, publish):
        self.node, self.ledger = Node(), Ledger(":memory:")
        self.till = Till(PROVIDER, self.node, self.ledger, publish)
        self.ledger.owe(Due(KEY, CUSTOMER.public, DUE_MSAT, int(time.time()) + 30))

    async def quote(self, created_at=1):
        request = zaps.build_request(
            CUSTOMER, KEY, DUE_MSAT, relays=["wss://a.example"], lnurl=None, created_at=created_at
        )
        return await self.till.quote(request.to_json(), DUE_MSAT)


async def publish_nothing(event, relays):
    return


@pytest.fixture
def shop():
    return Shop(publish_nothing)


async def test_one_request_gets_one_invoice_however_many_callbacks_come_at_once(shop):
    made = await asyncio.gather(*(shop.quote() for _ in range(12)))
    assert len(set(made)) == len(shop.node.preimages) == len(shop.ledger.quotes(KEY)) == 1


async def test_the_bound_of_invoices_for_one_chunk_holds_for_callbacks_at_once(shop):
    made = await asyncio.gather(*(shop.quote(n) for n in range(12)), return_exceptions=True)
    refused = [one for one in made if isinstance(one, Exception)]
    assert (len(shop.node.preimages), [type(one) for one in refused]) == (8, [Busy] * 4)


async def test_a_customer_whose_payments_failed_hears_when_it_gets_another_invoice(shop):
    """A payment that failed is not tried again by its invoice: after eight of them the oldest must expire first."""
    for n in range(8):
        await shop.quote(n)
    with pytest.raises(Busy, match=rf"come again in ({EXPIRY_S}|{EXPIRY_S - 1}|{EXPIRY_S - 2}) s"):
        await shop.quote(8)
    later = Till(PROVIDER, shop.node, shop.ledger, publish_nothing, now_s=lambda: time.time() + EXPIRY_S + 1)
    shop.till = later
    assert (await shop.quote(8)).payment_hash in shop.node.preimages


@pytest.mark.parametrize("amount_msat", [0, 1, DUE_MSAT - 1])
async def test_a_payment_of_less_than_is_due_clears_nothing_and_is_not_lost(shop, amount_msat):
    invoice = await shop.quote()
    assert shop.till.clear(shop.node.receipt(invoice.payment_hash, amount_msat=amount_msat), "w") == []
    assert (shop.ledger.due(KEY).state, shop.ledger.earned_msat()) == ("due", 0)
    assert shop.ledger.in_debt(CUSTOMER.public, time.time() + 60)
    assert shop.ledger.balance_msat(CUSTOMER.public) == amount_msat


async def test_a_payment_of_more_than_is_due_clears_it_and_the_rest_is_not_lost(shop):
    invoice = await shop.quote()
    (due,) = shop.till.clear(shop.node.receipt(invoice.payment_hash, amount_msat=DUE_MSAT + 7), "w")
    assert (due.state, shop.ledger.earned_msat(), shop.ledger.balance_msat(CUSTOMER.public)) == ("settled", 21_000, 7)


@pytest.mark.parametrize("preimage", ["00" * 32, "", "zz" * 32, "ab"])
async def test_a_payment_whose_preimage_does_not_open_its_hash_clears_nothing(shop, preimage, caplog):
    invoice = await shop.quote()
    assert shop.till.clear(shop.node.receipt(invoice.payment_hash, preimage=preimage), "w") == []
    assert (shop.ledger.due(KEY).state, shop.ledger.earned_msat()) == ("due", 0)
    assert "preimage" in caplog.text and invoice.payment_hash[:8] in caplog.text
    (due,) = shop.till.clear(shop.node.receipt(invoice.payment_hash, cursor=2), "w")
    assert due.state == "settled"


@contextlib.asynccontextmanager
async def running(till, on_settled=None):
    task = asyncio.create_task(till.run(on_settled))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("refusal", [TimedOut("event", "no relay answered"), RelayRefused("event", "rate-limited")])
async def test_a_receipt_that_relays_refused_is_published_again_without_another_payment(refusal):
    """The provider's own relays, of which one is enough, are asked without end."""
    tries, is_there = [], asyncio.Event()

    async def publish(event, relays):
        assert relays == ()
        tries.append(event.id)
        if len(tries) < 3:
            raise refusal
        is_there.set()

    shop = Shop(publish)
    request = zaps.build_request(CUSTOMER, KEY, DUE_MSAT, relays=[], lnurl=None, created_at=1)
    invoice = await shop.till.quote(request.to_json(), DUE_MSAT)
    async with running(shop.till), asyncio.timeout(30):
        shop.node.came.put_nowait(shop.node.receipt(invoice.payment_hash))
        await is_there.wait()
        while shop.ledger.receipts.relays():
            await asyncio.sleep(0)
    assert (len(tries), len(set(tries))) == (3, 1)


async def test_one_receipt_that_no_relay_takes_does_not_keep_the_others_back():
    taken, other = [], Key("cd" * 32, PROVIDER.public, 0)

    async def publish(event, relays):
        if event.tag("e") == KEY.job:
            await asyncio.Event().wait()
        taken.append(event.tag("e"))

    shop = Shop(publish)
    shop.ledger.owe(Due(other, CUSTOMER.public, DUE_MSAT, int(time.time()) + 30))
    first = await shop.quote()
    request = zaps.build_request(CUSTOMER, other, DUE_MSAT, relays=["wss://a.example"], lnurl=None, created_at=1)
    second = await shop.till.quote(request.to_json(), DUE_MSAT)
    async with running(shop.till), asyncio.timeout(10):
        for cursor, invoice in enumerate((first, second), 1):
            shop.node.came.put_nowait(shop.node.receipt(invoice.payment_hash, cursor))
        while not taken:
            await asyncio.sleep(0.01)
    assert set(taken) == {other.job}


async def test_three_of_three_payments_count_after_a_change_of_wallet_and_each_is_one():
    """A cursor is its wallet's: the other's would tell of nothing."""
    shop, seen = Shop(publish_nothing), []
    for name, chunks, total in (("first", range(1, 11), 10), ("second", range(11, 14), 13)):
        wallet = Node(name)
        till = Till(PROVIDER, wallet, shop.ledger, publish_nothing)
        made = []
        for chunk in chunks:
            key = Key(KEY.job, PROVIDER.public, chunk)
            shop.ledger.owe(Due(key, CUSTOMER.public, DUE_MSAT, int(time.time()) + 30))
            request = zaps.build_request(CUSTOMER, key, DUE_MSAT, relays=[], lnurl=None, created_at=1)
            made.append(await till.quote(request.to_json(), DUE_MSAT))
        async with running(till, seen.append), asyncio.timeout(10):
            for cursor, invoice in enumerate(made, 1):  # the second wallet's cursors begin anew
                wallet.came.put_nowait(wallet.receipt(invoice.payment_hash, cursor))
                wallet.came.put_nowait(wallet.receipt(invoice.payment_hash, cursor))  # a stream may tell twice
            while len({due.key for due in seen}) < total:
                await asyncio.sleep(0.01)
        assert wallet.asked_after == ""
    assert shop.ledger.earned_msat() == 13 * DUE_MSAT
    assert (shop.ledger.cursor("first"), shop.ledger.cursor("second")) == ("10", "3")


async def test_a_zap_that_names_a_paid_chunk_is_taken_while_its_sender_owes_others():
    """Each side may have its own order of what a lump has paid: it is the sum that both agree on."""
    shop, other = Shop(publish_nothing), Key("cd" * 32, PROVIDER.public, 0)
    invoice = await shop.quote()
    shop.till.clear(shop.node.receipt(invoice.payment_hash), "w")
    with pytest.raises(NotAllowed, match="it is paid"):
        await shop.quote(created_at=2)
    shop.ledger.owe(Due(other, CUSTOMER.public, DUE_MSAT, int(time.time()) + 30))
    again = await shop.quote(created_at=3)
    (due,) = shop.till.clear(shop.node.receipt(again.payment_hash, cursor=2), "w")
    assert (due.key, shop.ledger.tab_msat(CUSTOMER.public), shop.ledger.balance_msat(CUSTOMER.public)) == (other, 0, 0)
