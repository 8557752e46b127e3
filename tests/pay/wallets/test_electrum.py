"""Electrum's JSON-RPC: what its answers are taken for, and what no answer is."""

from __future__ import annotations

import base64
import logging
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
    TimedOut,
    Unsupported,
)
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import ABILITIES, Transfer
from nodewire.pay.wallets.electrum import ElectrumWallet

PASSWORD, H = "c0ffee" * 5, "ab" * 32
INFO = {"version": 1, "node": "02" + "ab" * 32, "network": "bcrt", "least_msat": 1_000}
ROW = {
    "payment_hash": "ab" * 32,
    "state": "settled",
    "amount_msat": 5_000,
    "fee_msat": 7,
    "preimage": "cd" * 32,
    "at_s": 9,
    "reason": "",
}


@pytest.fixture
async def answering():
    """`await answering(handler)` -> a wallet at a daemon that answers each question so."""
    async with AsyncExitStack() as stack:

        async def start(handler, timeout_s=2.0):
            app = web.Application()
            app.router.add_post("/", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            wallet = ElectrumWallet(url, "user", PASSWORD, timeout_s=timeout_s)
            stack.push_async_callback(wallet.close)
            return wallet

        yield start


def says(**results):
    """A daemon whose commands have these results. What it was asked stands in `asked`."""

    async def answer(request):
        secret = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        assert secret == f"user:{PASSWORD}"
        said = await request.json()
        asked.append((said["method"], said["params"]))
        return web.json_response({"id": said["id"], "jsonrpc": "2.0", "result": results[said["method"]]})

    asked = answer.asked = []
    return answer


async def test_who_it_is_and_what_it_can(answering):
    info = await (await answering(says(nodewire_info=INFO))).info()
    assert (info.id, info.network, info.unit_msat, info.least_msat) == (f"electrum:{INFO['node']}", "bcrt", 1, 1_000)
    assert info.abilities == ABILITIES


@pytest.mark.parametrize(
    ("change", "said"),
    [({"version": 2}, "version 2"), ({"network": "sb"}, "'sb'"), ({"node": "x"}, "of"), ({"network": None}, "None")],
)
async def test_a_plugin_or_a_network_that_is_not_known_is_refused(answering, change, said):
    with pytest.raises(Unsupported, match=said):
        await (await answering(says(nodewire_info=INFO | change))).info()


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (ROW, Transfer("ab" * 32, "out", "settled", 5_000, 7, "cd" * 32, 9)),
        (ROW | {"state": "pending"}, Transfer("ab" * 32, "out", "pending", 5_000, 7, None, 9)),
        (ROW | {"state": "failed", "reason": "no"}, Transfer("ab" * 32, "out", "failed", 5_000, 7, None, 9, "no")),
    ],
)
async def test_a_payment_of_its_is_read_as_it_is(answering, row, found):
    """One that is not settled shows no preimage, whatever the plugin says."""
    daemon = says(nodewire_lookup=row)
    assert await (await answering(daemon)).lookup("ab" * 32, "out") == found
    assert daemon.asked == [("nodewire_lookup", {"payment_hash": "ab" * 32, "direction": "out"})]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"refused": "not-found", "reason": "none"}, NotFound),
        ({"refused": "not-allowed", "reason": "none"}, NotAllowed),
        ({"refused": "bad-input", "reason": "none"}, BadInput),
        ({"refused": "odd"}, LinkLost),
        (ROW | {"state": "odd"}, LinkLost),
        (ROW | {"state": []}, LinkLost),
        (ROW | {"amount_msat": -1}, LinkLost),
        (ROW | {"amount_msat": True}, LinkLost),
        (ROW | {"fee_msat": 1.5}, LinkLost),
        (ROW | {"payment_hash": "ac" * 32}, LinkLost),  # another one
        ([], LinkLost),
        (None, LinkLost),
    ],
)
async def test_what_its_plugin_refuses_or_says_wrongly_is_a_typed_error(answering, result, error):
    with pytest.raises(error):
        await (await answering(says(nodewire_lookup=result))).lookup("ab" * 32, "out")


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (401, b"Unauthorized", NotAllowed, "rpcuser and rpcpassword"),
        (403, b"Forbidden", NotAllowed, "rpcuser and rpcpassword"),
        (500, b"Invalid Request", NotAllowed, "nodewire's plugin"),
        (500, b"boom", LinkLost, "no JSON"),
        (302, b"{}", LinkLost, "302"),
        (200, b"", LinkLost, "no JSON"),
        (200, b"[]", LinkLost, "nothing of its own"),
        (
            200,
            b'{"error":{"code":1,"message":"wallet not loaded"}}',
            LinkLost,
            "electrum load_wallet",
        ),  # it has just been started
        (200, b'{"error":{"code":1,"message":"something else"}}', NotAllowed, "something else"),
        (200, b'{"error":{"code":2,"message":"internal error"}}', LinkLost, "internal error"),
        (200, b"[" * 5_000_000, LinkLost, "over 4000000 bytes"),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_any_other_answer_is_a_typed_error_that_shows_no_password(answering, status, body, error, said, caplog):
    caplog.set_level(logging.DEBUG)

    async def answer(request):
        await request.read()
        return web.Response(status=status, body=body, headers={"Location": "/"} if status == 302 else {})

    wallet = await answering(answer)
    with pytest.raises(error, match=said) as told:
        await wallet.balance_msat()
    shown = str(told.value) + repr(wallet) + caplog.text
    assert PASSWORD not in shown and base64.b64encode(f"user:{PASSWORD}".encode()).decode() not in shown


async def test_a_daemon_that_does_not_answer_is_left(answering, unused_tcp_port):
    async def answer(request):
        await request.read()
        raise ConnectionResetError

    with pytest.raises((TimedOut, LinkLost)):
        await (await answering(answer)).balance_msat()
    for url, error in ((f"http://127.0.0.1:{unused_tcp_port}", LinkLost), ("electrum", BadInput)):
        wallet = ElectrumWallet(url, "user", PASSWORD)
        with pytest.raises(error):
            await wallet.balance_msat()
        await wallet.close()


@pytest.mark.parametrize(
    ("amount_msat", "digest", "said"),
    [(21_000, None, "description_hash"), (20_000, "ab" * 32, "amount"), (None, None, "made no invoice")],
)
async def test_an_invoice_that_is_not_what_was_asked_for_is_not_given_out(answering, amount_msat, digest, said):
    made = None
    if amount_msat is not None:
        hashed = {"description_hash": digest} if digest else {"description": "a memo"}
        made = invoices.issue(
            b"\x07" * 32,
            network="bcrt",
            amount_msat=amount_msat,
            payment_hash="cd" * 32,
            created_at_s=1_700_000_000,
            expiry_s=60,
            **hashed,
        ).bolt11
    wallet = await answering(says(nodewire_info=INFO, nodewire_invoice={"bolt11": made}))
    with pytest.raises((BadInvoice, LinkLost), match=said):
        await wallet.invoice(21_000, description="x", expiry_s=60)


@pytest.mark.parametrize("amount_msat", [0, -1, 999, 10**15])
async def test_an_amount_out_of_range_is_not_asked_for(answering, amount_msat):
    daemon = says(nodewire_info=INFO)
    with pytest.raises(BadInput, match="from 1000 to"):
        await (await answering(daemon)).invoice(amount_msat, description="x", expiry_s=60)
    assert [method for method, _ in daemon.asked] == ["nodewire_info"]


def test_a_password_comes_from_a_file(tmp_path):
    with pytest.raises(BadConfig, match="rpcuser:rpcpassword"):
        ElectrumWallet.from_file("http://x", None)
    with pytest.raises(BadConfig, match="cannot be read"):
        ElectrumWallet.from_file("http://x", tmp_path / "none")
    for number, text in enumerate((b"", PASSWORD.encode(), b":" + PASSWORD.encode(), b"user:", b"\xff")):
        (tmp_path / str(number)).write_bytes(text)
        with pytest.raises(BadConfig) as told:
            ElectrumWallet.from_file("http://x", tmp_path / str(number))
        assert PASSWORD not in str(told.value)
    (tmp_path / "rpc").write_text(f"user:{PASSWORD}\n")
    wallet = ElectrumWallet.from_file("http://x", tmp_path / "rpc")
    assert PASSWORD not in repr(wallet)


async def test_no_account_is_opened_there():
    with pytest.raises(NodewireError, match="in Electrum itself"):
        await ElectrumWallet.open_account("http://x", "x")


async def test_who_it_is_is_asked_for_once(answering):
    daemon = says(nodewire_info=INFO)
    wallet = await answering(daemon)
    assert await wallet.info() == await wallet.info()
    assert [method for method, _ in daemon.asked] == ["nodewire_info"]


@pytest.mark.parametrize("expiry_s", [0, -1, invoices.MAX_EXPIRY_S + 1])
async def test_an_expiry_out_of_range_is_not_asked_for(answering, expiry_s):
    daemon = says(nodewire_info=INFO)
    wallet = await answering(daemon)
    for ask in (wallet.invoice, lambda amount_msat, **asked: wallet.hold_invoice(amount_msat, payment_hash=H, **asked)):
        with pytest.raises(BadInput) as refused:
            await ask(1_000, description="x", expiry_s=expiry_s)
        assert refused.value.field == "expiry_s"
    assert [method for method, _ in daemon.asked] == ["nodewire_info"]


@pytest.mark.parametrize("text", ["", "AB" * 32, "ab" * 31, "zz" * 32])
async def test_what_is_no_hash_or_preimage_is_not_asked_for(answering, text):
    daemon = says(nodewire_info=INFO)
    wallet = await answering(daemon)
    for ask, field in (
        (wallet.settle_hold(text), "preimage"),
        (wallet.cancel_hold(text), "payment_hash"),
        (wallet.lookup(text, "in"), "payment_hash"),
        (wallet.hold_invoice(1_000, payment_hash=text, description="x", expiry_s=60), "payment_hash"),
    ):
        with pytest.raises(BadInput) as refused:
            await ask
        assert refused.value.field == field
    assert [method for method, _ in daemon.asked] == ["nodewire_info"]  # a hold invoice's amount is checked by it


async def test_what_came_is_told_in_the_order_in_which_it_settled(answering):
    rows = [
        ROW | {"payment_hash": f"{n:064x}", "at_s": at_s, "state": state, "created_at": 5, "expires_at": 6}
        for n, (at_s, state) in enumerate([(12, "settled"), (0, "open"), (11, "settled"), (0, "failed")])
    ]
    wallet = await answering(says(nodewire_info=INFO, nodewire_invoices={"invoices": rows}))
    stream = wallet.settled()
    found = [await anext(stream), await anext(stream)]
    assert [one.payment_hash for one in found] == [rows[2]["payment_hash"], rows[0]["payment_hash"]]
    assert {one.preimage for one in found} == {"cd" * 32}


LISTED = ROW | {"created_at": 5, "expires_at": 6}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "list of invoices is none"),
        ({}, "list of invoices is none"),
        (["x"], "list of invoices is none"),
        ([LISTED, None], "list of invoices is none"),
        ([LISTED | {"created_at": None}], "its created_at"),
        ([LISTED | {"expires_at": -1}], "its expires_at"),
        ([LISTED | {"state": "odd"}], "malformed"),
    ],
)
async def test_a_list_of_invoices_that_is_none_is_a_lost_link(answering, rows, said):
    wallet = await answering(says(nodewire_invoices={"invoices": rows}))
    with pytest.raises(LinkLost, match=said):
        await wallet._listed(0)


async def test_a_wallet_that_was_closed_asks_over_a_new_connection(answering):
    daemon = says(nodewire_balance={"msat": 7_000})
    wallet = await answering(daemon)
    for _ in range(2):
        await wallet.close()
        await wallet.close()
        assert await wallet.balance_msat() == 7_000
    assert len(daemon.asked) == 2
