"""What a provider has earned and is owed, read from its ledger over a connection of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def read(path: Path, now_s: float) -> Takings:
    """The sums in the ledger at `path` now. Raises sqlite3.Error: it is not to be read."""
    unpaid = "state IN ('due', 'invoiced') AND due_by_s"
    sql = (
        "SELECT coalesce(sum(amount_msat) FILTER (WHERE state IN ('settled', 'receipted')), 0), "
        "count(*) FILTER (WHERE state IN ('settled', 'receipted')), "
        f"coalesce(sum(amount_msat) FILTER (WHERE {unpaid} > :now AND due_by_s < :never), 0), "
        f"coalesce(sum(amount_msat) FILTER (WHERE {unpaid} <= :now), 0) FROM dues"
    )
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as db:
        return Takings(*db.execute(sql, {"now": int(now_s), "never": _IN_ADVANCE_S}).fetchone())
