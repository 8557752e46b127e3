"""The simulated network's state machine: accounts, invoices, and the msat between them. No I/O, no clock.

open ──offer──▶ held ──settle──▶ settled         (a plain invoice's payment is held while it is under way)
  ▲              ├─────return──▶ open            (a plain one's found no route: its payer has everything back)
  │              ├─────cancel──▶ cancelled       (by the payee: the payer has everything back, fee included)
  └──cancel──────┴─────expire──▶ expired         (never offered in time, or held for too long)

An amount is in exactly one place: an account, or held by one invoice. Applying an event twice changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Literal

from nodewire.core.persistent_map import PersistentMap
from nodewire.errors import BadInput, NotAllowed, NotFound, PaymentFailed

ROUTING = "routing"
"""The account that collects routing fees."""

Phase = Literal["open", "held", "settled", "cancelled", "expired"]


@dataclass(frozen=True, slots=True)
class Invoice:
    """One invoice and the payment that it may have met. Nodes are 66 hex digits, hashes and preimages 64."""

    payment_hash: str
    payee: str
    amount_msat: int
    bolt11: str
    expires_at_s: int
    hold_s: int
    """How long an amount may be held (0: a plain invoice)."""
    preimage: str | None
    """Known from the start for a plain invoice, from settlement on for a hold invoice."""
    phase: Phase = "open"
    payer: str | None = None
    fee_msat: int = 0
    held_at_s: int = 0
    ended_at_s: int = 0

    @property
    def deadline_s(self) -> int:
        """When it expires unless something happens."""
        return self.held_at_s + self.hold_s if self.phase == "held" else self.expires_at_s


@dataclass(frozen=True, slots=True)
class NodeJoin:
    """A node joins with `opening_msat` of new money: the only way that money comes into the network."""

    node: str
    opening_msat: int


@dataclass(frozen=True, slots=True)
class InvoiceIssue:
    payment_hash: str
    payee: str
    amount_msat: int
    bolt11: str
    expires_at_s: int
    hold_s: int
    preimage: str | None


@dataclass(frozen=True, slots=True)
class PaymentOffer:
    """`payer` locks the amount and the routing fee."""

    payment_hash: str
    payer: str
    fee_msat: int
    at_s: int


@dataclass(frozen=True, slots=True)
class PaymentReturn:
    """A plain payment under way has not arrived, and never will. The invoice may still be paid by others."""

    payment_hash: str
    payer: str
    reason: str
    at_s: int


@dataclass(frozen=True, slots=True)
class InvoiceSettlement:
    payment_hash: str
    preimage: str
    at_s: int


@dataclass(frozen=True, slots=True)
class InvoiceCancellation:
    payment_hash: str
    at_s: int


@dataclass(frozen=True, slots=True)
class InvoiceExpiry:
    payment_hash: str
    at_s: int


@dataclass(frozen=True, slots=True)
class CoinTransfer:
    """Coins go from one account to another without an invoice: into a bond, or back out of it. `id` names the move."""

    id: str
    source: str
    target: str
    amount_msat: int


@dataclass(frozen=True, slots=True)
class PaymentRefusal:
    """`payer` tried to pay an invoice and could not. It is for good: the same payer pays by this hash no more."""

    payment_hash: str
    payer: str
    amount_msat: int
    bolt11: str
    reason: str
    at_s: int


OfInvoice = InvoiceIssue | PaymentOffer | PaymentReturn | InvoiceSettlement | InvoiceCancellation | InvoiceExpiry
Event = NodeJoin | OfInvoice | CoinTransfer | PaymentRefusal


@dataclass(frozen=True, slots=True)
class Network:
    """Balances by node, invoices by payment hash, payments that failed by payer and hash, all money ever issued."""

    balances: PersistentMap[int] = field(default_factory=lambda: PersistentMap({ROUTING: 0}))
    invoices: PersistentMap[Invoice] = field(default_factory=PersistentMap)
    issued_msat: int = 0
    moves: PersistentMap[CoinTransfer] = field(default_factory=PersistentMap)
    refusals: PersistentMap[PaymentRefusal] = field(default_factory=PersistentMap)

    def refusal(self, payer: str, payment_hash: str) -> PaymentRefusal | None:
        return self.refusals.get(f"{payer}/{payment_hash}")

    def invoice(self, payment_hash: str) -> Invoice:
        """Raises NotFound."""
        try:
            return self.invoices[payment_hash]
        except KeyError:
            raise NotFound("payment_hash", "no such invoice") from None

    def held_msat(self) -> int:
        return sum(i.amount_msat + i.fee_msat for i in self.invoices.values() if i.phase == "held")


def apply(event: Event, network: Network) -> Network:
    """The network after `event`; the same network if the event has been applied before.

    Raises:
        NotFound: an invoice or a node is unknown.
        BadInput: the event's own values are impossible (a preimage of another hash, a negative amount).
        PaymentFailed: the payer has too little, pays itself, or the invoice is paid by another or no longer payable.
        NotAllowed: the invoice's phase does not admit the event.

    """
    match event:
        case NodeJoin():
            return _join(event, network)
        case InvoiceIssue():
            return _invoice(event, network)
        case PaymentOffer() | PaymentReturn():
            return _travel(event, network)
        case InvoiceSettlement():
            return _settle(event, network)
        case InvoiceCancellation(payment_hash, at_s):
            return _end(network, payment_hash, "cancelled", at_s)
        case InvoiceExpiry(payment_hash, at_s):
            invoice = network.invoice(payment_hash)
            if invoice.phase in ("open", "held") and at_s < invoice.deadline_s:
                raise NotAllowed("expiry", f"not before {invoice.deadline_s}")
            return _end(network, payment_hash, "expired", at_s)
        case CoinTransfer():
            return _move(event, network)
        case PaymentRefusal():
            return _refuse(event, network)


def _join(event: NodeJoin, network: Network) -> Network:
    if event.opening_msat < 0:
        raise BadInput("opening_msat", "negative")
    if event.node in network.balances:
        return network
    balances = network.balances.including(event.node, event.opening_msat)
    return replace(network, balances=balances, issued_msat=network.issued_msat + event.opening_msat)


def _refuse(event: PaymentRefusal, network: Network) -> Network:
    if network.refusal(event.payer, event.payment_hash) is not None:
        return network
    paid = network.invoices.get(event.payment_hash)
    if paid is not None and paid.payer == event.payer:
        raise NotAllowed("invoice", f"this payer's payment of it is {paid.phase}")
    return replace(network, refusals=network.refusals.including(f"{event.payer}/{event.payment_hash}", event))


def _invoice(event: InvoiceIssue, network: Network) -> Network:
    if event.payee not in network.balances:
        raise NotFound("payee", "no such node")
    if event.amount_msat <= 0 or event.hold_s < 0:
        raise BadInput("amount_msat" if event.amount_msat <= 0 else "hold_s", "out of range")
    if (event.hold_s == 0) != (event.preimage is not None):
        raise BadInput("preimage", "a plain invoice has one from the start, a hold invoice has none")
    if event.preimage is not None and not _opens(event.preimage, event.payment_hash):
        raise BadInput("preimage", "does not hash to the payment hash")
    known = network.invoices.get(event.payment_hash)
    if known is not None:
        if known.bolt11 == event.bolt11:
            return network
        raise NotAllowed("payment_hash", "another invoice has it")
    invoice = Invoice(
        event.payment_hash,
        event.payee,
        event.amount_msat,
        event.bolt11,
        event.expires_at_s,
        event.hold_s,
        event.preimage,
    )
    return replace(network, invoices=network.invoices.including(event.payment_hash, invoice))


def _travel(event: PaymentOffer | PaymentReturn, network: Network) -> Network:
    return _offer(event, network) if isinstance(event, PaymentOffer) else _return(event, network)


def _offer(event: PaymentOffer, network: Network) -> Network:
    invoice = network.invoice(event.payment_hash)
    if event.fee_msat < 0:
        raise BadInput("fee_msat", "negative")
    if invoice.payer is not None:
        if invoice.payer == event.payer and invoice.phase in ("held", "settled"):
            return network
        raise PaymentFailed("invoice", "already paid" if invoice.phase in ("held", "settled") else invoice.phase)
    if (refused := network.refusal(event.payer, event.payment_hash)) is not None:
        raise PaymentFailed("invoice", f"failed before: {refused.reason}")
    if invoice.phase != "open" or event.at_s >= invoice.expires_at_s:
        raise PaymentFailed("invoice", "expired" if invoice.phase == "open" else invoice.phase)
    if event.payer == invoice.payee:
        raise PaymentFailed("invoice", "a node cannot pay itself")
    balance_msat = network.balances.get(event.payer)
    if balance_msat is None:
        raise NotFound("payer", "no such node")
    needed_msat = invoice.amount_msat + event.fee_msat
    if balance_msat < needed_msat:
        raise PaymentFailed("balance", f"{balance_msat} msat, {needed_msat} msat needed")
    held = replace(invoice, phase="held", payer=event.payer, fee_msat=event.fee_msat, held_at_s=event.at_s)
    return replace(
        network,
        balances=network.balances.including(event.payer, balance_msat - needed_msat),
        invoices=network.invoices.including(invoice.payment_hash, held),
    )


def _return(event: PaymentReturn, network: Network) -> Network:
    if network.refusal(event.payer, event.payment_hash) is not None:
        return network
    invoice = network.invoice(event.payment_hash)
    if invoice.phase != "held" or invoice.hold_s or invoice.payer != event.payer:
        raise NotAllowed("invoice", f"no plain payment by this payer is under way: it is {invoice.phase}")
    returned = replace(invoice, phase="open", payer=None, fee_msat=0, held_at_s=0)
    refusal = PaymentRefusal(
        event.payment_hash, event.payer, invoice.amount_msat, invoice.bolt11, event.reason, event.at_s
    )
    return replace(
        network,
        balances=_credit(network.balances, event.payer, invoice.amount_msat + invoice.fee_msat),
        invoices=network.invoices.including(invoice.payment_hash, returned),
        refusals=network.refusals.including(f"{event.payer}/{event.payment_hash}", refusal),
    )


def _settle(event: InvoiceSettlement, network: Network) -> Network:
    invoice = network.invoice(event.payment_hash)
    if not _opens(event.preimage, event.payment_hash):
        raise BadInput("preimage", "does not hash to the payment hash")
    if invoice.phase == "settled":
        return network
    if invoice.phase != "held":
        raise NotAllowed("invoice", f"settling one that is {invoice.phase}")
    settled = replace(invoice, phase="settled", preimage=event.preimage, ended_at_s=event.at_s)
    balances = _credit(network.balances, invoice.payee, invoice.amount_msat)
    return replace(
        network,
        balances=_credit(balances, ROUTING, invoice.fee_msat),
        invoices=network.invoices.including(invoice.payment_hash, settled),
    )


def _end(network: Network, payment_hash: str, phase: Phase, at_s: int) -> Network:
    """Cancelled or expired: what was held goes back to the payer."""
    invoice = network.invoice(payment_hash)
    if invoice.phase == phase:
        return network
    if invoice.phase not in ("open", "held"):
        raise NotAllowed("invoice", f"it is {invoice.phase}")
    if invoice.phase == "held" and invoice.hold_s == 0:
        raise NotAllowed("invoice", "a plain payment under way settles or returns")
    balances = network.balances
    if invoice.payer is not None:
        balances = _credit(balances, invoice.payer, invoice.amount_msat + invoice.fee_msat)
    ended = replace(invoice, phase=phase, ended_at_s=at_s)
    return replace(network, balances=balances, invoices=network.invoices.including(payment_hash, ended))


def _move(event: CoinTransfer, network: Network) -> Network:
    if event.id in network.moves:
        if network.moves[event.id] == event:
            return network
        raise NotAllowed("id", "it names another move")
    if event.amount_msat <= 0 or event.source == event.target:
        raise BadInput("amount_msat", "nothing to move")
    for node in (event.source, event.target):
        if node not in network.balances:
            raise NotFound("node", "no such node")
    balance_msat = network.balances[event.source]
    if balance_msat < event.amount_msat:
        raise PaymentFailed("balance", f"{balance_msat} msat, {event.amount_msat} msat needed")
    balances = network.balances.including(event.source, balance_msat - event.amount_msat)
    moves = network.moves.including(event.id, event)
    return replace(network, balances=_credit(balances, event.target, event.amount_msat), moves=moves)


def _credit(balances: PersistentMap[int], node: str, amount_msat: int) -> PersistentMap[int]:
    return balances.including(node, balances[node] + amount_msat)


def _opens(preimage: str, payment_hash: str) -> bool:
    return hashlib.sha256(bytes.fromhex(preimage)).hexdigest() == payment_hash
