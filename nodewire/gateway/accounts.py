"""What every API key has spent, and how fast it may ask: in SQLite, so that a restart forgets nothing.

Before a request is bought, the most that it may cost is set aside; every job is noted before it is published. After it,
what it came to is booked in place of that. Of a request that a crash broke off, the customer's ledger knows the jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.sqlite import open_versioned, transaction
from nodewire.errors import Busy, OverBudget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodewire.gateway.config import KeyConfig

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, spent_msat INTEGER NOT NULL DEFAULT 0, requests INTEGER NOT NULL DEFAULT 0,
    next_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS reserved (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL REFERENCES keys (name), msat INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS jobs (request TEXT PRIMARY KEY, reserved INTEGER NOT NULL REFERENCES reserved (id)) STRICT;
"""
_MINUTE_MS = 60_000


class TooFast(Busy):
    """A key asks more often than it may; `wait_s` until it may again."""

    def __init__(self, wait_s: float) -> None:
        super().__init__("requests", f"too many in a minute; the next is answered in {wait_s:.1f} s")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is set aside for one request of a key: the most that it may cost."""

    id: int
    msat: int
    key: KeyConfig


class Accounts:
    """Of all keys, in the file at `path`. Raises BadConfig: it cannot be opened, or is another version's."""

    def __init__(self, path: Path | str) -> None:
        self._db = open_versioned(path, "accounts", _SCHEMA, _VERSION)

    def close(self) -> None:
        self._db.close()

    def admit(self, key: KeyConfig, now_ms: int) -> None:
        """Count one request.

        A key may begin `per_minute` of them at once, and gains one every 60 s / `per_minute` (GCRA, ITU-T I.371).

        Raises:
            TooFast: it would be one too many; nothing was counted.

        """
        with transaction(self._db):
            self._db.execute("INSERT INTO keys (name) VALUES (?) ON CONFLICT DO NOTHING", (key.name,))
            (next_ms,) = self._db.execute("SELECT next_ms FROM keys WHERE name = ?", (key.name,)).fetchone()
            if key.per_minute is not None:
                every_ms = -(-_MINUTE_MS // key.per_minute)
                room_ms = every_ms * (key.per_minute - 1)
                next_ms = min(next_ms, now_ms + _MINUTE_MS)  # a clock that was set back costs a minute, no more
                if (late_ms := next_ms - room_ms - now_ms) > 0:
                    raise TooFast(late_ms / 1000)
                next_ms = max(next_ms, now_ms) + every_ms
            sql = "UPDATE keys SET next_ms = ?, requests = requests + 1 WHERE name = ?"
            self._db.execute(sql, (next_ms, key.name))

    def reserve(self, key: KeyConfig, most_msat: int) -> Reservation:
        """Set aside `most_msat` of the key's budget, or as much as is left.

        Raises:
            OverBudget: nothing is left.

        """
        with transaction(self._db):
            most_msat = min(most_msat, self._left_msat(key, most_msat))
            if most_msat <= 0:
                raise _used_up(key)
            self._db.execute("INSERT INTO keys (name) VALUES (?) ON CONFLICT DO NOTHING", (key.name,))
            made = self._db.execute("INSERT INTO reserved (key, msat) VALUES (?, ?)", (key.name, most_msat))
            assert made.lastrowid is not None
            return Reservation(made.lastrowid, most_msat, key)

    def requested(self, reservation: Reservation, request: str, most_msat: int) -> None:
        """A job is about to be published for it; with its plan's prices it comes to `most_msat` at most.

        What the first one's prices leave over is the key's again; of one that is dearer than those before it the rest
        is set aside anew.

        Raises:
            OverBudget: others have it meanwhile; the job is not noted, and may not be published.

        """
        with transaction(self._db):
            sql = "SELECT msat, EXISTS (SELECT * FROM jobs WHERE reserved = id) FROM reserved WHERE id = ?"
            msat, is_begun = self._db.execute(sql, (reservation.id,)).fetchone()
            most_msat = min(reservation.msat, max(most_msat, msat if is_begun else 0))
            if most_msat - msat > self._left_msat(reservation.key, most_msat):
                raise _used_up(reservation.key)
            self._db.execute("INSERT INTO jobs VALUES (?, ?) ON CONFLICT DO NOTHING", (request, reservation.id))
            self._db.execute("UPDATE reserved SET msat = ? WHERE id = ?", (most_msat, reservation.id))

    def settle(self, reservation: Reservation, cost_msat: int) -> None:
        """It has ended, and came to so much."""
        self._settle(reservation.id, cost_msat)

    def recover(self, cost_msat: Callable[[str], int]) -> int:
        """Settle what an earlier process left, by what each of its jobs came to; how many requests that were."""
        left = [id_ for (id_,) in self._db.execute("SELECT id FROM reserved").fetchall()]
        for id_ in left:
            jobs = self._db.execute("SELECT request FROM jobs WHERE reserved = ?", (id_,)).fetchall()
            self._settle(id_, sum(cost_msat(request) for (request,) in jobs))
        return len(left)

    def spent_msat(self, name: str) -> int:
        row = self._db.execute("SELECT spent_msat FROM keys WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def reserved_msat(self, name: str) -> int:
        (found,) = self._db.execute("SELECT coalesce(sum(msat), 0) FROM reserved WHERE key = ?", (name,)).fetchone()
        return int(found)

    def requests(self) -> dict[str, int]:
        """How many each key has made."""
        return {str(name): int(n) for name, n in self._db.execute("SELECT name, requests FROM keys")}

    def _left_msat(self, key: KeyConfig, most_msat: int) -> int:
        """What is neither spent nor set aside of a key's budget; `most_msat` if it has none."""
        if key.budget_msat is None:
            return most_msat
        return key.budget_msat - self.spent_msat(key.name) - self.reserved_msat(key.name)

    def _settle(self, id_: int, cost_msat: int) -> None:
        with transaction(self._db):
            self._db.execute("DELETE FROM jobs WHERE reserved = ?", (id_,))
            row = self._db.execute("DELETE FROM reserved WHERE id = ? RETURNING key", (id_,)).fetchone()
            if row is not None:
                sql = "UPDATE keys SET spent_msat = spent_msat + ? WHERE name = ?"
                self._db.execute(sql, (cost_msat, row[0]))


def _used_up(key: KeyConfig) -> OverBudget:
    return OverBudget("api_key", f"the budget of {(key.budget_msat or 0) / 1000:g} sat is spent or set aside")
