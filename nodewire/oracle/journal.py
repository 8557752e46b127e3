"""What an oracle has said, in SQLite, before it is published: restarted, it never says two things at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.core.sqlite import open_versioned
from nodewire.errors import NotAllowed
from nodewire.nostr.event import Event, parse
from nodewire.protocol.committee.reputation import ReputationVerdict

if TYPE_CHECKING:
    from pathlib import Path

KEPT_EPOCHS = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS said (
    committee TEXT NOT NULL,
    saying TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    x TEXT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (committee, saying, epoch)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS judged (
    committee TEXT NOT NULL,
    sample TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    event TEXT NOT NULL,
    verdict TEXT NOT NULL,
    PRIMARY KEY (committee, sample)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS judged_by_epoch ON judged (committee, epoch);
CREATE TABLE IF NOT EXISTS convicted (
    committee TEXT NOT NULL,
    pubkey TEXT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (committee, pubkey)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS to_count (
    committee TEXT NOT NULL,
    sample TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    judged TEXT NOT NULL,
    PRIMARY KEY (committee, sample)
) WITHOUT ROWID;
"""


class Journal:
    """One oracle's file. Committed to disk (synchronous) before `record` returns.

    Raises:
        BadConfig: it cannot be opened.

    """

    def __init__(self, path: Path) -> None:
        self._db = open_versioned(path, "an oracle's journal", _SCHEMA, 1)

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

    def record_vote(self, committee: str, sample: str, epoch: int, verdict: str, event: Event) -> tuple[str, Event]:
        """The vote to publish on a sample, and its verdict (JSON, or empty): these, or what was recorded first.

        `epoch` is the draw's. Nothing may be drawn that was drawn first `KEPT_EPOCHS` or more epochs before.

        Raises:
            NotAllowed: the epoch is so old that the vote on this sample may be forgotten.

        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            newest = self._db.execute("SELECT max(epoch) FROM judged WHERE committee = ?", (committee,)).fetchone()[0]
            if newest is not None and epoch <= newest - KEPT_EPOCHS:
                raise NotAllowed("epoch", f"{epoch} is long past; the newest is {newest}")
            row = (committee, sample, epoch, event.to_json(), verdict)
            self._db.execute("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?, ?)", row)
            query = "SELECT verdict, event FROM judged WHERE committee = ? AND sample = ?"
            recorded, text = self._db.execute(query, (committee, sample)).fetchone()
            self._db.execute("DELETE FROM judged WHERE committee = ? AND epoch <= ?", (committee, epoch - KEPT_EPOCHS))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return recorded, parse(text)

    def convict(self, committee: str, pubkey: str, event: Event) -> None:
        """Remember for good that a certified verdict (`event`) convicts this node."""
        self._db.execute("INSERT OR IGNORE INTO convicted VALUES (?, ?, ?)", (committee, pubkey, event.to_json()))

    def convicted(self, committee: str) -> frozenset[str]:
        rows = self._db.execute("SELECT pubkey FROM convicted WHERE committee = ?", (committee,)).fetchall()
        return frozenset(pubkey for (pubkey,) in rows)

    def keep_judged(self, committee: str, judged: ReputationVerdict, oldest: int) -> None:
        """Remember what a certified verdict says, and forget those on samples drawn before epoch `oldest`."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            row = (committee, judged.sample, judged.epoch, judged.to_json())
            self._db.execute("INSERT OR IGNORE INTO to_count VALUES (?, ?, ?, ?)", row)
            self._db.execute("DELETE FROM to_count WHERE committee = ? AND epoch < ?", (committee, oldest))

    def judged(self, committee: str) -> dict[str, ReputationVerdict]:
        """By sample."""
        rows = self._db.execute("SELECT sample, judged FROM to_count WHERE committee = ?", (committee,)).fetchall()
        return {sample: ReputationVerdict.parse(text) for sample, text in rows}

    def close(self) -> None:
        self._db.close()
