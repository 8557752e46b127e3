"""A room's own SQLite file: of one version, or led there step by step."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WAIT_S = 10.0
"""For another process of the same role that is writing."""
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_WAIT_ALONE_S = 0.2


def open_versioned(
    path: Path | str,
    what: str,
    schema: str,
    version: int,
    steps: Mapping[int, str] = {},
    *,
    threads: bool = False,
    alone: bool = False,
) -> sqlite3.Connection:
    """The file at `path` (":memory:" for none), made by the script `schema` if it is new.

    What a transaction has written is on disk when it ends (WAL, synchronous=FULL). `steps` are scripts by the version
    that each leads away from, to the next; `schema` runs after them, and leaves alone what is there. `threads`: more
    than one may use it, who see to it that they do in turn; `alone`: while it is open no other process may open it.
    A new file is for its owner's eyes (mode 0600).

    Raises:
        BadConfig: it cannot be opened, or is of a version from which no step leads here.
        NodeFailed: there is no room for it, or its disk fails.

    """
    try:
        if path != ":memory:":
            Path(path).touch(mode=0o600)
        wait_s = _WAIT_ALONE_S if alone else _WAIT_S
        db = sqlite3.connect(path, isolation_level=None, timeout=wait_s, check_same_thread=not threads)
        try:
            if alone:
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            _bring(db, str(path), what, schema, version, steps)
        except BaseException:
            db.close()
            raise
    except (sqlite3.OperationalError, OSError) as error:
        kind = NodeFailed if _is_the_disks(error) else BadConfig
        raise kind(str(path), str(error)) from error
    except sqlite3.DatabaseError as error:
        what = f"damaged ({error}). Bring back a copy, or move it away to start without what it says"
        raise BadConfig(str(path), what) from error
    return db


def _is_the_disks(error: sqlite3.OperationalError | OSError) -> bool:
    """Whether the file could be opened where its disk had room, and read."""
    if isinstance(error, OSError):
        return error.errno in _DISK_ERRNOS
    return (error.sqlite_errorcode or 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _bring(db: sqlite3.Connection, path: str, what: str, schema: str, version: int, steps: Mapping[int, str]) -> None:
    """To `version`, all or nothing: another process may be about to do the same."""
    db.execute("BEGIN IMMEDIATE")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    ways = range(found, version) if found else ()
    if not 0 <= found <= version or any(at not in steps for at in ways):
        raise BadConfig(path, f"{what} of version {found}; this software writes {version}")
    for script in (*(steps[at] for at in ways), schema):
        for statement in _statements(script):  # executescript would commit first
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {version}")
    db.execute("COMMIT")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction. What is read inside cannot change before it is written, in another process either."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _statements(script: str) -> Iterator[str]:
    """Each statement of a script: a trigger has semicolons inside."""
    statement = ""
    for part in script.split(";"):
        statement += part
        if not statement.strip() or sqlite3.complete_statement(f"{statement};"):
            yield statement
            statement = ""
        else:
            statement += ";"
    yield statement
