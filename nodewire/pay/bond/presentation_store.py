"""Which certified verdicts a node has still to present, and what it has still to collect, in SQLite.

Written before it is acted on; the holder settles a sample once and pays a claim once, so what is asked again after a
crash moves nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nodewire.core.sqlite import open_versioned
from nodewire.nostr.event import Event, parse
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from pathlib import Path

KEPT_EPOCHS = 10_000
State = Literal["certified", "presented", "done"]
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (
    committee TEXT NOT NULL,
    sample TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    certificate TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (committee, sample)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS verdicts_open ON verdicts (committee, state) WHERE state <> 'done';
"""


@dataclass(frozen=True, slots=True)
class OpenVerdict:
    """A verdict that is not done with; `epoch` is the draw's."""

    sample: str
    epoch: int
    certificate: Event
    state: State


class PresentationStore:
    """One node's file, of one committee. Every method is on disk before it returns.

    Raises:
        BadConfig: it cannot be opened.

    """

    def __init__(self, path: Path, committee: str) -> None:
        self._committee = committee
        self._db = open_versioned(path, "presented verdicts", _SCHEMA, 1)

    def certified(self, sample: str, epoch: int, certificate: Event) -> None:
        """A verdict's certificate, which holds, has come; the first on a sample is kept."""
        row = (self._committee, sample, epoch, certificate.to_json())
        self._db.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, 'certified')", row)

    def knows(self, sample: str) -> bool:
        query = "SELECT 1 FROM verdicts WHERE committee = ? AND sample = ?"
        return self._db.execute(query, (self._committee, sample)).fetchone() is not None

    def mark(self, sample: str, state: State) -> None:
        query = "UPDATE verdicts SET state = ? WHERE committee = ? AND sample = ?"
        self._db.execute(query, (state, self._committee, sample))

    def open(self) -> list[OpenVerdict]:
        """What is not done, the oldest draws first."""
        query = (
            "SELECT sample, epoch, certificate, state FROM verdicts WHERE committee = ? AND state <> 'done' "
            "ORDER BY epoch, sample"
        )
        rows = self._db.execute(query, (self._committee,))
        return [OpenVerdict(sample, epoch, parse(certificate), state) for sample, epoch, certificate, state in rows]

    def convictions(self, key: str) -> frozenset[str]:
        """The samples by which a key (64 hex digits) was convicted, of the verdicts that are kept."""
        rows = self._db.execute("SELECT sample, certificate FROM verdicts WHERE committee = ?", (self._committee,))
        convicted = (
            sample for sample, text in rows if key in text and key in verdict.parse(parse(text)).verdict.convicted
        )
        return frozenset(convicted)

    def forget(self, epoch: int) -> None:
        """Drop what was drawn up to `epoch`, done or not."""
        self._db.execute("DELETE FROM verdicts WHERE committee = ? AND epoch <= ?", (self._committee, epoch))

    def close(self) -> None:
        self._db.close()
