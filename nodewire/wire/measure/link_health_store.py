"""How a role's links have been, in SQLite, so that a restart does not forget and another process can look.

    here       where this node was, and by how much it was wrong
    edges      one row for each peer: its link as it is, or was when it was lost
    samples    round trips, loss and bandwidth of an open link, once a minute
    endings    links that were lost, and why

It is a log and no book: where it cannot be written the daemon goes on without it, and one that is damaged begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadConfig
from nodewire.wire.measure.link_health import Health, LinkEnd, RoundTrips
from nodewire.wire.measure.vivaldi import Claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from nodewire.wire.measure.survey import Survey

NAME = "links.db"
"""Of the file in a role's folder `state`."""
WRITE_S = 10.0
SAMPLE_S = 60
KEPT_S = 7 * 86_400
"""For how long samples, endings and the rows of lost links are kept."""
MAX_EDGES, MAX_ROWS = 8_192, 200_000
"""Peers; samples, and endings. Beyond that the oldest go."""
_BUSY_S = 5.0
_VERSION = 1
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS here (
    id INTEGER PRIMARY KEY CHECK (id = 1), x INTEGER NOT NULL, y INTEGER NOT NULL, height INTEGER NOT NULL,
    error_ppm INTEGER NOT NULL, at_s INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS edges (
    peer TEXT PRIMARY KEY, state TEXT NOT NULL, since_s INTEGER NOT NULL, links INTEGER NOT NULL, rung TEXT NOT NULL,
    dialled INTEGER NOT NULL, address TEXT NOT NULL, congestion TEXT NOT NULL, rtt_least_us INTEGER, rtt_us INTEGER,
    jitter_us INTEGER, lost_ppm INTEGER, bytes_per_s INTEGER NOT NULL, bytes_in INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL, seen_s INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS samples (
    at_s INTEGER NOT NULL, peer TEXT NOT NULL, rung TEXT NOT NULL, rtt_least_us INTEGER, rtt_us INTEGER,
    jitter_us INTEGER, lost_ppm INTEGER, bytes_per_s INTEGER NOT NULL, PRIMARY KEY (at_s, peer)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS endings (
    at_s INTEGER NOT NULL, peer TEXT NOT NULL, code TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS endings_at ON endings (at_s);
PRAGMA user_version = {_VERSION};
"""
_EDGE = "INSERT OR REPLACE INTO edges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_log = logging.getLogger("nodewire.wire")


@dataclass(frozen=True, slots=True)
class Edge:
    """One peer's row. Times are unix seconds, figures those of `Health`."""

    peer: str
    state: str
    """`open`; `lost`, with the reason in `ending`; `closed` by this end, which was done."""
    since_s: int
    """When it came to be in that state."""
    links: int
    rung: str
    dialled: bool
    address: str
    congestion: str
    rtt: RoundTrips | None
    lost_ppm: int | None
    bytes_per_s: int
    bytes_in: int
    bytes_out: int
    seen_s: int
    """When this was written."""
    lost: int
    """How often a link to it has ended, as far as is kept."""
    ending: LinkEnd | None
    """The newest."""

    def is_open(self, now_s: float) -> bool:
        """Whether the daemon says so, and said it just now: one that was killed says nothing any more."""
        return self.state == "open" and now_s - self.seen_s <= 3 * WRITE_S

    def age_s(self, now_s: float) -> int:
        """For how long it has been open, or over. Of one whose daemon was killed: since that wrote last."""
        since_s = self.seen_s if self.state == "open" and not self.is_open(now_s) else self.since_s
        return max(0, int(now_s) - since_s)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: int
    rung: str
    rtt: RoundTrips | None
    lost_ppm: int | None
    bytes_per_s: int


class HealthLog:
    """One role's file, written by one process at a time. Raises sqlite3.Error, OSError."""

    def __init__(self, path: Path) -> None:
        self._db = _opened(path)
        self._sampled_s = 0
        self._told: dict[str, LinkEnd] = {}
        """By peer, the newest ending that stands in the file."""

    def close(self) -> None:
        self._db.close()

    def where(self) -> Claim | None:
        """Where this node was when it last wrote."""
        return _where(self._db)

    def write(self, claim: Claim, healths: Sequence[Health], now_s: float, *, is_last: bool = False) -> None:
        """What is known now: of peers with an open link, and of those that have lost one since the last time.

        `is_last`: this process ends, and closes the links that are open.
        """
        now = int(now_s)
        ended = {health.peer: self._untold(health) for health in healths}
        told = [health for health in healths if health.state == "open" or ended[health.peer]]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT OR REPLACE INTO here VALUES (1, ?, ?, ?, ?, ?)", (*claim.at, claim.error_ppm, now))
            self._db.executemany(_EDGE, [_edge_row(health, now, is_last) for health in told])
            rows = [(one.at_s, peer, one.code, one.reason) for peer, endings in ended.items() for one in endings]
            self._db.executemany("INSERT INTO endings VALUES (?, ?, ?, ?)", rows)
            if now - self._sampled_s >= SAMPLE_S:
                self._sampled_s = now
                samples = [_sample_row(health, now) for health in told if health.state == "open"]
                self._db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?)", samples)
                self._sweep(now)
        self._told |= {peer: endings[-1] for peer, endings in ended.items() if endings}

    def _untold(self, health: Health) -> list[LinkEnd]:
        """Its endings that came after the newest that stands in the file."""
        endings, told = list(health.endings), self._told.get(health.peer)
        newest = next((i for i in reversed(range(len(endings))) if endings[i] is told), -1)
        return endings[newest + 1 :]

    def _sweep(self, now: int) -> None:
        for table, time_, most in (
            ("edges", "seen_s", MAX_EDGES),
            ("samples", "at_s", MAX_ROWS),
            ("endings", "at_s", MAX_ROWS),
        ):
            self._db.execute(f"DELETE FROM {table} WHERE {time_} < ?", (now - KEPT_S,))
            (rows,) = self._db.execute(f"SELECT count(*) FROM {table}").fetchone()
            if rows > most:
                oldest = f"SELECT {time_} FROM {table} ORDER BY {time_} LIMIT 1 OFFSET ?"
                self._db.execute(f"DELETE FROM {table} WHERE {time_} < ({oldest})", (rows - most,))


@asynccontextmanager
async def kept(survey: Survey, state: Path, unix_s: Callable[[], float] = time.time) -> AsyncIterator[None]:
    """Begin where the node was, and write down what it learns as long as this is entered; `state` is the folder."""
    try:
        log = await asyncio.to_thread(HealthLog, state / NAME)
        where = await asyncio.to_thread(log.where)
    except (sqlite3.Error, OSError) as error:
        _log.warning("link statistics could not be saved to %s: %s", state / NAME, error)
        yield
        return
    if where is not None:
        survey.resume(where)

    async def write(*, is_last: bool = False) -> None:
        claim, healths = survey.place.claim, list(survey.health.values())
        try:
            await asyncio.to_thread(log.write, claim, healths, unix_s(), is_last=is_last)
        except sqlite3.Error as error:
            _log.warning("link statistics could not be saved: %s", error)

    async def write_often() -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            await write()

    writing = asyncio.create_task(write_often())
    try:
        yield
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await write(is_last=True)
        await asyncio.to_thread(log.close)


def read(state: Path) -> tuple[Claim | None, list[Edge]]:
    """Where the node of a role is and how its links are, as it last wrote in its folder; nothing if it never did.

    Raises:
        BadConfig: the file cannot be read.

    """
    with _reading(state) as db:
        if db is None:
            return None, []
        rows = db.execute(
            "SELECT edges.*, (SELECT count(*) FROM endings WHERE endings.peer = edges.peer) FROM edges ORDER BY peer"
        ).fetchall()
        endings = {
            peer: LinkEnd(at_s, code, reason)
            for at_s, peer, code, reason in db.execute("SELECT at_s, peer, code, reason FROM endings ORDER BY rowid")
        }
        return _where(db), [_edge(row, endings.get(row[0])) for row in rows]


def samples(state: Path, peer: str, since_s: int) -> list[Sample]:
    """What was measured on the link to `peer` since `since_s` (unix), oldest first. Raises BadConfig."""
    with _reading(state) as db:
        query = "SELECT at_s, rung, rtt_least_us, rtt_us, jitter_us, lost_ppm, bytes_per_s FROM samples"
        rows = db.execute(f"{query} WHERE peer = ? AND at_s >= ? ORDER BY at_s", (peer, since_s)) if db else ()
        return [
            Sample(at_s, rung, _round_trips(*columns), lost_ppm, bytes_per_s)
            for at_s, rung, *columns, lost_ppm, bytes_per_s in rows
        ]


@contextmanager
def _reading(state: Path) -> Iterator[sqlite3.Connection | None]:
    path = state / NAME
    if not path.is_file():
        yield None
        return
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        try:
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise BadConfig(str(path), f"cannot be read: {error}") from error


def _opened(path: Path) -> sqlite3.Connection:
    try:
        return _connected(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # such as a disk that is full: the file may be well
            raise
        _log.warning("%s begins anew: %s", path, error)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"of version {version}; this software writes {_VERSION}")
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _where(db: sqlite3.Connection) -> Claim | None:
    row = db.execute("SELECT x, y, height, error_ppm FROM here").fetchone()
    return None if row is None else Claim(row[:3], row[3])


def _edge_row(health: Health, now: int, is_last: bool) -> tuple[object, ...]:
    is_closed = is_last and health.state == "open"
    return (
        health.peer,
        "closed" if is_closed else health.state,
        now if is_closed else health.since_s,
        health.links,
        health.rung,
        health.dialled,
        health.address,
        health.congestion,
        *_columns(health.rtt),
        health.lost_ppm,
        health.bytes_per_s,
        health.bytes_in,
        health.bytes_out,
        now,
    )


def _sample_row(health: Health, now: int) -> tuple[object, ...]:
    return (now, health.peer, health.rung, *_columns(health.rtt), health.lost_ppm, health.bytes_per_s)


def _columns(rtt: RoundTrips | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if rtt is None else (rtt.least_us, rtt.median_us, rtt.jitter_us)


def _round_trips(least_us: int | None, median_us: int | None, jitter_us: int | None) -> RoundTrips | None:
    if least_us is None or median_us is None or jitter_us is None:
        return None
    return RoundTrips(least_us, median_us, jitter_us)


def _edge(row: tuple[Any, ...], ending: LinkEnd | None) -> Edge:
    peer, state, since_s, links, rung, dialled, address, congestion, *columns = row[:11]
    lost_ppm, bytes_per_s, bytes_in, bytes_out, seen_s, lost = row[11:]
    return Edge(
        peer=peer,
        state=state,
        since_s=since_s,
        links=links,
        rung=rung,
        dialled=bool(dialled),
        address=address,
        congestion=congestion,
        rtt=_round_trips(*columns),
        lost_ppm=lost_ppm,
        bytes_per_s=bytes_per_s,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        seen_s=seen_s,
        lost=lost,
        ending=ending,
    )
