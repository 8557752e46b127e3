"""A wallet over Nostr Wallet Connect: NIP-47 through relays, with NIP-44, or NIP-04 where the wallet has nothing else.

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
from nodewire.nostr.nips import nip04, nip44
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
_ENCRYPTIONS = ("nip44_v2", "nip04")
"""By NIP-47's names, the better one first."""
_PROBE_MSAT = 1_001
_PAGE = 20
_SAT_MSAT, _MOST_MSAT = 1_000, 100_000_000_000  # up to 1 BTC
_ASK_S, _LONGEST_S = 0.3, 3.0
_UNKNOWN_EXPIRY_S = 86_400
"""How long an invoice counts as open that neither the wallet nor its own text dates."""
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
        self._encryption = _ENCRYPTIONS[0]
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
            unit_msat = 1
            if "invoice" in can:
                unit_msat, commits = await self._probe_invoice()
                can -= set() if commits else {"invoice"}
            if self._methods & {"lookup_invoice", "list_transactions"}:
                can.add("lookup-in")
            if "list_transactions" in self._methods:
                can.add("settled")
                if await self._finds_what_went():
                    can.add("lookup-out")
            own = f"nwc:{self._to.wallet}"
            self._known = WalletInfo(own, network, unit_msat, unit_msat, _MOST_MSAT, frozenset(can))
        return self._known

    async def balance_msat(self) -> int:
        return _whole(await self._ask("get_balance", {}), "balance")

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        if not 0 < amount_msat <= _MOST_MSAT:
            raise BadInput("amount_msat", f"{amount_msat}, from 1 to {_MOST_MSAT}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        info = await self.info()
        if "invoice" not in info.abilities:
            raise NotAllowed("wallet", "it makes no invoices that commit to the hash of a description: use another one")
        if amount_msat % info.unit_msat:
            raise BadInput("amount_msat", f"{amount_msat}: the wallet takes whole multiples of {info.unit_msat} msat")
        digest = hashlib.sha256(description.encode()).hexdigest()
        invoice = await self._made(amount_msat, digest, expiry_s)
        invoices.check(invoice, amount_msat=amount_msat, now_s=time.time(), description_hash=digest)
        return invoice

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        info = await self.info()
        invoice = invoices.decode(bolt11, network=info.network)
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
                    if asking is None and invoice.amount_msat < info.least_msat:
                        least = f"{invoice.amount_msat} msat, and the wallet sends {info.least_msat} or more"
                        raise PaymentFailed("invoice", least) from None
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

    async def _made(self, amount_msat: int, digest: str, expiry_s: int) -> Invoice:
        """An invoice, as the wallet makes it: some round amounts to satoshis, or drop the hash of the description."""
        asked = {"amount": amount_msat, "description_hash": digest, "expiry": expiry_s}
        made = (await self._ask("make_invoice", asked)).get("invoice")
        if not isinstance(made, str):
            raise BadInvoice("invoice", "the wallet made none")
        return invoices.decode(made)

    async def _probe_invoice(self) -> tuple[int, bool]:
        """Of what its amounts are multiples (1 or 1,000), and whether its invoices commit to the hash of a description.

        An invoice tells, which nobody gets.
        """
        digest = hashlib.sha256(b"amount and hash").hexdigest()
        for asked_msat in (_PROBE_MSAT, _SAT_MSAT):
            try:
                made = await self._made(asked_msat, digest, 60)
            except (LinkLost, TimedOut):
                raise
            except NodewireError:
                continue  # some refuse parts of a satoshi
            unit_msat = 1 if made.amount_msat == _PROBE_MSAT else _SAT_MSAT
            return unit_msat, made.description_hash == digest and made.amount_msat in (_PROBE_MSAT, _SAT_MSAT)
        return _SAT_MSAT, False

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
            came = one.state == "settled" or bool(row.get("settled_at"))
            if came and one.preimage is None and "lookup_invoice" in self._methods:
                one = _transfer(await self._ask("lookup_invoice", {"payment_hash": one.payment_hash}))
            found.append(ListedInvoice(one, _whole(row, "created_at"), _expires_at_s(row)))
        return sorted(found, key=lambda one: one.created_at_s)

    async def _transactions(self, direction: Direction, since_s: int, most: int = 10**6) -> list[dict[str, Any]]:
        """Its payments in one direction from then on, newest first: all states, as far as it tells them."""
        found: dict[str, dict[str, Any]] = {}
        kind, offset, unpaid = "incoming" if direction == "in" else "outgoing", 0, True
        while len(found) < most:
            limit = min(_PAGE, most - len(found))
            asked = {"type": kind, "unpaid": unpaid, "limit": limit, "offset": offset}
            said = await self._ask("list_transactions", {**asked, **({"from": since_s} if since_s else {})})
            rows = said.get("transactions")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise LinkLost("wallet", "its list of payments is none")
            if unpaid and any(row.get("type") != kind for row in rows):
                unpaid, offset = False, 0  # some add their unpaid invoices to whatever is asked for
                continue
            for row in rows:
                if row.get("type") == kind:
                    found.setdefault(str(row.get("payment_hash")), row)
            if not rows:  # a page that is not full may not be the last: some count in it what they leave out
                break
            offset += len(rows)
        return list(found.values())

    async def _ask(self, method: str, params: dict[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """What the wallet answers to a request.

        Raises:
            LinkLost, TimedOut: no relay took it, or no answer came.
            NotFound, NotAllowed, PaymentFailed, Unsupported: the wallet's refusal, in its words.

        """
        text = orjson.dumps({"method": method, "params": params}).decode()
        asked_id = ""
        try:
            async with asyncio.timeout(self._timeout_s + wait_s):
                pool = await self._connected()
                asked = self._request(text, expires=method != "pay_invoice")  # one that comes late is looked up
                asked_id = asked.id
                answer = self._answers[asked_id] = asyncio.get_running_loop().create_future()
                await pool.publish(asked, timeout_s=self._timeout_s)
                said = await answer
        except TimeoutError as error:
            raise TimedOut("wallet", f"no answer to {method} came over its relays") from error
        finally:
            self._answers.pop(asked_id, None)
        return _result(method, _decrypted(said, self._to, method))

    def _request(self, text: str, *, expires: bool) -> Event:
        now_s = int(time.time())
        tags = [["p", self._to.wallet], ["encryption", self._encryption]]
        if expires:
            tags.append(["expiration", str(now_s + int(self._timeout_s) + 1)])
        if self._encryption == "nip04":
            content = nip04.encrypt(text, self._to.keys, self._to.wallet)
        else:
            content = nip44.encrypt(text, nip44.conversation_key(self._to.keys, self._to.wallet))
        return sign(self._to.keys, REQUEST, created_at=now_s, content=content, tags=tags)

    async def _connected(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await Pool(self._to.relays, self._to.keys).__aenter__()
                self._heard = self._pool.subscribe([self._wanted()])
                self._listening = asyncio.create_task(self._listen(self._heard))
                self._encryption = ""
            async with asyncio.timeout(self._timeout_s):
                await self._heard.eose  # relays keep no answer for who listens later
            if not self._encryption:
                said = Filter(kinds=frozenset({INFO}), authors=frozenset({self._to.wallet}), limit=1)
                self._encryption = _encryption(await self._pool.fetch([said], self._timeout_s))
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


def _encryption(said: list[Event]) -> str:
    """What to speak with a wallet of whose info events `said` are, newest first.

    One that says nothing of encryption has NIP-04 alone. Of one whose info event no relay has, NIP-44 is believed.

    Raises:
        Unsupported: it speaks neither.

    """
    if not said:
        return _ENCRYPTIONS[0]
    spoken = (said[0].tag("encryption") or "nip04").split()
    for name in _ENCRYPTIONS:
        if name in spoken:
            return name
    raise Unsupported("wallet", f"it speaks {' '.join(spoken)[:80]!r}, and not {' or '.join(_ENCRYPTIONS)}")


def _decrypted(said: Event, to: Connection, method: str) -> str:
    """The text of an answer, by its form. Raises LinkLost: it cannot be read."""
    try:
        if "?iv=" in said.content:
            return nip04.decrypt(said.content, to.keys, to.wallet, max_bytes=MAX_ANSWER_BYTES)
        key = nip44.conversation_key(to.keys, to.wallet)
        return nip44.decrypt(said.content, key, max_bytes=MAX_ANSWER_BYTES)
    except BadInput as error:
        raise LinkLost("wallet", f"its answer to {method} cannot be read: {type(error).__name__}") from error


def _result(method: str, text: str) -> dict[str, Any]:
    """The result in an answer. Raises as `NwcWallet._ask`."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError as error:
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
    if not isinstance(preimage, str) or not invoices.opens(preimage, invoice.payment_hash):
        raise TimedOut("wallet", "it has paid, and neither knows of it nor shows the preimage")
    fee_msat, now_s = _whole_or_0(said, "fees_paid"), int(time.time())
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
    """A transaction of NIP-47. Where it says no state, a moment of settlement and a preimage say that it settled."""
    kind, said = row.get("type"), row.get("state")
    if kind not in ("incoming", "outgoing"):
        raise LinkLost("wallet", "a payment of its is neither incoming nor outgoing")
    direction: Direction = "in" if kind == "incoming" else "out"
    if said is None:
        said = "settled" if row.get("settled_at") and row.get("preimage") else "pending"
    state = _STATES.get(str(said).lower(), "open" if direction == "in" else "pending")
    preimage = row.get("preimage")
    return Transfer(
        payment_hash=str(row.get("payment_hash")),
        direction=direction,
        state=state,  # type: ignore[arg-type]  # it is of `_STATES`
        amount_msat=_whole(row, "amount"),
        fee_msat=_whole_or_0(row, "fees_paid") if direction == "out" else 0,
        preimage=preimage if state == "settled" and isinstance(preimage, str) and preimage else None,
        at_s=_whole_or_0(row, "settled_at") or _whole_or_0(row, "created_at"),
        reason=f"the wallet has it as {said}" if state == "failed" else "",
    )


def _whole(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or value < 0:
        raise LinkLost("wallet", f"its {name} is no amount")
    return value


def _expires_at_s(row: dict[str, Any]) -> int:
    """Until when an invoice can be paid. A wallet need not say so: then the invoice does, or it has a day."""
    if found := _whole_or_0(row, "expires_at"):
        return found
    try:
        return invoices.decode(str(row.get("invoice"))).expires_at_s
    except BadInput:
        return _whole(row, "created_at") + _UNKNOWN_EXPIRY_S


def _whole_or_0(said: dict[str, Any], name: str) -> int:
    """0 where the wallet says none, or null."""
    return 0 if said.get(name) is None else _whole(said, name)
