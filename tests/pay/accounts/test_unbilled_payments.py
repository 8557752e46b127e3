"""Ordinary zaps and plain payments: a customer's are its deposit, others are tips, and each zap has its receipt."""

from __future__ import annotations

import asyncio
import hashlib
import time

import nostr_sdk
import pytest

from nodewire.errors import BadZap, Busy, NotAllowed, NotFound
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts import earnings, till, zaps
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import EXPIRY_S, MAX_UNBILLED_EACH, Till
from nodewire.pay.accounts.unbilled_payments import Tip
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Transfer
from tests.pay.accounts.test_till import CUSTOMER, KEY, NODE_SECRET, PROVIDER, Node, running

STRANGER, SERVICE = Keys(b"\x07" * 32), Keys(b"\x08" * 32)
RELAYS = ("wss://a.example", "wss://b.example")
METADATA = '[["text/plain","nodewire provider p"]]'


class Shop:
    def __init__(self, path=":memory:"):
        self.node, self.ledger, self.published, self.now_s = Node(), Ledger(path), [], time.time()
        self.node.lookup = self.lookup
        self.record = {}
        self.till = Till(PROVIDER, self.node, self.ledger, self.publish, now_s=lambda: self.now_s)

    async def publish(self, event, relays):
        self.published.append((relays, event))

    async def lookup(self, payment_hash, direction):
        assert direction == "in"
        state = self.record.get(payment_hash, "open")
        preimage = self.node.preimages[payment_hash] if state == "settled" else None
        return Transfer(payment_hash, "in", state, 21_000, 0, preimage, 1_700_000_000)

    def make_customer(self, keys=CUSTOMER):
        self.ledger.owe(Due(KEY, keys.public, 21_000, int(time.time()) + 30))

    async def zap(self, keys=CUSTOMER, amount_msat=50_000, origin="10.0.0.1", **options):
        request = profile_zap(keys, amount_msat, **options)
        return await self.till.quote(request.to_json(), amount_msat, origin)

    def pay(self, invoice, **changes):
        came = self.node.receipt(invoice.payment_hash, **{"amount_msat": invoice.amount_msat, **changes})
        return self.till.clear(came, "w")


def profile_zap(keys=CUSTOMER, amount_msat=50_000, *, relays=RELAYS, content="", created_at=1, **target):
    """What any Nostr app signs: no job, no chunk."""
    to = nip57.ZapTarget(PROVIDER.public, **target)
    return nip57.build_request(keys, to, amount_msat=amount_msat, relays=relays, created_at=created_at, content=content)


@pytest.fixture
def shop():
    return Shop()


async def test_a_customers_zap_is_its_deposit_and_nobody_elses(shop):
    shop.make_customer()
    (due,) = shop.pay(await shop.zap())  # it pays what is owed, and the rest is ahead
    assert shop.ledger.balance_msat(CUSTOMER.public) == 50_000 - due.amount_msat
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 50_000
    assert shop.ledger.deposit_msat(STRANGER.public) == 0 and shop.ledger.unbilled.tips(9) == []
    shop.pay(await shop.zap(created_at=2))
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 100_000


async def test_a_strangers_zap_is_a_tip_with_its_words(shop):
    shop.make_customer()
    shop.pay(await shop.zap(STRANGER, content="nice work"))
    assert shop.ledger.deposit_msat(STRANGER.public) == 0
    (tip,) = shop.ledger.unbilled.tips(9)
    assert (tip.sender, tip.amount_msat, tip.comment) == (STRANGER.public, 50_000, "nice work")


async def test_what_a_key_zapped_before_it_was_a_customer_stays_a_tip_and_what_it_pays_then_is_a_deposit(shop):
    early, late = await shop.zap(), await shop.zap(created_at=2)
    shop.pay(early)
    shop.make_customer()
    shop.pay(late)
    assert [tip.amount_msat for tip in shop.ledger.unbilled.tips(9)] == [50_000]
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 50_000


async def test_a_plain_payment_is_a_tip_with_its_comment_and_has_no_receipt(shop):
    invoice = await shop.till.tip(7_000, METADATA, "for coffee", "10.0.0.1")
    assert invoice.description_hash == hashlib.sha256(METADATA.encode()).hexdigest()
    shop.pay(invoice)
    (tip,) = shop.ledger.unbilled.tips(9)
    assert (tip.sender, tip.amount_msat, tip.comment) == ("", 7_000, "for coffee")
    assert await shop.till.publish_receipts() == [] and shop.published == []


async def test_a_note_or_an_ad_of_the_provider_may_be_zapped_and_a_job_only_by_its_chunks(shop):
    shop.make_customer()
    assert await shop.zap(STRANGER, event="77" * 32)
    assert await shop.zap(STRANGER, address=f"31990:{PROVIDER.public}:tiny", created_at=2)
    with pytest.raises(BadZap, match="chunk"):
        await shop.zap(event=KEY.job, created_at=3)
    half = nip57.build_request(
        CUSTOMER,
        nip57.ZapTarget(PROVIDER.public, event=KEY.job),
        amount_msat=5,
        relays=(),
        created_at=1,
        others=[["chunk", "0"]],
    )
    with pytest.raises(BadZap, match="attempt"):
        await shop.till.quote(half.to_json(), 5)


async def test_another_providers_zap_is_refused(shop):
    request = nip57.build_request(CUSTOMER, nip57.ZapTarget(STRANGER.public), amount_msat=5, relays=(), created_at=1)
    with pytest.raises(BadZap, match="p: "):
        await shop.till.quote(request.to_json(), 5)


async def test_each_zap_has_a_receipt_at_every_relay_that_it_names_and_another_library_reads_it(shop):
    request = profile_zap(STRANGER, content="hi")
    invoice = await shop.till.quote(request.to_json(), 50_000)
    shop.pay(invoice)
    assert await shop.till.publish_receipts() == []
    assert sorted(relays for relays, _ in shop.published) == [(), (RELAYS[0],), (RELAYS[1],)]
    ((_, receipt), *_) = shop.published
    assert {event.id for _, event in shop.published} == {receipt.id}
    facts, found = zaps.read_receipt(receipt, recipient=PROVIDER.public, nostr_pubkey=PROVIDER.public, network="bcrt")
    assert (facts.sender, found.payment_hash) == (STRANGER.public, invoice.payment_hash)
    # By rust-nostr: a signed event of kind 9735 about a signed event of kind 9734.
    theirs = nostr_sdk.Event.from_json(receipt.to_json())
    tags = {tag.to_vec()[0]: tag.to_vec()[1] for tag in theirs.tags()}
    inner = nostr_sdk.Event.from_json(tags["description"])
    assert theirs.verify() and inner.verify()
    assert (theirs.kind().as_u16(), inner.kind().as_u16()) == (9735, 9734)
    assert (tags["p"], tags["P"], tags["bolt11"]) == (PROVIDER.public, STRANGER.public, invoice.bolt11)
    assert hashlib.sha256(tags["description"].encode()).hexdigest() == invoice.description_hash
    assert await shop.till.publish_receipts() == [] and len(shop.published) == 3


async def test_a_request_that_another_library_signs_is_taken(shop):
    keys = nostr_sdk.Keys.generate()
    tags = [["relays", *RELAYS], ["amount", "50000"], ["p", PROVIDER.public]]
    builder = nostr_sdk.EventBuilder(nostr_sdk.Kind(9734), "from rust")
    event = builder.tags([nostr_sdk.Tag.parse(tag) for tag in tags]).finalize(keys)
    shop.pay(await shop.till.quote(event.as_json(), 50_000))
    (tip,) = shop.ledger.unbilled.tips(9)
    assert (tip.sender, tip.comment) == (keys.public_key().to_hex(), "from rust")


async def test_one_request_gets_one_invoice_however_many_callbacks_come_at_once_and_from_wherever(shop):
    made = await asyncio.gather(*(shop.zap(STRANGER, origin=f"10.0.0.{n}") for n in range(12)))
    assert len(set(made)) == len(shop.node.preimages) == 1


async def test_a_request_is_paid_once(shop):
    invoice = await shop.zap(STRANGER)
    shop.pay(invoice)
    shop.pay(invoice)  # a wallet may tell of a payment twice
    assert len(shop.ledger.unbilled.tips(9)) == 1
    with pytest.raises(NotAllowed, match="paid"):
        await shop.zap(STRANGER)


@pytest.mark.parametrize("amount_msat", [1, 49_999, 60_000])
async def test_what_came_is_what_counts(shop, amount_msat):
    shop.make_customer()
    shop.pay(await shop.zap(), amount_msat=amount_msat)
    assert shop.ledger.deposit_msat(CUSTOMER.public) == amount_msat


@pytest.mark.parametrize("changes", [{"preimage": "00" * 32}, {"preimage": ""}, {"amount_msat": 0}])
async def test_what_did_not_come_counts_for_nothing(shop, changes):
    shop.make_customer()
    invoice = await shop.zap()
    shop.pay(invoice, **changes)
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 0
    shop.pay(invoice, cursor=2)
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 50_000


async def test_a_running_till_books_deposits_and_brings_their_receipts(tmp_path):
    shop = Shop(tmp_path / "ledger.db")
    shop.make_customer()
    invoice = await shop.zap()
    async with running(shop.till), asyncio.timeout(10):
        shop.node.came.put_nowait(shop.node.receipt(invoice.payment_hash, amount_msat=50_000))
        while len(shop.published) < 3:
            await asyncio.sleep(0.01)
    assert shop.ledger.cursor("w") == "1"
    found = earnings.read(tmp_path / "ledger.db", time.time())
    assert (found.deposits_msat, found.tips_msat, found.paid_msat) == (50_000, 0, 21_000)
    shop.ledger.close()


async def test_a_receipt_of_a_payment_before_a_death_is_signed_after_it(tmp_path):
    first = Shop(tmp_path / "ledger.db")
    first.pay(await first.zap(STRANGER))
    first.ledger.close()  # it died before it signed
    second = Shop(tmp_path / "ledger.db")
    assert await second.till.publish_receipts() == []
    assert sorted(relays for relays, _ in second.published) == [(), (RELAYS[0],), (RELAYS[1],)]
    second.ledger.close()


async def test_strangers_fill_their_own_share_and_no_customers(shop, monkeypatch):
    monkeypatch.setattr(till, "MAX_UNBILLED", 12)
    shop.make_customer()
    for _ in range(MAX_UNBILLED_EACH):
        await shop.till.tip(1_000, METADATA, "", "10.0.0.1")
    with pytest.raises(Busy, match="invoices"):
        await shop.till.tip(1_000, METADATA, "", "10.0.0.1")
    for number in range(4):
        await shop.till.tip(1_000, METADATA, "", f"10.0.1.{number}")
    with pytest.raises(Busy, match="invoices"):
        await shop.zap(STRANGER, origin="10.0.2.1")
    for number in range(MAX_UNBILLED_EACH):
        await shop.zap(created_at=number, origin="10.0.0.1")
    with pytest.raises(Busy, match="invoices"):
        await shop.zap(created_at=99)


async def test_room_is_made_by_what_the_wallet_says_was_never_paid(shop):
    made = [await shop.till.tip(1_000, METADATA, "", "a") for _ in range(MAX_UNBILLED_EACH)]
    paid, held = made[3].payment_hash, made[4].payment_hash
    shop.record = {paid: "settled", held: "pending"}
    shop.now_s += EXPIRY_S + till._GRACE_S + 5
    new = (await shop.till.tip(1_000, METADATA, "", "a")).payment_hash
    kept = {one for one, _ in shop.ledger.unbilled.expired(shop.now_s, 100)}
    assert kept == {paid, held, new}
    shop.pay(made[3])  # the wallet's stream tells of it late
    assert [tip.amount_msat for tip in shop.ledger.unbilled.tips(9)] == [1_000]


# The wallet's own lightning address: its service makes the invoices and signs the receipts.


def service_receipt(shop, *, keys=STRANGER, signer=SERVICE, request=None, record="settled", **changes):
    """The service made an invoice for a zap request, and says that it was paid."""
    request = request or profile_zap(keys, 21_000)
    payment_hash = invoices.hash_of("5d" * 32)
    shop.node.preimages[payment_hash] = "5d" * 32
    shop.record[payment_hash] = record
    facts = {
        "network": "bcrt",
        "amount_msat": 21_000,
        "payment_hash": payment_hash,
        "created_at_s": 1_700_000_000,
        "expiry_s": 600,
        "description_hash": zaps.description_hash(request.to_json()),
    }
    made = invoices.issue(NODE_SECRET, **{**facts, **changes})
    return nip57.build_receipt(signer, request.to_json(), bolt11=made.bolt11, paid_at_s=1_700_000_100)


async def test_a_zap_to_the_wallets_own_address_counts_by_the_wallets_record(shop):
    assert await shop.till.take_receipt(service_receipt(shop), SERVICE.public) == []
    (tip,) = shop.ledger.unbilled.tips(9)
    assert tip == Tip(STRANGER.public, 21_000, 1_700_000_000, "")
    assert await shop.till.publish_receipts() == [] and shop.published == [], "the service has published it"
    with pytest.raises(NotAllowed, match="payment_hash"):
        await shop.till.take_receipt(service_receipt(shop), SERVICE.public)
    assert len(shop.ledger.unbilled.tips(9)) == 1


async def test_a_chunk_that_is_paid_to_the_wallets_own_address_is_paid(shop):
    shop.make_customer()
    request = zaps.build_request(CUSTOMER, KEY, 21_000, relays=[], lnurl=None, created_at=1)
    receipt = service_receipt(shop, request=request)
    (due,) = await shop.till.take_receipt(receipt, SERVICE.public)
    assert (due.key, due.state, shop.ledger.receipt(due.payment_hash)) == (KEY, "settled", receipt.id)
    assert await shop.till.take_receipt(receipt, SERVICE.public) == [], "told again it changes nothing"
    assert shop.ledger.earned_msat() == 21_000 and await shop.till.publish_receipts() == []
    assert shop.published == []


@pytest.mark.parametrize("record", ["open", "pending", "failed"])
async def test_a_receipt_of_the_service_proves_nothing_by_itself(shop, record):
    shop.make_customer()
    request = zaps.build_request(CUSTOMER, KEY, 21_000, relays=[], lnurl=None, created_at=1)
    for one in (service_receipt(shop, record=record), service_receipt(shop, request=request, record=record)):
        with pytest.raises(NotFound, match="wallet's record"):
            await shop.till.take_receipt(one, SERVICE.public)
    assert (shop.ledger.due(KEY).state, shop.ledger.unbilled.tips(9)) == ("due", [])


async def test_a_forged_receipt_of_the_service_is_refused_by_its_clause(shop):
    shop.make_customer()
    with pytest.raises(BadZap, match="pubkey"):
        await shop.till.take_receipt(service_receipt(shop, signer=STRANGER), SERVICE.public)
    with pytest.raises(BadZap, match="description_hash"):
        await shop.till.take_receipt(service_receipt(shop, description_hash="00" * 32), SERVICE.public)
    stolen = zaps.build_request(STRANGER, KEY, 21_000, relays=[], lnurl=None, created_at=1)
    with pytest.raises(BadZap, match="pubkey"):
        await shop.till.take_receipt(service_receipt(shop, request=stolen), SERVICE.public)
    for_another = nip57.build_request(
        CUSTOMER, nip57.ZapTarget(STRANGER.public), amount_msat=21_000, relays=(), created_at=1
    )
    with pytest.raises(BadZap, match="p: "):
        await shop.till.take_receipt(service_receipt(shop, request=for_another), SERVICE.public)
    assert (shop.ledger.due(KEY).state, shop.ledger.unbilled.tips(9)) == ("due", [])


async def test_one_payment_counts_for_one_zap_though_the_service_names_it_twice(shop):
    shop.make_customer()
    await shop.till.take_receipt(service_receipt(shop), SERVICE.public)
    again = zaps.build_request(CUSTOMER, KEY, 21_000, relays=[], lnurl=None, created_at=1)
    with pytest.raises(NotAllowed):
        await shop.till.take_receipt(service_receipt(shop, request=again), SERVICE.public)
    assert shop.ledger.due(KEY).state != "settled" and shop.ledger.earned_msat() == 0


async def test_a_payment_of_one_chunk_is_none_of_another_though_the_service_says_so(shop):
    """The payment came by the provider's own endpoint, for the one."""
    other = zaps.Key("cd" * 32, PROVIDER.public, 0)
    for key in (KEY, other):
        shop.ledger.owe(Due(key, CUSTOMER.public, 21_000, int(time.time()) + 30))
    first, second = (
        zaps.build_request(CUSTOMER, key, 21_000, relays=[], lnurl=None, created_at=1) for key in (KEY, other)
    )
    invoice = await shop.till.quote(first.to_json(), 21_000)
    shop.record[invoice.payment_hash] = "settled"
    receipt = service_receipt(shop, request=second, payment_hash=invoice.payment_hash)
    with pytest.raises(NotAllowed, match="payment_hash"):
        await shop.till.take_receipt(receipt, SERVICE.public)
    assert (shop.ledger.due(KEY).state, shop.ledger.due(other).state) == ("due", "due")
    shop.pay(invoice)
    assert (shop.ledger.due(KEY).state, shop.ledger.due(other).state) == ("settled", "due")
