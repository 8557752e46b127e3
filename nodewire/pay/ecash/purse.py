"""A wallet's ecash in SQLite, written ahead: before the mint is asked, the file has what the answer is opened with.

An operation holds its inputs until its end is known. After a crash, or a lost answer, `operations` are what is to be
ended: the outputs of each are restored from the mint (NUT-09), or the same request is made again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import orjson

from nodewire.core.sqlite import open_versioned, transaction
from nodewire.errors import NotAllowed, NotFound, PaymentFailed
from nodewire.pay.ecash import nutzap_book
from nodewire.pay.ecash.nutzap_book import NutzapBook
from nodewire.pay.ecash.proofs import BlankOutput, Proof, parse_output, parse_proof

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

OperationKind = Literal["swap", "mint", "melt", "claim", "lock"]
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS proofs (
    secret TEXT PRIMARY KEY, amount_sat INTEGER NOT NULL, proof TEXT NOT NULL, held_by INTEGER
);
CREATE INDEX IF NOT EXISTS proofs_held ON proofs (held_by);
CREATE TABLE IF NOT EXISTS operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, quote TEXT NOT NULL, outputs TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS invoices (
    payment_hash TEXT PRIMARY KEY, quote TEXT NOT NULL, bolt11 TEXT NOT NULL, amount_sat INTEGER NOT NULL,
    expires_at_s INTEGER NOT NULL, state TEXT NOT NULL, at_s INTEGER NOT NULL, place INTEGER UNIQUE
);
CREATE INDEX IF NOT EXISTS invoices_open ON invoices (state) WHERE state = 'open';
CREATE TABLE IF NOT EXISTS payments (
    payment_hash TEXT PRIMARY KEY, quote TEXT NOT NULL, amount_msat INTEGER NOT NULL, state TEXT NOT NULL,
    fee_msat INTEGER NOT NULL, preimage TEXT, at_s INTEGER NOT NULL, reason TEXT NOT NULL
);
{nutzap_book.SCHEMA}
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """What the mint was, or will be, asked: `inputs` for `outputs`.

    `quote` is the mint's, for "mint" and "melt"; of a nutzap that came ("claim") it is the event's id, and of one that
    is sent ("lock") its payment hash.
    """

    number: int
    kind: OperationKind
    quote: str = field(repr=False)
    inputs: tuple[Proof, ...]
    outputs: tuple[BlankOutput, ...]


@dataclass(frozen=True, slots=True)
class IssuedInvoice:
    """A mint's invoice for this wallet. `state` is open, settled or failed; `place` its number among the settled."""

    payment_hash: str
    quote: str = field(repr=False)
    bolt11: str
    amount_sat: int
    expires_at_s: int
    state: str
    at_s: int
    place: int | None


@dataclass(frozen=True, slots=True)
class SentPayment:
    """`state` is pending, settled or failed."""

    payment_hash: str
    quote: str = field(repr=False)
    amount_msat: int
    state: str
    fee_msat: int
    preimage: str | None
    at_s: int
    reason: str


class Purse:
    """Several processes of a role may use one file. Raises BadConfig: it cannot be opened."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None

    @property
    def _db(self) -> sqlite3.Connection:
        """The file, opened when it is needed, also after `close`."""
        if self._opened is None:
            self._opened = open_versioned(self._path, "a purse of ecash", _SCHEMA, 1)
        return self._opened

    @property
    def nutzaps(self) -> NutzapBook:
        return NutzapBook(self._db)

    def transaction(self) -> AbstractContextManager[None]:
        """All that is written inside, or nothing."""
        return transaction(self._db)

    def named(self, name: str, value: str) -> str:
        """What the file has by this name; `value`, kept from now on, if it has nothing."""
        self._db.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, value))
        return str(self._db.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()[0])

    def put(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, value))

    # Proofs and operations

    @property
    def balance_sat(self) -> int:
        """What no operation holds."""
        return int(
            self._db.execute("SELECT coalesce(sum(amount_sat), 0) FROM proofs WHERE held_by IS NULL").fetchone()[0]
        )

    @property
    def held_sat(self) -> int:
        """What operations hold that may yet give it back: swaps."""
        query = (
            "SELECT coalesce(sum(amount_sat), 0) FROM proofs JOIN operations ON held_by = number WHERE kind = 'swap'"
        )
        return int(self._db.execute(query).fetchone()[0])

    def free(self) -> list[Proof]:
        """What no operation holds, the largest first."""
        rows = self._db.execute("SELECT proof FROM proofs WHERE held_by IS NULL ORDER BY amount_sat DESC, secret")
        return [parse_proof(orjson.loads(text)) for (text,) in rows]

    def begin(
        self, kind: OperationKind, inputs: Sequence[Proof], outputs: Sequence[BlankOutput], quote: str = ""
    ) -> int:
        """An operation, inside a transaction; its number. Raises PaymentFailed: another holds an input."""
        told = orjson.dumps([one.as_dict() for one in outputs]).decode()
        number = self._db.execute(
            "INSERT INTO operations (kind, quote, outputs) VALUES (?, ?, ?)", (kind, quote, told)
        ).lastrowid
        for one in inputs:
            held = "UPDATE proofs SET held_by = ? WHERE secret = ? AND held_by IS NULL"
            if self._db.execute(held, (number, one.secret)).rowcount != 1:
                raise PaymentFailed("wallet", "another payment takes this money; ask again")
        assert number is not None
        return number

    def begin_claim(self, inputs: Sequence[Proof], outputs: Sequence[BlankOutput], quote: str) -> int:
        """As `begin`, of inputs that came from another and are the purse's for this operation alone.

        Raises:
            NotAllowed: the purse has one of them.

        """
        number = self.begin("claim", [], outputs, quote)
        rows = [(one.secret, one.amount_sat, orjson.dumps(one.as_dict()).decode(), number) for one in inputs]
        if self._db.executemany("INSERT OR IGNORE INTO proofs VALUES (?, ?, ?, ?)", rows).rowcount != len(rows):
            raise NotAllowed("proof", "it is claimed already")
        return number

    def operation(self, number: int) -> Operation:
        """Raises NotFound: it has ended."""
        row = self._db.execute("SELECT kind, quote, outputs FROM operations WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise NotFound("operation", "it has ended")
        rows = self._db.execute("SELECT proof FROM proofs WHERE held_by = ? ORDER BY secret", (number,)).fetchall()
        inputs = tuple(parse_proof(orjson.loads(text)) for (text,) in rows)
        return Operation(number, row[0], row[1], inputs, tuple(parse_output(one) for one in orjson.loads(row[2])))

    def operations(self, kind: OperationKind, quote: str | None = None) -> list[Operation]:
        """Those that have not ended, the oldest first."""
        query = "SELECT number FROM operations WHERE kind = ? AND quote = coalesce(?, quote) ORDER BY number"
        return [self.operation(number) for (number,) in self._db.execute(query, (kind, quote)).fetchall()]

    def rewrite(self, number: int, outputs: Sequence[BlankOutput]) -> None:
        """Inside a transaction: a payment's operation may be taken back by a swap for these outputs, too."""
        before = self.operation(number).outputs
        told = orjson.dumps([one.as_dict() for one in (*before, *outputs)]).decode()
        self._db.execute("UPDATE operations SET outputs = ? WHERE number = ?", (told, number))

    def end(self, number: int, came: Sequence[Proof], *, spent: bool = True) -> bool:
        """Inside a transaction: the operation's inputs are gone (or free again), and this came for them.

        False if it had ended before, and nothing changes.
        """
        if self._db.execute("DELETE FROM operations WHERE number = ?", (number,)).rowcount != 1:
            return False
        what = "DELETE FROM proofs" if spent else "UPDATE proofs SET held_by = NULL"
        self._db.execute(f"{what} WHERE held_by = ?", (number,))
        rows = [(one.secret, one.amount_sat, orjson.dumps(one.as_dict()).decode()) for one in came]
        self._db.executemany("INSERT OR IGNORE INTO proofs (secret, amount_sat, proof) VALUES (?, ?, ?)", rows)
        return True

    # What is paid to it

    def add_invoice(self, payment_hash: str, quote: str, bolt11: str, amount_sat: int, expires_at_s: int) -> None:
        row = (payment_hash, quote, bolt11, amount_sat, expires_at_s)
        self._db.execute("INSERT INTO invoices VALUES (?, ?, ?, ?, ?, 'open', 0, NULL)", row)

    def invoice(self, payment_hash: str) -> IssuedInvoice:
        """Raises NotFound."""
        row = self._db.execute("SELECT * FROM invoices WHERE payment_hash = ?", (payment_hash,)).fetchone()
        if row is None:
            raise NotFound("payment_hash", "this wallet made no such invoice")
        return IssuedInvoice(*row)

    def open_invoices(self) -> list[IssuedInvoice]:
        return [IssuedInvoice(*row) for row in self._db.execute("SELECT * FROM invoices WHERE state = 'open'")]

    def mark_invoice(self, payment_hash: str, state: str, at_s: int) -> None:
        """An open invoice has come to its end. A settled one gets the next place."""
        place = "(SELECT coalesce(max(place), 0) + 1 FROM invoices)" if state == "settled" else "NULL"
        query = f"UPDATE invoices SET state = ?, at_s = ?, place = {place} WHERE payment_hash = ? AND state = 'open'"
        self._db.execute(query, (state, at_s, payment_hash))

    def settled_after(self, place: int) -> list[IssuedInvoice]:
        """What was settled after this place, in order."""
        rows = self._db.execute("SELECT * FROM invoices WHERE place > ? ORDER BY place LIMIT 1000", (place,))
        return [IssuedInvoice(*row) for row in rows]

    # What it pays

    def add_payment(self, payment: SentPayment) -> bool:
        """Whether it is new; what is there stands."""
        row = (payment.payment_hash, payment.quote, payment.amount_msat, payment.state, payment.fee_msat)
        whole = (*row, payment.preimage, payment.at_s, payment.reason)
        return self._db.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, ?, ?, ?, ?, ?, ?)", whole).rowcount == 1

    def payment(self, payment_hash: str) -> SentPayment:
        """Raises NotFound."""
        row = self._db.execute("SELECT * FROM payments WHERE payment_hash = ?", (payment_hash,)).fetchone()
        if row is None:
            raise NotFound("payment_hash", "this wallet was told to pay no such invoice")
        return SentPayment(*row)

    def mark_payment(self, payment: SentPayment) -> None:
        """A pending payment has come to its end."""
        query = (
            "UPDATE payments SET state = ?, fee_msat = ?, preimage = ?, at_s = ?, reason = ? "
            "WHERE payment_hash = ? AND state = 'pending'"
        )
        row = (payment.state, payment.fee_msat, payment.preimage, payment.at_s, payment.reason, payment.payment_hash)
        self._db.execute(query, row)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
