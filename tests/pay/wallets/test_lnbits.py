"""LNbits: what its answers are taken for, and that no payment is made twice where one is lost."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from nodewire.errors import (
    BadConfig,
    BadInput,
    BadInvoice,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
)
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Transfer
from nodewire.pay.wallets import lnbits
from nodewire.pay.wallets.lnbits import LnbitsWallet
from tests.pay.pay_market import Market
from tests.pay.wallets.services.lnbits_service import LnbitsService

KEY = "c0ffee" * 5 + "aa"


@pytest.fixture
async def opened(open_wallet):
    """`await opened(msat)` -> a service, and a wallet with its admin key."""
    async with AsyncExitStack() as stack:

        async def one(msat=0):
            service = await stack.enter_async_context(LnbitsService(await open_wallet(msat)).serving())
            wallet = LnbitsWallet(service.url, service.admin_key)
            stack.push_async_callback(wallet.close)
            return service, wallet

        yield one


@pytest.fixture
async def answering():
    """`await answering(handler)` -> a wallet at a server that answers everything so."""
    async with AsyncExitStack() as stack:

        async def start(handler, timeout_s=2.0):
            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            wallet = LnbitsWallet(f"http://127.0.0.1:{runner.addresses[0][1]}", KEY, timeout_s=timeout_s)
            stack.push_async_callback(wallet.close)
            return wallet

        yield start


async def test_with_an_invoice_key_it_is_paid_and_pays_nothing(opened):
    service, owner = await opened()
    clerk = LnbitsWallet(service.url, service.invoice_key)
    assert (await owner.info()).abilities - (await clerk.info()).abilities == {"pay"}
    _, other = await opened(90_000)
    invoice = await clerk.invoice(5_000, description="x", expiry_s=60)
    assert (await other.pay(invoice.bolt11, max_fee_msat=0)).state == "settled"
    assert (await clerk.lookup(invoice.payment_hash, "in")).state == "settled"
    with pytest.raises(NotAllowed, match="refuses the key"):
        await clerk.pay((await other.invoice(1_000, description="x", expiry_s=60)).bolt11, max_fee_msat=0)
    await clerk.close()


@pytest.mark.parametrize("amount_msat", [999, 1_001, 21_500])
async def test_a_part_of_a_satoshi_is_refused_and_not_cut_off(opened, amount_msat):
    _, wallet = await opened()
    with pytest.raises(BadInput, match="whole satoshis"):
        await wallet.invoice(amount_msat, description="x", expiry_s=60)


async def test_a_payment_whose_answer_is_lost_is_made_once(opened, tmp_path):
    _, payee = await opened()
    service, payer = await opened(100_000)
    service.drops = 1
    market = Market(payee, payer, tmp_path)
    market.deliver()
    debt = await market.pay()
    assert (debt.state, len(debt.parts), await payee.balance_msat()) == ("paid", 1, 21_000)
    await market.settle(1)
    assert market.provider_book.earned_msat() == 21_000
    market.close()


async def test_a_payment_that_it_refuses_to_begin_is_not_replaced_by_another_before_its_invoice_has_expired(
    opened, tmp_path
):
    """It says "failed" of what it has paid before, too: its words decide nothing."""
    _, payee = await opened()
    _, payer = await opened(10_000)
    market = Market(payee, payer, tmp_path)
    market.deliver()
    for _ in range(2):
        with pytest.raises(PaymentFailed, match=r"LNbits refuses: .*needed"):
            await market.pay()
    (debt,) = market.payer.unpaid()
    assert (debt.state, len(debt.parts)) == ("paying", 1)
    market.close()


ROW = {"payment_hash": "ab" * 32, "amount": -5_000, "status": "success", "fee": -7, "preimage": "cd" * 32, "time": 9}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (ROW, Transfer("ab" * 32, "out", "settled", 5_000, 7, "cd" * 32, 9)),
        (ROW | {"status": "pending"}, Transfer("ab" * 32, "out", "pending", 5_000, 7, None, 9)),
        (
            ROW | {"status": "failed", "updated_at": "2026-11-29T12:00:00+00:00"},
            Transfer("ab" * 32, "out", "failed", 5_000, 7, None, 1_795_953_600, "LNbits has it as failed"),
        ),
    ],
)
async def test_a_payment_of_its_is_read_as_it_is(answering, row, found):
    async def answer(request):
        assert request.headers["X-Api-Key"] == KEY
        return web.json_response({"paid": True, "details": row})

    assert await (await answering(answer)).lookup("ab" * 32, "out") == found


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {"detail": "Invalid Api Key"}, NotAllowed),
        (404, {"detail": "Payment does not exist."}, NotFound),
        (400, {"detail": "bad"}, BadInput),
        (520, {"detail": "Payment is still pending.", "status": "pending"}, PaymentFailed),
        (500, {"detail": "boom"}, LinkLost),
        (302, {}, LinkLost),
        (200, [], LinkLost),
        (200, {"paid": True}, NotFound),  # without details it is not this wallet's
        (200, {"details": ROW | {"status": "odd"}}, LinkLost),
        (200, {"details": ROW | {"amount": None}}, LinkLost),
        (200, {"details": ROW | {"amount": 5_000}}, NotFound),  # it came
    ],
)
async def test_any_other_answer_is_a_typed_error_that_shows_no_key(answering, status, body, error, caplog):
    caplog.set_level(logging.DEBUG)

    async def answer(request):
        return web.json_response(body, status=status, headers={"Location": "/"} if status == 302 else {})

    with pytest.raises(error) as told:
        await (await answering(answer)).lookup("ab" * 32, "out")
    assert KEY not in str(told.value) + caplog.text


@pytest.mark.parametrize(
    "body", [b"", b"<html>", bytes(range(64)), b"[" * 5_000_000], ids=["empty", "html", "binary", "nested"]
)
async def test_an_answer_that_is_none_of_lnbits_is_a_lost_link(answering, body):
    async def answer(request):
        return web.Response(body=body)

    with pytest.raises(LinkLost):
        await (await answering(answer)).balance_msat()


async def test_a_service_that_does_not_answer_is_left(answering, unused_tcp_port):
    async def answer(request):
        await request.read()
        raise ConnectionResetError

    with pytest.raises((TimedOut, LinkLost)):
        await (await answering(answer)).balance_msat()
    nowhere = LnbitsWallet(f"http://127.0.0.1:{unused_tcp_port}", KEY)
    with pytest.raises(LinkLost):
        await nowhere.balance_msat()
    await nowhere.close()
    odd = LnbitsWallet("lnbits", KEY)
    with pytest.raises(BadInput, match="is no URL"):
        await odd.balance_msat()
    await odd.close()


def test_a_key_comes_from_a_file(tmp_path):
    with pytest.raises(BadConfig, match="admin key"):
        LnbitsWallet.from_file("http://x", None)
    with pytest.raises(BadConfig, match="cannot be read"):
        LnbitsWallet.from_file("http://x", tmp_path / "none")
    (tmp_path / "key").write_text(KEY + "\n")
    wallet = LnbitsWallet.from_file("http://x", tmp_path / "key")
    assert KEY not in repr(wallet)


async def test_no_account_is_opened_there():
    with pytest.raises(NodewireError, match="in LNbits itself"):
        await LnbitsWallet.open_account("http://x", "x")


async def test_an_invoice_that_has_expired_is_not_even_sent_there(answering):
    """LNbits pays one that is its own, however old."""
    asked = []

    async def answer(request):
        asked.append((request.method, request.path))
        if request.path == "/api/v1/wallet":
            return web.json_response({"name": "x", "balance": 0, "id": "w"})
        if request.method == "POST":
            assert not (await request.json())["out"], "it was told to pay"
            return web.json_response({"bolt11": issued(int(time.time()))}, status=201)
        return web.json_response({"detail": "Payment does not exist."}, status=404)

    wallet = await answering(answer)
    with pytest.raises(PaymentFailed, match=r"^invoice: it has expired$"):
        await wallet.pay(issued(int(time.time()) - 61), max_fee_msat=0)
    assert [path for method, path in asked if method == "POST"] == ["/api/v1/payments"]  # of `info`


def issued(created_at_s):
    return invoices.issue(
        b"\x07" * 32,
        network="bc",
        amount_msat=1_000,
        payment_hash="cd" * 32,
        created_at_s=created_at_s,
        expiry_s=60,
        description_hash="ab" * 32,
    ).bolt11


def at_lnbits(answers):
    """A service with an answer, or several in turn, to each call that a test names; the last one stays."""
    first = {
        "GET /wallet": [(200, {"name": "x", "balance": 0, "id": "w"})],
        "POST /payments": [(201, {"bolt11": issued(int(time.time()))})],
    }

    async def answer(request):
        call = f"{request.method} {request.path.removeprefix('/api/v1')}"
        asked.append(call)
        found = (first | answers)[call]
        status, said = found.pop(0) if len(found) > 1 else found[0]
        return web.json_response(said, status=status)

    asked = answer.asked = []
    return answer


async def test_a_payment_on_its_way_is_looked_up_until_it_has_ended(answering):
    rows = [ROW | {"payment_hash": "cd" * 32, "status": status} for status in ("pending", "success")]
    record = f"GET /payments/{'cd' * 32}"
    service = at_lnbits({record: [(200, {"details": row}) for row in rows]})
    paid = await (await answering(service)).pay(issued(int(time.time())), max_fee_msat=0)
    assert (paid.state, paid.payment_hash) == ("settled", "cd" * 32) and service.asked.count(record) == 2
    waits = at_lnbits({record: [(200, {"details": rows[0]})]})
    found = await (await answering(waits)).pay(issued(int(time.time())), max_fee_msat=0, timeout_s=0.0)
    assert found.state == "pending" and waits.asked.count(record) == 1


async def test_a_payment_that_it_began_and_does_not_know_is_a_lost_link(answering):
    service = at_lnbits({f"GET /payments/{'cd' * 32}": [(404, {"detail": "Payment does not exist."})]})
    with pytest.raises(LinkLost, match="does not know it"):
        await (await answering(service)).pay(issued(int(time.time())), max_fee_msat=0)


@pytest.mark.parametrize("made", [None, 7, ["lnbc"]])
async def test_an_invoice_that_it_does_not_make_is_none(answering, made):
    service = at_lnbits({"POST /payments": [(201, {"bolt11": made})]})
    with pytest.raises(BadInvoice, match="made none") as refused:
        await (await answering(service)).invoice(1_000, description="x", expiry_s=60)
    assert refused.value.field == "bolt11"


@pytest.mark.parametrize("expiry_s", [0, -1, invoices.MAX_EXPIRY_S + 1])
async def test_an_expiry_out_of_range_is_not_asked_for(answering, expiry_s):
    service = at_lnbits({})
    with pytest.raises(BadInput) as refused:
        await (await answering(service)).invoice(1_000, description="x", expiry_s=expiry_s)
    assert refused.value.field == "expiry_s" and service.asked == []


@pytest.mark.parametrize("data", [None, {}, "x"])
async def test_a_list_of_payments_that_is_none_is_a_lost_link(answering, data):
    wallet = await answering(at_lnbits({"GET /payments/paginated": [(200, {"data": data})]}))
    with pytest.raises(LinkLost, match="list of payments is none"):
        await wallet._listed(0)


async def test_its_payments_are_read_page_by_page_until_those_that_are_too_old(answering, monkeypatch):
    monkeypatch.setattr(lnbits, "_PAGE", 2)
    came = [ROW | {"payment_hash": f"{n:064x}", "amount": 1_000 * n, "time": n} for n in range(1, 8)]
    went = ROW | {"time": 5}
    pages = [[came[6], came[5]], [went, came[4]], [came[3], came[2]], [came[1], came[0]]]
    service = at_lnbits({"GET /payments/paginated": [(200, {"data": page}) for page in pages]})
    found = await (await answering(service))._listed(4)
    assert [one.transfer.amount_msat for one in found] == [4_000, 5_000, 6_000, 7_000]
    assert service.asked == ["GET /payments/paginated"] * 3


async def test_a_payment_without_any_moment_is_as_old_as_can_be(answering):
    row = {name: value for name, value in ROW.items() if name != "time"}
    service = at_lnbits({f"GET /payments/{'ab' * 32}": [(200, {"details": row})]})
    assert (await (await answering(service)).lookup("ab" * 32, "out")).at_s == 0


@pytest.mark.parametrize("data", [[7], [{"time": 9}], [ROW | {"time": "soon"}], [ROW | {"amount": "x"}]])
async def test_a_list_whose_rows_are_malformed_is_a_lost_link(answering, data):
    wallet = await answering(at_lnbits({"GET /payments/paginated": [(200, {"data": data})]}))
    with pytest.raises(LinkLost):
        await wallet._listed(0)


@pytest.mark.parametrize("said", [{}, {"balance": None}, {"balance": "x"}])
async def test_a_balance_that_is_none_is_a_lost_link(answering, said):
    wallet = await answering(at_lnbits({"GET /wallet": [(200, said)]}))
    with pytest.raises(LinkLost):
        await wallet.balance_msat()
