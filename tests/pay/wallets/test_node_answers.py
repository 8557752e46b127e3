"""LND and Core Lightning at a service that answers oddly: each answer is taken for what it means, and no more."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import AsyncExitStack

import orjson
import pytest
from aiohttp import web

from nodewire.errors import BadInput, LinkLost, NotAllowed, NotFound, PaymentFailed, TimedOut, Unsupported
from nodewire.pay.lightning import cursor, invoices
from nodewire.pay.wallets import cln, lnd
from nodewire.pay.wallets.cln import ClnWallet
from nodewire.pay.wallets.lnd import LndWallet
from nodewire.pay.wallets.rest import Access
from tests.pay.wallets.test_node_wallets import B64, CLN_IN, CLN_OUT, LND_IN, H

NODE = "02" + "ab" * 32
LND_INFO = {"identity_pubkey": NODE, "chains": [{"network": "regtest"}]}
CLN_INFO = {"id": NODE, "network": "regtest"}


@pytest.fixture
async def answering():
    """`await answering(wallet_class, {path: answers})`: a wallet of a service; of several answers the last stays.

    An answer is its status and its lines, or a function of what was asked that returns them.
    """
    async with AsyncExitStack() as stack:

        async def start(wallet_class, answers):
            async def answer(request):
                said = await request.json() if request.can_read_body else {}
                found = answers.get(request.path)
                if found is None:
                    return web.json_response({"code": -32601, "message": "none"}, status=404)
                one = found.pop(0) if len(found) > 1 else found[0]
                status, *lines = one(said) if callable(one) else one
                return web.Response(status=status, body=b"\n".join(map(orjson.dumps, lines)))

            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            wallet = wallet_class(f"http://127.0.0.1:{runner.addresses[0][1]}", Access("ab"), timeout_s=2.0)
            stack.push_async_callback(wallet.close)
            return wallet

        yield start


async def receipts(wallet, count, after=""):
    async with asyncio.timeout(20):
        stream = wallet.settled(after)
        return [await anext(stream) for _ in range(count)]


# LND


async def test_a_hold_invoice_of_another_hash_than_was_asked_for_is_not_given_out(answering):
    def made(said):
        digest = base64.urlsafe_b64decode(said["description_hash"]).hex()
        bolt11 = invoices.issue(
            b"\x07" * 32,
            network="bcrt",
            amount_msat=int(said["value_msat"]),
            payment_hash="cd" * 32,
            created_at_s=int(time.time()),
            expiry_s=60,
            description_hash=digest,
        ).bolt11
        return 200, {"payment_request": bolt11}

    wallet = await answering(LndWallet, {"/v2/invoices/hodl": [made]})
    asked = {"description": "x", "expiry_s": 60}
    assert (await wallet.hold_invoice(5_000, payment_hash="cd" * 32, **asked)).payment_hash == "cd" * 32
    with pytest.raises(LinkLost, match="another payment hash"):
        await wallet.hold_invoice(5_000, payment_hash=H, **asked)


@pytest.mark.parametrize(
    ("amount_msat", "expiry_s", "field"),
    [(0, 60, "amount_msat"), (10**12, 60, "amount_msat"), (1_000, 0, "expiry_s"), (1_000, 10**9, "expiry_s")],
)
@pytest.mark.parametrize("wallet_class", [LndWallet, ClnWallet])
async def test_an_invoice_out_of_range_is_not_asked_for(answering, wallet_class, amount_msat, expiry_s, field):
    wallet = await answering(wallet_class, {})
    with pytest.raises(BadInput) as refused:
        await wallet.invoice(amount_msat, description="x", expiry_s=expiry_s)
    assert refused.value.field == field


@pytest.mark.parametrize("text", ["", "AB" * 32, "ab" * 31])
async def test_what_is_no_hash_or_preimage_is_not_asked_for(answering, text):
    wallet = await answering(LndWallet, {})
    for ask, field in (
        (wallet.settle_hold(text), "preimage"),
        (wallet.cancel_hold(text), "payment_hash"),
        (wallet.lookup(text, "in"), "payment_hash"),
        (wallet.hold_invoice(1_000, payment_hash=text, description="x", expiry_s=60), "payment_hash"),
    ):
        with pytest.raises(BadInput) as refused:
            await ask
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"result": [1]}], "no message"),
        ([{"result": "x"}], "no message"),
        ([{"result": None}], "has no result"),
        ([[1]], "nothing of its own"),
        ([], "its record of a payment is empty"),
    ],
)
async def test_a_stream_without_a_payments_message_is_a_lost_link(answering, lines, said):
    path = f"/v2/router/track/{base64.urlsafe_b64encode(bytes.fromhex(H)).decode()}"
    wallet = await answering(LndWallet, {path: [(200, *lines)]})
    with pytest.raises(LinkLost, match=said):
        await wallet.lookup(H, "out")


async def test_lnds_stream_tells_what_settled_after_a_place_alone_and_goes_on_where_it_ended(answering, monkeypatch):
    monkeypatch.setattr(lnd, "_PAUSE_S", 0.01)

    def row(index, amount_msat, **change):
        told = {"settle_index": str(index), "amt_paid_msat": str(amount_msat), "value_msat": str(amount_msat)}
        return {"result": LND_IN | told | change}

    first = (200, row(1, 1_000), row(0, 9_000, state="OPEN"), row(3, 3_000), row(2, 2_000))
    second = (200, row(3, 3_000), row(4, 4_000, state="CANCELED"), row(5, 5_000))
    away = (500, {"error": {"code": 14, "message": "restarts"}})
    listed = {"invoices": [LND_IN | {"settle_index": "1"}, {"r_hash": B64, "state": "OPEN"}], "last_index_offset": "2"}
    wallet = await answering(
        LndWallet,
        {
            "/v1/getinfo": [(200, LND_INFO)],
            "/v1/invoices": [(200, listed)],
            "/v1/invoices/subscribe": [first, away, second],
        },
    )
    found = await receipts(wallet, 3)
    assert [one.amount_msat for one in found] == [5_000, 3_000, 5_000]
    assert len({one.cursor for one in found}) == 3


async def test_what_lnds_macaroon_does_not_permit_ends_the_receipts(answering):
    denied = (500, {"error": {"code": 2, "message": "permission denied"}})
    wallet = await answering(LndWallet, {"/v1/getinfo": [(200, LND_INFO)], "/v1/invoices": [denied]})
    with pytest.raises(NotAllowed):
        await receipts(wallet, 1)


# Core Lightning


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        (500, {"code": 904, "message": "its words"}, TimedOut),
        (500, {"code": -32602, "message": "its words"}, BadInput),
        (500, {"code": 1, "message": "its words"}, BadInput),
        (500, {"code": 205, "message": "its words"}, PaymentFailed),
        (500, {"code": -1, "message": "its words"}, LinkLost),
        (500, {"code": "205", "message": "its words"}, LinkLost),
        (500, {"message": "its words"}, LinkLost),
        (401, {"code": 1501, "message": "its words"}, NotAllowed),
        (403, {"code": 1502, "message": "its words"}, NotAllowed),
        (404, {"code": -32601, "message": "its words"}, Unsupported),
        (405, {"message": "its words"}, Unsupported),
        (500, ["its words"], LinkLost),
    ],
)
async def test_core_lightnings_refusals_are_taken_for_what_they_mean(answering, status, said, error):
    wallet = await answering(ClnWallet, {"/v1/listfunds": [(status, said)]})
    with pytest.raises(error) as told:
        await wallet.balance_msat()
    assert type(told.value) is error and told.value.field == "wallet"


async def test_core_lightnings_receipts_outlast_a_silence_and_a_restart(answering, monkeypatch):
    monkeypatch.setattr(cln, "_PAUSE_S", 0.01)
    asked = []

    def row(index):
        def answer(said):
            asked.append(said["lastpay_index"])
            return 201, CLN_IN | {"pay_index": index}

        return answer

    tried = (500, {"code": -32602, "message": "lastpay_index: should be an unsigned 64 bit integer"})
    silent = (500, {"code": 904, "message": "Timed out"})
    away = (500, {"code": -1, "message": "Shutdown"})
    wallet = await answering(
        ClnWallet,
        {
            "/v1/getinfo": [(201, CLN_INFO)],
            "/v1/waitanyinvoice": [tried, silent, row(7), silent, away, row(9)],
        },
    )
    own = (await wallet.info()).id
    found = await receipts(wallet, 2, cursor.at(own, 3))
    assert asked == [3, 7] and [cursor.place_of(own, one.cursor) for one in found] == [7, 9]


async def test_what_core_lightnings_rune_does_not_permit_ends_the_receipts(answering):
    denied = (401, {"code": 1502, "message": "Not permitted"})
    wallet = await answering(ClnWallet, {"/v1/getinfo": [(201, CLN_INFO)], "/v1/waitanyinvoice": [denied]})
    with pytest.raises(NotAllowed):
        await receipts(wallet, 1)


async def test_when_xpay_answered_is_known_no_longer_than_it_matters(open_node, monkeypatch):
    """Of what was answered long ago the record itself is old enough."""
    _, payee = await open_node("cln")
    _, payer = await open_node("cln", 100_000)
    paid = []
    for _ in range(3):
        paid.append(await payee.invoice(1_000, description="x", expiry_s=600))
        await payer.pay(paid[-1].bolt11, max_fee_msat=10_000)
    assert set(payer._answered_s) == {one.payment_hash for one in paid}
    monkeypatch.setattr(cln, "_CLOCKS_S", -cln._RETRY_S)
    paid.append(await payee.invoice(1_000, description="x", expiry_s=600))
    await payer.pay(paid[-1].bolt11, max_fee_msat=10_000)
    assert set(payer._answered_s) == {paid[-1].payment_hash}


@pytest.mark.parametrize(("rows", "error"), [([], NotFound), (None, LinkLost), ({}, LinkLost), (["x"], LinkLost)])
async def test_a_record_without_a_payment_is_told_apart_from_none(answering, rows, error):
    wallet = await answering(ClnWallet, {"/v1/listpays": [(201, {"pays": rows})]})
    with pytest.raises(error):
        await wallet.lookup(H, "out")


async def test_an_amount_that_core_lightning_does_not_tell_is_its_invoices(answering):
    invoice = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=5_000,
        payment_hash=H,
        created_at_s=9,
        expiry_s=60,
        description="x",
    )
    row = {name: value for name, value in CLN_OUT.items() if name != "amount_msat"} | {"bolt11": invoice.bolt11}
    wallet = await answering(ClnWallet, {"/v1/listpays": [(201, {"pays": [row]})]})
    found = await wallet.lookup(H, "out")
    assert (found.state, found.amount_msat, found.fee_msat) == ("settled", 5_000, 7)
