"""NIP-09: an author takes back what it published. The deletion itself stays and is served.

https://github.com/nostr-protocol/nips/blob/master/09.md
A wrap (NIP-59) is signed by a key that nobody keeps, so the one it is addressed to may delete it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from nodewire.nostr.nips.nip01 import address, is_addressable, is_replaceable
from relay.events.indexing import letters

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Set

    from nodewire.nostr.event import Event

KIND = 5
WRAP = 1059
_HEX = frozenset("0123456789abcdef")


def obey(db: sqlite3.Connection, deletion: Event, permanent_kinds: Set[int]) -> int:
    """Delete what `deletion` names and its author may delete, and remember it against being published again.

    Returned is how many events that were.
    """
    author, gone = bytes.fromhex(deletion.pubkey), 0
    for value in set(deletion.values("e")):
        if len(value) == 64 and _HEX.issuperset(value):
            gone += _forget_event(db, value, author, deletion.created_at, permanent_kinds)
    for value in set(deletion.values("a")):
        gone += _forget_address(db, value, deletion)
    return gone


def was_deleted(db: sqlite3.Connection, event: Event) -> bool:
    """Whether one who may has deleted `event` before it came (again)."""
    if event.kind == KIND:
        return False
    entitled = [event.pubkey, *(event.values("p") if event.kind == WRAP else ())]
    for key in entitled:
        if len(key) == 64 and _HEX.issuperset(key) and _remembered(db, "e" + event.id, key, 0):
            return True
    at = address(event)
    return at is not None and _remembered(db, "a" + at, event.pubkey, event.created_at)


def remove(db: sqlite3.Connection, seq: int) -> None:
    """Take the event `seq` and its tags out of the tables."""
    created_at, json = db.execute("SELECT created_at, json FROM event WHERE seq = ?", (seq,)).fetchone()
    db.executemany(
        "DELETE FROM tag WHERE tag = ? AND created_at = ? AND seq = ?",
        [(tag, created_at, seq) for tag in letters(orjson.loads(json)["tags"])],
    )
    db.execute("DELETE FROM event WHERE seq = ?", (seq,))


def _forget_event(db: sqlite3.Connection, id_: str, author: bytes, until: int, permanent_kinds: Set[int]) -> bool:
    _remember(db, "e" + id_, author, until)
    row = db.execute("SELECT seq, pubkey, kind, created_at FROM event WHERE id = ?", (bytes.fromhex(id_),)).fetchone()
    if row is None:
        return False
    seq, owner, kind, created_at = row
    if kind == KIND or kind in permanent_kinds:
        return False
    addressed = (
        kind == WRAP
        and db.execute(
            "SELECT 1 FROM tag WHERE tag = ? AND created_at = ? AND seq = ?", ("p" + author.hex(), created_at, seq)
        ).fetchone()
    )
    if owner != author and not addressed:
        return False
    remove(db, seq)
    return True


def _forget_address(db: sqlite3.Connection, cited: str, deletion: Event) -> bool:
    kind, _, rest = cited.partition(":")
    owner, _, d = rest.partition(":")
    if owner != deletion.pubkey or not (kind.isascii() and kind.isdecimal() and len(kind) <= 5):
        return False
    if not (is_addressable(int(kind)) or (is_replaceable(int(kind)) and not d)):
        return False
    author = bytes.fromhex(owner)
    _remember(db, f"a{int(kind)}:{owner}:{d}", author, deletion.created_at)
    row = db.execute(
        "SELECT seq FROM event WHERE kind = ? AND pubkey = ? AND d = ? AND created_at <= ?",
        (int(kind), author, d, deletion.created_at),
    ).fetchone()
    if row:
        remove(db, row[0])
    return bool(row)


def _remember(db: sqlite3.Connection, target: str, author: bytes, until: int) -> None:
    db.execute(
        "INSERT INTO deleted (target, pubkey, until) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET until = max(until, excluded.until)",
        (target, author, until),
    )


def _remembered(db: sqlite3.Connection, target: str, pubkey: str, created_at: int) -> bool:
    found = db.execute(
        "SELECT 1 FROM deleted WHERE target = ? AND pubkey = ? AND until >= ?",
        (target, bytes.fromhex(pubkey), created_at),
    ).fetchone()
    return found is not None
