"""LNURL-pay: the URL forms, and a payer that believes nothing it is told. The payee's side is `lnurl_server`.

https://github.com/lnurl/luds: LUD-01 (bech32), LUD-06 (payRequest), LUD-16 (addresses); NIP-57 for `nostr` and `lnurl`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from yarl import URL

from nodewire.errors import BadInput, BadInvoice, BadZap, LinkLost, NotAllowed, TimedOut, TooLarge, from_dict
from nodewire.net import address_policy
from nodewire.nostr import bech32_text
from nodewire.nostr.event import Event
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.invoices import Invoice

if TYPE_CHECKING:
    from yarl import URL

MAX_ANSWER_BYTES = 65_536
_MOST_SAID = 200
_HEX64 = re.compile(r"[0-9a-f]{64}", re.ASCII)

Fetch = Callable[[Event, int], Awaitable[Invoice]]
"""How a payer gets the invoice for a signed zap request and its amount in msat."""


def encode(url: str) -> str:
    """`url` as "lnurl1..." (LUD-01)."""
    return bech32_text.encode("lnurl", url.encode())


def pay_url(text: str) -> str:
    """The payRequest URL that a URL, an "lnurl1..." or an address "name@host" stands for.

    Raises:
        BadInput: it is none of these.

    """
    if len(text) > 2 * address_policy.MAX_URL_CHARS:
        raise TooLarge("lnurl", f"{len(text)} characters")
    if text.lower().startswith("lnurl1"):
        try:
            prefix, octets = bech32_text.decode(text)
            text = octets.decode()
        except (BadInput, UnicodeDecodeError) as error:
            raise BadInput("lnurl", "not a URL in bech32") from error
        if prefix != "lnurl":
            raise BadInput("lnurl", "not a URL in bech32")
    elif "@" in text and "/" not in text:
        name, _, host = text.partition("@")
        text = f"https://{host}/.well-known/lnurlp/{name}"
    address_policy.parse(text)
    return text


def over_lnurl(
    url: str, *, nostr_pubkey: str | None, network: str, allow_private: bool = False, timeout_s: float = 10.0
) -> Fetch:
    """`fetch_invoice` as the `Fetch` of one provider's endpoint."""

    async def fetch(zap_request: Event, amount_msat: int) -> Invoice:
        return await fetch_invoice(
            url,
            zap_request,
            amount_msat,
            nostr_pubkey=nostr_pubkey,
            network=network,
            allow_private=allow_private,
            timeout_s=timeout_s,
        )

    return fetch


async def fetch_invoice(
    url: str,
    zap_request: Event,
    amount_msat: int,
    *,
    nostr_pubkey: str | None,
    network: str,
    payee: str | None = None,
    allow_private: bool = False,
    timeout_s: float = 10.0,
) -> Invoice:
    """The invoice that the endpoint at `url` makes for `zap_request`, checked against everything that was asked for.

    `nostr_pubkey` (if known) must be the endpoint's zapper, `payee` (if known) its node. With `allow_private`,
    addresses that are not public (loopback, private networks) may be dialled, and these alone over plain http; without,
    only public addresses and only https. Redirects are not followed.

    Raises:
        BadInput: the endpoint's answer is malformed (BadInvoice, BadZap: it is not what was asked for).
        NotAllowed: an address or scheme that the policy excludes, or the endpoint's own refusal.
        TooLarge, TimedOut, LinkLost: more than 64 KB, more than `timeout_s`, or no connection.

    """
    text = zap_request.to_json()
    if (named := zap_request.tag("lnurl")) is not None and named.lower() != encode(url):
        raise BadZap("lnurl", "the request names another endpoint than is asked: no receipt for it would hold")
    try:
        async with asyncio.timeout(timeout_s), _Connections(allow_private) as connections:
            offer = await _offer(url, connections)
            if offer.zapper() != nostr_pubkey and nostr_pubkey is not None:
                raise BadZap("nostrPubkey", "receipts would be signed by another key")
            callback = offer.callback_for(amount_msat)
            query = {"amount": str(amount_msat), "nostr": text, "lnurl": encode(url)}
            answer = await _get(callback.update_query(query), connections)
    except TimeoutError as error:
        raise TimedOut("lnurl", f"no invoice from {url[:200]} within {timeout_s} s") from error
    bolt11 = answer.get("pr")
    if not isinstance(bolt11, str):
        raise BadInvoice("pr", "not a string")
    invoice = invoices.decode(bolt11, network=network)
    invoices.check(
        invoice,
        amount_msat=amount_msat,
        now_s=time.time(),
        description_hash=hashlib.sha256(text.encode()).hexdigest(),
        payee=payee,
    )
    return invoice


@dataclass(frozen=True, slots=True)
class Offer:
    """What an endpoint says of itself. Amounts are in msat."""

    callback: URL
    least_msat: int
    most_msat: int
    nostr_pubkey: str
    """It signs the receipts of zaps; empty where none are taken."""
    description: str = ""
    """Whom or what payments are for, in the endpoint's own words."""

    def zapper(self) -> str:
        """The key that signs receipts. Raises BadZap: the endpoint takes no zaps."""
        if not self.nostr_pubkey:
            raise BadZap("allowsNostr", "the endpoint takes no zaps")
        return self.nostr_pubkey

    def callback_for(self, amount_msat: int) -> URL:
        """Raises NotAllowed: the endpoint does not take that amount."""
        if not self.least_msat <= amount_msat <= self.most_msat:
            limits = f"{self.least_msat} msat to {self.most_msat} msat"
            raise NotAllowed("amount", f"{amount_msat} msat, the endpoint takes {limits}")
        return self.callback


async def fetch_offer(url: str, *, allow_private: bool = False, timeout_s: float = 10.0) -> Offer:
    """What the endpoint at `url` says of itself. Raises as `fetch_invoice`."""
    try:
        async with asyncio.timeout(timeout_s), _Connections(allow_private) as connections:
            return await _offer(url, connections)
    except TimeoutError as error:
        raise TimedOut("lnurl", f"{url[:200]} did not answer within {timeout_s} s") from error


async def _offer(url: str, connections: _Connections) -> Offer:
    """The payRequest at `url`."""
    said = await _get(address_policy.parse(url), connections)
    if said.get("tag") != "payRequest":
        raise BadInput("tag", "not a payRequest")
    signer = said.get("nostrPubkey") if said.get("allowsNostr") is True else ""
    if not isinstance(signer, str) or (signer and _HEX64.fullmatch(signer) is None):
        raise BadZap("nostrPubkey", "no public key in 64 hex digits")
    least, most = said.get("minSendable"), said.get("maxSendable")
    if type(least) is not int or type(most) is not int:
        raise BadInput("minSendable", "the limits are not integers")
    if not 0 < least <= most:
        raise BadInput("minSendable", f"from {least} msat to {most} msat nothing can be sent")
    callback = said.get("callback")
    if not isinstance(callback, str):
        raise BadInput("callback", "not a string")
    return Offer(address_policy.parse(callback), least, most, signer, _said(said.get("metadata")))


async def fetch_plain_invoice(
    offer: Offer, amount_msat: int, *, network: str, allow_private: bool = False, timeout_s: float = 10.0
) -> Invoice:
    """An invoice for a payment that is no zap (LUD-06), of this amount and network. Raises as `fetch_invoice`."""
    callback = offer.callback_for(amount_msat)
    try:
        async with asyncio.timeout(timeout_s), _Connections(allow_private) as connections:
            answer = await _get(callback.update_query({"amount": str(amount_msat)}), connections)
    except TimeoutError as error:
        raise TimedOut("lnurl", f"no invoice from {offer.callback.host} within {timeout_s} s") from error
    bolt11 = answer.get("pr")
    if not isinstance(bolt11, str):
        raise BadInvoice("pr", "not a string")
    invoice = invoices.decode(bolt11, network=network)
    invoices.check(invoice, amount_msat=amount_msat, now_s=time.time())
    return invoice


def _said(metadata: Any) -> str:
    """The short text of a payRequest's metadata; empty if there is none that can be read. Nothing rests on it."""
    try:
        rows = orjson.loads(metadata) if isinstance(metadata, str) else []
    except orjson.JSONDecodeError:
        return ""
    rows = rows if isinstance(rows, list) else []
    texts = [row[1] for row in rows if isinstance(row, list) and len(row) == 2 and row[0] == "text/plain"]
    return texts[0][:_MOST_SAID] if texts and isinstance(texts[0], str) else ""


class _Connections:
    """A session for each origin that a payment leads to, mostly one: its callback goes over the same connection."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._stack = AsyncExitStack()
        self._sessions: dict[URL, aiohttp.ClientSession] = {}

    async def to(self, url: URL) -> aiohttp.ClientSession:
        """Raises NotAllowed: an address or scheme that the policy excludes."""
        origin = url.origin()
        if origin not in self._sessions:
            connector = address_policy.connector(url, allow_private=self._allow_private)
            # Nothing is decompressed: a few bytes on the wire would fill the memory.
            session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, headers={"Accept-Encoding": "identity"}
            )
            self._sessions[origin] = await self._stack.enter_async_context(session)
        return self._sessions[origin]

    async def __aenter__(self) -> _Connections:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()


async def _get(url: URL, connections: _Connections) -> dict[str, Any]:
    """The JSON object at `url`, under 64 KB, without redirects."""
    session = await connections.to(url)
    try:
        async with session.get(url, allow_redirects=False) as got:
            if 300 <= got.status < 400:
                raise NotAllowed("url", "the endpoint redirects")
            body = bytearray()
            async for piece in got.content.iter_chunked(16_384):
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise TooLarge("answer", f"over {MAX_ANSWER_BYTES} bytes")
    except (aiohttp.ClientError, OSError) as error:
        raise LinkLost("lnurl", f"{url.host}: {error}"[:300]) from error
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadInput("answer", f"not JSON (HTTP {got.status})") from error
    if not isinstance(answer, dict):
        raise BadInput("answer", "not an object")
    if answer.get("status") == "ERROR":
        # Another nodewire tells its typed error; any other service only a reason.
        raise from_dict(answer) if "code" in answer else NotAllowed("lnurl", str(answer.get("reason"))[:200])
    return answer
