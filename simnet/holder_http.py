"""The bond holder and treasurer over HTTP and JSON.

GET  /v1/holder                {public, committee, unbonding_s, statement_s, lnurl, pool_msat, unit_msat}
GET  /v1/bonds/PROVIDER        its newest bond: {bond, provider, amount_msat, remainder_msat, state, until_s, ...}
POST /v1/bonds                 {key, amount_msat, until_s}             A P   lock; the same key, the same bond
POST /v1/bonds/raise           {key, amount_msat, until_s}             A P
POST /v1/bonds/release         {}                                      A P
POST /v1/bonds/statement       {}                                        P   -> the signed statement (8858)
POST /v1/verdicts              {certificate, request}: two events            -> the settled case
GET  /v1/cases/CASE            a settled case: {outcome, culprit, bond, payouts, refused, due, ...}
GET  /v1/treasury/receipts/PAYMENT_HASH    the zap receipt (9735) of a lump
GET  /.well-known/lnurlp/treasury and its callback: LNURL-pay, for zaps: lumps that are paid ahead
and the treasury's own: `nodewire.pay.bond.treasury.http`

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
from nodewire.pay.bond.treasury import http
from nodewire.pay.lightning import invoices, lnurl_server

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from simnet.holder_book import Deposit
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
        web.get("/v1/treasury/receipts/{payment_hash}", own.receipt),
        *http.routes(treasurer, own.signed),
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
                "unit_msat": self._simnet.unit_msat,
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
        provider, _ = await self.signed(request)
        return answer(self._treasurer.statement(provider).as_dict())

    async def present(self, request: web.Request) -> web.Response:
        body = parsed(await raw_of(request, MAX_EVIDENCE_BYTES))
        certificate, job = (_event(body, name) for name in ("certificate", "request"))
        return answer(self._case(self._treasurer.present(certificate, job)))

    async def case(self, request: web.Request) -> web.Response:
        return answer(self._case(self._treasurer.case(hex32(dict(request.match_info), "case"))))

    async def receipt(self, request: web.Request) -> web.Response:
        return answer(self._treasurer.shares.receipt(hex32(dict(request.match_info), "payment_hash")).as_dict())

    async def _owner(self, request: web.Request) -> tuple[str, str, dict[str, Any]]:
        """The account and the provider that ask, and what."""
        account = self._simnet.account_of(bearer_token(request))
        return account, *await self.signed(request)

    async def signed(self, request: web.Request) -> tuple[str, dict[str, Any]]:
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
            "due": {p: self._treasurer.case_due_msat(judged.case, p) for p in {*judged.payouts, *judged.agreed}},
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
