"""NIP-40: what has expired is refused on arrival (policing.py), not served (querying.py), and swept away here.

https://github.com/nostr-protocol/nips/blob/master/40.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.events.deleting import remove

if TYPE_CHECKING:
    import sqlite3

_MOST_AT_ONCE = 5_000  # the writer does nothing else meanwhile; the next sweep takes the rest


def sweep(db: sqlite3.Connection, now_s: int) -> int:
    """Remove events whose moment has passed; how many."""
    rows = db.execute(
        "SELECT seq FROM event WHERE expires_at IS NOT NULL AND expires_at < ? LIMIT ?", (now_s, _MOST_AT_ONCE)
    ).fetchall()
    for (seq,) in rows:
        remove(db, seq)
    return len(rows)
