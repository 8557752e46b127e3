"""A wallet that is a phoenixd, over its HTTP API.

https://phoenix.acinq.co/server/api

It counts in whole satoshis, and has no say in fees: its service asks for a share. A payment that failed it would begin
anew by the same invoice, so this wallet does not tell it to. What has expired or cannot be read has no record.
"""

from __future__ import annotations

import base64
import hashlib
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nodewire.errors import BadInput, LinkLost, NodewireError, NotAllowed, NotFound, Unsupported
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Direction, Receipt, State, Transfer, WalletInfo
from nodewire.pay.wallets import history, rest
from nodewire.pay.wallets.attempts import Attempts
from nodewire.pay.wallets.history import ListedInvoice
from nodewire.pay.wallets.rest import Access, Answer, RestService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

_SAT_MSAT = 1_000
_MOST_MSAT = 100_000_000_000  # 1 BTC
_PAGE = 100
_NOBODY = "00" * 32


class PhoenixdWallet:
    """The phoenixd behind `url`. The secret of `access` is its password; that of limited access pays nothing."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, url: str, access: Access, *, timeout_s: float = 10.0) -> None:
        headers = {"Authorization": f"Basic {base64.b64encode(f':{access.secret}'.encode()).decode()}"}
        self._service = RestService(url, headers, access, timeout_s=timeout_s)
        self._attempts = Attempts(timeout_s)
        self._known: WalletInfo | None = None

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The phoenixd whose password is in `token_file`. Raises BadConfig: the file has none."""
        return cls(url, Access.read(token_file, "http-password of phoenix.conf"))

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "phoenixd is one account: put its http-password into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            said = await self._ask("GET", "/getinfo")
            network = rest.network(rest.text(said, "chain"))
            can = await rest.permitted(
                {
                    "balance": lambda: self._ask("GET", "/getbalance"),
                    "invoice": lambda: self._ask("POST", "/createinvoice", {"amountSat": "none"}),
                    "pay": lambda: self._ask("POST", "/payinvoice", {"invoice": "none"}),
                    "lookup-in": lambda: self.lookup(_NOBODY, "in"),
                    "lookup-out": lambda: self.lookup(_NOBODY, "out"),
                    "settled": lambda: self._page(int(time.time() * 1_000), 0),
                }
            )
            if "lookup-out" not in can:
                can.discard("pay")  # one before 0.5, where nothing tells what was paid by a hash
            name = f"phoenixd:{rest.node_key(said, 'nodeId')}"
            self._known = WalletInfo(name, network, _SAT_MSAT, _SAT_MSAT, _MOST_MSAT, frozenset(can))
        return self._known

    async def balance_msat(self) -> int:
        return rest.whole(await self._ask("GET", "/getbalance"), "balanceSat") * _SAT_MSAT

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        if amount_msat % _SAT_MSAT or not 0 < amount_msat <= _MOST_MSAT:
            most_sat = _MOST_MSAT // _SAT_MSAT
            raise BadInput("amount_msat", f"{amount_msat}: phoenixd takes whole satoshis, from 1 to {most_sat}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        digest = hashlib.sha256(description.encode()).hexdigest()
        asked = {"amountSat": str(amount_msat // _SAT_MSAT), "descriptionHash": digest, "expirySeconds": str(expiry_s)}
        invoice = invoices.decode(rest.text(await self._ask("POST", "/createinvoice", asked), "serialized"))
        invoices.check(invoice, amount_msat=amount_msat, now_s=time.time(), description_hash=digest)
        return invoice

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)

        async def tell() -> None:
            await self._ask("POST", "/payinvoice", {"invoice": invoice.bolt11}, wait_s=timeout_s)

        return await self._attempts.pay(invoice, self.lookup, tell, timeout_s)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        rest.check_hex32("payment_hash", payment_hash)
        if direction == "in":
            found = _incoming(await self._ask("GET", f"/payments/incoming/{payment_hash}"))
        else:
            found = _outgoing(await self._ask("GET", f"/payments/outgoingbyhash/{payment_hash}"))
        if found.payment_hash != payment_hash:
            raise LinkLost("wallet", "it tells of another payment than was asked for")
        return found

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        async for came in history.settled((await self.info()).id, after, self._listed):
            yield came

    async def close(self) -> None:
        await self._attempts.close()
        await self._service.close()

    async def _listed(self, since_s: int) -> list[ListedInvoice]:
        """Its invoices from then on, the oldest first."""
        found: dict[str, ListedInvoice] = {}
        offset = 0
        while page := await self._page(since_s * 1_000, offset):
            for row in page:
                one = _incoming(row)
                made_s, ends_s = _seconds(row, "createdAt"), _seconds(row, "expiresAt")
                found[one.payment_hash] = ListedInvoice(one, made_s, ends_s)
            if len(page) < _PAGE:
                break
            offset += len(page)
        return sorted(found.values(), key=lambda one: one.created_at_s)

    async def _page(self, since_ms: int, offset: int) -> list[dict[str, Any]]:
        """Of its invoices that were made from then on, paid or not, the newest but `offset`."""
        path = f"/payments/incoming?all=true&from={since_ms}&limit={_PAGE}&offset={offset}"
        return rest.rows((await self._answer("GET", path)).document())

    async def _ask(
        self, method: str, path: str, form: dict[str, str] | None = None, *, wait_s: float = 0.0
    ) -> dict[str, Any]:
        return (await self._answer(method, path, form, wait_s=wait_s)).members()

    async def _answer(
        self, method: str, path: str, form: dict[str, str] | None = None, *, wait_s: float = 0.0
    ) -> Answer:
        """What it answers. Raises as `RestService.ask`, and what it refuses, which it says in plain words."""
        answer = await self._service.ask(method, path, form=form, wait_s=wait_s)
        if answer.status == 200:
            return answer
        raise _refusal(answer)


def _refusal(answer: Answer) -> NodewireError:
    words = answer.raw[:200].decode(errors="replace")
    match answer.status:
        case 401 | 403:
            return NotAllowed("wallet", "phoenixd refuses the password, or this one may not do that")
        case 204:
            return NotFound("payment_hash", "phoenixd has no such payment")
        case 404 if words.strip() == "Not found":
            return NotFound("payment_hash", "phoenixd has no such payment")
        case 404 | 405:
            return Unsupported("wallet", "this phoenixd has no such call, or the URL is not phoenixd's")
        case 400:
            return BadInput("wallet", f"phoenixd refuses: {words}")
    return LinkLost("wallet", f"answered {answer.status}: {words}")


def _incoming(row: dict[str, Any]) -> Transfer:
    """A payment that came is at least of its invoice's amount; of it phoenixd may have taken the price of a channel."""
    paid = rest.member(row, "isPaid") is True
    asked_sat, received_sat = rest.whole(row, "requestedSat", missing=0), rest.whole(row, "receivedSat")
    state: State = "settled" if paid else "failed" if row.get("isExpired") is True else "open"
    return Transfer(
        payment_hash=rest.hex32(row, "paymentHash"),
        direction="in",
        state=state,
        amount_msat=max(asked_sat, received_sat) * _SAT_MSAT,
        fee_msat=0,
        preimage=rest.hex32(row, "preimage") if paid else None,
        at_s=_seconds(row, "completedAt") or _seconds(row, "createdAt"),
        reason="it has expired" if state == "failed" else "",
    )


def _outgoing(row: dict[str, Any]) -> Transfer:
    """It is paid, or has ended without that, or is on its way. Its own amount is cut to satoshis, and has the fees."""
    ended: State = "pending" if row.get("completedAt") is None else "failed"
    state: State = "settled" if rest.member(row, "isPaid") is True else ended
    return Transfer(
        payment_hash=rest.hex32(row, "paymentHash"),
        direction="out",
        state=state,
        amount_msat=invoices.decode(rest.text(row, "invoice")).amount_msat,
        fee_msat=rest.whole(row, "fees", missing=0),
        preimage=rest.hex32(row, "preimage") if state == "settled" else None,
        at_s=_seconds(row, "completedAt") or _seconds(row, "createdAt"),
        reason="phoenixd has it as failed" if state == "failed" else "",
    )


def _seconds(row: dict[str, Any], name: str) -> int:
    return rest.whole(row, name, missing=0) // 1_000
