"""What happened in a training, in SQLite, in order: a customer that died goes on from here."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.core.sqlite import open_versioned
from nodewire.errors import BadConfig
from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    ClosePublication,
    Contribution,
    DepositRequest,
    Event,
    LocalStepChoice,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultPayment,
    ResultReceipt,
    ResultTimeout,
    RoundQuorum,
    Row,
    ShardLoss,
    StepCompletion,
    StepOwnerChange,
    StepPublication,
    StepRollback,
    TrainingStart,
    WorkStart,
)

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, type TEXT NOT NULL, data TEXT NOT NULL) STRICT;
"""
_AGAIN = (DepositRequest, WorkStart, ResultArrival, ResultReceipt, ResultJudgement, StepCompletion, ResultPayment)
"""What is heard, computed or looked up again."""
_TYPES: dict[str, type[Any]] = {
    "Opened": TrainingStart,
    "Published": RequestPublication,
    "DepositAsked": DepositRequest,
    "Begun": WorkStart,
    "Delivered": ResultArrival,
    "Received": ResultReceipt,
    "Judged": ResultJudgement,
    "Closed": ClosePublication,
    "Audited": AuditOutcome,
    "Paid": ResultPayment,
    "Lost": ShardLoss,
    "Missed": ResultTimeout,
    "Sufficed": RoundQuorum,
    "Stepped": StepCompletion,
    "Undone": StepRollback,
    "StepsBy": StepOwnerChange,
    "StepPublished": StepPublication,
    "StepHere": LocalStepChoice,
}
"""Journals outlive names: events by what they are written as."""
_TAGS: dict[type[Any], str] = {cls: tag for tag, cls in _TYPES.items()}


def tag(event: Event) -> str:
    """What an event is written as."""
    return _TAGS[type(event)]


class Journal:
    """The journal at `path`; it holds the keys of all blobs, so it is for its owner's eyes.

    Raises:
        BadConfig: the file cannot be opened.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_versioned(path, "a training's journal", _SCHEMA, 1)

    def close(self) -> None:
        self._db.close()

    def fact(self, name: str, value: str) -> str:
        """What stands under `name`; `value` from now on, if nothing does."""
        self._db.execute("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO NOTHING", (name, value))
        (kept,) = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(kept)

    def note(self, name: str, value: str) -> None:
        """Write down `value` under `name`, whatever stood there."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    @property
    def is_begun(self) -> bool:
        """Whether anything has happened."""
        (some,) = self._db.execute("SELECT EXISTS (SELECT 1 FROM events)").fetchone()
        return bool(some)

    def append(self, event: Event) -> None:
        """Written when this returns, and no crash of this process loses it.

        On disk, too, but for what was only heard or follows from that: relays say that again after a power failure, and
        the ledger what was paid. Whatever is written later to be on disk takes it along.

        Raises:
            BadConfig: it cannot be written, for the disk is full, say; it has not happened then.

        """
        data = orjson.dumps(asdict(event)).decode()
        try:
            self._db.execute(f"PRAGMA synchronous = {'NORMAL' if isinstance(event, _AGAIN) else 'FULL'}")
            self._db.execute("INSERT INTO events (type, data) VALUES (?, ?)", (tag(event), data))
        except sqlite3.Error as error:
            raise BadConfig(str(self._path), f"{error}; where there is room again the training goes on") from error

    def events(self) -> list[Event]:
        """All of them, oldest first."""
        rows = self._db.execute("SELECT type, data FROM events ORDER BY seq")
        return [_event(type_, orjson.loads(data)) for type_, data in rows]


def _event(type_: str, data: dict[str, Any]) -> Event:
    cls = _TYPES[type_]
    if cls is RequestPublication:
        data["rows"] = tuple(Row(**row) for row in data["rows"])
    if cls is TrainingStart:
        data["shards"] = tuple(CiphertextRef(**shard) for shard in data["shards"])
        data["start"] = CiphertextRef(**data["start"]) if data.get("start") else None
    if cls in (TrainingStart, StepCompletion):
        data["theta"] = CiphertextRef(**data["theta"])
    if cls is ClosePublication:
        data["results"] = tuple(tuple(key) for key in data["results"])
    if cls is StepRollback:
        data["failed"] = tuple(tuple(key) for key in data["failed"])
    if cls is StepPublication:
        data["row"] = Row(**data["row"])
    if cls in (StepCompletion, StepPublication):
        momenta = data.get("momenta")
        data["momenta"] = CiphertextRef(**momenta) if momenta else None
        data["counted"] = tuple(Contribution(**one) for one in data.get("counted", ()))
    event: Event = cls(**data)
    return event
