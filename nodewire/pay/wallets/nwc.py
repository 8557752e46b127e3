"""A wallet over Nostr Wallet Connect: NIP-47 with NIP-44, through relays.

https://github.com/nostr-protocol/nips/blob/master/47.md

The connection string has the wallet's key, its relays and the secret of a key that is this connection's alone. A
request is published on every relay, and the first answer counts. An answer that never comes says nothing: what became
of a payment is looked up. Nothing that a service answers is believed of a payment but its record and the preimage.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

import orjson

from nodewire.errors import (
    BadConfig,
    BadInput,
    BadInvoice,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
    Unsupported,
)
from nodewire.nostr.event import Event, sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Ability, Direction, Receipt, Transfer, WalletInfo
from nodewire.pay.wallets import history
from nodewire.pay.wallets.history import ListedInvoice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.nostr.subscription import Subscription
    from nodewire.pay.lightning.invoices import Invoice

INFO, REQUEST, RESPONSE = 13_194, 23_194, 23_195
MAX_ANSWER_BYTES = 262_144
MAX_RELAYS = 8
_ENCRYPTION = "nip44_v2"
_PAGE = 20
_MOST_MSAT = 100_000_000_000  # 1 BTC
_ASK_S, _LONGEST_S = 0.3, 3.0
_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NETWORKS = {"mainnet": "bc", "bitcoin": "bc", "testnet": "tb", "signet": "tbs", "mutinynet": "tbs", "regtest": "bcrt"}
_STATES = {"settled": "settled", "failed": "failed", "expired": "failed"}
_ABILITIES: dict[str, Ability] = {"get_balance": "balance", "make_invoice": "invoice", "pay_invoice": "pay"}


@dataclass(frozen=True, slots=True)
class Connection:
    """What a connection string says. `secret` is never shown."""

    wallet: str
    relays: tuple[str, ...]
    keys: Keys

    @classmethod
    def parse(cls, text: str) -> Self:
        """The connection in "nostr+walletconnect://KEY?relay=URL&secret=HEX"; there may be several relays.

        Raises:
            BadInput: it is none. The error shows nothing of it.

        """
        parts = urlsplit(text.strip())
        asked = parse_qs(parts.query)
        wallet, secrets = (parts.netloc or parts.path.strip("/")).lower(), asked.get("secret", [])
        relays = tuple(dict.fromkeys(asked.get("relay", [])))
        if parts.scheme not in ("nostr+walletconnect", "nostrwalletconnect"):
            raise BadInput(
                "connection", 'it does not begin with "nostr+walletconnect://": copy it whole from the wallet'
            )
        if _HEX32.fullmatch(wallet) is None:
            raise BadInput("connection", "it names no wallet by 64 hex digits")
        if not 0 < len(relays) <= MAX_RELAYS:
            raise BadInput("connection", f"it has {len(relays)} relays, from 1 to {MAX_RELAYS} may be")
        if len(secrets) != 1 or _HEX32.fullmatch(secrets[0].lower()) is None:
            raise BadInput("connection", "it has no secret of 64 hex digits")
        try:
            keys = Keys(bytes.fromhex(secrets[0]))
            nip44.conversation_key(keys, wallet)
        except NodewireError as error:
            raise BadInput("connection", "its secret, or what names the wallet, is no key") from error
        return cls(wallet, relays, keys)


class NwcWallet:
    """The wallet that a connection string opens."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, connection: Connection, *, timeout_s: float = 15.0) -> None:
        self._to = connection
        self._timeout_s = timeout_s
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._known: WalletInfo | None = None
        self._methods: frozenset[str] = frozenset()
        self._answers: dict[str, asyncio.Future[Event]] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The wallet whose connection string is in `token_file`; `url` says nothing here.

        Raises:
            BadConfig: the file cannot be read, or has no connection string.

        """
        if token_file is None:
            raise BadConfig("wallet.token_file", "name the file with the wallet's connection string")
        try:
            return cls(Connection.parse(token_file.read_text()))
        except OSError as error:
            reason = f"cannot be read ({error.strerror}); put the wallet's connection string there"
            raise BadConfig(str(token_file), reason) from error
        except (BadInput, UnicodeDecodeError) as error:
            reason = error.reason if isinstance(error, BadInput) else "it is no text"
            raise BadConfig(str(token_file), f"no connection string: {reason}") from error

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "make the connection in the wallet itself, and put its string into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            said = await self._ask("get_info", {})
            methods = said.get("methods")
            if not isinstance(methods, list):
                raise LinkLost("wallet", "it says no methods")
            self._methods = frozenset(map(str, methods))
            network = _NETWORKS.get(str(said.get("network", "mainnet")).lower())
            if network is None:
                raise Unsupported("network", f"the wallet is of {str(said.get('network'))[:40]!r}")
            can: set[Ability] = {_ABILITIES[name] for name in self._methods & _ABILITIES.keys()}
            if self._methods & {"lookup_invoice", "list_transactions"}:
                can.add("lookup-in")
            if "list_transactions" in self._methods:
                can.add("settled")
                if await self._finds_what_went():
                    can.add("lookup-out")
            known = WalletInfo(f"nwc:{self._to.wallet}", network, 1, 1, _MOST_MSAT, frozenset(can))
            self._known = known
        return self._known

    async def balance_msat(self) -> int:
        return _whole(await self._ask("get_balance", {}), "balance")

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        if not 0 < amount_msat <= _MOST_MSAT:
            raise BadInput("amount_msat", f"{amount_msat}, from 1 to {_MOST_MSAT}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        digest = hashlib.sha256(description.encode()).hexdigest()
        asked = {"amount": amount_msat, "description_hash": digest, "expiry": expiry_s}
        made = (await self._ask("make_invoice", asked)).get("invoice")
        if not isinstance(made, str):
            raise BadInvoice("invoice", "the wallet made none")
        invoice = invoices.decode(made)
        # Some round amounts to satoshis, or drop the hash of the description.
        invoices.check(invoice, amount_msat=amount_msat, now_s=time.time(), description_hash=digest)
        return invoice

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + timeout_s, _ASK_S
        asking: asyncio.Task[dict[str, Any]] | None = None
        try:
            while True:
                try:
                    # First of all: what is on its way must not be sent again. Later, since an answer may be lost.
                    found = await self.lookup(invoice.payment_hash, "out")
                except NotFound:
                    if asking is None and invoice.is_expired(time.time()):
                        raise PaymentFailed("invoice", "it has expired") from None
                    if asking is None:
                        asking = asyncio.create_task(self._ask("pay_invoice", {"invoice": bolt11}, wait_s=timeout_s))
                    elif asking.done():
                        return _paid(invoice, asking.result())
                    elif loop.time() >= until:
                        raise TimedOut("wallet", "it has not said what became of the payment") from None
                else:
                    if found.state != "pending" or loop.time() >= until:
                        return found
                if asking is not None and not asking.done():
                    await asyncio.wait({asking}, timeout=pause_s)
                else:
                    await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_S, 2 * pause_s)
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        if _HEX32.fullmatch(payment_hash) is None:
            raise BadInput("payment_hash", "not 64 lowercase hex digits")
        await self.info()
        if "lookup_invoice" in self._methods:
            try:
                found = _transfer(await self._ask("lookup_invoice", {"payment_hash": payment_hash}))
                if found.direction == direction and found.payment_hash == payment_hash:
                    return found
            except NotFound:
                pass
        # Some look up what came alone, and list what went.
        if "list_transactions" in self._methods:
            for row in await self._transactions(direction, 0, most=10 * _PAGE):
                if row.get("payment_hash") == payment_hash:
                    return _transfer(row)
        raise NotFound("payment_hash", "the wallet's record has no such payment")

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        own = (await self.info()).id
        async for came in history.settled(own, after, self._listed, pause_s=1.0):
            yield came

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
        if self._pool is not None:
            await self._pool.__aexit__(None, None, None)
            self._pool = None
        self._known = None

    async def _finds_what_went(self) -> bool:
        """Whether its record shows an outgoing payment: some wallets forget them. Of a new one that is not known."""
        try:
            return bool(await self._transactions("out", 0, most=1))
        except NodewireError:
            return False

    async def _listed(self, since_s: int) -> list[ListedInvoice]:
        rows = await self._transactions("in", since_s)
        found = []
        for row in reversed(rows):
            one = _transfer(row)
            if one.state == "settled" and one.preimage is None and "lookup_invoice" in self._methods:
                one = _transfer(await self._ask("lookup_invoice", {"payment_hash": one.payment_hash}))
            found.append(ListedInvoice(one, _whole(row, "created_at"), int(row.get("expires_at") or 0)))
        return sorted(found, key=lambda one: one.created_at_s)

    async def _transactions(self, direction: Direction, since_s: int, most: int = 10**6) -> list[dict[str, Any]]:
        """Its payments in one direction from then on, newest first: all states, as far as it tells them."""
        found: list[dict[str, Any]] = []
        kind = "incoming" if direction == "in" else "outgoing"
        while len(found) < most:
            limit = min(_PAGE, most - len(found))
            asked = {"type": kind, "unpaid": True, "limit": limit, "offset": len(found)}
            said = await self._ask("list_transactions", {**asked, **({"from": since_s} if since_s else {})})
            rows = said.get("transactions")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise LinkLost("wallet", "its list of payments is none")
            found += [row for row in rows if row.get("type") == kind]
            if len(rows) < limit or len(rows) != sum(row.get("type") == kind for row in rows):
                break
        return found

    async def _ask(self, method: str, params: dict[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """What the wallet answers to a request.

        Raises:
            LinkLost, TimedOut: no relay took it, or no answer came.
            NotFound, NotAllowed, PaymentFailed, Unsupported: the wallet's refusal, in its words.

        """
        key = nip44.conversation_key(self._to.keys, self._to.wallet)
        text = orjson.dumps({"method": method, "params": params}).decode()
        now_s = int(time.time())
        tags = [["p", self._to.wallet], ["encryption", _ENCRYPTION]]
        if method != "pay_invoice":  # one of these that comes late is looked up
            tags.append(["expiration", str(now_s + int(self._timeout_s) + 1)])
        asked = sign(self._to.keys, REQUEST, created_at=now_s, content=nip44.encrypt(text, key), tags=tags)
        answer = self._answers[asked.id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout_s + wait_s):
                pool = await self._connected()
                await pool.publish(asked, timeout_s=self._timeout_s)
                said = await answer
        except TimeoutError as error:
            raise TimedOut("wallet", f"no answer to {method} came over its relays") from error
        finally:
            del self._answers[asked.id]
        return _result(method, said, key)

    async def _connected(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await Pool(self._to.relays, self._to.keys).__aenter__()
                self._heard = self._pool.subscribe([self._wanted()])
                self._listening = asyncio.create_task(self._listen(self._heard))
        async with asyncio.timeout(self._timeout_s):
            await self._heard.eose  # relays keep no answer for who listens later
        return self._pool

    def _wanted(self) -> Filter:
        return Filter(
            kinds=frozenset({RESPONSE}),
            authors=frozenset({self._to.wallet}),
            tags={"p": frozenset({self._to.keys.public})},
            since=int(time.time()) - 60,
        )

    async def _listen(self, answers: Subscription) -> None:
        """Hand each answer to who waits for it. The wallet alone signs one that matches."""
        async for event in answers:
            waiting = self._answers.get(event.tag("e") or "")
            if waiting is not None and not waiting.done():
                waiting.set_result(event)


def _result(method: str, said: Event, key: bytes) -> dict[str, Any]:
    """The result in an answer. Raises as `NwcWallet._ask`."""
    try:
        answer = orjson.loads(nip44.decrypt(said.content, key, max_bytes=MAX_ANSWER_BYTES))
    except (BadInput, orjson.JSONDecodeError) as error:
        raise LinkLost("wallet", f"its answer to {method} cannot be read: {type(error).__name__}") from error
    if not isinstance(answer, dict):
        raise LinkLost("wallet", f"its answer to {method} is no object")
    refused = answer.get("error")
    if isinstance(refused, dict):
        raise _refusal(str(refused.get("code", ""))[:40], str(refused.get("message", ""))[:200])
    result = answer.get("result")
    if answer.get("result_type") != method or not isinstance(result, dict):
        raise LinkLost("wallet", f"its answer to {method} has no result")
    return result


def _paid(invoice: Invoice, said: dict[str, Any]) -> Transfer:
    """What a wallet says that forgets what it paid: its preimage proves it. Raises TimedOut: it says none."""
    preimage = said.get("preimage")
    if not isinstance(preimage, str):
        raise TimedOut("wallet", "it has paid, and neither knows of it nor shows a preimage")
    fee_msat, now_s = int(said.get("fees_paid") or 0), int(time.time())
    return Transfer(invoice.payment_hash, "out", "settled", invoice.amount_msat, fee_msat, preimage, now_s)


def _refusal(code: str, said: str) -> NodewireError:
    match code:
        case "NOT_FOUND":
            return NotFound("payment_hash", said)
        case "NOT_IMPLEMENTED" | "UNSUPPORTED_ENCRYPTION":
            return Unsupported("wallet", f"{code}: {said}")
        case "RESTRICTED" | "UNAUTHORIZED":
            return NotAllowed("wallet", f"{code}: {said}")
    return PaymentFailed("wallet", f"{code}: {said}")


def _transfer(row: dict[str, Any]) -> Transfer:
    """A transaction of NIP-47. Wallets that say no state have settled what has a moment of settlement."""
    kind, said = row.get("type"), row.get("state")
    if kind not in ("incoming", "outgoing"):
        raise LinkLost("wallet", "a payment of its is neither incoming nor outgoing")
    direction: Direction = "in" if kind == "incoming" else "out"
    if said is None:
        said = "settled" if row.get("settled_at") else "pending"
    state = _STATES.get(str(said).lower(), "open" if direction == "in" else "pending")
    preimage = row.get("preimage")
    return Transfer(
        payment_hash=str(row.get("payment_hash")),
        direction=direction,
        state=state,  # type: ignore[arg-type]  # it is of `_STATES`
        amount_msat=_whole(row, "amount"),
        fee_msat=int(row.get("fees_paid") or 0) if direction == "out" else 0,
        preimage=preimage if state == "settled" and isinstance(preimage, str) and preimage else None,
        at_s=int(row.get("settled_at") or row.get("created_at") or 0),
        reason=f"the wallet has it as {said}" if state == "failed" else "",
    )


def _whole(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int) or value < 0:
        raise LinkLost("wallet", f"its {name} is no amount")
    return value
