"""The port of bonds (`pay.bond.bond_holder`) over a registrar: provider, customer and oracle ask it alike.

What a provider must not lose stands in a file of its own: terms and coins of its bonds, written before the registrar
knows of them. With the file alone it takes its coins in its own time, whatever became of registrar and committee.
"""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

import aiohttp
import orjson

from nodewire import errors
from nodewire.core.sqlite import open_versioned
from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, NotAllowed, NotFound, PaymentFailed, TimedOut
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip98
from nodewire.pay.bond.bond_holder import HeldBond, Holder, VerdictSettlement
from nodewire.pay.bond.quorum import cosigner
from nodewire.pay.bond.quorum.custody import Closing, Coin, Custody
from nodewire.pay.bond.quorum.terms import SAT_MSAT, BondTerms, Payment, delay_s, terms_of
from nodewire.pay.bond.treasury.client import TreasuryClient
from nodewire.pay.lightning.no_wallet import NoWallet
from nodewire.protocol.committee.committee import Committee

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.quorum.cosigner import Convictions
    from nodewire.pay.lightning.wallet import Wallet

MAX_ANSWER_BYTES = 8_000_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS deposits (
    bond TEXT PRIMARY KEY, provider TEXT NOT NULL, key TEXT NOT NULL, terms TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS coins (bond TEXT NOT NULL, key TEXT NOT NULL, coins TEXT NOT NULL, PRIMARY KEY (bond, key))
"""
_ERRORS = {
    cls.code: cls
    for cls in (
        errors.BadInput,
        errors.BadInvoice,
        errors.BadQuorum,
        errors.BadSignature,
        errors.NotAllowed,
        errors.NotFound,
        errors.PaymentFailed,
        errors.NoQuorum,
        errors.TooLarge,
    )
}
_OPENING_S = 30


class QuorumBondHolder(TreasuryClient):
    """A BondHolder at the registrar `url`. `file` is where the provider's own bonds are kept.

    `committee` is the document's digest that is believed; without one a bond can be shown, and none locked.
    """

    def __init__(
        self,
        url: str,
        custody: Custody,
        file: Path | None = None,
        *,
        committee: str = "",
        wallet: Wallet | None = None,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        """`wallet` is what the treasury pays into."""
        super().__init__(self._ask, wallet or NoWallet())
        self._url, self._custody, self._pinned, self._time_s = url.rstrip("/"), custody, committee, time_s
        self._db = open_versioned(file or ":memory:", "a provider's bonds", _SCHEMA, 1)
        self._is_kept = file is not None
        self._session: aiohttp.ClientSession | None = None

    async def holder(self) -> Holder:
        said = await self._ask("GET", "/v1/holder")
        return Holder(
            public=_text(said, "public"),
            committee=_text(said, "committee"),
            unbonding_s=_number(said, "unbonding_s"),
            statement_s=_number(said, "statement_s"),
            lnurl=_text(said, "lnurl") if "lnurl" in said else "",
            pool_msat=_number(said, "pool_msat") if "pool_msat" in said else 0,
            unit_msat=_number(said, "unit_msat") if "unit_msat" in said else 1,
            prolongs=False,
            custodian=_text(said, "custodian"),
        )

    async def bond(self, provider: str) -> HeldBond:
        return _bond(await self._ask("GET", f"/v1/bonds/{provider}"))

    async def lock(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        committee, closing_s = await self._committee()
        amount_sat = _sat(amount_msat)
        terms = self._begun(keys.public, key)
        if terms is None:
            terms = terms_of(committee, keys.public, until_s, key, closing_s=closing_s)
            row = (terms.id, keys.public, key, orjson.dumps(terms.model_dump(mode="json")).decode())
            with self._db:
                self._db.execute("INSERT OR REPLACE INTO deposits VALUES (?, ?, ?, ?)", row)
        coins = await self._funded(terms, amount_sat, "first")
        body = {"terms": terms.model_dump(mode="json"), "coins": coins}
        return _bond(await self._ask("POST", "/v1/bonds", body, keys))

    def _begun(self, provider: str, key: str) -> BondTerms | None:
        """The terms by which the request `key` began to lock coins, if the bond could still begin."""
        query = "SELECT terms FROM deposits WHERE provider = ? AND key = ?"
        found = [BondTerms.from_document(orjson.loads(text)) for (text,) in self._db.execute(query, (provider, key))]
        return next((terms for terms in found if terms.until_s > self._time_s()), None)

    async def top_up(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        said = await self._ask("GET", f"/v1/bonds/{keys.public}")
        bond = _bond(said)
        if until_s > bond.until_s:
            raise NotAllowed(
                "until_s",
                f"a bond of this kind ends when it was locked for, at {bond.until_s}. "
                "Lock a later one when this one is back",
            )
        if not amount_msat:
            return bond
        terms = BondTerms.from_document(said.get("terms"))
        if bond.state != "locked":
            raise NotAllowed("bond", f"raise of a bond that is {bond.state}")
        coins = await self._funded(terms, _sat(amount_msat), key)
        return _bond(await self._ask("POST", "/v1/bonds/raise", {"key": key, "coins": coins}, keys))

    async def _funded(self, terms: BondTerms, amount_sat: int, key: str) -> list[Coin]:
        """The coins by this key, locked now or before, and kept in the file."""
        if not self._is_kept:
            raise BadConfig(
                "holder.file", "name the file where this provider's bonds are kept: it is needed to take them back"
            )
        if row := self._db.execute("SELECT coins FROM coins WHERE bond = ? AND key = ?", (terms.id, key)).fetchone():
            found: list[Coin] = orjson.loads(row[0])
            return found
        kept = self._db.execute("SELECT coins FROM coins WHERE bond = ?", (terms.id,)).fetchall()
        held: list[Coin] = [coin for (one,) in kept for coin in orjson.loads(one)]
        coins = await self._custody.fund(terms, amount_sat, key, held)
        with self._db:
            self._db.execute("INSERT INTO coins VALUES (?, ?, ?)", (terms.id, key, orjson.dumps(coins).decode()))
        return coins

    async def statement(self, keys: Keys) -> Event:
        return events.parse(await self._ask("POST", "/v1/bonds/statement", {}, keys))

    async def release(self, keys: Keys) -> HeldBond:
        """Beside what the port says: what is free comes into the wallet.

        That is what a closing pays, or in the provider's own time all that its file has, though nobody answers.
        """
        refunded = await self._refund(keys)
        try:
            said = await self._ask("POST", "/v1/bonds/release", {}, keys)
        except (LinkLost, TimedOut):
            if refunded is None:
                raise
            return refunded
        except NotAllowed:
            said = await self._ask("GET", f"/v1/bonds/{keys.public}")
            if _bond(said).state != "released":
                raise
        bond = _bond(said)
        if bond.state == "released":
            closed = await self._ask("GET", f"/v1/closings/{bond.id}")
            if closed.get("payments"):
                await self._custody.collect(keys, _closing(closed), closed["left"])
        return bond

    async def _refund(self, keys: Keys) -> HeldBond | None:
        """Take what is the provider's alone by now; the last bond that came back."""
        last = None
        rows = self._db.execute("SELECT bond, terms FROM deposits WHERE provider = ?", (keys.public,)).fetchall()
        for bond, text in rows:
            terms = BondTerms.from_document(orjson.loads(text))
            if terms.refund_at_s > self._time_s():
                continue
            sets = self._db.execute("SELECT coins FROM coins WHERE bond = ?", (bond,)).fetchall()
            coins: list[Coin] = []
            for (one,) in sets:  # a file of before may name a coin twice
                coins += [coin for coin in orjson.loads(one) if coin not in coins]
            try:
                if coins:
                    sat, _ = await self._custody.refund(keys, terms, coins)
                    times = (terms.until_s, terms.until_s, terms.refund_at_s)
                    last = HeldBond(bond, keys.public, sat * SAT_MSAT, sat * SAT_MSAT, "released", *times, ())
            except NotFound:
                pass  # the oracles closed it
            with self._db:
                self._db.execute("DELETE FROM deposits WHERE bond = ?", (bond,))
                self._db.execute("DELETE FROM coins WHERE bond = ?", (bond,))
        return last

    async def present(self, certificate: Event, request: Event) -> VerdictSettlement:
        body = {"certificate": certificate.as_dict(), "request": request.as_dict()}
        return _settled(await self._ask("POST", "/v1/verdicts", body))

    async def case(self, case: str) -> VerdictSettlement:
        return _settled(await self._ask("GET", f"/v1/cases/{case}"))

    async def claim(self, keys: Keys, case: str) -> int:
        settled = await self.case(case)
        if keys.public not in settled.payouts:
            try:
                return await super().claim(keys, case)
            except NotFound as error:
                raise NotAllowed("payee", "the verdict gives this key nothing") from error
        try:
            closed = await self._ask("GET", f"/v1/closings/{settled.bond}")
        except NotFound as error:
            raise PaymentFailed(
                "bond",
                "pays all its verdicts when its time is over and 2f+1 oracles have signed: "
                "`nodewire bond claim` again, later",
            ) from error
        try:
            amount_sat, _ = await self._custody.collect(keys, _closing(closed), closed["left"])
        except NotFound as error:
            least_sat = self._custody.least_sat
            raise NotAllowed(
                "payee", f"less than {least_sat} sat in all, which this kind of bond cannot pay"
            ) from error
        return amount_sat * SAT_MSAT

    async def cosign(self, keys: Keys, committee: Committee, known: Convictions) -> int:
        said = (await self._ask("GET", "/v1/closings", None, keys)).get("closings")
        if not isinstance(said, list):
            raise LinkLost("holder", "its answer has no closings")
        count, refused = 0, None
        for one in said:
            if isinstance(one, dict) and keys.public in (one.get("signed_by") or ()):
                continue
            try:
                signatures = await cosigner.sign(one, keys, committee, self._custody, known)
                bond = BondTerms.from_document(one["terms"]).id
                await self._ask("POST", f"/v1/closings/{bond}", {"signatures": [sig.hex() for sig in signatures]}, keys)
            except (BadInput, NotAllowed, NotFound) as error:
                refused = error  # the others are signed all the same
            else:
                count += 1
        if refused is not None:
            raise refused
        return count

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        await self._custody.close()
        self._db.close()

    async def _committee(self) -> tuple[Committee, int]:
        """The committee's document, by its digest that is pinned, and the time that closings need."""
        said = await self._ask("GET", "/v1/holder")
        committee = Committee.from_document(await self._ask("GET", "/v1/committee"))
        if committee.digest() != self._pinned:
            raise BadConfig("holder.url", "the registrar is another committee's")
        if _text(said, "kind") != self._custody.kind:
            raise BadConfig(
                "holder.kind",
                f"the registrar takes {_text(said, 'kind')[:40]!r}, and this role locks {self._custody.kind!r}",
            )
        closing_s = _number(said, "closing_s")
        if closing_s > 30 * 86_400:
            raise BadInput("closing_s", f"{closing_s} s: the coins would be back too late; ask another registrar")
        delay_s(committee)
        return committee, closing_s

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, keys: Keys | None = None
    ) -> dict[str, Any]:
        """The registrar's answer.

        Raises:
            LinkLost, TimedOut: no answer, or none of its own.
            NodewireError: its refusal, by the table of errors.

        """
        raw = orjson.dumps(body) if body is not None else b""
        asked = nip98.HttpRequest(self._url + path, method, raw)
        headers = {"Authorization": nip98.header(keys, asked, now_s=int(time.time()))} if keys is not None else {}
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_OPENING_S))
        try:
            async with self._session.request(
                method, self._url + path, data=raw or None, headers=headers, allow_redirects=False
            ) as response:
                told = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(told) <= MAX_ANSWER_BYTES and (piece := await response.content.read(MAX_ANSWER_BYTES)):
                    told += piece
        except TimeoutError as error:
            raise TimedOut("holder", f"no answer from {self._url}") from error
        except aiohttp.InvalidURL as error:
            raise BadConfig("holder.url", f"{self._url!r} is no URL") from error
        except aiohttp.ClientError as error:
            raise LinkLost("holder", f"{self._url}: {type(error).__name__}") from error
        try:
            answer = orjson.loads(told)
        except orjson.JSONDecodeError as error:
            raise LinkLost("holder", f"answered {response.status} and no JSON") from error
        if not isinstance(answer, dict):
            raise LinkLost("holder", f"answered {response.status} and nothing of its own")
        if response.status < 300:
            return answer
        raise _refusal(answer)


def _refusal(answer: Mapping[str, Any]) -> NodewireError:
    cls = _ERRORS.get(str(answer.get("code")), LinkLost)
    return cls(str(answer.get("field", "holder"))[:64], str(answer.get("reason", ""))[:400])


def _bond(said: Mapping[str, Any]) -> HeldBond:
    try:
        found = {field.name: said[field.name] for field in fields(HeldBond)}
        return HeldBond(**{**found, "cases": tuple(found["cases"])})
    except (KeyError, TypeError) as error:
        raise LinkLost("holder", f"its answer lacks {error}") from error


def _settled(said: Mapping[str, Any]) -> VerdictSettlement:
    try:
        return VerdictSettlement(**{field.name: said[field.name] for field in fields(VerdictSettlement)})
    except KeyError as error:
        raise LinkLost("holder", f"its answer lacks {error}") from error


def _closing(said: Mapping[str, Any]) -> Closing:
    try:
        payments = tuple(Payment(str(payee), int(sat)) for payee, sat in said["payments"])
        terms = BondTerms.from_document(said["terms"])
        return Closing(terms, tuple(said["coins"]), payments, int(said["fee_sat"]), dict(said["means"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LinkLost("holder", f"its closing is malformed: {error}") from error


def _sat(amount_msat: int) -> int:
    if amount_msat <= 0 or amount_msat % SAT_MSAT:
        raise BadInput("amount_msat", f"{amount_msat}: a bond of this kind is of whole satoshis")
    return amount_msat // SAT_MSAT


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else _malformed(name)


def _number(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    return value if type(value) is int and 0 <= value < 2**53 else _malformed(name)


def _malformed(name: str) -> NoReturn:
    raise LinkLost("holder", f"its answer lacks {name}")
