"""What a ledger's owner has paid and received, newest first: for work, and by hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, NotAllowed, NotFound
from nodewire.pay.lightning import invoices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.pay.accounts.debts import Debt
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.lightning.wallet import Direction, Transfer, Wallet, WalletInfo


@dataclass(frozen=True, slots=True)
class Entry:
    """One transfer. `at_s`: when it settled or was begun, 0 if that is not known; `what`: whom it was for, or from."""

    direction: Direction
    amount_msat: int
    fee_msat: int
    state: str
    what: str
    at_s: int
    payment_hash: str = ""
    reason: str = ""
    """Why it failed."""
    bolt11: str = ""
    """The invoice, as long as it can be paid into the wallet."""

    def document(self) -> dict[str, Any]:
        """The entry as plain data. It has no preimage."""
        return asdict(self)


async def by_wallet(wallet: Wallet, info: WalletInfo, ledger: Ledger) -> dict[str, Transfer]:
    """What the wallet's record says of payments for work that are under way, by payment hash. It moves no money.

    Raises:
        LinkLost, TimedOut: the wallet cannot be reached.

    """
    found = {}
    for _, payment in ledger.under_way():
        if payment.wallet in ("", info.id):
            try:
                found[payment.payment_hash] = await wallet.lookup(payment.payment_hash, "out")
            except (NotFound, NotAllowed, BadInput):
                continue  # as the ledger has it
    return found


def read(ledger: Ledger, most: int, by_wallet: Mapping[str, Transfer] = {}) -> list[Entry]:
    """The newest entries. `by_wallet`: what its record says of payments that the ledger has under way."""
    found = [_of_debt(debt, by_wallet) for debt in ledger.newest_debts(most)]
    found += [_of_due(due) for due in ledger.newest_dues(most)]
    for own in ledger.own.newest(most):
        what = own.target if own.direction == "out" else f"for {own.target}"
        state = "expired" if own.state == "failed" and own.direction == "in" else own.state
        found.append(
            Entry(
                own.direction,
                own.amount_msat,
                own.fee_msat,
                state,
                what,
                own.at_s,
                own.payment_hash,
                own.reason,
                own.bolt11 if own.direction == "in" and own.is_under_way else "",
            )
        )
    found.sort(key=lambda one: -one.at_s)
    return found[:most]


def _of_debt(debt: Debt, by_wallet: Mapping[str, Transfer]) -> Entry:
    """A chunk that a customer pays for. An invoice says when."""
    key, payment = debt.key, debt.payment
    what = f"chunk {key.chunk} of job {key.job[:8]}, to {key.payee[:8]}"
    at_s = invoices.decode(payment.bolt11).created_at_s if payment is not None else 0
    state, fee_msat, payment_hash = debt.state, debt.fee_msat, debt.payment_hash or ""
    said = by_wallet.get(payment_hash)
    if said is not None and said.state != "pending":
        fee_msat = said.fee_msat if debt.parts[-1].bears_fee else 0  # of a payment for several chunks once
        return Entry("out", debt.amount_msat, fee_msat, f"{said.state} by the wallet's record", what, at_s)
    words = {"paid": "settled", "paying": "pending", "planned": "owed", "invoiced": "owed"}
    return Entry("out", debt.amount_msat, fee_msat, words.get(state, state), what, at_s, payment_hash, debt.reason)


def _of_due(due: Due) -> Entry:
    """A chunk that a provider is paid for."""
    key = due.key
    state = "settled" if due.state == "settled" else "owed"
    what = f"chunk {key.chunk} of job {key.job[:8]}, from {due.customer[:8]}"
    at_s = due.settled_at_s or min(due.due_by_s, 2**40)
    return Entry("in", due.amount_msat, 0, state, what, at_s, due.payment_hash or "")
