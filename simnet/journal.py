"""The network's log in SQLite: an event is committed to disk before it counts; the state is the log, folded."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.core.sqlite import open_versioned
from simnet import network, steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from simnet.network import Event
    from simnet.steps import Step

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, type TEXT NOT NULL, payment_hash TEXT, payee TEXT, payer TEXT, body BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS events_of_payee ON events (payee, seq) WHERE payee IS NOT NULL;
CREATE INDEX IF NOT EXISTS events_of_payer ON events (payer, seq) WHERE payer IS NOT NULL;
CREATE TABLE IF NOT EXISTS nodes (
    node TEXT PRIMARY KEY, name TEXT NOT NULL, secret BLOB NOT NULL, token_sha256 TEXT NOT NULL UNIQUE
) STRICT;
"""
_VERSION = 5
_BODY = "CAST(json_remove(CAST(body AS TEXT), '$.is_second') AS BLOB)"
_LAPSED = "SELECT payment_hash FROM events WHERE type = 'Lapsed'"
_STEPS = {
    1: f"UPDATE events SET body = {_BODY} WHERE type = 'Judged'",
    2: "",
    3: "",
    4: f"DELETE FROM events WHERE type IN ('Claimed', 'Lapsed') AND payment_hash IN ({_LAPSED})",
}
"""2: nobody stands by for a provider. 3: payments that failed are written down. 4: those that were under way, too.
5: a claim is bound to what is due, not to a case; those of before that were undone are as if they had never been."""
_TYPES: dict[str, type[Event | Step]] = {
    "Opened": network.NodeJoin,
    "Invoiced": network.InvoiceIssue,
    "Offered": network.PaymentOffer,
    "Settled": network.InvoiceSettlement,
    "Cancelled": network.InvoiceCancellation,
    "Expired": network.InvoiceExpiry,
    "Seated": steps.HolderSeat,
    "Locked": steps.BondLock,
    "Raised": steps.BondRaise,
    "Stated": steps.StatementStep,
    "Unbonded": steps.UnbondRequest,
    "Freed": steps.BondRelease,
    "Judged": steps.VerdictStep,
    "Quoted": steps.ZapQuote,
    "Shared": steps.ShareEntry,
    "Credited": steps.DueCredit,
    "Claimed": steps.PayoutClaim,
    "Lapsed": steps.ClaimLapse,
    "Closed": steps.RequestClosure,
    "Refused": network.PaymentRefusal,
    "Returned": network.PaymentReturn,
}
"""Logs outlive names: events by what they are written as, and said to be by the API."""
_TAGS = {cls: tag for tag, cls in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class Node:
    """A node's keys: `secret` (32 bytes) signs its invoices."""

    node: str
    name: str
    secret: bytes
    token_sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its place in the log."""

    seq: int
    event: Event | Step


class Journal:
    """One writer's log at `path`.

    Raises:
        BadConfig: the file cannot be opened, or another process writes it.

    """

    def __init__(self, path: Path) -> None:
        self._db = open_versioned(path, "a network's log", _SCHEMA, _VERSION, _STEPS, alone=True)

    def append(self, event: Event | Step, *, payee: str | None = None, payer: str | None = None) -> int:
        """Commit `event`; its place in the log. The parties find it again by `read`."""
        return self._insert(event, payee, payer)

    def open_node(self, event: network.NodeJoin, node: Node) -> None:
        """Commit a new node's keys together with the event that opens its account."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            row = (node.node, node.name, node.secret, node.token_sha256)
            self._db.execute("INSERT INTO nodes VALUES (?, ?, ?, ?)", row)
            self._insert(event, None, None)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def nodes(self) -> list[Node]:
        return [Node(*row) for row in self._db.execute("SELECT node, name, secret, token_sha256 FROM nodes")]

    def replay(self) -> Iterator[Event | Step]:
        """Every event, in order."""
        for _, event in self._select("", ()):
            yield event

    def read(self, node: str, *, after: int, types: tuple[str, ...], limit: int) -> list[Entry]:
        """The first `limit` events of these types after place `after` in which `node` pays or is paid."""
        marks = ", ".join("?" * len(types))
        where = f"WHERE seq > ? AND (payee = ? OR payer = ?) AND type IN ({marks})"
        rows = self._select(where, (after, node, node, *types), limit)
        return [Entry(seq, event) for seq, event in rows]

    def close(self) -> None:
        self._db.close()

    def _insert(self, event: Event | Step, payee: str | None, payer: str | None) -> int:
        row = (tag(event), getattr(event, "payment_hash", None), payee, payer, orjson.dumps(asdict(event)))
        sql = "INSERT INTO events (type, payment_hash, payee, payer, body) VALUES (?, ?, ?, ?, ?)"
        seq = self._db.execute(sql, row).lastrowid
        assert seq is not None
        return seq

    def _select(self, where: str, values: tuple[object, ...], limit: int = -1) -> Iterator[tuple[int, Event | Step]]:
        sql = f"SELECT seq, type, body FROM events {where} ORDER BY seq LIMIT ?"
        for seq, kind, body in self._db.execute(sql, (*values, limit)):
            yield seq, _TYPES[kind](**orjson.loads(body))


def tag(event: Event | Step) -> str:
    """What an event is written as."""
    return _TAGS[type(event)]


def token_sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
