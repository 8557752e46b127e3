"""The registrar's book in SQLite: bonds, their coins, the steps that each took, verdicts, and closings.

A step is on disk before it counts. A bond is what its steps make of it (`pay.bond.bonds`).
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import orjson

from nodewire.core.sqlite import open_versioned, transaction
from nodewire.errors import NotAllowed, NotFound
from nodewire.nostr.event import parse_unverified
from nodewire.pay.bond import bonds
from nodewire.pay.bond.bonds import Bond, Payout
from nodewire.pay.bond.quorum.terms import SAT_MSAT, BondTerms, Evidence
from nodewire.pay.bond.treasury import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from nodewire.pay.bond.quorum.custody import Coin
    from nodewire.protocol.job.share_statement import ShareStatement

_STEPS: dict[str, type[bonds.Event]] = {one.__name__: one for one in get_args(bonds.Event)}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS bonds (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, provider TEXT NOT NULL, amount_sat INTEGER NOT NULL,
    terms TEXT NOT NULL, statement TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS bonds_provider ON bonds (provider);
CREATE TABLE IF NOT EXISTS coins (key TEXT PRIMARY KEY, bond TEXT NOT NULL, coin TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    number INTEGER PRIMARY KEY, bond TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS steps_bond ON steps (bond);
CREATE TABLE IF NOT EXISTS cases (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, settled TEXT NOT NULL,
    certificate TEXT NOT NULL, request TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS touched (
    bond TEXT NOT NULL, id TEXT NOT NULL, amount_sat INTEGER NOT NULL, PRIMARY KEY (bond, id)
);
CREATE TABLE IF NOT EXISTS closings (bond TEXT PRIMARY KEY, proposed TEXT NOT NULL, left TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS signatures (
    bond TEXT NOT NULL, oracle TEXT NOT NULL, signed TEXT NOT NULL, PRIMARY KEY (bond, oracle)
);
CREATE TABLE IF NOT EXISTS priced (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS statements (number INTEGER PRIMARY KEY, request TEXT NOT NULL, document TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Deposit:
    """A bond with its terms and coins, and the newest statement about it (JSON)."""

    bond: Bond
    terms: BondTerms
    coins: tuple[Coin, ...]
    statement: str


class Book:
    """Raises BadConfig: the file cannot be opened. Another process cannot open it meanwhile."""

    def __init__(self, path: Path) -> None:
        self._db = open_versioned(path, "a registrar's book", _SCHEMA + tables.SCHEMA, 1, alone=True)
        self.treasury = tables.open_book(self._db)
        """To be changed in a transaction."""

    def transaction(self) -> AbstractContextManager[None]:
        """All that is written inside, or nothing."""
        return transaction(self._db)

    # Bonds

    def lock(self, terms: BondTerms, amount_sat: int, coins: Mapping[str, Coin]) -> None:
        """A new bond. Raises NotAllowed: a coin of it is another's."""
        row = (terms.id, terms.provider, amount_sat, orjson.dumps(terms.model_dump(mode="json")).decode())
        self._db.execute("INSERT INTO bonds (id, provider, amount_sat, terms) VALUES (?, ?, ?, ?)", row)
        self.add_coins(terms.id, coins)

    def add_coins(self, bond: str, coins: Mapping[str, Coin]) -> None:
        """Raises NotAllowed: a coin of them is a bond's already."""
        rows = [(key, bond, orjson.dumps(coin).decode()) for key, coin in coins.items()]
        try:
            self._db.executemany("INSERT INTO coins VALUES (?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise NotAllowed("coins", "one of them is a bond's already") from error

    def step(self, bond: str, event: bonds.Event) -> Bond:
        """The bond after `event`, which is on disk. Raises as `bonds.apply`."""
        before = self.deposit(bond).bond
        after = bonds.apply(event, before)
        if after is not before:
            body = orjson.dumps(asdict(event)).decode()
            self._db.execute(
                "INSERT INTO steps (bond, name, body) VALUES (?, ?, ?)", (bond, type(event).__name__, body)
            )
        return after

    def state(self, bond: str, statement: str) -> None:
        self._db.execute("UPDATE bonds SET statement = ? WHERE id = ?", (statement, bond))

    def deposit(self, bond: str) -> Deposit:
        """Raises NotFound."""
        query = "SELECT terms, amount_sat, statement FROM bonds WHERE id = ?"
        row = self._db.execute(query, (bond,)).fetchone()
        if row is None:
            raise NotFound("bond", "no such bond")
        terms = BondTerms.from_document(orjson.loads(row[0]))
        found = bonds.lock(bonds.Lock(bond, terms.provider, row[1] * SAT_MSAT, terms.until_s))
        for name, body in self._db.execute("SELECT name, body FROM steps WHERE bond = ? ORDER BY number", (bond,)):
            found = bonds.apply(_event(name, orjson.loads(body)), found)
        coins = self._db.execute("SELECT coin FROM coins WHERE bond = ? ORDER BY key", (bond,))
        return Deposit(found, terms, tuple(orjson.loads(one) for (one,) in coins), row[2])

    def newest(self, provider: str) -> Deposit | None:
        """The provider's newest bond."""
        query = "SELECT id FROM bonds WHERE provider = ? ORDER BY number DESC LIMIT 1"
        row = self._db.execute(query, (provider,)).fetchone()
        return self.deposit(row[0]) if row is not None else None

    def liable(self) -> list[Deposit]:
        """The bonds that are not over."""
        query = "SELECT id FROM bonds WHERE id NOT IN (SELECT bond FROM steps WHERE name = 'Free') ORDER BY number"
        return [self.deposit(bond) for (bond,) in self._db.execute(query).fetchall()]

    # Verdicts

    def settle(self, case: str, digest: str, settled: Mapping[str, Any], evidence: Evidence) -> None:
        row = (case, digest, orjson.dumps(settled).decode(), evidence.certificate.to_json(), evidence.request.to_json())
        self._db.execute("INSERT INTO cases (id, digest, settled, certificate, request) VALUES (?, ?, ?, ?, ?)", row)

    def touch(self, bond: Bond, case: str) -> None:
        """The verdict reached the bond, of this amount then."""
        self._db.execute("INSERT INTO touched VALUES (?, ?, ?)", (bond.id, case, bond.amount_msat // SAT_MSAT))

    def case(self, case: str) -> tuple[str, dict[str, Any]]:
        """The verdict's digest, and how it was settled. Raises NotFound."""
        row = self._db.execute("SELECT digest, settled FROM cases WHERE id = ?", (case,)).fetchone()
        if row is None:
            raise NotFound("case", "no verdict on it was presented")
        return row[0], orjson.loads(row[1])

    def price(self, case: str, priced: Mapping[str, Any]) -> None:
        """Keep what the treasury needs to know of a verdict."""
        self._db.execute("INSERT INTO priced VALUES (?, ?)", (case, orjson.dumps(priced).decode()))

    def priced(self, case: str) -> dict[str, Any]:
        """Raises NotFound."""
        row = self._db.execute("SELECT body FROM priced WHERE id = ?", (case,)).fetchone()
        if row is None:
            raise NotFound("case", "no verdict on it was presented")
        found: dict[str, Any] = orjson.loads(row[0])
        return found

    def keep_statement(self, said: ShareStatement) -> None:
        """What a customer has signed stays: it proves that its balance was the registrar's to take of."""
        self._db.execute("INSERT INTO statements (request, document) VALUES (?, ?)", (said.request, said.to_json()))

    def evidence(self, bond: str) -> list[tuple[Evidence, int]]:
        """The verdicts that reached the bond in their order, and what its amount in satoshis was then."""
        query = (
            "SELECT certificate, request, amount_sat FROM cases JOIN touched ON cases.id = touched.id WHERE bond = ? "
            "ORDER BY cases.number"
        )
        rows = self._db.execute(query, (bond,)).fetchall()
        return [(Evidence(parse_unverified(one), parse_unverified(two)), amount_sat) for one, two, amount_sat in rows]

    # Closings

    def propose(self, bond: str, proposed: Mapping[str, Any]) -> None:
        """Another proposal makes the signatures of the one before worthless."""
        self._db.execute("DELETE FROM signatures WHERE bond = ?", (bond,))
        row = (bond, orjson.dumps(proposed).decode())
        self._db.execute("INSERT OR REPLACE INTO closings (bond, proposed) VALUES (?, ?)", row)

    def closing(self, bond: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What was proposed, and what the closing left when it was executed. Raises NotFound."""
        row = self._db.execute("SELECT proposed, left FROM closings WHERE bond = ?", (bond,)).fetchone()
        if row is None:
            raise NotFound("closing", "the bond's time is not over")
        return orjson.loads(row[0]), orjson.loads(row[1]) if row[1] else None

    def executed(self, bond: str, left: Mapping[str, Any]) -> None:
        self._db.execute("UPDATE closings SET left = ? WHERE bond = ?", (orjson.dumps(left).decode(), bond))

    def sign(self, bond: str, oracle: str, signatures: Sequence[bytes]) -> None:
        row = (bond, oracle, orjson.dumps([one.hex() for one in signatures]).decode())
        self._db.execute("INSERT OR REPLACE INTO signatures VALUES (?, ?, ?)", row)

    def signatures(self, bond: str) -> dict[str, list[bytes]]:
        rows = self._db.execute("SELECT oracle, signed FROM signatures WHERE bond = ?", (bond,))
        return {oracle: [bytes.fromhex(one) for one in orjson.loads(signed)] for oracle, signed in rows}

    def close(self) -> None:
        self._db.close()


def _event(name: str, body: dict[str, Any]) -> bonds.Event:
    if "payouts" in body:
        body["payouts"] = tuple(Payout(**one) for one in body["payouts"])
    return _STEPS[name](**body)
