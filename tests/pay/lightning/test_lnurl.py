"""Invoices over LNURL: a provider's endpoint and a suspicious payer, over loopback."""

from __future__ import annotations

import asyncio
import gzip
import time

import orjson
import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st
from lnurl.helpers import url_decode, url_encode

from nodewire.errors import (
    BadInput,
    BadInvoice,
    BadZap,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    TimedOut,
    TooLarge,
)
from nodewire.nostr import bech32_text
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import zaps
from nodewire.pay.lightning import invoices, lnurl
from nodewire.pay.lightning.lnurl_server import Endpoint, routes
from tests.pay.pay_market import Market

CUSTOMER, PROVIDER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
NODE_SECRET = b"\x09" * 32


def request_event(amount_msat=21_000):
    key = zaps.Key("10" * 32, PROVIDER.public, 0)
    return zaps.build_request(
        CUSTOMER, key, amount_msat, relays=["wss://a.example"], lnurl=None, created_at=int(time.time())
    )


def invoice_for(text, **changes):
    values = {
        "network": "bcrt",
        "amount_msat": 21_000,
        "payment_hash": "11" * 32,
        "created_at_s": int(time.time()),
        "expiry_s": 600,
        "description_hash": zaps.description_hash(text),
    }
    return invoices.issue(NODE_SECRET, **{**values, **changes})


@pytest.fixture
async def serve():
    """`await serve(handlers by path)` -> base URL of a server on loopback."""
    runners = []

    async def start(handlers):
        app = web.Application()
        for path, handler in handlers.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def endpoint(serve):
    """`await endpoint(offer changes, invoice changes, callback=handler)` -> pay URL of an endpoint that may cheat."""

    async def start(offer=None, invoice=None, callback=None):
        asked = {}

        async def offers(request):
            good = {
                "tag": "payRequest",
                "callback": f"http://{request.host}/cb?fixed=1",
                "minSendable": 1_000,
                "maxSendable": 50_000,
                "metadata": "[]",
                "allowsNostr": True,
                "nostrPubkey": PROVIDER.public,
            }
            return web.json_response({**good, **(offer or {})})

        async def honest(request):
            asked.update(request.query)
            made = invoice_for(request.query["nostr"], **(invoice or {}))
            return web.json_response({"pr": made.bolt11, "routes": []})

        url = await serve({"/.well-known/lnurlp/alice": offers, "/cb": callback or honest})
        return f"{url}/.well-known/lnurlp/alice", asked

    return start


async def fetch(url, event=None, amount_msat=21_000, **options):
    event = event or request_event(amount_msat)
    given = {"nostr_pubkey": PROVIDER.public, "network": "bcrt", "allow_private": True, "timeout_s": 5.0, **options}
    return await lnurl.fetch_invoice(url, event, amount_msat, **given)


async def test_an_honest_endpoint_gets_the_request_and_its_invoice_is_taken(endpoint):
    url, asked = await endpoint()
    event = request_event()
    invoice = await fetch(url, event)
    assert invoice.amount_msat == 21_000
    assert asked == {"fixed": "1", "amount": "21000", "nostr": event.to_json(), "lnurl": lnurl.encode(url)}
    assert await fetch(url, event, payee=invoice.payee)


@pytest.mark.parametrize(
    ("offer", "error", "field"),
    [
        ({"tag": "withdrawRequest"}, BadInput, "tag"),
        ({"allowsNostr": False}, BadZap, "allowsNostr"),
        ({"allowsNostr": "true"}, BadZap, "allowsNostr"),
        ({"nostrPubkey": CUSTOMER.public}, BadZap, "nostrPubkey"),
        ({"nostrPubkey": None}, BadZap, "nostrPubkey"),
        ({"minSendable": 21_001}, NotAllowed, "amount"),
        ({"maxSendable": 20_999}, NotAllowed, "amount"),
        ({"maxSendable": "21000"}, BadInput, "minSendable"),
        ({"minSendable": True}, BadInput, "minSendable"),
        ({"maxSendable": 50_000.0}, BadInput, "minSendable"),
        ({"minSendable": 50_001}, BadInput, "minSendable"),
        ({"minSendable": 0}, BadInput, "minSendable"),
        ({"minSendable": -1}, BadInput, "minSendable"),
        ({"tag": ["payRequest"]}, BadInput, "tag"),
        ({"callback": ["http://127.0.0.1/"]}, BadInput, "callback"),
        ({"nostrPubkey": "npub1"}, BadZap, "nostrPubkey"),
        ({"status": "ERROR", "reason": {"no": "text"}}, NotAllowed, "lnurl"),
        ({"callback": None}, BadInput, "callback"),
        ({"callback": "file:///etc/passwd"}, BadInput, "url"),
        ({"callback": "http://user@127.0.0.1/"}, BadInput, "url"),
        ({"callback": "http://8.8.8.8/cb"}, NotAllowed, "url"),
        ({"callback": "https://127.0.0.1/" + "x" * 2_000}, TooLarge, "url"),
        ({"metadata": "x" * 70_000}, TooLarge, "answer"),
        ({"status": "ERROR", "reason": "closed"}, NotAllowed, "lnurl"),
    ],
)
async def test_an_offer_that_is_not_as_it_must_be_is_refused(endpoint, offer, error, field):
    url, asked = await endpoint(offer)
    with pytest.raises(error) as raised:
        await fetch(url)
    assert raised.value.field == field
    assert not asked


@pytest.mark.parametrize(
    ("invoice", "field"),
    [
        ({"amount_msat": 21_001}, "amount"),
        ({"description_hash": "00" * 32}, "description_hash"),
        ({"description_hash": None, "description": "zap"}, "description_hash"),
        ({"created_at_s": 1_700_000_000}, "expiry"),
        ({"network": "bc"}, "network"),
        ({"min_final_cltv_expiry": 289}, "min_final_cltv_expiry"),
        ({"min_final_cltv_expiry": 65_535}, "min_final_cltv_expiry"),
    ],
)
async def test_an_invoice_that_is_not_what_was_asked_for_is_refused(endpoint, invoice, field):
    url, _ = await endpoint(invoice=invoice)
    with pytest.raises(BadInvoice) as raised:
        await fetch(url)
    assert raised.value.field == field


async def test_another_node_than_before_is_refused(endpoint):
    url, _ = await endpoint()
    with pytest.raises(BadInvoice, match="payee"):
        await fetch(url, payee="02" + "11" * 32)


async def test_redirects_are_not_followed(endpoint, serve):
    url, asked = await endpoint()

    async def elsewhere(request):
        raise web.HTTPFound(url)

    with pytest.raises(NotAllowed, match="redirect"):
        await fetch(await serve({"/": elsewhere}))
    moved, _ = await endpoint(callback=elsewhere)
    with pytest.raises(NotAllowed, match="redirect"):
        await fetch(moved)
    assert not asked


async def test_a_payment_takes_two_requests_over_one_connection(serve):
    connections, requests = set(), []

    async def offers(request):
        connections.add(request.transport.get_extra_info("peername"))
        requests.append(request.path)
        callback = f"http://{request.host}/cb"
        said = {"tag": "payRequest", "callback": callback, "minSendable": 1, "maxSendable": 50_000}
        return web.json_response({**said, "allowsNostr": True, "nostrPubkey": PROVIDER.public})

    async def callback(request):
        connections.add(request.transport.get_extra_info("peername"))
        requests.append(request.path)
        return web.json_response({"pr": invoice_for(request.query["nostr"]).bolt11})

    url = await serve({"/pay": offers, "/cb": callback})
    for _ in range(3):
        await fetch(f"{url}/pay")
    assert (requests, len(connections)) == (["/pay", "/cb"] * 3, 3)


async def test_an_endpoint_that_never_answers_is_left(serve):
    async def never(request):
        await asyncio.Event().wait()

    with pytest.raises(TimedOut):
        await fetch(await serve({"/": never}), timeout_s=0.1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"pr"', b"\xff"])
async def test_an_answer_that_is_no_object_is_refused(endpoint, body):
    async def broken(request):
        return web.Response(body=body)

    url, _ = await endpoint(callback=broken)
    with pytest.raises(BadInput):
        await fetch(url)


@pytest.mark.parametrize("pr", [None, 5, ["lnbcrt1"], {"pr": "lnbcrt1"}, True, "", "lnbcrt1", "x" * 3_000])
async def test_an_answer_without_an_invoice_is_refused(endpoint, pr):
    async def wrong(request):
        return web.json_response({"pr": pr, "routes": []})

    url, _ = await endpoint(callback=wrong)
    with pytest.raises((BadInvoice, TooLarge)):
        await fetch(url)


async def test_a_body_that_drips_is_left_in_time(endpoint):
    async def drip(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.02)

    url, _ = await endpoint(callback=drip)
    async with asyncio.timeout(30):
        with pytest.raises(TimedOut):
            await fetch(url, timeout_s=0.3)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_does_not_end_is_not_read_to_its_end(endpoint, declared):
    sent = []

    async def flood(request):
        answer = web.StreamResponse()
        if declared:
            answer.content_length = 2**30
        await answer.prepare(request)
        while True:
            await answer.write(b" " * 65_536)
            sent.append(65_536)

    url, _ = await endpoint(callback=flood)
    with pytest.raises(TooLarge):
        await fetch(url)
    assert sum(sent) < 32 * 2**20


async def test_a_body_is_not_decompressed(endpoint):
    """A hundred megabytes of spaces are a hundred kilobytes on the wire."""
    asked = []

    async def bomb(request):
        asked.append(request.headers["Accept-Encoding"])
        body = gzip.compress(b" " * 10_000_000 + b"{}")
        return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    url, _ = await endpoint(callback=bomb)
    with pytest.raises(BadInput, match="not JSON"):
        await fetch(url)
    assert asked == ["identity"]


async def test_a_callback_at_a_private_address_is_not_dialled(endpoint, monkeypatch):
    """The offer came from a public address: its callback names one of the payer's own network."""
    url, asked = await endpoint()

    async def offer(at, connections):
        return lnurl.Offer(lnurl.address_policy.parse(url.replace("http:", "https:")), 1, 50_000, PROVIDER.public)

    monkeypatch.setattr(lnurl, "_offer", offer)
    with pytest.raises(NotAllowed, match="not a public address"):
        await fetch("https://provider.example/pay", allow_private=False)
    assert not asked


async def test_a_name_that_is_rebound_to_a_private_address_is_not_dialled(endpoint, monkeypatch):
    """DNS rebinding: what is resolved for the connection itself is what is checked."""
    url, asked = await endpoint()
    port = int(url.split(":")[2].partition("/")[0])
    looked_up = []

    async def resolve(self, host, port=0, family=0):
        looked_up.append(host)
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}]

    monkeypatch.setattr(lnurl.address_policy.DefaultResolver, "resolve", resolve)
    with pytest.raises(NotAllowed, match="not a public address"):
        await fetch(f"https://rebound.example:{port}/.well-known/lnurlp/alice", allow_private=False)
    assert looked_up == ["rebound.example"] and not asked


async def test_a_request_that_names_another_endpoint_is_not_sent_there(endpoint):
    url, asked = await endpoint()
    key = zaps.Key("10" * 32, PROVIDER.public, 0)

    def naming(text):
        return zaps.build_request(CUSTOMER, key, 21_000, relays=[], lnurl=text, created_at=int(time.time()))

    with pytest.raises(BadZap, match="lnurl"):
        await fetch(url, naming(lnurl.encode("https://other.example/pay")))
    assert not asked
    assert await fetch(url, naming(lnurl.encode(url).upper()))


async def test_whose_receipts_an_endpoint_announces_may_be_left_to_it(endpoint):
    url, _ = await endpoint({"nostrPubkey": CUSTOMER.public})
    assert (await fetch(url, nostr_pubkey=None)).amount_msat == 21_000
    assert (await lnurl.fetch_offer(url, allow_private=True)).nostr_pubkey == CUSTOMER.public


async def test_nobody_there_is_a_lost_link(unused_tcp_port):
    with pytest.raises(LinkLost):
        await fetch(f"http://127.0.0.1:{unused_tcp_port}/")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest",
        "https://224.0.0.1/",
        "https://localhost/",
    ],
)
async def test_without_leave_only_public_https_is_dialled(url):
    with pytest.raises((NotAllowed, LinkLost)) as raised:
        await fetch(url, allow_private=False)
    assert isinstance(raised.value, NotAllowed)


async def test_with_leave_plain_http_is_for_private_addresses_only():
    with pytest.raises(NotAllowed, match="http"):
        await fetch("http://8.8.8.8/")


def test_an_lnurl_an_address_and_a_url_stand_for_the_same():
    url = "https://service.example/.well-known/lnurlp/alice"
    assert lnurl.pay_url(url) == lnurl.pay_url("alice@service.example") == url
    assert lnurl.pay_url(lnurl.encode(url)) == lnurl.pay_url(lnurl.encode(url).upper()) == url


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=60))
def test_an_lnurl_is_what_another_implementation_makes_and_reads(path):
    url = f"https://service.example/{path}"
    assert lnurl.encode(url) == url_encode(url).lower()
    assert url_decode(lnurl.encode(url)) == url


@pytest.mark.parametrize(
    ("prefix", "octets"), [("lnurl1x", b"https://a.example/"), ("lnurl", b"https://a.example/\xff")]
)
def test_bech32_of_something_else_is_no_lnurl(prefix, octets):
    with pytest.raises(BadInput, match="not a URL in bech32"):
        lnurl.pay_url(bech32_text.encode(prefix, octets))


def test_the_example_of_lud_01_is_read():
    text = (
        "LNURL1DP68GURN8GHJ7UM9WFMXJCM99E3K7MF0V9CXJ0M385EKVCENXC6R2C35XVUKXEFCV5MKVV34X5EKZD3EV56NYD3HXQURZEPEXEJXXEP"
        "NXSCRVWFNV9NXZCN9XQ6XYEFHVGCXXCMYXYMNSERXFQ5FNS"
    )
    secret = "3fc3645b439ce8e7f2553a69e5267081d96dcd340693afabe04be7b0ccd178df"
    assert lnurl.pay_url(text) == f"https://service.com/api?q={secret}"


@pytest.mark.parametrize("text", ["", "alice", "lnurl1xyz", "ftp://a/b", "https://", "https://a:99999/", "x" * 5_000])
def test_what_stands_for_no_url_is_refused(text):
    with pytest.raises(BadInput):
        lnurl.pay_url(text)


@given(st.text(max_size=80))
def test_whatever_text_comes_the_error_is_typed(text):
    for form in (text, "https://" + text, "lnurl1" + text, text + "@" + text):
        try:
            assert lnurl.pay_url(form).startswith("http")
        except NodewireError:
            continue


@pytest.fixture
async def provider(open_wallet, unused_tcp_port, tmp_path):
    """A market whose till answers at a real endpoint; (market, pay URL, base URL)."""
    market = Market(await open_wallet(0), await open_wallet(1_000_000), tmp_path)
    base = f"http://127.0.0.1:{unused_tcp_port}"
    endpoint = Endpoint("alice", base, market.provider.public, market.till.quote, 10, 100_000)
    app = web.Application()
    app.add_routes(routes(endpoint))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield market, endpoint.pay_url, base
    await runner.cleanup()
    market.close()


async def test_a_chunk_is_zapped_through_the_providers_own_endpoint(provider):
    market, url, _ = provider
    market.deliver()
    over = lnurl.over_lnurl(url, nostr_pubkey=market.provider.public, network="bcrt", allow_private=True)
    debt = await market.pay(fetch=over, lnurl=lnurl.encode(url))
    await market.settle(1)
    ((receipt, _),) = market.relays.events
    counted = zaps.check_receipt(
        receipt,
        nostr_pubkey=market.provider.public,
        network="bcrt",
        lnurl=lnurl.encode(url),
        key=market.key(),
    )
    assert counted.invoice.payment_hash == debt.payment_hash


async def test_the_endpoints_refusal_comes_back_as_its_typed_error(provider):
    market, url, _ = provider
    with pytest.raises(NotFound):
        await fetch(url, request_event())
    market.deliver()
    with pytest.raises(BadZap, match="amount"):
        await fetch(url, request_event(20_000), 20_000)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "amount"),
        ({"amount": "-1"}, "amount"),
        ({"amount": "9"}, "amount"),
        ({"amount": "100001"}, "amount"),
        ({"amount": "9" * 50}, "amount"),
        ({"amount": "21000"}, "nostr"),
        ({"amount": "21000", "nostr": "{}"}, "request"),
        ({"amount": "21000", "nostr": "x" * 5_000}, "nostr"),
    ],
)
async def test_bad_queries_get_lud_06s_error_naming_the_field(provider, query, field):
    _, _, base = provider
    async with ClientSession() as session, session.get(f"{base}/lnurlp/alice/callback", params=query) as response:
        answer = orjson.loads(await response.read())
        assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert (answer["status"], answer["field"]) == ("ERROR", field)
    assert answer["reason"]


async def test_the_offer_is_what_lud_06_and_nip_57_ask_for(provider):
    market, url, base = provider
    async with ClientSession() as session, session.get(url) as response:
        offer = orjson.loads(await response.read())
    assert (offer["tag"], offer["allowsNostr"], offer["nostrPubkey"]) == ("payRequest", True, market.provider.public)
    assert (offer["minSendable"], offer["maxSendable"]) == (10, 100_000)
    assert offer["callback"].startswith(base)
    assert any(kind == "text/plain" for kind, _ in orjson.loads(offer["metadata"]))
