"""The payer believes a wallet's record and nothing else: whatever an error says, whoever pays beside, it pays once.

The node here stands for one Lightning node that does what a test tells it to.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

import pytest

from nodewire.errors import (
    BadConfig,
    BadInput,
    BadInvoice,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    OverBudget,
    PaymentFailed,
    TimedOut,
)
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import debts, zaps
from nodewire.pay.accounts import payer as paying
from nodewire.pay.accounts.debt_book import Expenses
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer, ZapTerms
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import ABILITIES, Transfer, WalletInfo

CUSTOMER, PROVIDER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
KEY = Key("ab" * 32, PROVIDER.public, 0)
NODE_SECRET = b"\x09" * 32
RELAYS = ("wss://a.example",)
OF_A_JOB = ZapTerms(goes_ahead=True)


class Node:
    """Both sides' node: makes invoices, pays them, and remembers what it paid and how often."""

    def __init__(self):
        self.preimages, self.states, self.settled, self.made = {}, {}, [], []
        self.now_s = time.time()

    async def fetch(self, request, asked_msat, **changes):
        preimage = os.urandom(32).hex()
        payment_hash = invoices.hash_of(preimage)
        self.preimages[payment_hash] = preimage
        self.made.append(payment_hash)
        facts = {
            "network": "bcrt",
            "amount_msat": asked_msat,
            "payment_hash": payment_hash,
            "created_at_s": int(self.now_s),
            "expiry_s": 300,
            "description_hash": zaps.description_hash(request.to_json()),
        }
        return invoices.issue(NODE_SECRET, **{**facts, **changes})

    def settle(self, payment_hash):
        if self.states.get(payment_hash) != "settled":
            self.states[payment_hash] = "settled"
            self.settled.append(payment_hash)

    def record(self, payment_hash):
        state = self.states.get(payment_hash)
        if state is None:
            raise NotFound("payment_hash", "unknown")
        preimage = self.preimages[payment_hash] if state == "settled" else None
        return Transfer(payment_hash, "out", state, 1_000, 3, preimage, 1, "no route" if state == "failed" else "")


class Wallet:
    """A wallet at `node`. `pay` is what its own `pay` does with a payment hash; it answers with the node's record."""

    def __init__(self, node, pay=None, name="w", abilities=ABILITIES):
        self.node, self.name, self.abilities, self.told = node, name, abilities, []
        self._pay = pay or node.settle

    async def info(self):
        return WalletInfo(self.name, "bcrt", 1, 1, 10**9, self.abilities)

    async def pay(self, bolt11, *, max_fee_msat, timeout_s=60.0):
        payment_hash = invoices.decode(bolt11).payment_hash
        self.told.append(payment_hash)
        done = self._pay(payment_hash)
        if asyncio.iscoroutine(done):
            await done
        return self.node.record(payment_hash)

    async def lookup(self, payment_hash, direction):
        assert direction == "out"
        return self.node.record(payment_hash)


class Blind(Wallet):
    """It looks up incoming payments only."""

    def __init__(self, node, pay=None):
        super().__init__(node, pay, abilities=ABILITIES - {"lookup-out"})

    async def lookup(self, payment_hash, direction):
        raise NotFound("payment_hash", "no such invoice")


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr(paying, "_WAIT_S", 0.3)
    return Node()


def payer_of(wallet, ledger=None, now_s=time.time, **options):
    return Payer(CUSTOMER, wallet, ledger or Ledger(":memory:"), now_s=now_s, **options)


async def pay(payer, node, **changes):
    async def fetch(request, amount_msat):
        return await node.fetch(request, amount_msat, **changes)

    return await payer.pay(KEY, 1_000, fetch, relays=RELAYS)


SAID = [
    PaymentFailed("electrum", "invoice has been paid already"),
    PaymentFailed("invoice", "no route"),
    BadInvoice("invoice", "unknown"),
    OverBudget("fee", "too high"),
    NotAllowed("payment", "it is in flight"),
    LinkLost("wallet", "gone"),
    TimedOut("wallet", "no answer"),
]


@pytest.mark.parametrize("error", SAID)
async def test_whatever_error_a_wallet_answers_its_record_says_what_was_paid(node, error):
    def settle_and_raise(payment_hash):
        node.settle(payment_hash)
        raise error

    debt = await pay(payer_of(Wallet(node, settle_and_raise)), node)
    assert (debt.state, len(node.settled), len(node.made)) == ("paid", 1, 1)


@pytest.mark.parametrize("error", SAID)
async def test_whatever_error_a_blind_wallet_answers_no_second_invoice_is_bought(node, error):
    def settle_and_raise(payment_hash):
        node.settle(payment_hash)
        raise error

    wallet = Blind(node, settle_and_raise)
    payer = payer_of(wallet)
    for _ in range(3):
        with pytest.raises(NodewireError, match=str(error)) as told:
            await pay(payer, node)
        assert not isinstance(told.value, BadInput)  # which would be the payee's fault
    assert (len(node.settled), len(node.made), len(set(wallet.told))) == (1, 1, 1)
    assert [debt.state for debt in payer.unpaid()] == ["paying"]


async def test_a_blind_wallet_that_answers_late_settles_the_payment_that_it_lost(node):
    answers = [LinkLost("wallet", "gone"), None]

    def settle(payment_hash):
        node.settle(payment_hash)
        if (error := answers.pop(0)) is not None:
            raise error

    payer = payer_of(Blind(node, settle))
    with pytest.raises(LinkLost):
        await pay(payer, node)
    assert ((await pay(payer, node)).state, len(node.settled), len(node.made)) == ("paid", 1, 1)


async def test_what_failed_by_the_record_is_told_with_its_reason_and_tried_with_another_invoice(node):
    ends = ["failed", "settled"]

    def end(payment_hash):
        node.states[payment_hash] = ends.pop(0)
        node.settled += [payment_hash] if node.states[payment_hash] == "settled" else []

    payer = payer_of(Wallet(node, end), now_s=lambda: node.now_s)  # all in one second
    with pytest.raises(PaymentFailed, match=r"^payment: no route$"):
        await pay(payer, node)
    debt = await pay(payer, node)
    assert [(one.payment.payment_hash, one.payment.state) for one in debt.parts] == [
        (node.made[0], "failed"),
        (node.made[1], "paid"),
    ]


async def test_after_a_failure_another_request_is_signed_so_that_no_till_gives_the_same_invoice(node):
    requests = []

    async def fetch(request, amount_msat):
        requests.append(request.id)
        return await node.fetch(request, amount_msat)

    payer = payer_of(Wallet(node, lambda payment_hash: node.states.update({payment_hash: "failed"})), now_s=lambda: 5e9)
    node.now_s = 5e9
    for _ in range(3):
        with pytest.raises(PaymentFailed):
            await payer.pay(KEY, 1_000, fetch, relays=RELAYS)
    assert len(set(requests)) == 3


async def test_a_payment_on_its_way_is_waited_for_and_not_made_again(node):
    wallet = Wallet(node, lambda payment_hash: node.states.update({payment_hash: "pending"}))
    payer = payer_of(wallet)
    with pytest.raises(TimedOut, match="on its way"):
        await pay(payer, node)
    with pytest.raises(TimedOut, match="on its way"):
        await pay(payer, node)
    assert await payer.recover() == []
    waiting = asyncio.create_task(pay(payer, node))
    await asyncio.sleep(0.05)
    node.settle(node.made[0])
    assert (await waiting).state == "paid"
    assert (len(wallet.told), len(node.made), len(node.settled)) == (1, 1, 1)


async def test_a_failure_that_one_process_hears_late_does_not_end_the_payment_of_another(node, tmp_path):
    """The first invoice fails at the node; one process looks it up and pays another, and then the other hears of it."""

    async def slow_no_route(payment_hash):
        node.states[payment_hash] = "failed"
        await asyncio.sleep(0.15)

    async def slow(payment_hash):
        node.states[payment_hash] = "pending"
        await asyncio.sleep(0.3)
        node.settle(payment_hash)

    path = tmp_path / "ledger.db"
    one, other = payer_of(Wallet(node, slow_no_route), Ledger(path)), payer_of(Wallet(node, slow), Ledger(path))
    first = asyncio.create_task(pay(one, node))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(pay(other, node))
    # It hears late that its own payment failed. What it asks for after that is the other's payment.
    with pytest.raises((PaymentFailed, TimedOut)):
        await first
    assert (await second).state == "paid" == (await pay(one, node)).state
    assert (len(node.made), len(node.settled)) == (2, 1)
    assert one.debts_of(KEY.job) == other.debts_of(KEY.job)


async def test_where_a_wallet_takes_back_its_word_both_payments_are_in_the_book(node):
    """It said failed, another invoice was paid, and then the first had settled after all: no msat is unaccounted."""
    ledger = Ledger(":memory:")

    def fail(payment_hash):
        node.states[payment_hash] = "failed"

    def send(payment_hash):
        node.states[payment_hash] = "pending"

    with pytest.raises(PaymentFailed):
        await pay(payer_of(Wallet(node, fail), ledger), node)
    payer = payer_of(Wallet(node, send), ledger)
    with pytest.raises(TimedOut):
        await pay(payer, node)
    first, second = node.made
    ledger.record(first, debts.PaymentSettlement(node.preimages[first], 3))
    assert (ledger.debt(KEY).state, payer.unpaid()) == ("paid", [])
    node.settle(second)
    await payer.recover()
    assert (ledger.spent(), ledger.tab(KEY.payee).ahead_msat) == (Expenses(1_000, 6, 0), 1_000)
    assert await payer.recover() == []


async def test_a_payment_that_another_wallet_was_told_to_make_is_left_to_it(node):
    ledger = Ledger(":memory:")

    def lost(payment_hash):
        node.states[payment_hash] = "pending"
        raise LinkLost("wallet", "gone")

    with pytest.raises(TimedOut):
        await pay(payer_of(Wallet(node, lost), ledger), node)
    elsewhere = Node()
    other = payer_of(Wallet(elsewhere, name="another"), ledger)
    assert await other.recover() == []
    with pytest.raises(NotAllowed, match=r"^wallet: wallet w was told to make it, not another: put that one back"):
        await pay(other, elsewhere)
    node.settle(node.made[0])
    back = payer_of(Wallet(node), ledger)
    assert [debt.state for debt in await back.recover()] == ["paid"]
    assert (len(node.settled), elsewhere.settled) == (1, [])


async def test_an_invoice_that_expired_untried_by_the_record_is_given_up_and_another_is_paid(node):
    """The wallet lost the first word, and refuses the second one, since the invoice has expired. No record."""
    clock = [node.now_s]

    def refuse(payment_hash):
        raise LinkLost("wallet", "gone") if clock[0] == node.now_s else NotAllowed("invoice", "it has expired")

    ledger = Ledger(":memory:")
    payer = payer_of(Wallet(node, refuse), ledger, now_s=lambda: clock[0])
    with pytest.raises(LinkLost):
        await pay(payer, node)
    clock[0] += 300
    with pytest.raises(BadInvoice, match="expiry"):  # the test's node makes them with the old clock
        await pay(payer, node)
    node.now_s = clock[0]
    debt = await pay(payer_of(Wallet(node), ledger, now_s=lambda: clock[0]), node)
    assert [one.payment.state for one in debt.parts] == ["failed", "paid"]
    assert debt.parts[0].payment.reason == "invoice: it has expired"


@pytest.mark.parametrize("preimage", [None, "", "00" * 32, "zz" * 32])
async def test_a_wallet_that_says_settled_and_cannot_prove_it_is_not_believed(node, preimage):
    class Liar(Wallet):
        async def pay(self, bolt11, *, max_fee_msat, timeout_s=60.0):
            payment_hash = invoices.decode(bolt11).payment_hash
            return Transfer(payment_hash, "out", "settled", 1_000, 0, preimage, 1)

    payer = payer_of(Liar(node))
    with pytest.raises(NotAllowed, match=r"^wallet: preimage: .*look the payment up there"):
        await pay(payer, node)
    assert [debt.state for debt in payer.unpaid()] == ["paying"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"network": "bc"}, "network"),
        ({"amount_msat": 1_001}, "amount"),
        ({"amount_msat": 999}, "amount"),
        ({"description_hash": "00" * 32}, "description_hash"),
        ({"min_final_cltv_expiry": 52_560}, "min_final_cltv_expiry"),
        ({"created_at_s": 1_700_000_000}, "expiry"),
    ],
)
async def test_no_wallet_is_told_to_pay_an_invoice_that_is_not_what_was_asked_for(node, changes, field):
    wallet = Wallet(node)
    payer = payer_of(wallet)
    with pytest.raises(BadInvoice) as refused:
        await pay(payer, node, **changes)
    assert (refused.value.field, wallet.told, [debt.state for debt in payer.unpaid()]) == (field, [], ["planned"])


async def test_a_wallet_of_another_network_than_is_meant_pays_nothing(node):
    wallet = Wallet(node)
    with pytest.raises(BadConfig, match=r'^wallet\.network: the wallet is of "bcrt", and "bc" is meant'):
        await pay(payer_of(wallet, network="bc"), node)
    assert (wallet.told, node.made) == ([], [])


class ChargingNode(Node):
    """Routing costs 1 sat a payment."""

    def record(self, payment_hash):
        found = super().record(payment_hash)
        return replace(found, fee_msat=1_000)


async def lumps_of(payer, node, chunks, msat=1_000):
    """What was paid at a time for so many chunks, one after the other."""
    paid = []

    async def fetch(request, amount_msat):
        paid.append(amount_msat)
        return await node.fetch(request, amount_msat)

    for chunk in range(chunks):
        await payer.pay(replace(KEY, chunk=chunk), msat, fetch, relays=RELAYS, terms=OF_A_JOB)
    return paid


async def test_lumps_double_until_a_fee_is_less_than_a_hundredth_of_them():
    """So the payee never holds more of this customer's than it has earned."""
    node = ChargingNode()
    paid = await lumps_of(payer_of(Wallet(node)), node, 400)
    assert paid == [1_000, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 128_000, 128_000]


async def test_lumps_stop_to_grow_where_fees_are_a_share_of_them():
    """A half: no lump is large enough to make that a hundredth."""
    node, paid = Node(), []

    async def fetch(request, amount_msat):
        paid.append(amount_msat)
        node.record = lambda payment_hash: replace(Node.record(node, payment_hash), fee_msat=amount_msat // 2)
        return await node.fetch(request, amount_msat)

    payer = payer_of(Wallet(node))
    for chunk in range(1_600):
        await payer.pay(replace(KEY, chunk=chunk), 2_000, fetch, relays=RELAYS, terms=OF_A_JOB)
    assert paid[:3] == [2_000, 2_000, 4_000]
    assert set(paid[8:]) == {128_000}


async def test_lumps_are_what_is_owed_where_a_fee_is_less_than_a_satoshi(node):
    node.record = lambda payment_hash: replace(Node.record(node, payment_hash), fee_msat=999)
    assert await lumps_of(payer_of(Wallet(node)), node, 20) == [1_000] * 20


async def test_lumps_are_what_is_owed_where_routing_is_free(node):
    free = Wallet(node)
    node.record = lambda payment_hash: replace(Node.record(node, payment_hash), fee_msat=0)
    assert await lumps_of(payer_of(free), node, 20) == [1_000] * 20


async def test_a_customer_that_pays_ahead_pays_no_less_at_a_time(node):
    payer = payer_of(Wallet(node), lump_msat=7_000)
    assert await lumps_of(payer, node, 15) == [7_000, 7_000, 7_000]
    assert payer.tab(KEY.payee).ahead_msat == 6_000


async def test_a_debt_is_paid_alone_where_the_wallet_has_not_as_much_as_goes_ahead(node):
    asked = []

    def poor(payment_hash):
        node.states[payment_hash] = "settled" if asked[-1] <= 2_000 else "failed"

    async def fetch(request, amount_msat):
        asked.append(amount_msat)
        return await node.fetch(request, amount_msat)

    payer = payer_of(Wallet(node, poor), lump_msat=50_000)
    assert (await payer.pay(KEY, 1_000, fetch, relays=RELAYS, terms=OF_A_JOB)).state == "paid"
    assert asked == [50_000, 1_000]
    assert payer.tab(KEY.payee).ahead_msat == 0


async def test_a_debt_is_paid_alone_where_its_payee_takes_no_more_at_a_time(node):
    asked = []

    async def fetch(request, amount_msat):
        asked.append(amount_msat)
        if amount_msat > 2_000:
            raise NotAllowed("amount", "the endpoint takes 1 msat to 2000 msat")
        return await node.fetch(request, amount_msat)

    payer = payer_of(Wallet(node), lump_msat=50_000)
    assert (await payer.pay(KEY, 1_000, fetch, relays=RELAYS, terms=OF_A_JOB)).state == "paid"
    assert asked == [50_000, 1_000]
    assert len(node.settled) == 1


async def test_nothing_goes_ahead_where_a_tab_is_settled_by_hand(node):
    """Who settles may have done with the payee."""
    node, asked = ChargingNode(), []

    async def fetch(request, amount_msat):
        asked.append(amount_msat)
        return await node.fetch(request, amount_msat)

    payer = payer_of(Wallet(node), lump_msat=50_000)
    for chunk in range(3):
        await payer.pay(replace(KEY, chunk=chunk), 1_000, fetch, relays=RELAYS)
    assert asked == [1_000] * 3


async def test_a_lump_is_no_more_than_the_wallet_can_send(node):
    wallet = Wallet(node)
    info = await wallet.info()

    async def small():
        return replace(info, most_msat=6_000)

    wallet.info = small
    assert await lumps_of(payer_of(wallet, lump_msat=50_000), node, 7) == [6_000, 6_000]
