"""A wallet that is an LND node, over its REST API.

https://lightning.engineering/api-docs/api/lnd/

LND records what it began to pay. It begins none that its record has as paid or on its way; one that failed it would
begin anew, so this wallet does not tell it to. What it is told and does not begin, as a payment to itself, has no
record.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nodewire.errors import (
    BadConfig,
    BadInput,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    TimedOut,
    Unsupported,
)
from nodewire.pay.lightning import cursor, invoices
from nodewire.pay.lightning.wallet import Ability, Direction, Receipt, State, Transfer, WalletInfo
from nodewire.pay.wallets import rest
from nodewire.pay.wallets.attempts import Attempts
from nodewire.pay.wallets.rest import Access, Answer, RestService

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

_MOST_MSAT = 100_000_000_000  # 1 BTC
_FINAL_CLTV, _HOLD_CLTV = 80, 144
"""Blocks that an invoice asks for at its end: LND's own default, and a day for one that is held."""
_PAGE = 100
_IDLE_S = 60.0
"""Without a word for so long a stream is opened anew: its connection may be dead."""
_PAUSE_S, _LONGEST_S = 0.5, 30.0
_NOBODY = "00" * 32
_HEX = re.compile(r"([0-9a-f]{2})+", re.ASCII)
_OUT: dict[str, State] = {
    "INITIATED": "pending",
    "IN_FLIGHT": "pending",
    "SUCCEEDED": "settled",
    "FAILED": "failed",
}
_IN: dict[str, State] = {"OPEN": "open", "ACCEPTED": "pending", "SETTLED": "settled", "CANCELED": "failed"}
_NOT_FOUND, _UNAVAILABLE = 5, 14  # of gRPC
_STARTS = ("starting up", "wallet locked", "shutting down", "waiting to start")
_KEY_REFUSED = ("permission denied", "verification failed", "macaroon")
_STATE_REFUSED = ("already exists", "already settled", "already canceled", "still open", "already accepted")


class LndWallet:
    """The node behind `url` (LND's `restlisten`). The secret of `access` is a macaroon in hex."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, url: str, access: Access, *, timeout_s: float = 10.0) -> None:
        self._service = RestService(url, {"Grpc-Metadata-macaroon": access.secret}, access, timeout_s=timeout_s)
        self._attempts = Attempts(timeout_s)
        self._known: WalletInfo | None = None

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The node whose macaroon is in `token_file`, with its certificate. Raises BadConfig: the file has them not."""
        access = Access.read(token_file, "the macaroon in hex, and beside it the content of LND's tls.cert")
        if _HEX.fullmatch(access.secret.lower()) is None:
            reason = "its macaroon is not hex digits: `xxd -ps admin.macaroon` writes them"
            raise BadConfig(str(token_file), reason)
        return cls(url, access)

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "bake a macaroon with `lncli bakemacaroon`, and put it into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            said = await self._ask("GET", "/v1/getinfo")
            chains = rest.rows(rest.member(said, "chains"))
            network = rest.network(rest.text(chains[0] if chains else None, "network"))
            can = await rest.permitted(
                {
                    "balance": lambda: self._ask("GET", "/v1/balance/channels"),
                    "invoice": lambda: self._ask("POST", "/v1/invoices", {"value": "1", "value_msat": "1"}),  # not both
                    "pay": lambda: self._tell({}, 0.0),  # to nobody
                    "lookup-in": lambda: self.lookup(_NOBODY, "in"),
                    "lookup-out": lambda: self.lookup(_NOBODY, "out"),
                    "hold": lambda: self._ask("POST", "/v2/invoices/hodl", {}),  # for no hash
                }
            )
            if "lookup-out" not in can:
                can.discard("pay")  # nothing would tell what was paid before
            more: set[Ability] = {"fee-cap"} if "pay" in can else set()
            more |= {"settled"} if "lookup-in" in can else set()
            name = f"lnd:{rest.node_key(said, 'identity_pubkey')}"
            self._known = WalletInfo(name, network, 1, 1, _MOST_MSAT, frozenset(can | more))
        return self._known

    async def balance_msat(self) -> int:
        return rest.whole(rest.member(await self._ask("GET", "/v1/balance/channels"), "local_balance"), "msat")

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        return await self._invoice("/v1/invoices", amount_msat, description, expiry_s, _FINAL_CLTV)

    async def hold_invoice(self, amount_msat: int, *, payment_hash: str, description: str, expiry_s: int) -> Invoice:
        rest.check_hex32("payment_hash", payment_hash)
        made = await self._invoice(
            "/v2/invoices/hodl", amount_msat, description, expiry_s, _HOLD_CLTV, hash=_base64(payment_hash)
        )
        if made.payment_hash != payment_hash:
            raise LinkLost("wallet", "its invoice has another payment hash than was asked for")
        return made

    async def settle_hold(self, preimage: str) -> None:
        rest.check_hex32("preimage", preimage)
        await self._ask("POST", "/v2/invoices/settle", {"preimage": _base64(preimage)})

    async def cancel_hold(self, payment_hash: str) -> None:
        rest.check_hex32("payment_hash", payment_hash)
        await self._ask("POST", "/v2/invoices/cancel", {"payment_hash": _base64(payment_hash)})

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)
        asked = {
            "payment_request": invoice.bolt11,
            "fee_limit_msat": str(max_fee_msat),
            "timeout_seconds": max(1, int(timeout_s)),  # to begin; what is on its way by then goes on
            "no_inflight_updates": True,
        }
        return await self._attempts.pay(invoice, self.lookup, lambda: self._tell(asked, timeout_s), timeout_s)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        rest.check_hex32("payment_hash", payment_hash)
        if direction == "in":
            return _incoming(await self._ask("GET", f"/v1/invoice/{payment_hash}"), payment_hash)
        path = f"/v2/router/track/{_base64(payment_hash)}"
        async with aclosing(self._service.lines("GET", path, wait_s=0.0)) as states:
            async for answer in states:
                return _outgoing(_result(answer), payment_hash)
        raise LinkLost("wallet", "its record of a payment is empty")

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        own = (await self.info()).id
        place, pause_s = cursor.place_of(own, after), _PAUSE_S
        while True:
            try:
                # Of an index of 0 the stream has only what settles from now on.
                rows = self._stream(place) if place else self._list()
                async with aclosing(rows):
                    async for row in rows:
                        index = rest.whole(row, "settle_index", missing=0)
                        if row.get("state") == "SETTLED" and index > place:
                            one, place, pause_s = _incoming(row), index, _PAUSE_S
                            at = cursor.at(own, place)
                            yield Receipt(at, one.payment_hash, one.preimage or "", one.amount_msat, one.at_s)
            except TimedOut:
                continue  # nothing came
            except NotAllowed:
                raise
            except NodewireError:  # it restarts; the place says where to go on
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_S, 2 * pause_s)
                continue
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        await self._attempts.close()
        await self._service.close()

    async def _invoice(
        self, path: str, amount_msat: int, description: str, expiry_s: int, cltv: int, **more: str
    ) -> Invoice:
        if not 0 < amount_msat <= _MOST_MSAT:
            raise BadInput("amount_msat", f"{amount_msat}, from 1 to {_MOST_MSAT}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        digest = hashlib.sha256(description.encode()).hexdigest()
        asked = {
            "value_msat": str(amount_msat),
            "description_hash": _base64(digest),
            "expiry": str(expiry_s),
            "cltv_expiry": str(cltv),
            "private": True,  # with hints where its channels are not public
        }
        said = await self._ask("POST", path, asked | more)
        invoice = invoices.decode(rest.text(said, "payment_request"))
        invoices.check(invoice, amount_msat=amount_msat, now_s=time.time(), description_hash=digest)
        return invoice

    async def _tell(self, asked: dict[str, Any], timeout_s: float) -> None:
        async with aclosing(self._service.lines("POST", "/v2/router/send", asked, wait_s=timeout_s)) as states:
            async for answer in states:
                _result(answer)

    async def _stream(self, after: int) -> AsyncGenerator[dict[str, Any], None]:
        """Its invoices as they change, and first those that settled after an index."""
        path = f"/v1/invoices/subscribe?settle_index={after}"
        async with aclosing(self._service.lines("GET", path, wait_s=_IDLE_S)) as changes:
            async for answer in changes:
                yield _result(answer)

    async def _list(self) -> AsyncGenerator[dict[str, Any], None]:
        """All of its invoices that have settled, in the order in which they did."""
        found, offset = [], 0
        while True:
            said = await self._ask("GET", f"/v1/invoices?index_offset={offset}&num_max_invoices={_PAGE}")
            page = rest.rows(said.get("invoices") or [])
            found += [row for row in page if row.get("state") == "SETTLED"]
            last = rest.whole(said, "last_index_offset", missing=0)
            if len(page) < _PAGE or last <= offset:
                break
            offset = last
        for row in sorted(found, key=lambda row: rest.whole(row, "settle_index", missing=0)):
            yield row

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The node's answer. Raises as `RestService.ask`, and what the node refuses."""
        return _members(await self._service.ask(method, path, body))


def _members(answer: Answer) -> dict[str, Any]:
    said = answer.members()
    if answer.status == 200 and "error" not in said:
        return said
    raise _refusal(answer.status, said)


def _result(answer: Answer) -> dict[str, Any]:
    """The message in a line of a stream."""
    found: dict[str, Any] = rest.member(_members(answer), "result")
    if not isinstance(found, dict):
        raise LinkLost("wallet", "a line of its has no message")
    return found


def _refusal(status: int, said: dict[str, Any]) -> NodewireError:
    """LND's own refusals have a code of gRPC, mostly "unknown", and words."""
    error = said.get("error")
    told = error if isinstance(error, dict) else said
    words, code = str(told.get("message", ""))[:200], told.get("code")
    if type(code) is not int:
        return LinkLost("wallet", f"answered {status} and nothing of its own")
    if any(part in words for part in _STARTS) or code == _UNAVAILABLE:
        return LinkLost("wallet", f"LND: {words}")
    if any(part in words for part in _KEY_REFUSED):
        return NotAllowed("wallet", f"LND refuses the macaroon: {words}")
    if code == _NOT_FOUND and words == "Not Found":
        return Unsupported("wallet", "this LND has no such call, or the URL is not that of its REST API")
    if code == _NOT_FOUND or "unable to locate invoice" in words:
        return NotFound("payment_hash", words)
    if any(part in words for part in _STATE_REFUSED):
        return NotAllowed("payment_hash", f"LND refuses: {words}")
    return BadInput("wallet", f"LND refuses: {words}")


def _outgoing(row: dict[str, Any], payment_hash: str) -> Transfer:
    state = _state(row, "status", _OUT)
    if rest.hex32(row, "payment_hash") != payment_hash:
        raise LinkLost("wallet", "it tells of another payment than was asked for")
    parts = rest.rows(row.get("htlcs") or [])
    ended_ns = max((rest.whole(part, "resolve_time_ns", missing=0) for part in parts), default=0)
    failed = str(row.get("failure_reason", "")).removeprefix("FAILURE_REASON_").replace("_", " ").lower()
    return Transfer(
        payment_hash=payment_hash,
        direction="out",
        state=state,
        amount_msat=rest.whole(row, "value_msat"),
        fee_msat=rest.whole(row, "fee_msat", missing=0),
        preimage=rest.hex32(row, "payment_preimage") if state == "settled" else None,
        at_s=(ended_ns or rest.whole(row, "creation_time_ns", missing=0)) // 10**9,
        reason=f"LND has it as failed: {failed[:100]}" if state == "failed" else "",
    )


def _incoming(row: dict[str, Any], payment_hash: str = "") -> Transfer:
    state, found = _state(row, "state", _IN), _from_base64(row, "r_hash")
    if payment_hash and found != payment_hash:
        raise LinkLost("wallet", "it tells of another invoice than was asked for")
    paid = state in ("pending", "settled")
    return Transfer(
        payment_hash=found,
        direction="in",
        state=state,
        amount_msat=rest.whole(row, "amt_paid_msat" if paid else "value_msat"),
        fee_msat=0,
        # One that was paid without an invoice, in parts of its own, has none.
        preimage=_from_base64(row, "r_preimage") if state == "settled" and row.get("r_preimage") else None,
        at_s=rest.whole(row, "settle_date", missing=0) or rest.whole(row, "creation_date", missing=0),
        reason="LND has cancelled it, or it has expired" if state == "failed" else "",
    )


def _state(row: dict[str, Any], name: str, states: dict[str, State]) -> State:
    said = rest.text(row, name)
    if said not in states:
        raise LinkLost("wallet", f"its {name} of a payment is {said[:40]!r}")
    return states[said]


def _base64(digits: str) -> str:
    """Hex digits as gRPC's JSON has bytes, in the alphabet that fits into a URL."""
    return base64.urlsafe_b64encode(bytes.fromhex(digits)).decode()


def _from_base64(row: dict[str, Any], name: str) -> str:
    """32 bytes in base64 as hex. Raises LinkLost: it is something else."""
    try:
        found = base64.b64decode(rest.text(row, name).replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise LinkLost("wallet", f"its {name} is not base64") from error
    if len(found) != 32:
        raise LinkLost("wallet", f"its {name} has {len(found)} bytes, and not 32")
    return found.hex()
