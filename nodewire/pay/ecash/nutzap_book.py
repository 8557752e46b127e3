"""The nutzaps (NIP-61) of a purse: those that came, from before they are claimed, and those that it sends.

A nutzap that came is waiting, then claimed (its ecash is the purse's), then booked by its owner; or it is refused. One
that is sent is drafted (its locked secrets are on disk), then locked (the mint has signed them, and its event is here).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Literal

import orjson

from nodewire.errors import NotAllowed, NotFound
from nodewire.pay.ecash.proofs import BlankOutput, parse_output

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

State = Literal["waiting", "claimed", "booked", "refused"]
SCHEMA = """
CREATE TABLE IF NOT EXISTS nutzaps (
    id TEXT PRIMARY KEY, event TEXT NOT NULL, is_bound INTEGER NOT NULL, state TEXT NOT NULL, from_s INTEGER NOT NULL,
    tries INTEGER NOT NULL, amount_sat INTEGER NOT NULL, at_s INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS nutzaps_open ON nutzaps (state) WHERE state IN ('waiting', 'claimed');
CREATE TABLE IF NOT EXISTS nutzap_proofs (y TEXT PRIMARY KEY, nutzap TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sent_nutzaps (
    payment_hash TEXT PRIMARY KEY, preimage TEXT NOT NULL, amount_sat INTEGER NOT NULL, outputs TEXT NOT NULL,
    draft TEXT NOT NULL, relays TEXT NOT NULL, expires_at_s INTEGER NOT NULL, event TEXT NOT NULL
) STRICT
"""


@dataclass(frozen=True, slots=True)
class ReceivedNutzap:
    """A nutzap that came. `event` is its JSON, `from_s` (unix) when it may be claimed, `amount_sat` what it brought.

    `is_bound`: its author made its ecash. Of any other the author may have copied somebody's.
    """

    id: str
    event: str
    is_bound: bool
    state: State
    from_s: int
    tries: int = 0
    amount_sat: int = 0
    at_s: int = 0
    """When it was claimed (unix)."""
    reason: str = ""
    """Why it was refused, or not claimed yet."""


@dataclass(frozen=True, slots=True)
class SentNutzap:
    """A nutzap of the purse's owner. `outputs` are locked to the recipient, `draft` is its event but for the proofs."""

    payment_hash: str
    preimage: str
    amount_sat: int
    """What the recipient gets of it."""
    outputs: tuple[BlankOutput, ...] = field(repr=False)
    draft: str
    relays: tuple[str, ...]
    expires_at_s: int
    """It is not begun after that (unix)."""
    event: str = field(default="", repr=False)
    """Its JSON, when its ecash is locked."""


class NutzapBook:
    """The tables of nutzaps in a purse's file. Methods that write are called in a transaction of the purse."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    # That came

    def enter(self, one: ReceivedNutzap) -> bool:
        """Whether it is new; what is there stands."""
        sql = "INSERT OR IGNORE INTO nutzaps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        return self._db.execute(sql, astuple(one)).rowcount == 1

    def find(self, id_: str) -> ReceivedNutzap | None:
        found = self._all("id = ?", id_)
        return found[0] if found else None

    def waiting(self, now_s: float, most: int) -> list[ReceivedNutzap]:
        """Those that may be claimed, the oldest first."""
        return self._all("state = 'waiting' AND from_s <= ? ORDER BY from_s, rowid LIMIT ?", int(now_s), most)

    def next_s(self) -> int | None:
        """When the next one may be claimed (unix)."""
        (found,) = self._db.execute("SELECT min(from_s) FROM nutzaps WHERE state = 'waiting'").fetchone()
        return None if found is None else int(found)

    def count_waiting(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM nutzaps WHERE state = 'waiting'").fetchone()[0])

    def claimed(self) -> list[ReceivedNutzap]:
        """Those that are not booked yet, the oldest first."""
        return self._all("state = 'claimed' ORDER BY at_s, rowid")

    def hold(self, id_: str, ys: Iterable[str]) -> None:
        """These proofs, by their points Y, are this nutzap's. Raises NotAllowed: one was another's."""
        for y in ys:
            self._db.execute("INSERT OR IGNORE INTO nutzap_proofs VALUES (?, ?)", (y, id_))
            if self._db.execute("SELECT nutzap FROM nutzap_proofs WHERE y = ?", (y,)).fetchone() != (id_,):
                raise NotAllowed("proof", "another nutzap brought it before")

    def has_any(self, ys: Iterable[str]) -> bool:
        """Whether a nutzap brought any of these proofs before."""
        sql = "SELECT 1 FROM nutzap_proofs WHERE y = ?"
        return any(self._db.execute(sql, (y,)).fetchone() for y in ys)

    def claim(self, id_: str, amount_sat: int, at_s: int) -> None:
        """Its ecash is the purse's."""
        sql = "UPDATE nutzaps SET state = 'claimed', amount_sat = ?, at_s = ?, reason = '' WHERE id = ?"
        self._db.execute(f"{sql} AND state = 'waiting'", (amount_sat, at_s, id_))

    def delay(self, id_: str, from_s: int, reason: str) -> None:
        """It is tried again at that moment (unix)."""
        sql = "UPDATE nutzaps SET from_s = ?, tries = tries + 1, reason = ? WHERE id = ? AND state = 'waiting'"
        self._db.execute(sql, (from_s, reason[:200], id_))

    def refuse(self, id_: str, reason: str) -> None:
        """It is never claimed. Its text is dropped."""
        sql = "UPDATE nutzaps SET state = 'refused', event = '', reason = ? WHERE id = ? AND state = 'waiting'"
        self._db.execute(sql, (reason[:200], id_))

    def book(self, id_: str) -> None:
        """Its owner's ledger has it. Its text is dropped."""
        self._db.execute("UPDATE nutzaps SET state = 'booked', event = '' WHERE id = ? AND state = 'claimed'", (id_,))

    def _all(self, where: str, *values: object) -> list[ReceivedNutzap]:
        rows = self._db.execute(f"SELECT * FROM nutzaps WHERE {where}", values)
        return [ReceivedNutzap(id_, event, bool(bound), *rest) for id_, event, bound, *rest in rows]

    # That are sent

    def draft(self, one: SentNutzap) -> None:
        outputs = orjson.dumps([output.as_dict() for output in one.outputs]).decode()
        row = (one.payment_hash, one.preimage, one.amount_sat, outputs, one.draft)
        relays = orjson.dumps(one.relays).decode()
        self._db.execute("INSERT INTO sent_nutzaps VALUES (?, ?, ?, ?, ?, ?, ?, '')", (*row, relays, one.expires_at_s))

    def sent(self, payment_hash: str) -> SentNutzap:
        """Raises NotFound."""
        row = self._db.execute("SELECT * FROM sent_nutzaps WHERE payment_hash = ?", (payment_hash,)).fetchone()
        if row is None:
            raise NotFound("payment_hash", "this wallet drew up no such nutzap")
        hash_, preimage, amount_sat, outputs, draft, relays, expires_at_s, event = row
        blanks = tuple(parse_output(one) for one in orjson.loads(outputs))
        named: Sequence[str] = orjson.loads(relays)
        return SentNutzap(hash_, preimage, amount_sat, blanks, draft, tuple(named), expires_at_s, event)

    def lock(self, payment_hash: str, event: str) -> None:
        """The mint has signed its proofs, and this is its event."""
        self._db.execute("UPDATE sent_nutzaps SET event = ? WHERE payment_hash = ?", (event, payment_hash))

    def forget(self, before_s: int) -> None:
        """Drafts that were never begun, and that have expired before a moment (unix)."""
        sql = "DELETE FROM sent_nutzaps WHERE event = '' AND expires_at_s < ?"
        self._db.execute(f"{sql} AND payment_hash NOT IN (SELECT payment_hash FROM payments)", (before_s,))
