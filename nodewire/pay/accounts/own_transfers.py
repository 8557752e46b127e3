"""What a role's owner pays and receives by hand: written into the ledger before anything is sent.

A payment is "pending" from before the wallet is told of it until the wallet's own record says what became of it. While
one to somebody is pending no second one to the same is begun. So a command that died, and is given again, pays once.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from nodewire.core.sqlite import transaction
from nodewire.errors import BadInput, NotAllowed, NotFound
from nodewire.pay.lightning.invoices import opens

if TYPE_CHECKING:
    import sqlite3

    from nodewire.pay.lightning.wallet import Direction, State, Transfer

TABLE = """CREATE TABLE IF NOT EXISTS own_transfers (
    payment_hash TEXT NOT NULL, direction TEXT NOT NULL, target TEXT NOT NULL, bolt11 TEXT NOT NULL,
    amount_msat INTEGER NOT NULL, wallet TEXT NOT NULL, at_s INTEGER NOT NULL, state TEXT NOT NULL,
    fee_msat INTEGER NOT NULL, preimage TEXT, reason TEXT NOT NULL,
    PRIMARY KEY (payment_hash, direction)
) STRICT"""
_UNDER_WAY = "state IN ('open', 'pending')"


@dataclass(frozen=True, slots=True)
class OwnTransfer:
    """One payment or invoice. `target`: whom it goes to, or what it came for; `at_s`: when it was begun."""

    payment_hash: str
    direction: Direction
    target: str
    bolt11: str
    amount_msat: int
    wallet: str
    """The id of the wallet whose it is: no other knows what became of it."""
    at_s: int
    state: State
    fee_msat: int = 0
    preimage: str | None = None
    reason: str = ""
    """Why it failed."""

    @property
    def is_under_way(self) -> bool:
        return self.state in ("open", "pending")


class OwnTransfers:
    """The part of a ledger that has them, over its connection. Every method is one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self, one: OwnTransfer) -> OwnTransfer:
        """Enter it, or find it as it stands.

        Raises:
            NotAllowed: another payment to the same is pending.

        """
        with transaction(self._db):
            known = self._all("payment_hash = ? AND direction = ?", one.payment_hash, one.direction)
            if known:
                return known[0]
            if one.direction == "out" and self._all(f"direction = 'out' AND target = ? AND {_UNDER_WAY}", one.target):
                raise NotAllowed("payment", "another one to the same is pending: `nodewire wallet history` asks for it")
            self._db.execute("INSERT INTO own_transfers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(one))
            return one

    def enter(self, found: Transfer) -> OwnTransfer:
        """Write down what the wallet's record says. What has settled or failed stays as it is.

        Raises:
            NotFound: it was never begun.
            BadInput: an outgoing one has no preimage that proves it.

        """
        if (
            found.direction == "out"
            and found.state == "settled"
            and not opens(found.preimage or "", found.payment_hash)
        ):
            raise BadInput("preimage", f"the wallet's does not hash to {found.payment_hash}: look the payment up there")
        with transaction(self._db):
            sql = (
                "UPDATE own_transfers SET state = ?, fee_msat = ?, preimage = ?, reason = ? "
                f"WHERE payment_hash = ? AND direction = ? AND {_UNDER_WAY}"
            )
            which = found.payment_hash, found.direction
            preimage = found.preimage if found.state == "settled" else None  # of others it is a secret
            self._db.execute(sql, (found.state, found.fee_msat, preimage, found.reason[:200], *which))
            known = self._all("payment_hash = ? AND direction = ?", *which)
            if not known:
                raise NotFound("payment_hash", "never begun")
            return known[0]

    def under_way(self) -> list[OwnTransfer]:
        """Of which the wallet has yet to say what became of them, oldest first."""
        return self._all(_UNDER_WAY)

    def paying(self, target: str) -> OwnTransfer | None:
        """The pending payment to somebody; there is one at most."""
        found = self._all(f"direction = 'out' AND target = ? AND {_UNDER_WAY}", target)
        return found[0] if found else None

    def find(self, payment_hash: str, direction: Direction) -> OwnTransfer | None:
        found = self._all("payment_hash = ? AND direction = ?", payment_hash, direction)
        return found[0] if found else None

    def newest(self, most: int) -> list[OwnTransfer]:
        """The newest, newest first."""
        return list(reversed(self._all(f"rowid IN (SELECT rowid FROM own_transfers ORDER BY rowid DESC LIMIT {most})")))

    def _all(self, where: str, *values: str) -> list[OwnTransfer]:
        rows = self._db.execute(f"SELECT * FROM own_transfers WHERE {where} ORDER BY rowid", values)
        return [OwnTransfer(*row) for row in rows]
