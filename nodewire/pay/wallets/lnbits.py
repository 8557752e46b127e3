"""A wallet at an LNbits service, over its REST API (the service itself documents it at /docs).

It counts in whole satoshis and has no say in routing fees, which the service reserves by its own settings. What it
refuses to begin it does not write down. So a payment that it refuses stays open until its invoice has expired.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nodewire.errors import (
    BadInput,
    BadInvoice,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
)
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Ability, Direction, Receipt, Transfer, WalletInfo
from nodewire.pay.wallets import history
from nodewire.pay.wallets.history import ListedInvoice
from nodewire.pay.wallets.rest import Access, RestService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

_SAT_MSAT = 1_000
_MOST_MSAT = 100_000_000_000  # 1 BTC
_PAGE = 100
_ASK_S, _LONGEST_S = 0.2, 2.0
_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_STATES = {"pending": "pending", "success": "settled", "failed": "failed"}


class LnbitsWallet:
    """The wallet whose admin key is `key`, at `url`. With an invoice key it is paid and pays nothing."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, url: str, key: str, *, timeout_s: float = 10.0) -> None:
        self._key = key
        self._service = RestService(url, {"X-Api-Key": key}, Access(key), timeout_s=timeout_s)
        self._known: WalletInfo | None = None

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The wallet whose key is in `token_file`. Raises BadConfig: the file has none."""
        return cls(url, Access.read(token_file, "the wallet's admin key (LNbits, Node URL, API keys)").secret)

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "open the account in LNbits itself, and put its admin key into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            said = await self._ask("GET", "/wallet")
            # Nothing tells the network but an invoice. Nobody gets this one.
            probe = invoices.decode(await self._made(_SAT_MSAT, "network", 60))
            named = str(said["id"]) if "id" in said else hashlib.sha256(self._key.encode()).hexdigest()[:32]
            can: set[Ability] = {"balance", "invoice", "lookup-in", "lookup-out", "settled"}
            can |= {"pay"} if "id" in said else set()
            self._known = WalletInfo(f"lnbits:{named}", probe.network, _SAT_MSAT, _SAT_MSAT, _MOST_MSAT, frozenset(can))
        return self._known

    async def balance_msat(self) -> int:
        balance = (await self._ask("GET", "/wallet")).get("balance")
        if isinstance(balance, bool) or not isinstance(balance, int | float):
            raise LinkLost("wallet", f"it tells {balance!r:.40} as its balance")
        return int(balance)

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        if amount_msat % _SAT_MSAT or not 0 < amount_msat <= _MOST_MSAT:
            raise BadInput("amount_msat", f"{amount_msat}: LNbits takes whole satoshis, from 1 to {_MOST_MSAT // 1000}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        invoice = invoices.decode(await self._made(amount_msat, description, expiry_s))
        digest = hashlib.sha256(description.encode()).hexdigest()
        invoices.check(invoice, amount_msat=amount_msat, now_s=time.time(), description_hash=digest)
        return invoice

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        refused: NodewireError | None = None
        if invoice.is_expired(time.time()):
            refused = PaymentFailed("invoice", "it has expired")  # LNbits itself would pay it within its own walls
        else:
            try:
                await self._ask("POST", "/payments", {"out": True, "bolt11": bolt11}, wait_s=timeout_s)
            except NodewireError as error:
                refused = error  # also where it was paid before: the record says
        pause_s = _ASK_S
        while True:
            try:
                found = await self.lookup(invoice.payment_hash, "out")
            except NotFound:
                raise refused or LinkLost("wallet", "it took the payment and does not know it") from None
            if found.state != "pending" or loop.time() >= until:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_S, 2 * pause_s)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        if _HEX32.fullmatch(payment_hash) is None:
            raise BadInput("payment_hash", "not 64 lowercase hex digits")
        said = await self._ask("GET", f"/payments/{payment_hash}")
        details = said.get("details")
        if not isinstance(details, dict):
            raise NotFound("payment_hash", "it is another wallet's")
        found = _transfer(details)
        if found.direction != direction:
            raise NotFound("payment_hash", f"this wallet has it as one that went {found.direction}")
        return found

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        async for came in history.settled((await self.info()).id, after, self._listed):
            yield came

    async def close(self) -> None:
        await self._service.close()

    async def _made(self, amount_msat: int, description: str, expiry_s: int) -> str:
        """The bolt11 of a new invoice."""
        body: dict[str, Any] = {"out": False, "amount": amount_msat // _SAT_MSAT, "unit": "sat", "expiry": expiry_s}
        text = description.encode()
        # Some nodes behind it want the text and not its hash. An empty one it would take for none.
        body |= {"unhashed_description": text.hex()} if text else {"description_hash": hashlib.sha256(text).hexdigest()}
        said = await self._ask("POST", "/payments", body)
        made = said.get("bolt11") or said.get("payment_request")
        if not isinstance(made, str):
            raise BadInvoice("bolt11", "LNbits made none")
        return made

    async def _listed(self, since_s: int) -> list[ListedInvoice]:
        """Its invoices from then on, the oldest first."""
        found = []
        for page in range(10_000):
            path = f"/payments/paginated?limit={_PAGE}&offset={page * _PAGE}&sortby=time&direction=desc"
            rows = (await self._ask("GET", path)).get("data")
            if not isinstance(rows, list):
                raise LinkLost("wallet", "its list of payments is none")
            made = [_listed_row(row) for row in rows]
            found += [(at, row) for at, amount_msat, row in made if at >= since_s and amount_msat > 0]
            if len(rows) < _PAGE or any(at < since_s for at, *_ in made):
                break
        return [ListedInvoice(_transfer(row), at, _expires_at_s(row)) for at, row in reversed(found)]

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, wait_s: float = 0.0
    ) -> dict[str, Any]:
        """The service's JSON answer.

        Raises:
            LinkLost, TimedOut: no answer, or none of the service's own.
            NotFound, NotAllowed, PaymentFailed, BadInput: its refusal, in its words.

        """
        found = await self._service.ask(method, f"/api/v1{path}", body, wait_s=wait_s)
        answer = found.members()
        if found.status < 300:
            return answer
        raise _refusal(found.status, str(answer.get("detail", ""))[:200])


def _refusal(status: int, said: str) -> NodewireError:
    match status:
        case 401 | 403:
            return NotAllowed("wallet", f"LNbits refuses the key: {said}")
        case 404:
            return NotFound("payment_hash", said)
        case 400 | 422:
            return BadInput("wallet", f"LNbits refuses: {said}")
        case 520:
            return PaymentFailed("wallet", f"LNbits refuses: {said}")
    return LinkLost("wallet", f"answered {status}: {said}")


def _transfer(row: dict[str, Any]) -> Transfer:
    """A payment of LNbits's, whose `amount` (msat) is negative if it went."""
    try:
        amount_msat, state = int(row["amount"]), _STATES[str(row["status"])]
        direction: Direction = "in" if amount_msat > 0 else "out"
        if state == "pending" and direction == "in":
            state = "open"
        return Transfer(
            payment_hash=str(row["payment_hash"]),
            direction=direction,
            state=state,  # type: ignore[arg-type]  # it is of `_STATES`
            amount_msat=abs(amount_msat),
            fee_msat=abs(int(row.get("fee") or 0)) if direction == "out" else 0,
            preimage=str(row["preimage"]) if state == "settled" and row.get("preimage") else None,
            at_s=_seconds(row, "updated_at", "time"),
            reason="LNbits has it as failed" if state == "failed" else "",
        )
    except (KeyError, ValueError, TypeError) as error:
        raise LinkLost("wallet", f"a payment of its is malformed: {error}") from error


def _listed_row(row: Any) -> tuple[int, int, dict[str, Any]]:
    """When a payment was made, in unix seconds, and its msat, with its row. Raises LinkLost: it is none."""
    try:
        return _seconds(row, "created_at", "time"), int(row["amount"]), row
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise LinkLost("wallet", f"a payment of its list is malformed: {error!r:.80}") from error


def _expires_at_s(row: dict[str, Any]) -> int:
    """When an open invoice expires, by itself: LNbits writes that moment in the time of its own machine."""
    return invoices.decode(str(row.get("bolt11"))).expires_at_s if row.get("status") == "pending" else 0


def _seconds(row: dict[str, Any], *names: str) -> int:
    """The first of these moments that the row has, as unix seconds; LNbits writes them in ISO 8601, or as a number."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float):
            return int(value)
        if isinstance(value, str) and value:
            moment = datetime.fromisoformat(value)
            return int(moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=UTC).timestamp())
    return 0
