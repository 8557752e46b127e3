"""What a provider has earned and is owed, read from its ledger over a connection of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_BUSY_S = 2.0
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
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as db:
        billed = db.execute(sql, {"now": int(now_s), "never": _IN_ADVANCE_S}).fetchone()
        return Takings(*billed, *db.execute(unbilled).fetchone())
