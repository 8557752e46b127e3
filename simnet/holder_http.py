"""The bond holder and treasurer over HTTP and JSON.

GET  /v1/holder                {public, committee, unbonding_s, statement_s, lnurl, pool_msat}
GET  /v1/bonds/PROVIDER        its newest bond: {bond, provider, amount_msat, remainder_msat, state, until_s, ...}
POST /v1/bonds                 {key, amount_msat, until_s}             A P   lock; the same key, the same bond
POST /v1/bonds/raise           {key, amount_msat, until_s}             A P
POST /v1/bonds/release         {}                                      A P
POST /v1/bonds/statement       {}                                        P   -> the signed statement (8858)
POST /v1/verdicts              {certificate, request}: two events            -> the settled case
GET  /v1/cases/CASE            a settled case: {outcome, culprit, bond, payouts, refused, due, ...}
POST /v1/claims                {case, bolt11}                            P   -> {amount_msat, payment_hash, is_paid}
POST /v1/fees                  {bolt11}                                  P   an oracle's part of the fees
GET  /v1/fees/ORACLE           {due_msat}
GET  /v1/treasury/REQUEST      {received_msat, left_msat}
GET  /v1/treasury/REQUEST/shares/CUSTOMER/CHUNK    {came_msat}: what the customer zapped for the chunk, fee included;
                                                   with ?before_ms=UNIX_MS what of it had come before
GET  /v1/treasury/receipts/PAYMENT_HASH    the zap receipt (9735)
GET  /.well-known/lnurlp/treasury and its callback: LNURL-pay, for zaps that name a job and a chunk

A: the account's bearer token. P: the request is signed by a Nostr key (NIP-98), whose bond or claim it is: in
`Authorization`, or beside a bearer token in `Nostr-Authorization`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from nodewire.errors import BadInput
from nodewire.net.json_http import (
    MAX_BODY_BYTES,
    MAX_EVIDENCE_BYTES,
    answer,
    bearer_token,
    bounded,
    hex32,
    parsed,
    raw_of,
)
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip98
from nodewire.pay.lightning import invoices, lnurl_server

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from simnet.holder_book import Claim, Deposit
    from simnet.service import Simnet
    from simnet.steps import VerdictStep
    from simnet.treasurer import Treasurer

NAME = "treasury"


def routes(treasurer: Treasurer, simnet: Simnet, base_url: str) -> list[web.RouteDef]:
    """The routes above; `base_url` is what others reach the service by."""
    endpoint = lnurl_server.Endpoint(NAME, base_url, treasurer.public, treasurer.shares.quote)
    own = _Routes(treasurer, simnet, base_url, endpoint.pay_url)
    return [
        web.get("/v1/holder", own.holder),
        web.post("/v1/bonds", own.lock),
        web.post("/v1/bonds/raise", own.top_up),
        web.post("/v1/bonds/release", own.release),
        web.post("/v1/bonds/statement", own.statement),
        web.get("/v1/bonds/{provider}", own.bond),
        web.post("/v1/verdicts", own.present),
        web.get("/v1/cases/{case}", own.case),
        web.post("/v1/claims", own.claim),
        web.post("/v1/fees", own.claim_fee),
        web.get("/v1/fees/{oracle}", own.fee),
        web.get("/v1/treasury/receipts/{payment_hash}", own.receipt),
        web.get("/v1/treasury/{request}", own.pot),
        web.get("/v1/treasury/{request}/shares/{customer}/{chunk}", own.share),
        *lnurl_server.routes(endpoint),
    ]


class _Routes:
    def __init__(self, treasurer: Treasurer, simnet: Simnet, base_url: str, lnurl: str) -> None:
        self._treasurer = treasurer
        self._simnet = simnet
        self._base_url = base_url
        self._lnurl = lnurl

    async def holder(self, _: web.Request) -> web.Response:
        rules = self._treasurer.rules
        return answer(
            {
                "public": self._treasurer.public,
                "committee": self._treasurer.committee.digest(),
                "unbonding_s": rules.delay_s,
                "statement_s": rules.statement_s,
                "lnurl": self._lnurl,
                "pool_msat": self._treasurer.pool_msat,
            }
        )

    async def bond(self, request: web.Request) -> web.Response:
        return answer(_bond(self._treasurer.bond(hex32(dict(request.match_info), "provider"))))

    async def lock(self, request: web.Request) -> web.Response:
        account, provider, body = await self._owner(request)
        return answer(_bond(self._treasurer.lock(account, provider, *_coins(body))))

    async def top_up(self, request: web.Request) -> web.Response:
        account, provider, body = await self._owner(request)
        return answer(_bond(self._treasurer.top_up(account, provider, *_coins(body))))

    async def release(self, request: web.Request) -> web.Response:
        account, provider, _ = await self._owner(request)
        return answer(_bond(self._treasurer.release(account, provider)))

    async def statement(self, request: web.Request) -> web.Response:
        provider, _ = await self._signed(request)
        return answer(self._treasurer.statement(provider).as_dict())

    async def present(self, request: web.Request) -> web.Response:
        body = parsed(await raw_of(request, MAX_EVIDENCE_BYTES))
        certificate, job = (_event(body, name) for name in ("certificate", "request"))
        return answer(self._case(self._treasurer.present(certificate, job)))

    async def case(self, request: web.Request) -> web.Response:
        return answer(self._case(self._treasurer.case(hex32(dict(request.match_info), "case"))))

    async def claim(self, request: web.Request) -> web.Response:
        payee, body = await self._signed(request)
        return answer(_claim(self._treasurer.claim(payee, hex32(body, "case"), _text(body, "bolt11"))))

    async def claim_fee(self, request: web.Request) -> web.Response:
        oracle, body = await self._signed(request)
        return answer(_claim(self._treasurer.claim_fee(oracle, _text(body, "bolt11"))))

    async def fee(self, request: web.Request) -> web.Response:
        return answer({"due_msat": self._treasurer.fee_msat(hex32(dict(request.match_info), "oracle"))})

    async def pot(self, request: web.Request) -> web.Response:
        received_msat, left_msat = self._treasurer.pot(hex32(dict(request.match_info), "request"))
        return answer({"received_msat": received_msat, "left_msat": left_msat})

    async def share(self, request: web.Request) -> web.Response:
        named = dict(request.match_info)
        if not named["chunk"].isdecimal() or len(named["chunk"]) > 16:
            raise BadInput("chunk", "not a number")
        job, customer = hex32(named, "request"), hex32(named, "customer")
        before = request.query.get("before_ms")
        if before is not None and not (before.isdecimal() and len(before) <= 16):
            raise BadInput("before_ms", "not a number")
        before_ms = int(before) if before is not None else None
        return answer({"came_msat": self._treasurer.share_msat(job, customer, int(named["chunk"]), before_ms)})

    async def receipt(self, request: web.Request) -> web.Response:
        return answer(self._treasurer.shares.receipt(hex32(dict(request.match_info), "payment_hash")).as_dict())

    async def _owner(self, request: web.Request) -> tuple[str, str, dict[str, Any]]:
        """The account and the provider that ask, and what."""
        account = self._simnet.account_of(bearer_token(request))
        return account, *await self._signed(request)

    async def _signed(self, request: web.Request) -> tuple[str, dict[str, Any]]:
        """The Nostr key that asks, and what. Raises NotAllowed."""
        raw = await raw_of(request, MAX_BODY_BYTES)
        asked = nip98.HttpRequest(self._base_url + request.path_qs, request.method, raw)
        header = request.headers.get("Nostr-Authorization", request.headers.get("Authorization"))
        return nip98.check_header(header, asked, now_s=self._simnet.time_s()), parsed(raw)

    def _case(self, judged: VerdictStep) -> dict[str, Any]:
        return {
            "case": judged.case,
            "digest": judged.digest,
            "request": judged.request,
            "outcome": judged.outcome,
            "culprit": judged.culprit,
            "slashes": judged.slashes,
            "bond": judged.bond,
            "payouts": judged.payouts,
            "refused": judged.refused,
            "due": {p: self._treasurer.due_msat(judged.case, p) for p in {*judged.payouts, *judged.agreed}},
        }


def _coins(body: dict[str, Any]) -> tuple[str, int, int]:
    amount_msat = bounded(body.get("amount_msat"), "amount_msat", invoices.MAX_MSAT)
    return _text(body, "key"), amount_msat, bounded(body.get("until_s"), "until_s", 2**53 - 1)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise BadInput(name, "not a string")
    return value


def _event(body: dict[str, Any], name: str) -> Event:
    """A verified event. Raises as `event.parse`."""
    return events.parse(body.get(name))


def _bond(deposit: Deposit) -> dict[str, Any]:
    bond = deposit.bond
    return {
        "bond": bond.id,
        "provider": bond.provider,
        "amount_msat": bond.amount_msat,
        "remainder_msat": bond.remainder_msat,
        "state": bond.state,
        "until_s": bond.until_s,
        "stated_until_s": bond.stated_until_s,
        "frees_at_s": bond.frees_at_s,
        "cases": [judged.case for judged in bond.judged],
    }


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "amount_msat": claim.event.amount_msat,
        "payment_hash": claim.event.payment_hash,
        "is_paid": claim.is_paid,
    }
