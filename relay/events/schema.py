"""The tables that events are kept in, and how a connection to them is opened.

`seq` grows with every stored event, so that a query and the live feed can agree on where one ends and the other
begins. Indexes end in (created_at, id): the order in which NIP-01 wants events returned, read backwards.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Literal

from nodewire.errors import BadConfig

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 2

_TABLES = """
CREATE TABLE event (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         BLOB NOT NULL UNIQUE,
    pubkey     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    d          TEXT,                -- '' for replaceable kinds, the d tag for addressable ones, else NULL
    expires_at INTEGER,
    json       TEXT NOT NULL
);
CREATE INDEX event_by_time   ON event (created_at DESC, id);
CREATE INDEX event_by_kind   ON event (kind, created_at DESC, id);
CREATE INDEX event_by_author ON event (pubkey, created_at DESC, id);
CREATE INDEX event_by_author_kind ON event (pubkey, kind, created_at DESC, id);
CREATE UNIQUE INDEX event_by_address ON event (kind, pubkey, d) WHERE d IS NOT NULL;
CREATE INDEX event_by_expiry ON event (expires_at) WHERE expires_at IS NOT NULL;

-- One row per distinct single-letter tag of an event: the letter and the first value, run together.
CREATE TABLE tag (
    tag        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    PRIMARY KEY (tag, created_at DESC, seq)
) WITHOUT ROWID;

-- What its author has deleted and may not publish again: 'e' + id, or 'a' + address up to a moment.
CREATE TABLE deleted (
    target TEXT NOT NULL,
    pubkey BLOB NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (target, pubkey)
) WITHOUT ROWID;
"""

_HELD = """
-- How many bytes of JSON there are of each author, and under X'' of all.
CREATE TABLE held (pubkey BLOB PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO held SELECT pubkey, sum(length(CAST(json AS BLOB))) FROM event GROUP BY pubkey;
INSERT INTO held SELECT X'', coalesce(sum(bytes), 0) FROM held;
CREATE TRIGGER event_came AFTER INSERT ON event BEGIN
    INSERT INTO held VALUES (new.pubkey, length(CAST(new.json AS BLOB)))
        ON CONFLICT (pubkey) DO UPDATE SET bytes = bytes + excluded.bytes;
    UPDATE held SET bytes = bytes + length(CAST(new.json AS BLOB)) WHERE pubkey = X'';
END;
CREATE TRIGGER event_went AFTER DELETE ON event BEGIN
    UPDATE held SET bytes = bytes - length(CAST(old.json AS BLOB)) WHERE pubkey IN (old.pubkey, X'');
    DELETE FROM held WHERE pubkey = old.pubkey AND bytes <= 0;
END;
"""


def open_writer(path: Path, synchronous: Literal["FULL", "NORMAL"]) -> sqlite3.Connection:
    """The one connection that writes; creates the tables where they are missing.

    Raises:
        BadConfig: the file is not a database of this version.

    """
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise BadConfig(str(path), f"cannot be opened: {error}") from error
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version in (0, 1):
            tables = _HELD if version else _TABLES + _HELD
            db.executescript(f"BEGIN;{tables}PRAGMA user_version = {VERSION};COMMIT;")
        elif version != VERSION:
            raise BadConfig(str(path), f"has version {version}, this relay reads {VERSION}")
    except sqlite3.DatabaseError as error:
        db.close()
        raise BadConfig(str(path), f"not a database of events: {error}") from error
    except BadConfig:
        db.close()
        raise
    return db


def held_bytes(db: sqlite3.Connection, pubkey: bytes = b"") -> int:
    """The bytes of an author's events; by default of all."""
    row = db.execute("SELECT bytes FROM held WHERE pubkey = ?", (pubkey,)).fetchone()
    return int(row[0]) if row else 0


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads; each one sees the last commit at the moment its statement starts."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only = ON")
    return db
