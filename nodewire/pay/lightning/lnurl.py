"""LNURL-pay: the URL forms, and a payer that believes nothing it is told. The payee's side is `lnurl_server`.

https://github.com/lnurl/luds: LUD-01 (bech32), LUD-06 (payRequest), LUD-16 (addresses); NIP-57 for `nostr` and `lnurl`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from lnurl.helpers import url_decode, url_encode

from nodewire.errors import BadInput, BadInvoice, BadZap, LinkLost, NotAllowed, TimedOut, TooLarge, from_dict
from nodewire.net import address_policy
from nodewire.nostr.event import Event
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.invoices import Invoice

if TYPE_CHECKING:
    from yarl import URL

MAX_ANSWER_BYTES = 65_536

Fetch = Callable[[Event, int], Awaitable[Invoice]]
"""How a payer gets the invoice for a signed zap request and its amount in msat."""


def encode(url: str) -> str:
    """`url` as "lnurl1..." (LUD-01)."""
    return url_encode(url).lower()


def pay_url(text: str) -> str:
    """The payRequest URL that a URL, an "lnurl1..." or an address "name@host" stands for.

    Raises:
        BadInput: it is none of these.

    """
    if len(text) > 2 * address_policy.MAX_URL_CHARS:
        raise TooLarge("lnurl", f"{len(text)} characters")
    if text.lower().startswith("lnurl1"):
        try:
            text = url_decode(text)
        except (ValueError, TypeError, AssertionError) as error:  # the last two for a padding that is not right
            raise BadInput("lnurl", "not a URL in bech32") from error
    elif "@" in text and "/" not in text:
        name, _, host = text.partition("@")
        text = f"https://{host}/.well-known/lnurlp/{name}"
    address_policy.parse(text)
    return text


def over_lnurl(
    url: str, *, nostr_pubkey: str, network: str, allow_private: bool = False, timeout_s: float = 10.0
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
    nostr_pubkey: str,
    network: str,
    payee: str | None = None,
    allow_private: bool = False,
    timeout_s: float = 10.0,
) -> Invoice:
    """The invoice that the endpoint at `url` makes for `zap_request`, checked against everything that was asked for.

    `nostr_pubkey` must be the endpoint's zapper, `payee` (if known) its node. With `allow_private`, addresses that are
    not public (loopback, private networks) may be dialled, and these alone over plain http; without, only public
    addresses and only https. Redirects are not followed.

    Raises:
        BadInput: the endpoint's answer is malformed (BadInvoice, BadZap: it is not what was asked for).
        NotAllowed: an address or scheme that the policy excludes, or the endpoint's own refusal.
        TooLarge, TimedOut, LinkLost: more than 64 KB, more than `timeout_s`, or no connection.

    """
    text = zap_request.to_json()
    try:
        async with asyncio.timeout(timeout_s):
            offer = await _get(address_policy.parse(url), allow_private)
            callback = _callback(offer, amount_msat, nostr_pubkey)
            query = {"amount": str(amount_msat), "nostr": text, "lnurl": encode(url)}
            answer = await _get(callback.update_query(query), allow_private)
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


def _callback(offer: dict[str, Any], amount_msat: int, nostr_pubkey: str) -> URL:
    """The callback of a payRequest that takes this amount as a zap."""
    if offer.get("tag") != "payRequest":
        raise BadInput("tag", "not a payRequest")
    if offer.get("allowsNostr") is not True:
        raise BadZap("allowsNostr", "the endpoint takes no zaps")
    if offer.get("nostrPubkey") != nostr_pubkey:
        raise BadZap("nostrPubkey", "receipts would be signed by another key")
    least, most = offer.get("minSendable"), offer.get("maxSendable")
    if type(least) is not int or type(most) is not int:
        raise BadInput("minSendable", "the limits are not integers")
    if not least <= amount_msat <= most:
        raise NotAllowed("amount", f"{amount_msat} msat, the endpoint takes {least} msat to {most} msat")
    callback = offer.get("callback")
    if not isinstance(callback, str):
        raise BadInput("callback", "not a string")
    return address_policy.parse(callback)


async def _get(url: URL, allow_private: bool) -> dict[str, Any]:
    """The JSON object at `url`, under 64 KB, without redirects."""
    connector = address_policy.connector(url, allow_private=allow_private)
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url, allow_redirects=False) as got,
        ):
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
        raise BadInput("answer", "not JSON") from error
    if not isinstance(answer, dict):
        raise BadInput("answer", "not an object")
    if answer.get("status") == "ERROR":
        # Another nodewire tells its typed error; any other service only a reason.
        raise from_dict(answer) if "code" in answer else NotAllowed("lnurl", str(answer.get("reason"))[:200])
    return answer
