"""A provider's receipts on real relays, as rust-nostr's client finds them there; and those of its wallet's service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace

import nostr_sdk
import pytest
from aiohttp import web

from nodewire.errors import BadConfig
from nodewire.net.http_server import listening_socket
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import Till
from nodewire.pay.lightning import invoices, lnurl_server
from nodewire.pay.lightning.wallet import ABILITIES, Receipt, Transfer, WalletInfo
from nodewire.startup import receipts
from nodewire.startup.receipts import ReceiptRelays
from relay import Config, serve
from tests.relay.test_relay_interop import connected, fetched

PROVIDER, CUSTOMER, SERVICE = Keys(b"\x02" * 32), Keys(b"\x01" * 32), Keys(b"\x08" * 32)
KEY = zaps.Key("ab" * 32, PROVIDER.public, 0)
DUE_MSAT = 21_000


class Wallet:
    """A wallet whose invoices are paid as soon as a test says so."""

    def __init__(self, abilities=ABILITIES):
        self.abilities, self.preimages, self.settled_ones = abilities, {}, asyncio.Queue()
        self.record = {}

    async def info(self):
        return WalletInfo("w", "bcrt", 1, 1, 10**9, self.abilities)

    async def invoice(self, amount_msat, *, description, expiry_s):
        preimage = os.urandom(32).hex()
        made = invoices.issue(
            b"\x09" * 32,
            network="bcrt",
            amount_msat=amount_msat,
            payment_hash=invoices.hash_of(preimage),
            created_at_s=int(time.time()),
            expiry_s=expiry_s,
            description_hash=zaps.description_hash(description),
        )
        self.preimages[made.payment_hash] = preimage
        return made

    def pay(self, invoice):
        facts = invoice.payment_hash, self.preimages[invoice.payment_hash], invoice.amount_msat, int(time.time())
        self.record[invoice.payment_hash] = Transfer(*facts[:1], "in", "settled", facts[2], 0, facts[1], facts[3])
        self.settled_ones.put_nowait(Receipt("1", *facts))

    async def lookup(self, payment_hash, direction):
        return self.record.get(payment_hash) or Transfer(payment_hash, "in", "open", DUE_MSAT, 0, None, 0)

    async def settled(self, after=""):
        while True:
            yield await self.settled_ones.get()


@contextlib.asynccontextmanager
async def beside(*coroutines):
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        async with asyncio.timeout(40):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def refusing_relay():
    """A relay that takes no receipts, and says so for good."""
    asked = []

    async def talk(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for said in socket:
            _, event = said.json()
            asked.append(event["id"])
            await socket.send_json(["OK", event["id"], False, "blocked: no zaps here"])
        return socket

    app = web.Application()
    app.router.add_get("/", talk)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"ws://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_a_receipt_stands_on_each_relay_that_the_request_names_and_the_payment_is_one(tmp_path, unused_tcp_port):
    """Three of three: one is up, one comes back later, one is the provider's own; a fourth refuses for good."""
    away = f"ws://127.0.0.1:{unused_tcp_port}"
    ledger, wallet = Ledger(tmp_path / "ledger.db"), Wallet()
    ledger.owe(Due(KEY, CUSTOMER.public, DUE_MSAT, int(time.time()) + 30))
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(serve(Config(db=tmp_path / "own.sqlite", port=0)))
        named = await stack.enter_async_context(serve(Config(db=tmp_path / "named.sqlite", port=0)))
        refusing, asked = await stack.enter_async_context(refusing_relay())
        pool = await stack.enter_async_context(Pool([own.url], PROVIDER))
        relays = ReceiptRelays(pool, [own.url], PROVIDER, allow_private=True)
        till = Till(PROVIDER, wallet, ledger, relays.publish, own_relays=relays.own)
        request = zaps.build_request(
            CUSTOMER,
            KEY,
            DUE_MSAT,
            relays=[named.url, away, refusing, own.url],
            lnurl=None,
            created_at=int(time.time()),
        )
        invoice = await till.quote(request.to_json(), DUE_MSAT)
        async with beside(till.run()):
            wallet.pay(invoice)
            await until(lambda: ledger.receipt(ledger.due(KEY).payment_hash or ""))
            receipt = ledger.receipt(ledger.due(KEY).payment_hash)
            await until(lambda: len(ledger.receipts.relays()) == 1)
            back = await stack.enter_async_context(serve(Config(db=tmp_path / "back.sqlite", port=unused_tcp_port)))
            await until(lambda: not ledger.receipts.relays())
        stands = ledger.receipts.standing(receipt)
        assert {url: state for url, (state, _) in stands.items()} == {
            named.url: "stands",
            away: "stands",
            refusing: "refused",
            own.url: "stands",
        }
        assert "blocked: no zaps here" in stands[refusing][1] and asked == [receipt]
        wanted = nostr_sdk.Filter().kind(nostr_sdk.Kind(9735)).author(nostr_sdk.PublicKey.parse(PROVIDER.public))
        for relay in (own, named, back):
            async with connected(relay.url) as client:
                (found,) = await fetched(client, wanted)
                assert found["id"] == receipt
    assert len(wallet.preimages) == 1 and ledger.earned_msat() == DUE_MSAT
    ledger.close()


async def test_a_strangers_relay_of_this_network_is_not_dialled(tmp_path):
    """The provider's own relay may be there, the one that a zap request names may not."""
    ledger, wallet = Ledger(":memory:"), Wallet()
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(serve(Config(db=tmp_path / "own.sqlite", port=0)))
        inside, asked = await stack.enter_async_context(refusing_relay())
        pool = await stack.enter_async_context(Pool([own.url], PROVIDER))
        relays = ReceiptRelays(pool, [own.url], PROVIDER, allow_private=False)
        till = Till(PROVIDER, wallet, ledger, relays.publish, own_relays=relays.own)
        request = nip57.build_request(
            CUSTOMER,
            nip57.ZapTarget(PROVIDER.public),
            amount_msat=5_000,
            relays=[own.url, inside, inside.replace("ws:", "wss:")],
            created_at=1,
        )
        invoice = await till.quote(request.to_json(), 5_000)
        async with beside(till.run()):
            wallet.pay(invoice)
            await until(lambda: ledger.unbilled.tips_msat() and not ledger.receipts.relays())
        (receipt,) = await pool.fetch([Filter(kinds=frozenset({9735}))])
        states = {url: state for url, (state, _) in ledger.receipts.standing(receipt.id).items()}
        assert states == {own.url: "stands", inside: "refused", inside.replace("ws:", "wss:"): "refused"}
        assert asked == []


async def test_a_zap_to_the_wallets_own_address_is_found_by_its_services_receipt(tmp_path):
    """The service makes the invoice and signs the receipt. The wallet's record says that the payment came."""
    ledger, wallet, told = Ledger(":memory:"), Wallet(), []
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(serve(Config(db=tmp_path / "own.sqlite", port=0)))
        pool = await stack.enter_async_context(Pool([own.url], PROVIDER))
        relays = ReceiptRelays(pool, [own.url], PROVIDER, allow_private=True)
        till = Till(PROVIDER, wallet, ledger, relays.publish, own_relays=relays.own)
        service = lnurl_server.Endpoint("p", "http://127.0.0.1:1", SERVICE.public, till.quote)
        sock = listening_socket("lnurl.listen", "127.0.0.1:0")
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/.well-known/lnurlp/p"
        await stack.enter_async_context(lnurl_server.serve_endpoint(service, sock))
        signer = await receipts.address_signer(url, wallet, allow_private=True)
        assert signer == SERVICE.public
        paid, unpaid = (
            nip57.build_request(
                CUSTOMER, nip57.ZapTarget(PROVIDER.public), amount_msat=5_000, relays=[own.url], created_at=n
            ).to_json()
            for n in (1, 2)
        )
        follows = receipts.follow_address(pool, till, PROVIDER.public, signer, told.append)
        async with beside(follows):
            for request in (unpaid, paid):
                invoice = await wallet.invoice(5_000, description=request, expiry_s=60)
                now_s = int(time.time())
                for keys in (CUSTOMER, SERVICE):  # the first forges it
                    await pool.publish(nip57.build_receipt(keys, request, bolt11=invoice.bolt11, paid_at_s=now_s))
            await asyncio.sleep(0.3)
            assert ledger.unbilled.tips_msat() == 0
            wallet.pay(invoice)  # its record is behind the receipt
            await until(lambda: ledger.unbilled.tips_msat())
        assert ledger.unbilled.tips_msat() == 5_000 and told == []


async def test_an_address_needs_a_wallet_that_looks_payments_up_and_a_service_that_signs():
    blind = Wallet(ABILITIES - {"lookup-in"})
    with pytest.raises(BadConfig, match=r"lnurl\.address.*look"):
        await receipts.address_signer("me@wallet.example", blind, allow_private=True)
    for address in ("nobody", "me@127.0.0.1:1"):
        with pytest.raises(BadConfig, match=r"lnurl\.address"):
            await receipts.address_signer(address, Wallet(), allow_private=True)


def test_own_relays_that_no_stranger_could_name_are_own_relays_all_the_same():
    relays = ReceiptRelays(
        SimpleNamespace(), ["wss://A.example/", "wss://b.example/?key=1"], PROVIDER, allow_private=False
    )
    assert relays.own == {"wss://a.example"}
