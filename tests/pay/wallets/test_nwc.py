"""Nostr Wallet Connect: what a connection string must say, and what is believed of a service that is slow or wrong."""

from __future__ import annotations

import asyncio
import logging
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
from nodewire.pay.wallets.nwc import Connection, NwcWallet
from tests.pay.pay_market import Market
from tests.pay.wallets.services.nwc_service import METHODS, NwcService

WALLET, SECRET = Keys(b"\x05" * 32).public, "71" * 32
GOOD = f"nostr+walletconnect://{WALLET}?relay=wss://a.example&relay=wss://b.example&secret={SECRET}&lud16=x@y.example"


@pytest.fixture
async def opened(open_wallet, relay_url):
    """`await opened(msat, **changes)` -> a service with these fields, and a wallet that is connected to it."""
    async with AsyncExitStack() as stack:

        async def one(msat=0, timeout_s=3.0, **changes):
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
