"""The registrar over HTTP and JSON.

GET  /v1/holder                {public, committee, unbonding_s, statement_s, kind, place, custodian, closing_s, cap_sat,
                               lnurl, unit_msat, pool_msat}: the last three where it is a treasury
GET  /v1/committee             the committee's document
GET  /v1/bonds/PROVIDER        its newest bond, with its terms and coins
POST /v1/bonds                 {terms, coins}                   P   enter a bond whose coins are locked; again, the same
POST /v1/bonds/raise           {key, coins}                     P
POST /v1/bonds/release         {}                               P
POST /v1/bonds/statement       {}                               P   -> the signed statement (8858)
POST /v1/verdicts              {certificate, request}: two events   -> the settled case
GET  /v1/cases/CASE            a settled case
GET  /v1/closings              {closings}                       P   what oracles are asked to sign, with the evidence
POST /v1/closings/BOND         {signatures}: hex                P   an oracle's
GET  /v1/closings/BOND         an executed closing: what it paid, and what it left

and the treasury's own (`nodewire.pay.bond.treasury.http`).

P: the request is signed by a Nostr key (NIP-98), whose bond or signature it is.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from aiohttp import web

from nodewire.errors import BadInput, NotAllowed
from nodewire.net.json_http import MAX_EVIDENCE_BYTES, answer, errors, hex32, parsed, raw_of
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip98
from nodewire.pay.bond.quorum.registrar import Registrar, bond_document
from nodewire.pay.bond.quorum.terms import MAX_COINS, MAX_KEY_CHARS, BondTerms
from nodewire.pay.bond.treasury import http
from nodewire.pay.lightning import lnurl_server

MAX_BODY_BYTES = 262_144
_MOST_SIGNATURES = 64


async def start(registrar: Registrar, host: str, port: int, url: str = "") -> tuple[web.AppRunner, str]:
    """Serve; what others reach it by is `url`, or host and port."""
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    name = f"[{host}]" if ":" in host else host
    base_url = url.rstrip("/") or f"http://{name}:{listening.getsockname()[1]}"
    app = web.Application(middlewares=[errors], client_max_size=MAX_BODY_BYTES)
    app.add_routes(_Routes(registrar, base_url).table())
    if registrar.treasury is not None:
        app.add_routes(lnurl_server.routes(registrar.treasury.cashier.endpoint(base_url)))
    runner = web.AppRunner(app, access_log=None, max_line_size=lnurl_server.MAX_LINE_BYTES)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    return runner, base_url


class _Routes:
    def __init__(self, registrar: Registrar, base_url: str) -> None:
        self._registrar, self._base_url = registrar, base_url

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/holder", self.holder),
            web.get("/v1/committee", self.committee),
            web.post("/v1/bonds", self.lock),
            web.post("/v1/bonds/raise", self.top_up),
            web.post("/v1/bonds/release", self.release),
            web.post("/v1/bonds/statement", self.statement),
            web.get("/v1/bonds/{provider}", self.bond),
            web.post("/v1/verdicts", self.present),
            web.get("/v1/cases/{case}", self.case),
            web.get("/v1/closings", self.closings),
            web.post("/v1/closings/{bond}", self.cosign),
            web.get("/v1/closings/{bond}", self.closed),
            *http.routes(self._registrar.treasury, self._signed),
        ]

    async def holder(self, _: web.Request) -> web.Response:
        registrar, custody, treasury = self._registrar, self._registrar.custody, self._registrar.treasury
        shares = {}
        if treasury is not None:
            shares = {
                "lnurl": treasury.cashier.lnurl,
                "unit_msat": treasury.cashier.unit_msat,
                "pool_msat": treasury.pool_msat,
            }
        return answer(
            {
                "public": registrar.public,
                "committee": registrar.committee.digest(),
                "unbonding_s": registrar.delay_s,
                "statement_s": registrar.rules.statement_s,
                "closing_s": registrar.rules.closing_s,
                "cap_sat": registrar.rules.cap_sat,
                "kind": custody.kind,
                "place": custody.place,
                "custodian": custody.custodian,
                **shares,
            }
        )

    async def committee(self, _: web.Request) -> web.Response:
        return answer(self._registrar.committee.document())

    async def bond(self, request: web.Request) -> web.Response:
        return answer(dict(bond_document(self._registrar.deposit(hex32(dict(request.match_info), "provider")))))

    async def lock(self, request: web.Request) -> web.Response:
        provider, body = await self._signed(request)
        terms = BondTerms.from_document(body.get("terms"))
        return answer(dict(bond_document(await self._registrar.lock(provider, terms, _coins(body)))))

    async def top_up(self, request: web.Request) -> web.Response:
        provider, body = await self._signed(request)
        key = body.get("key")
        if not (isinstance(key, str) and 0 < len(key) <= MAX_KEY_CHARS):
            raise BadInput("key", f"not 1 to {MAX_KEY_CHARS} characters")
        return answer(dict(bond_document(await self._registrar.top_up(provider, key, _coins(body)))))

    async def release(self, request: web.Request) -> web.Response:
        provider, _ = await self._signed(request)
        return answer(dict(bond_document(self._registrar.release(provider))))

    async def statement(self, request: web.Request) -> web.Response:
        provider, _ = await self._signed(request)
        return answer((await self._registrar.statement(provider)).as_dict())

    async def present(self, request: web.Request) -> web.Response:
        body = parsed(await raw_of(request, MAX_EVIDENCE_BYTES))
        certificate, job = (events.parse(body.get(name)) for name in ("certificate", "request"))
        return answer(self._registrar.present(certificate, job))

    async def case(self, request: web.Request) -> web.Response:
        return answer(self._registrar.case(hex32(dict(request.match_info), "case")))

    async def closings(self, request: web.Request) -> web.Response:
        if self._registrar.committee.oracle(self._signer(request, b"")) is None:
            raise NotAllowed("oracle", "what closings are made by is for oracles alone until they are made")
        return answer({"closings": await self._registrar.open_closings()})

    async def cosign(self, request: web.Request) -> web.Response:
        oracle, body = await self._signed(request)
        said = body.get("signatures")
        if not (isinstance(said, list) and len(said) <= _MOST_SIGNATURES and all(map(_is_signature, said))):
            raise BadInput("signatures", f"not a list of at most {_MOST_SIGNATURES} times 128 hex digits")
        bond = hex32(dict(request.match_info), "bond")
        await self._registrar.cosign(oracle, bond, [bytes.fromhex(one) for one in said])
        return answer({})

    async def closed(self, request: web.Request) -> web.Response:
        return answer(self._registrar.closed(hex32(dict(request.match_info), "bond")))

    async def _signed(self, request: web.Request) -> tuple[str, dict[str, Any]]:
        """The Nostr key that asks, and what. Raises NotAllowed."""
        raw = await raw_of(request, MAX_BODY_BYTES)
        return self._signer(request, raw), parsed(raw)

    def _signer(self, request: web.Request, raw: bytes) -> str:
        """The Nostr key that asks. Raises NotAllowed."""
        asked = nip98.HttpRequest(self._base_url + request.path_qs, request.method, raw)
        return nip98.check_header(request.headers.get("Authorization"), asked, now_s=time.time())


def _coins(body: dict[str, Any]) -> list[dict[str, Any]]:
    found = body.get("coins")
    if not (isinstance(found, list) and 0 < len(found) <= MAX_COINS and all(isinstance(one, dict) for one in found)):
        raise BadInput("coins", f"not a list of 1 to {MAX_COINS} objects")
    return found


def _is_signature(value: object) -> bool:
    return isinstance(value, str) and len(value) == 128 and set(value) <= set("0123456789abcdef")
