"""What a provider's jobs were, and how long their work took: what `earnings` divides the money by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

TABLE = """CREATE TABLE IF NOT EXISTS work_done (
    job TEXT NOT NULL, task TEXT NOT NULL, model TEXT NOT NULL, weight INTEGER NOT NULL, work_us INTEGER NOT NULL,
    ended_s INTEGER NOT NULL,
    PRIMARY KEY (job, task)
) STRICT"""


class WorkLog:
    """The part of a ledger that has it, over its connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def note(self, job: str, model: str, tasks: Mapping[str, tuple[int, int]], ended_s: float) -> None:
        """A job has ended.

        `tasks`: by name, its weight in what the job brings in (its price), and the microseconds that its work took.
        What was noted of the job before stays.
        """
        rows = [(job, task, model, weight, work_us, int(ended_s)) for task, (weight, work_us) in tasks.items()]
        self._db.executemany("INSERT INTO work_done VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
