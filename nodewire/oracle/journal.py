"""What an oracle has said, in SQLite, before it is published: restarted, it never says two things at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from nodewire.errors import NotAllowed
from nodewire.nostr.event import Event, parse

KEPT_EPOCHS = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS said (
    committee TEXT NOT NULL,
    saying TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    x TEXT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (committee, saying, epoch)
) WITHOUT ROWID
"""


class Journal:
    """One oracle's file. Committed to disk (synchronous) before `record` returns."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(_SCHEMA)

    def record(self, committee: str, saying: str, epoch: int, x: str, event: Event) -> Event:
        """The event to publish: `event`, or the one that was recorded earlier for the same (committee, saying, epoch).

        Raises:
            NotAllowed: the epoch is so old that what was said in it is forgotten (a clock set back, say).
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            key = (committee, saying, epoch)
            newest = self._db.execute(
                "SELECT max(epoch) FROM said WHERE committee = ? AND saying = ?", key[:2]
            ).fetchone()[0]
            if newest is not None and epoch <= newest - KEPT_EPOCHS:
                raise NotAllowed("epoch", f"{epoch} is long past; the newest is {newest}")
            self._db.execute("INSERT OR IGNORE INTO said VALUES (?, ?, ?, ?, ?)", (*key, x, event.to_json()))
            query = "SELECT event FROM said WHERE committee = ? AND saying = ? AND epoch = ?"
            text = self._db.execute(query, key).fetchone()[0]
            forgotten = (committee, saying, epoch - KEPT_EPOCHS)
            self._db.execute("DELETE FROM said WHERE committee = ? AND saying = ? AND epoch <= ?", forgotten)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return parse(text)

    def close(self) -> None:
        self._db.close()
