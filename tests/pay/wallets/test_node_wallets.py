"""Wallets that are nodes of their owner's: nothing is paid twice, whatever becomes of an answer, and none is believed.

Their services answer as their documentation says (`recordings`), over the simulated network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

import pytest
from aiohttp import web

from nodewire.errors import (
    BadInput,
    BadInvoice,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
    Unsupported,
)
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.probe import probe
from nodewire.pay.lightning.wallet import ABILITIES
from nodewire.pay.wallets.cln import ClnWallet
from nodewire.pay.wallets.lnd import LndWallet
from nodewire.pay.wallets.phoenixd import PhoenixdWallet
from nodewire.pay.wallets.rest import Access
from tests.pay.conftest import NODES
from tests.pay.pay_market import Market
from tests.pay.wallets.services.recordings import Recording

FEE_MSAT = 10_000
kinds = pytest.mark.parametrize("kind", sorted(NODES))


@pytest.fixture
async def reach():
    """`await reach(service, **options)`: another wallet at a service, with its secret or another one."""
    opened = []

    def one(service, secret=None, **options):
        wallet_class = next(wallet for stand_in, wallet in NODES.values() if type(service) is stand_in)
        opened.append(wallet_class(service.url, Access(secret or service.secret), **options))
        return opened[-1]

    yield one
    for wallet in opened:
        await wallet.close()


async def paid_by(payer, payee, amount_msat=21_000, **options):
    invoice = await payee.invoice(amount_msat, description="x", expiry_s=600)
    return invoice, await payer.pay(invoice.bolt11, max_fee_msat=FEE_MSAT, **options)


# Answers that are lost, late, or come twice


@kinds
async def test_a_payment_whose_answer_is_lost_is_made_once(open_node, kind, tmp_path):
    _, payee = await open_node(kind)
    service, payer = await open_node(kind, 100_000)
    service.drops = 1
    market = Market(payee, payer, tmp_path)
    market.deliver()
    debt = await market.pay()
    assert (debt.state, len(debt.parts), len(service.told)) == ("paid", 1, 1)
    assert await payee.balance_msat() == 21_000
    await market.settle(1)
    assert market.provider_book.earned_msat() == 21_000
    market.close()


@kinds
async def test_a_payment_that_is_never_answered_is_told_once_by_all_who_ask_for_it(open_node, reach, kind):
    _, payee = await open_node(kind)
    service, _ = await open_node(kind, 100_000)
    payer = reach(service, timeout_s=0.5)
    service.swallows = 1
    invoice = await payee.invoice(21_000, description="x", expiry_s=600)
    asked = [payer.pay(invoice.bolt11, max_fee_msat=FEE_MSAT, timeout_s=0.5) for _ in range(3)]
    assert {type(one) for one in await asyncio.gather(*asked, return_exceptions=True)} == {TimedOut}
    assert service.told == [invoice.payment_hash] and await payee.balance_msat() == 0
    assert (await reach(service).pay(invoice.bolt11, max_fee_msat=FEE_MSAT)).state == "settled"
    assert await payee.balance_msat() == 21_000


@kinds
async def test_after_a_crash_the_same_invoice_is_paid_once(open_node, reach, kind):
    """The process dies after it has told the node, which begins then, or never heard of it."""
    _, payee = await open_node(kind)
    service, payer = await open_node(kind, 100_000)
    for begins in (True, False):
        service.swallows = 0 if begins else 1
        invoice = await payee.invoice(21_000, description="x", expiry_s=600)
        dies = asyncio.create_task(payer.pay(invoice.bolt11, max_fee_msat=FEE_MSAT))
        while invoice.payment_hash not in service.told:
            await asyncio.sleep(0.01)
        dies.cancel()
        await payer.close()
        payer = reach(service)
        found = await payer.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
        assert (found.state, invoices.hash_of(found.preimage)) == ("settled", invoice.payment_hash)
    assert await payee.balance_msat() == 42_000


@kinds
async def test_what_the_record_has_is_not_told_again(open_node, reach, kind):
    _, payee = await open_node(kind)
    service, payer = await open_node(kind, 100_000)
    invoice, first = await paid_by(payer, payee)
    for wallet in (payer, reach(service)):
        assert await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT) == first
    assert service.told == [invoice.payment_hash]


@pytest.mark.parametrize("kind", ["lnd", "phoenixd"])
async def test_what_failed_is_not_begun_anew_though_the_node_would(open_node, reach, kind):
    _, payee = await open_node(kind)
    service, payer = await open_node(kind, 10_000)
    invoice, failed = await paid_by(payer, payee)
    assert (failed.state, failed.preimage, failed.fee_msat) == ("failed", None, 0) and failed.reason
    rich = await payer.invoice(90_000, description="x", expiry_s=60)
    assert (await (await open_node(kind, 200_000))[1].pay(rich.bolt11, max_fee_msat=FEE_MSAT)).state == "settled"
    for wallet in (payer, reach(service)):
        assert (await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)).state == "failed"
    assert service.told == [invoice.payment_hash] and await payee.balance_msat() == 0


@kinds
async def test_a_node_that_says_already_paid_and_shows_no_record_has_failed_nothing(open_node, kind):
    """Its words decide nothing: what became of the payment is not known."""
    _, payee = await open_node(kind)
    service, payer = await open_node(kind, 100_000)
    invoice, _ = await paid_by(payer, payee)

    async def forgets(payment_hash, direction):
        raise NotFound("payment_hash", "gone")

    payer.lookup = forgets
    for _ in range(2):
        with pytest.raises((BadInput, PaymentFailed, LinkLost)):
            await payer.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
    assert service.told == [invoice.payment_hash] and await payee.balance_msat() == 21_000


@kinds
async def test_an_invoice_that_has_expired_is_not_even_told(open_node, kind):
    service, payer = await open_node(kind, 100_000)
    old = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=1_000,
        payment_hash="cd" * 32,
        created_at_s=int(time.time()) - 61,
        expiry_s=60,
        description_hash="ab" * 32,
    )
    with pytest.raises(PaymentFailed, match=r"^invoice: it has expired$"):
        await payer.pay(old.bolt11, max_fee_msat=FEE_MSAT)
    assert service.told == []


# Whose secret it is, and what it permits


@kinds
async def test_a_secret_that_the_node_does_not_know_opens_nothing_and_is_not_shown(open_node, reach, kind, caplog):
    caplog.set_level(logging.DEBUG)
    service, _ = await open_node(kind)
    wrong = "5ec4e7" * 10
    stranger = reach(service, wrong)
    said = repr(stranger)
    for call in (
        stranger.info(),
        stranger.balance_msat(),
        stranger.lookup("ab" * 32, "out"),
        anext(stranger.settled()),
    ):
        with pytest.raises(NotAllowed, match="refuses the") as told:
            await call
        said += f"{told.value} {told.value!r}"
    assert wrong not in said + caplog.text and service.secret not in caplog.text


@pytest.mark.parametrize(
    ("kind", "forbidden", "lost"),
    [
        ("lnd", {"/v2/router/send"}, {"pay", "fee-cap"}),
        ("lnd", {"/v2/router"}, {"pay", "fee-cap", "lookup-out"}),
        ("lnd", {"/v2/router/track"}, {"pay", "fee-cap", "lookup-out"}),
        ("lnd", {"/v1/invoice/"}, {"lookup-in", "settled"}),
        ("lnd", {"/v2/invoices"}, {"hold"}),
        ("lnd", {"/v1/balance"}, {"balance"}),
        ("cln", {"xpay"}, {"pay", "fee-cap"}),
        ("cln", {"listpays"}, {"pay", "fee-cap", "lookup-out"}),
        ("cln", {"invoice"}, {"invoice"}),
        ("cln", {"waitanyinvoice"}, {"settled"}),
        ("cln", {"listinvoices", "listfunds"}, {"lookup-in", "balance"}),
        ("phoenixd", {"/payments/outgoingbyhash"}, {"pay", "lookup-out"}),  # one before 0.5
    ],
)
async def test_what_its_secret_does_not_permit_a_wallet_says_that_it_lacks(open_node, reach, kind, forbidden, lost):
    service, owner = await open_node(kind, 100_000)
    service.forbidden = forbidden
    clerk = reach(service)
    assert (await owner.info()).id == (await clerk.info()).id
    whole = {"lnd": {"failures"}, "cln": {"failures", "hold"}, "phoenixd": {"failures", "hold", "fee-cap"}}[kind]
    assert ABILITIES - (await clerk.info()).abilities == lost | whole
    assert service.told == [] and service.made == {}  # to ask has done nothing


async def test_phoenixds_limited_password_is_paid_and_pays_nothing(open_node, reach):
    service, owner = await open_node("phoenixd")
    clerk = reach(service, service.limited_secret)
    assert (await owner.info()).abilities - (await clerk.info()).abilities == {"pay"}
    other_service, other = await open_node("phoenixd", 90_000)
    invoice, paid = await paid_by(other, clerk)
    assert paid.state == "settled" and (await clerk.lookup(invoice.payment_hash, "in")).state == "settled"
    back = await other.invoice(1_000, description="x", expiry_s=60)
    with pytest.raises(NotAllowed, match="password"):
        await clerk.pay(back.bolt11, max_fee_msat=FEE_MSAT)
    assert other_service.told == [invoice.payment_hash] and service.told == []


async def test_an_old_phoenixd_that_finds_no_payment_by_its_hash_pays_nothing(open_node, reach):
    """Its "unknown endpoint" is not "no such payment"."""
    service, payer = await open_node("phoenixd", 90_000)
    service.forbidden = {"/payments/outgoingbyhash"}
    _, payee = await open_node("phoenixd")
    with pytest.raises(Unsupported):
        await paid_by(payer, payee)
    assert service.told == []


@kinds
async def test_the_probe_finds_that_all_works_which_it_says(open_node, kind):
    _, wallet = await open_node(kind, 100_000)
    _, found = await probe(wallet)
    assert {one.state for one in found} <= {"works", "untried", "lacks"}, [one for one in found if one.state == "fails"]


@kinds
async def test_the_preimage_of_an_invoice_that_nobody_has_paid_is_told_nowhere(open_node, kind, caplog):
    caplog.set_level(logging.DEBUG)
    _, wallet = await open_node(kind)
    invoice = await wallet.invoice(21_000, description="x", expiry_s=600)
    found = await wallet.lookup(invoice.payment_hash, "in")
    assert (found.state, found.preimage) == ("open", None) and "ee" * 32 not in caplog.text + repr(found)


# Answers that are not what they should be


def served(handler_by_path):
    async def start(stack, wallet_class):
        app = web.Application()

        async def answer(request):
            for path, said in handler_by_path.items():
                if request.path.startswith(path):
                    return web.json_response(said(await request.json()) if callable(said) else said)
            return web.Response(status=404, text="Not found")

        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.append(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        wallet = wallet_class(f"http://127.0.0.1:{runner.addresses[0][1]}", Access("ab"))
        stack.append(wallet.close)
        return wallet

    return start


@pytest.fixture
async def told():
    """`await told(wallet_class, {path: answer})`: a wallet of a service that answers so, whatever it is asked."""
    stack = []

    async def one(wallet_class, handler_by_path):
        return await served(handler_by_path)(stack, wallet_class)

    yield one
    for close in reversed(stack):
        await close()


H = "ab" * 32
B64 = "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s="
LND_IN = {"r_hash": B64, "r_preimage": B64, "state": "SETTLED", "amt_paid_msat": "5000", "settle_date": "9"}
LND_OUT = {"payment_hash": H, "status": "SUCCEEDED", "value_msat": "5000", "fee_msat": "7", "payment_preimage": H}
CLN_IN = {"payment_hash": H, "status": "paid", "amount_received_msat": 5_000, "paid_at": 9, "payment_preimage": H}
CLN_OUT = {"payment_hash": H, "status": "complete", "amount_msat": 5_000, "amount_sent_msat": 5_007, "created_at": 9}
CLN_OUT |= {"preimage": H}
PHOENIX_IN = {
    "paymentHash": H,
    "isPaid": True,
    "requestedSat": 5,
    "receivedSat": 5,
    "preimage": H,
    "completedAt": 9_000,
}


@pytest.mark.parametrize(
    ("wallet_class", "direction", "row", "damage"),
    [
        (wallet_class, direction, row, damage)
        for wallet_class, direction, row, damages in (
            (LndWallet, "in", LND_IN, [{"amt_paid_msat": "5000.4"}, {"amt_paid_msat": -5}, {"state": "PAID"}]),
            (LndWallet, "in", LND_IN, [{"r_hash": "AAAA"}, {"r_hash": "?"}, {"r_preimage": "AAAA"}, {"r_hash": None}]),
            (LndWallet, "in", LND_IN, [{"r_hash": "A" * 43 + "="}, {"settle_date": "soon"}]),
            (LndWallet, "out", LND_OUT, [{"value_msat": "5000.4"}, {"status": "UNKNOWN"}, {"fee_msat": "-1"}]),
            (LndWallet, "out", LND_OUT, [{"payment_hash": "cd" * 32}, {"payment_preimage": ""}, {"htlcs": [7]}]),
            (ClnWallet, "in", CLN_IN, [{"amount_received_msat": 5.5}, {"amount_received_msat": "5000msat"}]),
            (ClnWallet, "in", CLN_IN, [{"status": "held"}, {"payment_hash": "cd" * 32}, {"payment_preimage": "x"}]),
            (ClnWallet, "out", CLN_OUT, [{"amount_msat": -1}, {"status": "done"}, {"preimage": None}]),
            (ClnWallet, "out", CLN_OUT, [{"payment_hash": "cd" * 32}, {"created_at": "now"}]),
            (PhoenixdWallet, "in", PHOENIX_IN, [{"receivedSat": 5.5}, {"isPaid": None}, {"paymentHash": "cd" * 32}]),
            (PhoenixdWallet, "in", PHOENIX_IN, [{"preimage": "x"}, {"completedAt": -1}]),
        )
        for damage in damages
    ],
)
async def test_a_row_that_is_not_as_documented_is_a_lost_link(told, wallet_class, direction, row, damage):
    def answers(one):
        return {
            LndWallet: {"/v1/invoice/": one, "/v2/router/track": {"result": one}},
            ClnWallet: {"/v1/listinvoices": {"invoices": [one]}, "/v1/listpays": {"pays": [one]}},
            PhoenixdWallet: {"/payments/incoming": one},
        }[wallet_class]

    found = await (await told(wallet_class, answers(row))).lookup(H, direction)
    assert (found.state, found.amount_msat, found.preimage, found.payment_hash) == ("settled", 5_000, H, H)
    assert found.fee_msat == (7 if direction == "out" else 0)
    with pytest.raises(LinkLost):
        await (await told(wallet_class, answers(row | damage))).lookup(H, direction)


@pytest.mark.parametrize("kind", ["lnd", "cln"])
async def test_a_node_that_cuts_millisatoshis_off_an_invoice_is_found_out(open_node, kind):
    service, wallet = await open_node(kind)
    issue = service.issue

    async def cut(amount_msat, *rest, **more):
        return await issue(amount_msat // 1_000 * 1_000, *rest, **more)

    service.issue = cut
    with pytest.raises(BadInvoice, match="21000 msat, asked for 21500 msat"):
        await wallet.invoice(21_500, description="x", expiry_s=60)


@kinds
async def test_a_node_that_drops_the_hash_of_a_description_is_found_out(open_node, kind):
    service, wallet = await open_node(kind)
    issue = service.issue
    service.issue = lambda amount_msat, _, *rest, **more: issue(amount_msat, "cd" * 32, *rest, **more)
    with pytest.raises(BadInvoice, match="description_hash"):
        await wallet.invoice(21_000, description="x", expiry_s=60)


@pytest.mark.parametrize("wallet_class", [LndWallet, ClnWallet, PhoenixdWallet])
@pytest.mark.parametrize(
    "said", [{"network": "regtest"}, {"id": 7, "network": "liquid"}, {"chain": "x"}, {"chains": []}]
)
async def test_a_node_that_says_not_who_or_where_it_is_is_no_wallet(told, wallet_class, said):
    wallet = await told(wallet_class, {"/v1/getinfo": said, "/getinfo": said})
    with pytest.raises(NodewireError):
        await wallet.info()


# LND


async def test_lnd_tells_what_settled_in_the_order_in_which_it_did_and_from_a_place_on_by_its_stream(open_node, reach):
    service, payee = await open_node("lnd")
    _, payer = await open_node("lnd", 500_000)
    made = [await payee.invoice(21_000 + n, description="x", expiry_s=600) for n in range(4)]
    for one in (made[2], made[0], made[3]):
        await payer.pay(one.bolt11, max_fee_msat=FEE_MSAT)
    stream = payee.settled()
    first = [await anext(stream) for _ in range(3)]
    assert [one.payment_hash for one in first] == [made[n].payment_hash for n in (2, 0, 3)]
    heard = asyncio.create_task(anext(reach(service).settled(first[1].cursor)))
    assert (await heard).payment_hash == made[3].payment_hash
    later = asyncio.create_task(anext(stream))
    await payer.pay(made[1].bolt11, max_fee_msat=FEE_MSAT)
    assert (await asyncio.wait_for(later, 10)).payment_hash == made[1].payment_hash
    assert service.asked.count("GET /v1/invoices") == 1  # after that it is told, and does not ask
    await stream.aclose()


async def test_lnd_pages_through_its_invoices(open_node, monkeypatch):
    monkeypatch.setattr("nodewire.pay.wallets.lnd._PAGE", 2)
    service, payee = await open_node("lnd")
    _, payer = await open_node("lnd", 500_000)
    paid = [(await paid_by(payer, payee))[0].payment_hash for _ in range(5)]
    stream = payee.settled()
    assert [(await anext(stream)).payment_hash for _ in range(5)] == paid
    assert service.asked.count("GET /v1/invoices") == 3
    await stream.aclose()


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        (500, {"code": 2, "message": "wallet locked, unlock it to enable full RPC access"}, LinkLost),
        (500, {"code": 2, "message": "the RPC server is in the process of starting up, but not yet ready"}, LinkLost),
        (503, {"code": 14, "message": "connection refused"}, LinkLost),
        (500, {"code": 2, "message": "cannot retrieve macaroon: root key with id 0 doesn't exist"}, NotAllowed),
        (500, {"error": {"code": 2, "message": "permission denied"}}, NotAllowed),
        (404, {"code": 5, "message": "Not Found", "details": []}, Unsupported),
        (404, {"code": 5, "message": "there are no existing invoices"}, NotFound),
        (400, {"code": 3, "message": "type mismatch, parameter: r_hash_str"}, BadInput),
        (200, {"error": {"code": 2, "message": "stream broke"}}, BadInput),
        (500, {"message": "no code"}, LinkLost),
    ],
)
async def test_lnds_words_are_taken_for_what_they_mean(status, said, error):
    async def answer(request):
        return web.json_response(said, status=status)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    wallet = LndWallet(f"http://127.0.0.1:{runner.addresses[0][1]}", Access("ab"))
    with pytest.raises(NodewireError) as told:
        await wallet.lookup(H, "in")
    assert type(told.value) is error
    await wallet.close()
    await runner.cleanup()


async def test_lnds_hold_invoices_settle_in_the_order_of_their_settlement(open_node):
    _, payee = await open_node("lnd")
    _, payer = await open_node("lnd", 500_000)
    preimage = os.urandom(32).hex()
    held = await payee.hold_invoice(21_000, payment_hash=invoices.hash_of(preimage), description="x", expiry_s=600)
    paying = asyncio.create_task(payer.pay(held.bolt11, max_fee_msat=FEE_MSAT))
    while (await payee.lookup(held.payment_hash, "in")).state != "pending":
        await asyncio.sleep(0.01)
    invoice, _ = await paid_by(payer, payee)
    await payee.settle_hold(preimage)
    assert (await paying).preimage == preimage
    stream = payee.settled()
    assert [(await anext(stream)).payment_hash for _ in range(2)] == [invoice.payment_hash, held.payment_hash]
    await stream.aclose()
    with pytest.raises(BadInput, match=r"^preimage: not 64"):
        await payee.settle_hold("x")
    with pytest.raises(NotFound):
        await payee.settle_hold("ab" * 32)


# Core Lightning


async def test_while_xpay_looks_for_another_way_a_part_that_failed_is_no_payment_that_failed(open_node, reach):
    _, payee = await open_node("cln")
    service, payer = await open_node("cln", 100_000)
    service.retries = 1
    invoice = await payee.invoice(21_000, description="x", expiry_s=600)
    paying = asyncio.create_task(payer.pay(invoice.bolt11, max_fee_msat=FEE_MSAT))
    other = reach(service)  # another process, which knows of no xpay
    while invoice.payment_hash not in service.retried:
        await asyncio.sleep(0.01)
    for wallet in (payer, other):
        assert (await wallet.lookup(invoice.payment_hash, "out")).state == "pending"
        assert (await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT, timeout_s=0.0)).state == "pending"
    assert (await paying).state == "settled" and service.told == [invoice.payment_hash]


async def test_a_failure_counts_once_xpay_can_begin_no_part_any_more(told):
    failed = {"payment_hash": H, "status": "failed", "amount_msat": 5_000, "created_at": int(time.time()) - 60}
    wallet = await told(ClnWallet, {"/v1/listpays": {"pays": [failed]}})
    assert (await wallet.lookup(H, "out")).state == "pending"
    wallet = await told(ClnWallet, {"/v1/listpays": {"pays": [failed | {"created_at": int(time.time()) - 121}]}})
    assert (await wallet.lookup(H, "out")).state == "failed"


async def test_of_several_payments_by_one_hash_the_one_that_settled_decides(told):
    old = {"payment_hash": H, "status": "failed", "amount_msat": 5_000, "created_at": 1}
    for rows, state in (
        ([old, CLN_OUT, old], "settled"),
        ([old, old | {"status": "pending"}], "pending"),
        ([old | {"status": "pending"}, CLN_OUT], "settled"),
    ):
        wallet = await told(ClnWallet, {"/v1/listpays": {"pays": rows}})
        assert (await wallet.lookup(H, "out")).state == state


async def test_core_lightnings_documented_examples_are_read_as_they_are(told):
    documented = Recording("cln")
    answers = {example["call"].partition(" ")[2]: example["answer"] for example in documented.examples}

    def asked_for(name, rows):
        return lambda params: {name: [row for row in rows if row["payment_hash"] == params["payment_hash"]]}

    by_hash = {
        "/v1/listpays": asked_for("pays", answers["/v1/listpays"]["pays"]),
        "/v1/listinvoices": asked_for("invoices", answers["/v1/listinvoices"]["invoices"]),
    }
    wallet = await told(ClnWallet, answers | by_hash)
    channels = answers["/v1/listfunds"]["channels"]
    usable = sum(one["our_amount_msat"] for one in channels if one["state"] == "CHANNELD_NORMAL")
    assert await wallet.balance_msat() == usable > 0
    info = await wallet.info()
    assert (info.id, info.network) == (f"cln:{answers['/v1/getinfo']['id']}", "bcrt")
    for row in answers["/v1/listpays"]["pays"]:
        one = await wallet.lookup(row["payment_hash"], "out")
        assert (one.state, one.amount_msat, one.preimage) == ("settled", row["amount_msat"], row["preimage"])
        assert one.fee_msat == row["amount_sent_msat"] - row["amount_msat"]
    for row in answers["/v1/listinvoices"]["invoices"]:
        one = await wallet.lookup(row["payment_hash"], "in")
        state = {"paid": "settled", "unpaid": "open", "expired": "failed"}[row["status"]]
        assert (one.state, one.amount_msat) == (state, row.get("amount_received_msat") or row["amount_msat"])
    row = answers["/v1/waitanyinvoice"]
    receipt = await anext(wallet.settled())
    assert (receipt.payment_hash, receipt.amount_msat) == (row["payment_hash"], row["amount_received_msat"])
    assert receipt.cursor == f"{info.id}/{row['pay_index']}"


def test_the_recorded_examples_fit_what_is_documented():
    documented = Recording("cln")
    for example in documented.examples:
        if isinstance(example["request"], dict):
            documented.check(example["call"], "request", example["request"])
        documented.check(example["call"], "answer", example["answer"])
    with pytest.raises(AssertionError, match="has no colour"):
        documented.check("POST /v1/xpay", "request", {"colour": 7})
    with pytest.raises(AssertionError, match="is no int64"):
        Recording("lnd").check("POST /v1/invoices", "request", {"value_msat": 21_000})


# phoenixd


async def test_what_phoenixd_takes_for_a_channel_is_no_debt_of_the_payers(open_node):
    service, payee = await open_node("phoenixd")
    _, payer = await open_node("phoenixd", 100_000)
    service.liquidity_fee_sat = 9
    invoice, paid = await paid_by(payer, payee)
    assert paid.state == "settled"
    assert (await payee.lookup(invoice.payment_hash, "in")).amount_msat == invoice.amount_msat
    stream = payee.settled()
    assert (await anext(stream)).amount_msat == invoice.amount_msat
    await stream.aclose()


@pytest.mark.parametrize("amount_msat", [999, 1_001, 21_500])
async def test_phoenixd_refuses_a_part_of_a_satoshi(open_node, amount_msat):
    _, wallet = await open_node("phoenixd")
    with pytest.raises(BadInput, match="whole satoshis"):
        await wallet.invoice(amount_msat, description="x", expiry_s=60)


async def test_phoenixd_pays_the_millisatoshis_of_an_invoice_though_it_tells_satoshis(open_wallet, reach):
    from tests.pay.wallets.services.phoenixd_service import PhoenixdService

    payee = await open_wallet()
    async with PhoenixdService(await open_wallet(100_000)).serving() as service:
        invoice = await payee.invoice(21_500, description="x", expiry_s=600)
        paid = await reach(service).pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
        assert (paid.state, paid.amount_msat, await payee.balance_msat()) == ("settled", 21_500, 21_500)
        assert paid.fee_msat == 10 + 21


async def test_phoenixd_pages_through_its_invoices(open_node, monkeypatch):
    monkeypatch.setattr("nodewire.pay.wallets.phoenixd._PAGE", 2)
    _, payee = await open_node("phoenixd")
    _, payer = await open_node("phoenixd", 500_000)
    paid = {(await paid_by(payer, payee))[0].payment_hash for _ in range(5)}
    stream = payee.settled()
    assert {(await anext(stream)).payment_hash for _ in range(5)} == paid
    await stream.aclose()
