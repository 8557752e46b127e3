"""The provider's LNURL endpoint as browsers, wallets and strangers see it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from urllib.parse import quote as quoted

import lnurl as theirs
import orjson
import pytest
from aiohttp import ClientSession

from nodewire.errors import BadInput, Busy, NotFound
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import zaps
from nodewire.pay.lightning import invoices, lnurl_server
from nodewire.pay.lightning.lnurl_server import MAX_COMMENT_CHARS, MAX_ZAP_REQUEST_CHARS, Endpoint, serve_endpoint

CUSTOMER, PROVIDER = Keys(b"\x01" * 32), Keys(b"\x02" * 32)
ORIGIN = {"Origin": "https://wallet.example"}


class Shop:
    """What stands for a till: it writes down what it is asked."""

    def __init__(self):
        self.asked, self.fails = [], None

    async def quote(self, zap_request, amount_msat, origin):
        return self._made(("zap", zap_request, amount_msat), zap_request, amount_msat)

    async def tip(self, amount_msat, metadata, comment, origin):
        return self._made(("tip", comment, amount_msat), metadata, amount_msat)

    def _made(self, what, description, amount_msat):
        self.asked.append(what)
        if self.fails is not None:
            raise self.fails
        return invoices.issue(
            b"\x09" * 32,
            network="bcrt",
            amount_msat=amount_msat,
            payment_hash=f"{len(self.asked):064x}",
            created_at_s=int(time.time()),
            expiry_s=60,
            description_hash=zaps.description_hash(description),
        )


@contextlib.asynccontextmanager
async def open_shop(takes_tips=True):
    shop = Shop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        endpoint = Endpoint("alice", base, PROVIDER.public, shop.quote, 10, 100_000, shop.tip if takes_tips else None)
        async with serve_endpoint(endpoint, listening), ClientSession() as session:
            yield shop, endpoint, session


async def asked(session, method, url, **options):
    async with session.request(method, url, headers=ORIGIN, **options) as answer:
        return answer, await answer.read()


def is_readable(answer):
    """Whether a page of another origin may read an answer, and which methods it may use."""
    headers = answer.headers
    return headers["Access-Control-Allow-Origin"] == "*" and "GET" in headers["Access-Control-Allow-Methods"]


async def test_a_wallet_in_a_browser_may_read_every_answer():
    async with open_shop() as (shop, endpoint, session):
        shop.fails = NotFound("due", "nothing is owed for that")
        base = endpoint.base_url
        for method, url, status in [
            ("OPTIONS", endpoint.pay_url, 204),
            ("OPTIONS", endpoint.callback, 204),
            ("HEAD", endpoint.pay_url, 200),
            ("HEAD", endpoint.callback, 405),
            ("GET", endpoint.pay_url, 200),
            ("GET", f"{endpoint.callback}?amount=50&nostr=x", 200),
            ("GET", f"{endpoint.callback}?amount=bad", 200),
            ("GET", f"{base}/.well-known/lnurlp/nobody", 404),
            ("GET", f"{base}/", 404),
            ("POST", endpoint.callback, 405),
            ("PUT", endpoint.pay_url, 405),
            ("DELETE", f"{base}/nowhere", 404),
        ]:
            answer, body = await asked(session, method, url)
            assert (answer.status, is_readable(answer)) == (status, True), (method, url)
            if status >= 400:
                assert answer.content_type == "application/json"
            if status >= 400 and method != "HEAD":
                said = orjson.loads(body)
                assert said["status"] == "ERROR" and said["reason"] and said["code"]
            if status == 405:
                assert "GET" in answer.headers["Allow"] and "OPTIONS" in answer.headers["Allow"]


async def test_a_preflight_is_answered_as_browsers_ask():
    async with open_shop() as (_, endpoint, session):
        wants = {
            **ORIGIN,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "content-type, x-requested-with",
        }
        async with session.options(endpoint.callback, headers=wants) as answer:
            assert (answer.status, await answer.read(), is_readable(answer)) == (204, b"", True)
            assert answer.headers["Access-Control-Allow-Headers"] == "*"
            assert int(answer.headers["Access-Control-Max-Age"]) > 0


async def test_a_head_makes_no_invoice():
    async with open_shop() as (shop, endpoint, session):
        answer, _ = await asked(session, "HEAD", f"{endpoint.callback}?amount=50")
        assert answer.status == 405 and not shop.asked


async def test_too_many_requests_are_told_in_json_that_a_browser_reads(monkeypatch):
    monkeypatch.setattr(lnurl_server, "REQUESTS_PER_S", 0.001)
    monkeypatch.setattr(lnurl_server, "REQUESTS_BURST", 1.0)
    async with open_shop() as (_, endpoint, session):
        answers = [await asked(session, "GET", endpoint.pay_url) for _ in range(2)]
        ((first, _), (second, body)) = answers
        assert (first.status, second.status, is_readable(second)) == (200, 429, True)
        assert orjson.loads(body)["code"] == "busy" and int(second.headers["Retry-After"]) > 0


async def test_a_till_that_has_no_room_says_when_to_come_again():
    async with open_shop() as (shop, endpoint, session):
        shop.fails = Busy("invoices", "too many are unpaid")
        answer, body = await asked(session, "GET", f"{endpoint.callback}?amount=50")
        assert (answer.status, is_readable(answer), orjson.loads(body)["code"]) == (429, True, "busy")
        assert int(answer.headers["Retry-After"]) > 0


async def test_connections_that_make_room_are_told_in_json_that_a_browser_reads(monkeypatch):
    monkeypatch.setattr(lnurl_server, "MAX_CONNECTIONS", 1)
    async with open_shop() as (_, endpoint, _):
        host, port = endpoint.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.sleep(0.05)
        _, other = await asyncio.open_connection(host, int(port))
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert b" 503 " in head and b"Access-Control-Allow-Origin: *" in head
        assert orjson.loads(body)["code"] == "busy"
        for one in (writer, other):
            one.close()


async def test_what_is_no_http_or_too_long_is_refused_in_json_that_a_browser_reads():
    async with open_shop() as (shop, endpoint, session):
        answer, body = await asked(session, "GET", f"{endpoint.callback}?amount=50&comment={'x' * 20_000}")
        assert (answer.status, is_readable(answer), answer.content_type) == (400, True, "application/json")
        said = orjson.loads(body)
        assert (said["status"], said["field"]) == ("ERROR", "request")
        assert str(lnurl_server.MAX_LINE_BYTES) in said["reason"] and not shop.asked


async def test_a_defect_is_told_without_its_words(caplog):
    async with open_shop() as (shop, endpoint, session):
        shop.fails = RuntimeError("a secret")
        answer, body = await asked(session, "GET", f"{endpoint.callback}?amount=50")
        assert (answer.status, is_readable(answer), orjson.loads(body)["status"]) == (500, True, "ERROR")
        assert b"secret" not in body and "a secret" in caplog.text


async def test_the_longest_zap_request_fits_into_a_url():
    """Each of its quotation marks is three bytes there."""
    async with open_shop() as (shop, endpoint, session):
        longest = '"' * MAX_ZAP_REQUEST_CHARS
        url = f"{endpoint.callback}?amount=50&nostr={quoted(longest)}"
        _, body = await asked(session, "GET", url)
        assert "pr" in orjson.loads(body) and shop.asked == [("zap", longest, 50)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "amount"),
        ("amount=9", "amount"),
        ("amount=100001", "amount"),
        ("amount=1e3", "amount"),
        ("amount=%D9%A1%D9%A2", "amount"),
        ("amount=50&amount=60", "amount"),
        ("amount=50&nostr=a&nostr=b", "nostr"),
        ("amount=50&nostr=" + "x" * (MAX_ZAP_REQUEST_CHARS + 1), "nostr"),
        ("amount=50&comment=" + "x" * (MAX_COMMENT_CHARS + 1), "comment"),
    ],
)
async def test_a_bad_query_is_refused_by_its_field_and_asks_for_no_invoice(query, field):
    async with open_shop() as (shop, endpoint, session):
        _, body = await asked(session, "GET", f"{endpoint.callback}?{query}")
        said = orjson.loads(body)
        assert (said["status"], said["field"], shop.asked) == ("ERROR", field, [])


async def test_an_endpoint_that_takes_zaps_only_says_so():
    async with open_shop(takes_tips=False) as (shop, endpoint, session):
        _, body = await asked(session, "GET", endpoint.pay_url)
        assert "commentAllowed" not in orjson.loads(body)
        _, body = await asked(session, "GET", f"{endpoint.callback}?amount=50")
        assert (orjson.loads(body)["field"], shop.asked) == ("nostr", [])


@pytest.mark.parametrize(("least", "most"), [(0, 5), (-1, 5), (6, 5)])
def test_an_endpoint_that_nothing_can_be_sent_to_is_not_made(least, most):
    with pytest.raises(BadInput, match="nothing can be sent"):
        Endpoint("alice", "http://a.example", PROVIDER.public, None, least, most)


# The `lnurl` package's client, an independent implementation, pays here. It dials plain http on loopback.


async def test_another_client_reads_the_offer_and_gets_an_invoice():
    async with open_shop() as (shop, endpoint, _):
        offer = await theirs.handle(theirs.encode(endpoint.pay_url).bech32)
        assert (offer.tag, offer.minSendable, offer.maxSendable) == ("payRequest", 10, 100_000)
        assert (offer.allowsNostr, offer.nostrPubkey, offer.commentAllowed) == (
            True,
            PROVIDER.public,
            MAX_COMMENT_CHARS,
        )
        paid = await theirs.execute_pay_request(offer, 21_000, comment="thank you")
        assert shop.asked == [("tip", "thank you", 21_000)]
        invoice = invoices.decode(str(paid.pr), network="bcrt")
        assert invoice.description_hash == offer.metadata.h, "LUD-06: it commits to the metadata"


async def test_another_client_reads_our_refusals():
    async with open_shop() as (shop, endpoint, _):
        offer = await theirs.handle(theirs.encode(endpoint.pay_url).bech32)
        shop.fails = NotFound("due", "nothing is owed for that")
        with pytest.raises(theirs.LnurlResponseException, match="nothing is owed for that"):
            await theirs.execute_pay_request(offer, 21_000)
