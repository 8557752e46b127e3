"""One zap to several, over their own endpoints and one simulated network: each share is paid once, and none is lost."""

from __future__ import annotations

import hashlib
from contextlib import AsyncExitStack

import pytest

from nodewire.errors import BadInput, LinkLost, NodewireError, NotAllowed, NotFound
from nodewire.net.http_server import listening_socket
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip57 import Share
from nodewire.pay.accounts import splits
from nodewire.pay.accounts.debts import Key, Payment, PaymentAttempt, PaymentSettlement
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import PAID, Payer
from nodewire.pay.accounts.splits import SplitZap
from nodewire.pay.accounts.till import Till
from nodewire.pay.lightning import lnurl, lnurl_server

RICH_MSAT = 1_000_000
NAME, RELAYS = "5a" * 32, ("wss://a.example",)
CUSTOMER, AUTHOR = Keys(b"\x01" * 32), Keys(b"\x09" * 32)


class Payee:
    """Somebody with a wallet, a till and an LNURL endpoint."""

    def __init__(self, number, wallet):
        self.keys, self.wallet, self.ledger = Keys(bytes([number]) * 32), wallet, Ledger(":memory:")
        self.receipts = []
        self.till = Till(self.keys, wallet, self.ledger, self._publish)

    async def _publish(self, event, relays):
        self.receipts.append(event)

    async def open(self, stack, *, signer=None, tip=None):
        sock = listening_socket("lnurl.listen", "127.0.0.1:0")
        base = f"http://127.0.0.1:{sock.getsockname()[1]}"
        endpoint = lnurl_server.Endpoint("p", base, signer or self.keys.public, self.till.quote, tip=self.till.tip)
        await stack.enter_async_context(lnurl_server.serve_endpoint(endpoint, sock))
        return endpoint.pay_url

    async def settle(self, count):
        wallet = (await self.wallet.info()).id
        stream = self.wallet.settled(after=self.ledger.cursor(wallet))
        for _ in range(count):
            self.till.clear(await anext(stream), wallet)
        await stream.aclose()
        assert await self.till.publish_receipts() == []


class Market:
    def __init__(self, payees, wallet, urls):
        self.payees, self.wallet, self.urls = payees, wallet, urls
        self.payer = Payer(CUSTOMER, wallet, Ledger(":memory:"))

    async def where(self, pubkey):
        found = self.urls[pubkey]
        if isinstance(found, NodewireError):
            raise found
        return found

    async def pay(self, shares, **options):
        zap = SplitZap(**{"name": NAME, "shares": tuple(shares), "relays": RELAYS, **options})
        return await splits.pay(self.payer, zap, self.where, network="bcrt", allow_private=True)


@pytest.fixture
async def market(open_wallet):
    async with AsyncExitStack() as stack:
        payees = [Payee(number, await open_wallet(0)) for number in (2, 3, 4)]
        urls = {payee.keys.public: await payee.open(stack) for payee in payees}
        yield Market(payees, await open_wallet(RICH_MSAT), urls)


async def prepaid(market, payee, msat):
    """The customer has paid so much ahead to a payee."""
    payment_hash = hashlib.sha256(b"\0" * 32).hexdigest()
    key = Key("11" * 32, payee.keys.public, 0)
    ledger = market.payer._ledger
    ledger.plan(key, 6)
    ledger.begin(payee.keys.public, [key], Payment(payment_hash, "x", msat))
    ledger.record(payment_hash, PaymentAttempt((await market.wallet.info()).id))
    ledger.record(payment_hash, PaymentSettlement("00" * 32, 0))
    assert ledger.tab(payee.keys.public).ahead_msat == msat - 6


async def test_a_gift_is_not_taken_out_of_what_was_paid_ahead_for_work(market):
    payee = market.payees[0]
    await prepaid(market, payee, 100_000)
    (done,) = await market.pay([Share(payee.keys.public, "", 21_000)])
    assert done.paid is not None
    assert await payee.wallet.balance_msat() == 21_000
    assert market.payer._ledger.tab(payee.keys.public).ahead_msat == 99_994


async def test_a_payee_that_calls_a_gift_paid_takes_nothing_of_what_was_paid_ahead(market, monkeypatch):
    payee = market.payees[0]
    await prepaid(market, payee, 100_000)

    async def refuses(request, amount_msat):
        raise NotAllowed(PAID, "it is paid")

    monkeypatch.setattr(lnurl, "over_lnurl", lambda *about, **options: refuses)
    (done,) = await market.pay([Share(payee.keys.public, "", 21_000)])
    assert isinstance(done.error, NotAllowed)
    assert market.payer._ledger.tab(payee.keys.public).ahead_msat == 99_994


async def test_a_gift_that_failed_is_in_no_later_payment_for_work(market):
    payee = market.payees[0]
    market.urls[payee.keys.public] = "http://127.0.0.1:1/x"
    (done,) = await market.pay([Share(payee.keys.public, "", 21_000)])
    assert done.error is not None
    asked_msat = []

    async def fetch(request, amount_msat):
        asked_msat.append(amount_msat)
        raise LinkLost("lnurl", "enough")

    with pytest.raises(LinkLost):
        await market.payer.pay(Key("22" * 32, payee.keys.public, 0), 6, fetch, relays=RELAYS)
    assert asked_msat == [6]


def note(*weights):
    tags = [nip57.split_tag(Keys(bytes([2 + n]) * 32).public, "", weight) for n, weight in enumerate(weights)]
    return events.sign(AUTHOR, 1, created_at=1, content="a note by three", tags=tags)


async def test_a_zap_is_split_by_weights_and_every_receiver_signs_a_receipt_for_its_own_share(market):
    event = note(1, 2, 4)
    shares = splits.shares_of(event, 10_000)
    assert [share.amount_msat for share in shares] == [1_429, 2_857, 5_714]
    done = await market.pay(shares, event=event.id, comment="well said")
    assert [one.error for one in done] == [None] * 3
    for payee, share in zip(market.payees, shares, strict=True):
        assert await payee.wallet.balance_msat() == share.amount_msat
        await payee.settle(1)
        (tip,) = payee.ledger.unbilled.tips(9)
        assert (tip.sender, tip.amount_msat, tip.comment) == (CUSTOMER.public, share.amount_msat, "well said")
        assert {receipt.tag("e") for receipt in payee.receipts} == {event.id}
        assert {receipt.tag("p") for receipt in payee.receipts} == {payee.keys.public}


@pytest.mark.parametrize("failure", [NotFound("lud16", "none"), LinkLost("lnurl", "gone"), "http://127.0.0.1:1/x"])
async def test_a_share_that_fails_loses_no_other_and_is_paid_alone_when_it_is_asked_for_again(market, failure):
    lost = market.payees[1]
    works, market.urls[lost.keys.public] = market.urls[lost.keys.public], failure
    shares = splits.shares_of(note(1, 1, 1), 9_000)
    done = await market.pay(shares)
    assert [one.paid is not None for one in done] == [True, False, True]
    assert isinstance(done[1].error, NotFound | LinkLost)
    market.urls[lost.keys.public] = works
    assert [one.error for one in await market.pay(shares)] == [None] * 3
    assert [await payee.wallet.balance_msat() for payee in market.payees] == [3_000] * 3


async def test_a_zap_under_another_name_is_another_zap(market):
    shares = splits.shares_of(note(1, 1), 2_000)
    await market.pay(shares, comment="one")
    await market.pay(shares, comment="two", name="6b" * 32)
    assert [await payee.wallet.balance_msat() for payee in market.payees] == [2_000, 2_000, 0]


async def test_nobodys_receipt_finalizer_and_debt_collector_look_for_a_job_behind_it(market):
    market.urls[market.payees[0].keys.public] = "http://127.0.0.1:1/x"
    await market.pay(splits.shares_of(note(1, 1), 2_000))
    ledger = market.payer._ledger
    assert ledger.unclosed() == []
    assert [debt.lnurl for debt in ledger.unpaid()] == [""], "a chunk's zap request would be refused"


async def test_whose_receipts_come_from_a_service_is_zapped_as_well(market, open_wallet):
    async with AsyncExitStack() as stack:
        payee = Payee(5, await open_wallet(0))
        market.urls[payee.keys.public] = await payee.open(stack, signer=AUTHOR.public)
        done = await market.pay([Share(payee.keys.public, "", 1_000)])
        assert done[0].error is None


def test_an_event_without_zap_tags_is_its_authors():
    assert splits.shares_of(note(), 500) == (Share(AUTHOR.public, "", 500),)


def test_a_key_that_is_named_twice_has_one_share_and_nothing_is_lost():
    two, three = (Keys(bytes([n]) * 32).public for n in (2, 3))
    shares = [Share(two, "", 3), Share(three, "r", 4), Share(two, "x", 5), Share(AUTHOR.public, "", 0)]
    assert splits.merged(shares) == (Share(two, "", 8), Share(three, "r", 4))


async def test_what_is_no_zap_is_refused(market):
    twice = [Share(market.payees[0].keys.public, "", 1)] * 2
    for options in ({"shares": twice}, {"shares": [], "name": "x"}):
        with pytest.raises(BadInput, match="zap"):
            await market.pay(**options)
