"""Nostr Wallet Connect: what a connection string must say, and what is believed of a service that is slow or wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import AsyncExitStack

import pytest

from nodewire.errors import (
    BadConfig,
    BadInput,
    BadInvoice,
    LinkLost,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
    Unsupported,
)
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import payer as paying
from nodewire.pay.lightning import invoices
from nodewire.pay.wallets import nwc
from nodewire.pay.wallets.nwc import Connection, NwcWallet
from tests.pay.pay_market import Market
from tests.pay.wallets.services.nwc_service import METHODS, NwcService, Refusal

WALLET, SECRET = Keys(b"\x05" * 32).public, "71" * 32
GOOD = f"nostr+walletconnect://{WALLET}?relay=wss://a.example&relay=wss://b.example&secret={SECRET}&lud16=x@y.example"


@pytest.fixture
async def opened(open_wallet, relay_url):
    """`await opened(msat, **changes)` -> a service with these fields, and a wallet that is connected to it."""
    async with AsyncExitStack() as stack:

        async def one(msat=0, timeout_s=60.0, **changes):
            service = NwcService(await open_wallet(msat), relay_url)
            for name, value in changes.items():
                setattr(service, name, value)
            await stack.enter_async_context(service.serving())
            wallet = NwcWallet(Connection.parse(service.uri), timeout_s=timeout_s)
            stack.push_async_callback(wallet.close)
            return service, wallet

        yield one


def test_a_connection_string_names_wallet_relays_and_key():
    for text in (GOOD, GOOD + "\n", GOOD.replace("nostr+walletconnect", "nostrwalletconnect")):
        found = Connection.parse(text)
        assert (found.wallet, found.relays) == (WALLET, ("wss://a.example", "wss://b.example"))
        assert found.keys.secret.hex() == SECRET


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not begin"),
        (GOOD.replace("nostr+walletconnect", "https"), "does not begin"),
        (GOOD.replace(WALLET, WALLET[2:]), "names no wallet"),
        (GOOD.replace("relay=", "r="), "0 relays"),
        (GOOD + "".join(f"&relay=wss://{n}.example" for n in range(9)), "11 relays"),
        (GOOD.replace("secret", "s"), "no secret"),
        (GOOD.replace(SECRET, SECRET[2:]), "no secret"),
        (GOOD.replace(SECRET, "00" * 32), "is no key"),
        (GOOD.replace(WALLET, "b8" * 32), "is no key"),
        (GOOD + f"&secret={SECRET}", "no secret"),
    ],
)
def test_what_is_no_connection_string_is_told_without_any_of_it(text, said, tmp_path):
    with pytest.raises(BadInput, match=said) as refused:
        Connection.parse(text)
    path = tmp_path / "nwc"
    path.write_text(text)
    with pytest.raises(BadConfig, match=said) as told:
        NwcWallet.from_file("", path)
    for error in (refused.value, told.value):
        assert SECRET not in str(error) and SECRET[2:] not in str(error) and WALLET not in str(error)


def test_a_connection_shows_no_secret():
    found = Connection.parse(GOOD)
    assert SECRET not in repr(found) and SECRET not in str(found) and SECRET not in repr(NwcWallet(found))


async def test_no_secret_reaches_a_log_or_an_error(opened, caplog):
    caplog.set_level(logging.DEBUG)
    service, wallet = await opened(50_000, drops=["get_balance"], timeout_s=0.5)
    with pytest.raises(TimedOut) as late:
        await wallet.balance_msat()
    with pytest.raises(PaymentFailed) as failed:
        _, payee = await opened()
        await wallet.pay((await payee.invoice(90_000, description="x", expiry_s=60)).bolt11, max_fee_msat=0)
    secret = service.client.secret.hex()
    assert secret not in caplog.text + str(late.value) + str(failed.value) + (await wallet.info()).id


async def test_no_account_is_opened_over_a_connection():
    with pytest.raises(NotAllowed, match="in the wallet itself"):
        await NwcWallet.open_account("", "x")
    with pytest.raises(BadConfig, match="connection string"):
        NwcWallet.from_file("", None)


@pytest.mark.parametrize(
    ("methods", "lacks"),
    [
        (METHODS, {"fee-cap", "failures", "hold", "lookup-out"}),  # nothing went yet: so nobody knows
        (["get_info", "make_invoice", "lookup_invoice"], None),
        (["get_info"], None),
    ],
)
async def test_abilities_are_what_a_connection_may_do(opened, methods, lacks):
    _, wallet = await opened(methods=methods)
    can = (await wallet.info()).abilities
    wanted = {"balance", "invoice", "pay", "lookup-in", "settled"} if lacks else set()
    if "make_invoice" in methods and not lacks:
        wanted = {"invoice", "lookup-in"}
    assert can == wanted


async def test_a_wallet_that_forgets_what_went_does_not_claim_to_know(opened):
    _, payee = await opened()
    service, payer = await opened(100_000)
    paid = await payer.pay((await payee.invoice(5_000, description="x", expiry_s=60)).bolt11, max_fee_msat=1_000)
    await payer.close()
    assert "lookup-out" in (await payer.info()).abilities
    service.forgets = True
    await payer.close()
    assert "lookup-out" not in (await payer.info()).abilities
    with pytest.raises(NotFound):
        await payer.lookup(paid.payment_hash, "out")


async def test_a_network_that_nobody_knows_is_refused(opened):
    _, wallet = await opened(network="doge")
    with pytest.raises(Unsupported, match="doge"):
        await wallet.info()


async def test_an_invoice_that_the_wallet_rounds_or_strips_of_its_hash_is_not_given_out(opened):
    _, rounding = await opened(rounds=True)
    assert (await rounding.info()).unit_msat == 1_000
    with pytest.raises(BadInput, match="21500: the wallet takes whole multiples of 1000 msat"):
        await rounding.invoice(21_500, description="x", expiry_s=60)
    assert (await rounding.invoice(21_000, description="x", expiry_s=60)).amount_msat == 21_000
    _, stripping = await opened(drops_hash=True)
    assert "invoice" not in (await stripping.info()).abilities
    with pytest.raises(NotAllowed, match="the hash of a description"):
        await stripping.invoice(21_000, description="x", expiry_s=60)


async def test_a_wallet_that_begins_to_round_or_strip_later_is_found_out(opened):
    service, wallet = await opened()
    assert (await wallet.info()).unit_msat == 1
    service.rounds = True
    with pytest.raises(BadInvoice, match="21000 msat, asked for 21500 msat"):
        await wallet.invoice(21_500, description="x", expiry_s=60)
    service.drops_hash = True
    with pytest.raises(BadInvoice, match="description_hash"):
        await wallet.invoice(21_000, description="x", expiry_s=60)


@pytest.mark.parametrize("encryption", ["nip44_v2", "nip04 nip44_v2", "nip04", None])
async def test_a_wallet_is_spoken_with_as_its_info_event_says(opened, encryption):
    """The service, which is nostr-sdk's, understands nothing else. Without the tag it has NIP-04 alone."""
    _, wallet = await opened(7_000, encryption=encryption)
    assert await wallet.balance_msat() == 7_000


async def test_a_wallet_that_speaks_none_of_both_is_told_as_such(opened):
    _, wallet = await opened(encryption="nip99")
    with pytest.raises(Unsupported, match="nip99"):
        await wallet.balance_msat()


async def test_what_settles_at_this_moment_is_pending_until_its_preimage_is_there(opened):
    """Electrum says no state of it then, and the moment already."""
    _, payee = await opened()
    service, payer = await opened(100_000)
    invoice = await payee.invoice(5_000, description="x", expiry_s=60)
    paid = await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    looking = service.lookup_invoice

    async def halfway(payment_hash):
        row = await looking(payment_hash)
        return {name: value for name, value in row.items() if name not in ("state", "preimage")}

    service.lookup_invoice = halfway
    found = await payer.lookup(paid.payment_hash, "out")
    assert (found.state, found.preimage) == ("pending", None)
    service.lookup_invoice = looking
    assert (await payer.lookup(paid.payment_hash, "out")).preimage == paid.preimage


async def test_unpaid_invoices_that_a_wallet_adds_to_what_went_hide_nothing_of_it(opened):
    """Electrum adds them, whatever type is asked for."""
    _, payee = await opened()
    service, payer = await opened(100_000)
    paid = await payer.pay((await payee.invoice(5_000, description="x", expiry_s=60)).bolt11, max_fee_msat=1_000)
    for _ in range(30):
        await payer.invoice(1_000, description="x", expiry_s=60)
    listing = service.list_transactions

    async def mixed(type, unpaid=False, **asked):
        if not unpaid:
            return await listing(type=type, **asked)
        return await listing(type="incoming", **asked)

    service.list_transactions = mixed
    await payer.close()
    assert "lookup-out" in (await payer.info()).abilities
    assert {row["payment_hash"] for row in await payer._transactions("out", 0)} == {paid.payment_hash}


async def test_a_page_from_which_payments_are_left_out_is_not_the_last(opened):
    """Electrum counts in a page what it does not tell of."""
    service, wallet = await opened()
    made = [await wallet.invoice(1_000 + n, description="x", expiry_s=60) for n in range(24)]
    listing = service.list_transactions

    async def with_gaps(limit, **asked):
        rows = (await listing(limit=limit, **asked))["transactions"]
        return {"transactions": [row for row in rows if row["payment_hash"] != made[20].payment_hash]}

    service.list_transactions = with_gaps
    told = {row["payment_hash"] for row in await wallet._transactions("in", 0)}
    assert told >= {one.payment_hash for one in made if one is not made[20]}


async def test_a_wallet_that_never_answers_is_told_as_such(opened):
    _, wallet = await opened(drops=["get_info"], timeout_s=0.5)
    with pytest.raises(TimedOut, match="get_info"):
        await wallet.info()
    assert (await wallet.info()).network == "bcrt"  # the next time it does


async def test_a_relay_that_is_not_there_does_not_matter_while_another_is(opened, unused_tcp_port):
    service, _ = await opened(7_000)
    uri = service.uri.replace("?", f"?relay=ws://127.0.0.1:{unused_tcp_port}&")
    wallet = NwcWallet(Connection.parse(uri))
    assert len(wallet._to.relays) == 2 and await wallet.balance_msat() == 7_000
    await wallet.close()
    nowhere = NwcWallet(
        Connection.parse(
            GOOD.replace("wss://a.example", f"ws://127.0.0.1:{unused_tcp_port}").replace("&relay=wss://b.example", "")
        ),
        timeout_s=0.5,
    )
    with pytest.raises((TimedOut, LinkLost)):
        await nowhere.balance_msat()
    await nowhere.close()


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_payment_whose_answer_is_lost_is_made_once(opened, tmp_path, forgets, monkeypatch):
    """Also where the wallet forgets it: it is asked for the same invoice again, and for no other."""
    _, payee = await opened()
    _, payer = await opened(100_000, drops=["pay_invoice"], forgets=forgets)
    market = Market(payee, payer, tmp_path)
    market.deliver()
    monkeypatch.setattr(paying, "_WAIT_S", 2.0)
    if forgets:
        with pytest.raises(TimedOut):
            await market_pay(market)
    debt = await market_pay(market)
    assert (debt.state, len(debt.parts)) == ("paid", 1)
    assert await payee.balance_msat() == 21_000
    await market.settle(1)
    assert market.provider_book.earned_msat() == 21_000
    market.close()


async def market_pay(market):
    async with asyncio.timeout(20):
        return await market.pay()


# Answers that are not what they should be


def result(method, value):
    return json.dumps({"result_type": method, "error": None, "result": value})


def refusal(code):
    return json.dumps({"result_type": "get_balance", "error": {"code": code, "message": "its words"}, "result": None})


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("[]", LinkLost, "is no object"),
        ("{", LinkLost, "cannot be read"),
        ("{}", LinkLost, "has no result"),
        (result("get_balance", None), LinkLost, "has no result"),
        (result("get_balance", [1]), LinkLost, "has no result"),
        (result("get_info", {"balance": 1}), LinkLost, "has no result"),  # of another question
        (result("get_balance", {}), LinkLost, "its balance is no amount"),
        (result("get_balance", {"balance": -1}), LinkLost, "its balance is no amount"),
        (result("get_balance", {"balance": "7"}), LinkLost, "its balance is no amount"),
        (refusal("NOT_IMPLEMENTED"), Unsupported, "NOT_IMPLEMENTED: its words"),
        (refusal("UNSUPPORTED_ENCRYPTION"), Unsupported, "its words"),
        (refusal("RESTRICTED"), NotAllowed, "RESTRICTED: its words"),
        (refusal("UNAUTHORIZED"), NotAllowed, "its words"),
        (refusal("QUOTA_EXCEEDED"), PaymentFailed, "QUOTA_EXCEEDED: its words"),
        (refusal("NOT_FOUND"), NotFound, "its words"),
        (refusal(7), PaymentFailed, "7: its words"),
    ],
)
async def test_an_answer_that_is_no_balance_is_the_error_that_it_means(opened, text, error, said):
    service, wallet = await opened(7_000)
    service.texts["get_balance"] = text
    with pytest.raises(error, match=said) as told:
        await wallet.balance_msat()
    assert type(told.value) is error and told.value.field == ("payment_hash" if error is NotFound else "wallet")
    del service.texts["get_balance"]
    assert await wallet.balance_msat() == 7_000


@pytest.mark.parametrize("methods", [None, "pay_invoice", {"pay_invoice": True}])
async def test_a_wallet_that_does_not_say_its_methods_is_a_lost_link(opened, methods):
    service, wallet = await opened()
    service.texts["get_info"] = result("get_info", {"network": "regtest", "methods": methods})
    with pytest.raises(LinkLost, match="says no methods"):
        await wallet.info()


async def test_a_wallet_that_makes_no_invoice_of_any_amount_is_not_paid_by_it(opened):
    service, wallet = await opened()
    service.texts["make_invoice"] = result("make_invoice", {"invoice": None})
    info = await wallet.info()
    assert "invoice" not in info.abilities and info.unit_msat == 1_000


async def test_a_wallet_that_stops_to_make_invoices_is_found_out(opened):
    service, wallet = await opened()
    await wallet.info()
    service.texts["make_invoice"] = result("make_invoice", {"invoice": 7})
    with pytest.raises(BadInvoice, match="made none") as refused:
        await wallet.invoice(21_000, description="x", expiry_s=60)
    assert refused.value.field == "invoice"


@pytest.mark.parametrize(
    ("amount_msat", "expiry_s", "field"),
    [(0, 60, "amount_msat"), (10**12, 60, "amount_msat"), (1_000, 0, "expiry_s"), (1_000, 10**9, "expiry_s")],
)
async def test_an_invoice_out_of_range_is_not_asked_for(opened, amount_msat, expiry_s, field):
    service, wallet = await opened()
    with pytest.raises(BadInput) as refused:
        await wallet.invoice(amount_msat, description="x", expiry_s=expiry_s)
    assert refused.value.field == field and service.asked == []


@pytest.mark.parametrize("rows", [None, {}, ["x"], [None]])
async def test_a_list_of_payments_that_is_none_is_a_lost_link(opened, rows):
    service, wallet = await opened(methods=["get_info", "list_transactions"])
    await wallet.info()
    service.texts["list_transactions"] = result("list_transactions", {"transactions": rows})
    with pytest.raises(LinkLost, match="its list of payments is none"):
        await wallet.lookup("ab" * 32, "in")


@pytest.mark.parametrize(
    ("change", "said"),
    [({"type": "both"}, "neither incoming nor outgoing"), ({"type": None}, "neither"), ({"amount": "x"}, "amount")],
)
async def test_a_payment_that_is_malformed_is_a_lost_link(opened, change, said):
    service, wallet = await opened(methods=["get_info", "lookup_invoice"])
    row = {"type": "incoming", "payment_hash": "ab" * 32, "amount": 5_000, "created_at": 9}
    service.texts["lookup_invoice"] = result("lookup_invoice", row)
    assert (await wallet.lookup("ab" * 32, "in")).state == "open"
    service.texts["lookup_invoice"] = result("lookup_invoice", row | change)
    with pytest.raises(LinkLost, match=said):
        await wallet.lookup("ab" * 32, "in")


@pytest.mark.parametrize("change", [{"type": "outgoing"}, {"payment_hash": "cd" * 32}])
async def test_another_payment_than_was_asked_for_is_not_found(opened, change):
    """Also where the wallet lists none."""
    service, wallet = await opened(methods=["get_info", "lookup_invoice"])
    row = {"type": "incoming", "payment_hash": "ab" * 32, "amount": 5_000, "created_at": 9}
    service.texts["lookup_invoice"] = result("lookup_invoice", row | change)
    with pytest.raises(NotFound) as missing:
        await wallet.lookup("ab" * 32, "in")
    assert missing.value.field == "payment_hash" and "list_transactions" not in service.asked


async def test_a_wallet_that_only_lists_is_looked_up_in_its_list(opened):
    _, payee = await opened()
    service, wallet = await opened(50_000)
    service.methods = ["get_info", "make_invoice", "pay_invoice", "list_transactions"]
    paid = await wallet.pay((await payee.invoice(5_000, description="x", expiry_s=60)).bolt11, max_fee_msat=1_000)
    for _ in range(3):
        await wallet.pay((await payee.invoice(1_000, description="x", expiry_s=60)).bolt11, max_fee_msat=1_000)
    assert await wallet.lookup(paid.payment_hash, "out") == paid
    with pytest.raises(NotFound):
        await wallet.lookup("ab" * 32, "out")
    with pytest.raises(NotFound):
        await wallet.lookup(paid.payment_hash, "in")
    assert "lookup_invoice" not in service.asked


@pytest.mark.parametrize("payment_hash", ["", "ab", "AB" * 32, "zz" * 32])
async def test_what_is_no_payment_hash_is_not_looked_up(opened, payment_hash):
    service, wallet = await opened()
    with pytest.raises(BadInput) as refused:
        await wallet.lookup(payment_hash, "in")
    assert refused.value.field == "payment_hash" and service.asked == []


def bill(amount_msat, age_s=0):
    """Another node's invoice."""
    return invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=amount_msat,
        payment_hash="ef" * 32,
        created_at_s=int(time.time()) - age_s,
        expiry_s=600,
        description="x",
    )


async def test_what_cannot_be_paid_is_not_sent_to_the_wallet(opened):
    service, wallet = await opened(50_000, rounds=True)
    for invoice, said in ((bill(999), "999 msat, and the wallet sends 1000 or more"), (bill(5_000, 700), "expired")):
        with pytest.raises(PaymentFailed, match=said) as failed:
            await wallet.pay(invoice.bolt11, max_fee_msat=0)
        assert failed.value.field == "invoice"
    assert "pay_invoice" not in service.asked


async def test_a_payment_that_hangs_is_pending_until_nobody_waits_and_is_sent_once(opened):
    service, wallet = await opened(50_000)
    invoice = bill(5_000)

    async def hanging(invoice):
        await service._entered(invoices.decode(invoice), "outgoing")
        await asyncio.Event().wait()

    service.pay_invoice = hanging
    for _ in range(2):
        assert (await wallet.pay(invoice.bolt11, max_fee_msat=0, timeout_s=0.1)).state == "pending"
    assert service.asked.count("pay_invoice") == 1


@pytest.mark.parametrize("said", [{}, {"preimage": 7}, {"preimage": "00" * 32}, {"preimage": "é"}])
async def test_a_wallet_that_forgets_what_it_paid_and_shows_no_preimage_has_not_said_that_it_paid(opened, said):
    service, wallet = await opened(50_000, forgets=True)
    service.texts["pay_invoice"] = result("pay_invoice", {"fees_paid": 1, **said})
    _, payee = await opened()
    invoice = await payee.invoice(5_000, description="x", expiry_s=60)
    with pytest.raises(TimedOut, match="neither knows of it nor shows the preimage"):
        await wallet.pay(invoice.bolt11, max_fee_msat=1_000)


@pytest.mark.parametrize("fee", ["much", -1, 1.5, True, [1]])
async def test_a_fee_that_is_no_number_is_a_lost_link(opened, fee):
    service, wallet = await opened(50_000)
    _, payee = await opened()
    paid = await wallet.pay((await payee.invoice(5_000, description="x", expiry_s=60)).bolt11, max_fee_msat=1_000)
    looking = service.lookup_invoice

    async def odd(**asked):
        return await looking(**asked) | {"fees_paid": fee}

    service.lookup_invoice = odd
    with pytest.raises(LinkLost, match="fees_paid is no amount"):
        await wallet.lookup(paid.payment_hash, "out")


async def test_a_payment_that_the_wallet_refuses_fails_in_its_words(opened):
    service, wallet = await opened(50_000)

    async def refuse(invoice):
        raise Refusal("INSUFFICIENT_BALANCE", "not so much")

    service.pay_invoice = refuse
    with pytest.raises(PaymentFailed, match="INSUFFICIENT_BALANCE: not so much"):
        await wallet.pay(bill(5_000).bolt11, max_fee_msat=0)


async def test_a_settled_invoice_that_is_listed_without_its_preimage_is_looked_up(opened):
    _, payer = await opened(50_000)
    service, wallet = await opened()
    invoice = await wallet.invoice(5_000, description="x", expiry_s=60)
    paid = await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    listing = service.list_transactions

    async def without(**asked):
        rows = (await listing(**asked))["transactions"]
        return {"transactions": [{name: value for name, value in row.items() if name != "preimage"} for row in rows]}

    service.list_transactions = without
    async with asyncio.timeout(20):
        receipt = await anext(wallet.settled())
    assert (receipt.payment_hash, receipt.preimage) == (invoice.payment_hash, paid.preimage)


async def test_a_wallet_whose_info_no_relay_has_is_spoken_with_by_nip44(opened):
    _, wallet = await opened(7_000, announces=False)
    assert await wallet.balance_msat() == 7_000 and wallet._encryption == "nip44_v2"


async def test_a_list_of_both_kinds_is_sorted_by_who_asks(opened):
    service, wallet = await opened(methods=["get_info", "list_transactions"])
    rows = [
        {"type": kind, "payment_hash": f"{n:064x}", "amount": 1_000 * n, "created_at": n}
        for n, kind in enumerate(["incoming", "outgoing"] * 15, 1)
    ]

    async def mixed(type, limit, offset, **asked):
        return {"transactions": rows[offset : offset + limit]}

    service.list_transactions = mixed
    for direction, first in (("in", 0), ("out", 1)):
        found = await wallet._transactions(direction, 0)
        assert [row["payment_hash"] for row in found] == [row["payment_hash"] for row in rows[first::2]]


def test_an_invoice_that_the_wallet_does_not_date_is_open_as_long_as_it_says_itself():
    invoice = invoices.issue(
        b"\x01" * 32,
        network="bcrt",
        amount_msat=1_000,
        payment_hash="ab" * 32,
        created_at_s=100,
        expiry_s=7_200,
        description="x",
    )
    row = {"created_at": 100, "invoice": invoice.bolt11}
    assert nwc._expires_at_s(row | {"expires_at": 130}) == 130
    assert nwc._expires_at_s(row) == nwc._expires_at_s(row | {"expires_at": None}) == 7_300
    assert nwc._expires_at_s({"created_at": 100}) == 86_500
