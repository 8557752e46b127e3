"""The shards, and outer steps, that a provider has taken, in SQLite.

One that died begins them again, and asks for nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.sqlite import open_versioned
from nodewire.nostr import event as events
from nodewire.protocol import kinds
from nodewire.training.protocol.outer_step import OuterTicket
from nodewire.training.protocol.round import RoundTicket

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.nostr.event import Event

_SCHEMA = """
CREATE TABLE IF NOT EXISTS shards (
    request TEXT PRIMARY KEY, event TEXT NOT NULL, ticket TEXT NOT NULL, delivered INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS chained (previous TEXT PRIMARY KEY, request TEXT NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True)
class KeptShard:
    """A shard or an outer step that was taken; `delivered`: it only waits for its balance."""

    event: Event
    ticket: RoundTicket | OuterTicket
    delivered: bool


class KeptShards:
    """What is under way or not paid yet. Raises BadConfig: the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._db = open_versioned(path, "kept shards", _SCHEMA, 1)

    def close(self) -> None:
        self._db.close()

    def begun(self, event: Event, ticket: RoundTicket | OuterTicket, *, paid_before: bool = True) -> None:
        """Taken.

        On disk when this returns if a deposit is paid for it; otherwise a power failure may make this provider forget
        work that nobody has paid for yet (and the ledger knows what is due for).
        """
        self._db.execute(f"PRAGMA synchronous = {'FULL' if paid_before else 'NORMAL'}")
        sql = "INSERT INTO shards (request, event, ticket) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        self._db.execute(sql, (event.id, event.to_json(), ticket.to_json()))

    def delivered(self, request: str) -> None:
        """Only its balance is open."""
        self._db.execute("UPDATE shards SET delivered = 1 WHERE request = ?", (request,))

    def remove(self, request: str) -> None:
        """It is paid, or nothing comes of it: nothing is known of it any more."""
        self._db.execute("DELETE FROM shards WHERE request = ?", (request,))

    def stands_for(self, previous: str, request: str) -> bool:
        """Whether the payment of `previous` stands for this request's deposit: for the first that says so alone."""
        self._db.execute("INSERT INTO chained VALUES (?, ?) ON CONFLICT DO NOTHING", (previous, request))
        (first,) = self._db.execute("SELECT request FROM chained WHERE previous = ?", (previous,)).fetchone()
        return bool(first == request)

    def all(self) -> list[KeptShard]:
        """Oldest first."""
        rows = self._db.execute("SELECT event, ticket, delivered FROM shards ORDER BY rowid")
        return [_kept(events.parse(event), ticket, bool(done)) for event, ticket, done in rows]


def _kept(event: Event, ticket: str, delivered: bool) -> KeptShard:
    document = OuterTicket if event.kind == kinds.OUTER else RoundTicket
    return KeptShard(event, document.parse(ticket), delivered)
