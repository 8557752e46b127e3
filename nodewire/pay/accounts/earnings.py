"""What a provider has earned and is owed, read from its ledger over a connection of its own."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING

from nodewire.pay.accounts.zaps import split

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_BUSY_S = 2.0
_HOUR_US = 3_600_000_000
_IN_ADVANCE_S = 2**53 - 1
"""When a deposit is due: nothing was done for it yet, so nobody owes it."""


@dataclass(frozen=True, slots=True)
class Takings:
    """Sums over a ledger's whole life. `overdue_msat`: delivered, and not paid in its time."""

    paid_msat: int
    paid: int
    """How many dues that were."""
    owed_msat: int
    overdue_msat: int
    deposits_msat: int = 0
    """Paid in ahead by customers, whatever they have bought since."""
    tips_msat: int = 0


def read(path: Path, now_s: float) -> Takings:
    """The sums in the ledger at `path` now. Raises sqlite3.Error: it is not to be read."""
    unpaid = "state = 'due' AND due_by_s"
    sql = (
        "SELECT coalesce(sum(amount_msat) FILTER (WHERE state = 'settled'), 0), "
        "count(*) FILTER (WHERE state = 'settled'), "
        f"coalesce(sum(amount_msat) FILTER (WHERE {unpaid} > :now AND due_by_s < :never), 0), "
        f"coalesce(sum(amount_msat) FILTER (WHERE {unpaid} <= :now), 0) FROM dues"
    )
    unbilled = (
        "SELECT (SELECT coalesce(sum(amount_msat), 0) FROM deposits), (SELECT coalesce(sum(amount_msat), 0) FROM tips)"
    )
    with closing(_reading(path)) as db:
        billed = db.execute(sql, {"now": int(now_s), "never": _IN_ADVANCE_S}).fetchone()
        return Takings(*billed, *db.execute(unbilled).fetchone())


@dataclass(frozen=True, slots=True)
class TaskIncome:
    """What one task of one model brought in by the jobs that ended on a day (UTC), and how long its work took.

    `work_us` are microseconds of its calls, their wait in the worker's queue included; 0 where a ledger has none. What
    a customer owes beside is unsettled, whether its time is over or not.
    """

    day: str
    model: str
    """Empty if the ledger does not say what a job was."""
    task: str
    settled_msat: int = 0
    unsettled_msat: int = 0
    chunks: int = 0
    """Dues, settled or not, of the jobs that it had a part in."""
    work_us: int = 0

    @property
    def msat_per_hour(self) -> int | None:
        """The settled part for an hour of work, rounded down; None without work."""
        return self.settled_msat * _HOUR_US // self.work_us if self.work_us else None


def by_task(path: Path, since_s: int = 0) -> list[TaskIncome]:
    """What the jobs that ended since then brought in, the newest day first; then by model and task.

    A job's money is split over its tasks by their prices, exact to the msat. A deposit that nobody owes is left out.
    Raises sqlite3.Error: the ledger is not to be read.
    """
    money = (
        "SELECT job, coalesce(sum(amount_msat) FILTER (WHERE state = 'settled'), 0), "
        "coalesce(sum(amount_msat) FILTER (WHERE state = 'due'), 0), count(*), "
        "max(CASE WHEN settled_at_s THEN settled_at_s ELSE due_by_s END) FROM dues "
        "WHERE due_by_s < :never OR settled_at_s GROUP BY job"
    )
    with closing(_reading(path)) as db:
        db.execute("BEGIN")
        tasks: defaultdict[str, list[tuple[str, str, int, int, int]]] = defaultdict(list)
        for job, *row in db.execute("SELECT job, task, model, weight, work_us, ended_s FROM work_done ORDER BY rowid"):
            tasks[job].append(tuple(row))
        dues = {job: tuple(row) for job, *row in db.execute(money, {"never": _IN_ADVANCE_S})}
    found: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for job in dues.keys() | tasks.keys():
        settled_msat, unsettled_msat, chunks, last_s = dues.get(job, (0, 0, 0, 0))
        parts = tasks.get(job) or [("", "", 1, 0, last_s)]
        weights = [weight for _, _, weight, _, _ in parts]
        weights = weights if any(weights) else [1] * len(parts)
        shares = zip(split(settled_msat, weights), split(unsettled_msat, weights), parts, strict=True)
        for settled, unsettled, (task, model, _, work_us, ended_s) in shares:
            if ended_s >= since_s:
                sums = found[_day(ended_s), model, task]
                for at, value in enumerate((settled, unsettled, chunks, work_us)):
                    sums[at] += value
    rows = [TaskIncome(*key, *sums) for key, sums in found.items()]
    return sorted(sorted(rows, key=lambda one: (one.model, one.task)), key=lambda one: one.day, reverse=True)


def msat_per_hour(earned: Iterable[TaskIncome]) -> int | None:
    """What is settled for an hour of work, over all those whose work is known; rounded down. None without work."""
    known = [one for one in earned if one.work_us]
    work_us = sum(one.work_us for one in known)
    return int(Fraction(sum(one.settled_msat for one in known) * _HOUR_US, work_us)) if work_us else None


def _day(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
