"""A wallet that is a Core Lightning node, over its plugin clnrest.

https://docs.corelightning.org/docs/rest

It pays by `xpay`, which takes invoices with the hash of a description alone. While xpay looks for another way the
node's record has its parts as failed. So a failure counts once xpay has answered, or can have begun no part any more.
What xpay finds no way for at all has no record.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nodewire.errors import (
    BadInput,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
    Unsupported,
)
from nodewire.pay.lightning import cursor, invoices
from nodewire.pay.lightning.wallet import Ability, Direction, Receipt, State, Transfer, WalletInfo
from nodewire.pay.wallets import rest
from nodewire.pay.wallets.attempts import Attempts
from nodewire.pay.wallets.rest import Access, Answer, RestService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

_MOST_MSAT = 100_000_000_000  # 1 BTC
_FINAL_CLTV = 18
"""Blocks that an invoice asks for at its end: what BOLT 11 means where nothing is said."""
_RETRY_S = 60
"""For so long xpay may begin parts of a payment: it is told so."""
_CLOCKS_S = 60
"""How far the node's clock may be from this one's."""
_WAIT_S = 30
_PAUSE_S, _LONGEST_S = 0.5, 30.0
_NOBODY = "00" * 32
_USABLE = ("CHANNELD_NORMAL", "CHANNELD_AWAITING_SPLICE")
_OUT: dict[str, State] = {"pending": "pending", "complete": "settled", "failed": "failed"}
_IN: dict[str, State] = {"unpaid": "open", "paid": "settled", "expired": "failed"}
_TELLS = ("settled", "pending", "failed")
"""Of several payments by one hash the first of these decides."""
_GOOD = (200, 201)
_NOTHING_CAME, _BAD_PARAMETERS = 904, -32602
_OVER = (203, 205, 207)
"""Of xpay: the payee refuses, there is no way, it is too late. No part is begun after."""
_PAYMENT_CODES = range(200, 300)


class ClnWallet:
    """The node behind `url` (clnrest's). The secret of `access` is a rune."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, url: str, access: Access, *, timeout_s: float = 10.0) -> None:
        self._service = RestService(url, {"Rune": access.secret}, access, timeout_s=timeout_s)
        self._attempts = Attempts(timeout_s)
        self._known: WalletInfo | None = None
        self._answered_s: dict[str, float] = {}
        """When xpay answered, by payment hash: it begins no part after."""

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The node whose rune is in `token_file`, with clnrest's certificate. Raises BadConfig: the file has none."""
        return cls(url, Access.read(token_file, "the rune, and beside it the content of clnrest's ca.pem"))

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "make a rune with `lightning-cli createrune`, and put it into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            said = await self._ask("getinfo", {})
            network = rest.network(rest.text(said, "network"))
            can = await rest.permitted(
                {
                    "balance": lambda: self._ask("listfunds", {}),
                    "invoice": lambda: self._ask("invoice", {}),  # of nothing
                    "pay": lambda: self._ask("xpay", {}),  # nothing
                    "lookup-in": lambda: self.lookup(_NOBODY, "in"),
                    "lookup-out": lambda: self.lookup(_NOBODY, "out"),
                    "settled": lambda: self._ask("waitanyinvoice", {"lastpay_index": -1}),
                }
            )
            if "lookup-out" not in can:
                can.discard("pay")  # nothing would tell what was paid before
            more: set[Ability] = {"fee-cap"} if "pay" in can else set()
            name = f"cln:{rest.node_key(said, 'id')}"
            self._known = WalletInfo(name, network, 1, 1, _MOST_MSAT, frozenset(can | more))
        return self._known

    async def balance_msat(self) -> int:
        channels = rest.rows(rest.member(await self._ask("listfunds", {}), "channels"))
        return sum(rest.whole(one, "our_amount_msat") for one in channels if one.get("state") in _USABLE)

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        if not 0 < amount_msat <= _MOST_MSAT:
            raise BadInput("amount_msat", f"{amount_msat}, from 1 to {_MOST_MSAT}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        asked = {
            "amount_msat": amount_msat,
            "label": f"nodewire-{secrets.token_hex(16)}",
            "description": description,
            "expiry": expiry_s,
            "cltv": _FINAL_CLTV,
            "deschashonly": True,
        }
        invoice = invoices.decode(rest.text(await self._ask("invoice", asked), "bolt11"))
        digest = hashlib.sha256(description.encode()).hexdigest()
        invoices.check(invoice, amount_msat=amount_msat, now_s=time.time(), description_hash=digest)
        return invoice

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)
        asked = {"invstring": invoice.bolt11, "maxfee": max_fee_msat, "retry_for": _RETRY_S}

        async def tell() -> None:
            answer = await self._service.ask("POST", "/v1/xpay", asked, wait_s=_RETRY_S + timeout_s)
            if answer.status in _GOOD or _code(answer) in _OVER:
                self._has_answered(invoice.payment_hash)
            if answer.status not in _GOOD:
                raise _refusal("xpay", answer)

        return await self._attempts.pay(invoice, self.lookup, tell, timeout_s)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        rest.check_hex32("payment_hash", payment_hash)
        of = {"payment_hash": payment_hash}
        if direction == "in":
            rows = rest.rows(rest.member(await self._ask("listinvoices", of), "invoices"))
            found = [_incoming(row) for row in rows]
        else:
            rows = rest.rows(rest.member(await self._ask("listpays", of), "pays"))
            found = [self._outgoing(row) for row in rows]
        if any(one.payment_hash != payment_hash for one in found):
            raise LinkLost("wallet", "it tells of another payment than was asked for")
        if not found:
            raise NotFound("payment_hash", "the node's record has no such payment")
        return min(found, key=lambda one: _TELLS.index(one.state) if direction == "out" else 0)

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        own = (await self.info()).id
        place, pause_s = cursor.place_of(own, after), _PAUSE_S
        while True:
            try:
                row = await self._ask("waitanyinvoice", {"lastpay_index": place, "timeout": _WAIT_S}, wait_s=_WAIT_S)
                one, index = _incoming(row), rest.whole(row, "pay_index")
            except TimedOut:
                continue  # nothing came
            except NotAllowed:
                raise
            except NodewireError:  # it restarts; the place says where to go on
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_S, 2 * pause_s)
                continue
            place, pause_s = max(place, index), _PAUSE_S
            yield Receipt(cursor.at(own, place), one.payment_hash, one.preimage or "", one.amount_msat, one.at_s)

    async def close(self) -> None:
        await self._attempts.close()
        await self._service.close()

    def _outgoing(self, row: dict[str, Any]) -> Transfer:
        payment_hash, state = rest.hex32(row, "payment_hash"), _state(row, _OUT)
        begun_s = rest.whole(row, "created_at")
        old = time.time() > begun_s + _RETRY_S + _CLOCKS_S
        if state == "failed" and not old and payment_hash not in self._answered_s:
            state = "pending"
        if row.get("amount_msat") is not None:
            amount_msat = rest.whole(row, "amount_msat")
        else:
            amount_msat = invoices.decode(rest.text(row, "bolt11")).amount_msat
        sent_msat = rest.whole(row, "amount_sent_msat", missing=amount_msat)
        return Transfer(
            payment_hash=payment_hash,
            direction="out",
            state=state,
            amount_msat=amount_msat,
            fee_msat=max(0, sent_msat - amount_msat) if state == "settled" else 0,
            preimage=rest.hex32(row, "preimage") if state == "settled" else None,
            at_s=rest.whole(row, "completed_at", missing=begun_s),
            reason="the node has it as failed" if state == "failed" else "",
        )

    def _has_answered(self, payment_hash: str) -> None:
        now_s = time.monotonic()
        old = [one for one, at_s in self._answered_s.items() if at_s < now_s - 2 * (_RETRY_S + _CLOCKS_S)]
        for one in old:  # their record is old enough by itself
            del self._answered_s[one]
        self._answered_s[payment_hash] = now_s

    async def _ask(self, method: str, params: dict[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """The node's answer. Raises as `RestService.ask`, and what the node refuses."""
        answer = await self._service.ask("POST", f"/v1/{method}", params, wait_s=wait_s)
        if answer.status in _GOOD:
            return answer.members()
        raise _refusal(method, answer)


def _code(answer: Answer) -> int | None:
    """The code of an error of the node's own."""
    try:
        code = answer.members().get("code")
    except LinkLost:
        return None
    return code if type(code) is int else None


def _refusal(method: str, answer: Answer) -> NodewireError:
    try:
        words = str(answer.members().get("message", ""))[:200]
    except LinkLost as error:
        return error
    match answer.status, _code(answer):
        case ((401 | 403), _):
            return NotAllowed("wallet", f"Core Lightning refuses the rune for {method}: {words}")
        case ((404 | 405), _):
            return Unsupported("wallet", f"this node has no {method}, or the URL is not clnrest's")
        case _, code if code == _NOTHING_CAME:
            return TimedOut("wallet", words)
        case _, code if code in _PAYMENT_CODES:
            return PaymentFailed("wallet", f"Core Lightning: {words}")
        case _, code if code is not None and (code == _BAD_PARAMETERS or code > 0):
            return BadInput("wallet", f"Core Lightning refuses {method}: {words}")
    return LinkLost("wallet", f"answered {answer.status}: {words}")


def _incoming(row: dict[str, Any]) -> Transfer:
    state = _state(row, _IN)
    amount_msat = rest.whole(row, "amount_received_msat" if state == "settled" else "amount_msat", missing=0)
    return Transfer(
        payment_hash=rest.hex32(row, "payment_hash"),
        direction="in",
        state=state,
        amount_msat=amount_msat,
        fee_msat=0,
        preimage=rest.hex32(row, "payment_preimage") if state == "settled" else None,
        at_s=rest.whole(row, "paid_at" if state == "settled" else "expires_at"),
        reason="it has expired" if state == "failed" else "",
    )


def _state(row: dict[str, Any], states: dict[str, State]) -> State:
    said = rest.text(row, "status")
    if said not in states:
        raise LinkLost("wallet", f"its status of a payment is {said[:40]!r}")
    return states[said]
