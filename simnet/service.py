"""What a node may ask of the simulated network: each request is checked, written ahead, then applied."""

from __future__ import annotations

import asyncio
import heapq
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import coincurve

from nodewire.errors import BadInput, NotAllowed, NotFound, OverBudget, PaymentFailed
from nodewire.pay.lightning import invoices
from simnet import holder_book, network
from simnet.conditions import AT_ONCE, NO_TROUBLE, Conditions
from simnet.holder_book import HolderBook
from simnet.journal import Entry, Journal, Node, token_sha256
from simnet.network import Event, Invoice, Network, PaymentRefusal
from simnet.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOLD_S = 86_400
"""How long a hold invoice may hold a payment (144 blocks)."""
OUTCOMES = ("Offered", "Settled", "Cancelled", "Expired")


@dataclass(frozen=True, slots=True)
class Fees:
    """What routing costs the payer: `base_msat` + `ppm` millionths of the amount."""

    base_msat: int = 0
    ppm: int = 0

    def compute(self, amount_msat: int) -> int:
        return self.base_msat + amount_msat * self.ppm // 1_000_000


class Simnet:
    """The network over its journal at `path`.

    `faucet_msat` is the most that a new account may open with, `conditions` what becomes of payments of plain
    invoices, `unit_msat` what amounts are whole multiples of, `now_s` the clock (unix seconds).
    Methods are plain calls: one event loop asks, one journal is written.
    """

    def __init__(
        self,
        path: Path,
        fees: Fees = Fees(),
        faucet_msat: int = 0,
        now_s: Callable[[], float] = time.time,
        *,
        conditions: Conditions = NO_TROUBLE,
        unit_msat: int = 1,
    ) -> None:
        self.fees = fees
        self.unit_msat = unit_msat
        self._conditions = conditions
        self.faucet_msat = faucet_msat
        self._now_s = now_s
        self._journal = Journal(path)
        self._nodes = {node.node: node for node in self._journal.nodes()}
        self._by_token = {node.token_sha256: node.node for node in self._nodes.values()}
        self._deadlines: list[tuple[int, str]] = []
        self._under_way: list[tuple[float, str]] = []
        """When plain payments arrive or return, and their hashes."""
        self._changed = asyncio.Event()
        self.state = Network()
        self.book = HolderBook()
        for event in self._journal.replay():
            self._apply(event)
        self._resume()

    def open_account(self, name: str, opening_msat: int) -> tuple[str, str]:
        """A new node and the bearer token of its owner, which is not kept.

        Raises:
            NotAllowed: more than the faucet gives.

        """
        if opening_msat > self.faucet_msat:
            raise NotAllowed(
                "opening_msat",
                f"the faucet gives at most {self.faucet_msat} msat (`--faucet` of the simulated network)",
            )
        key = coincurve.PrivateKey()
        token = secrets.token_urlsafe(32)
        node = Node(key.public_key.format().hex(), name, key.secret, token_sha256(token))
        event = network.NodeJoin(node.node, opening_msat)
        after = network.apply(event, self.state)
        self._journal.open_node(event, node)
        self.state = after
        self._nodes[node.node] = node
        self._by_token[node.token_sha256] = node.node
        return node.node, token

    def account_of(self, token: str) -> str:
        """Raises NotAllowed for a token that opens no account."""
        try:
            return self._by_token[token_sha256(token)]
        except KeyError:
            raise NotAllowed("token", "it opens no account") from None

    def balance_msat(self, node: str) -> int:
        self.sweep()
        return self.state.balances[node]

    def make_invoice(
        self,
        payee: str,
        amount_msat: int,
        expiry_s: int,
        *,
        description: str | None = None,
        description_hash: str | None = None,
        payment_hash: str | None = None,
    ) -> Invoice:
        """A plain invoice, or a hold invoice for the `payment_hash` of a preimage that only the payee knows.

        Raises:
            BadInvoice: a value is out of range.
            BadInput: the amount is of no whole units.
            NotAllowed: the payment hash is taken.

        """
        self.sweep()
        if amount_msat % self.unit_msat:
            raise BadInput("amount_msat", f"{amount_msat} msat is no multiple of {self.unit_msat} msat")
        if payment_hash is not None and payment_hash in self.state.invoices:
            raise NotAllowed("payment_hash", "another invoice has it")
        preimage = None
        if payment_hash is None:
            preimage = os.urandom(32).hex()
            payment_hash = invoices.hash_of(preimage)
        invoice = invoices.issue(
            self._nodes[payee].secret,
            network=invoices.REGTEST,
            amount_msat=amount_msat,
            payment_hash=payment_hash,
            created_at_s=int(self._now_s()),
            expiry_s=expiry_s,
            description=description,
            description_hash=description_hash,
        )
        hold_s = HOLD_S if preimage is None else 0
        event = network.InvoiceIssue(
            invoice.payment_hash,
            payee,
            amount_msat,
            invoice.bolt11,
            invoice.expires_at_s,
            hold_s,
            preimage,
        )
        self._commit(event, payee, None)
        return self.state.invoice(invoice.payment_hash)

    def pay(self, payer: str, bolt11: str, max_fee_msat: int) -> Invoice:
        """Pay an invoice of this network; paying it again returns the first payment and moves nothing.

        Returns it settled; held if it is a hold invoice, or as long as the payment is under way.

        Raises:
            BadInvoice: malformed or of another network.
            PaymentFailed: unknown to this network, expired, cancelled, paid by another, or beyond the balance.
            OverBudget: routing costs more than `max_fee_msat`.

        """
        self.sweep()
        asked = invoices.decode(bolt11, network=invoices.REGTEST)
        known = self.state.invoices.get(asked.payment_hash)
        if known is None or known.bolt11 != asked.bolt11:
            raise PaymentFailed("invoice", "no route to a node that knows it")
        if known.payer != payer:
            # The holder pays out to the msat what its book owes; its routes are its own affair.
            fee_msat = 0 if payer == self.book.node else self.fees.compute(known.amount_msat)
            if fee_msat > max_fee_msat:
                raise OverBudget("max_fee_msat", f"routing costs {fee_msat} msat, at most {max_fee_msat} msat allowed")
        else:
            fee_msat = known.fee_msat
        now_s = self._now_s()
        self._commit(network.PaymentOffer(known.payment_hash, payer, fee_msat, int(now_s)), known.payee, payer)
        if known.preimage is not None and known.payer is None:
            self._send(self.state.invoice(known.payment_hash), now_s)
            self._end_travels()
            if (returned := self.state.refusal(payer, known.payment_hash)) is not None:
                raise PaymentFailed("invoice", returned.reason)
        return self.state.invoice(known.payment_hash)

    def attempt(self, payer: str, bolt11: str, max_fee_msat: int) -> Invoice | PaymentRefusal:
        """As `pay`, with a record of what fails: once it has failed, the same payer pays by this hash no more.

        Raises:
            BadInvoice: malformed or of another network.

        """
        asked = invoices.decode(bolt11, network=invoices.REGTEST)
        refused = self.state.refusal(payer, asked.payment_hash)
        if refused is not None:
            return refused
        try:
            return self.pay(payer, bolt11, max_fee_msat)
        except (PaymentFailed, OverBudget) as error:
            known = self.state.invoices.get(asked.payment_hash)
            if known is not None and known.payer == payer:  # it was held, and has gone back
                return known
            if (refused := self.state.refusal(payer, asked.payment_hash)) is not None:
                return refused
            now_s = int(self._now_s())
            refused = PaymentRefusal(asked.payment_hash, payer, asked.amount_msat, asked.bolt11, str(error), now_s)
            self._commit(refused, None, payer)
            return refused

    def settle(self, payee: str, preimage: str) -> Invoice:
        """Take what a hold invoice holds.

        Raises:
            NotFound: the account has no invoice that this preimage opens.
            NotAllowed: nothing is held.

        """
        self.sweep()
        invoice = self.transfer(payee, invoices.hash_of(preimage))
        if invoice.payee != payee:
            raise NotAllowed("invoice", "another's to settle")
        self._commit(
            network.InvoiceSettlement(invoice.payment_hash, preimage, int(self._now_s())), payee, invoice.payer
        )
        return self.state.invoice(invoice.payment_hash)

    def cancel(self, payee: str, payment_hash: str) -> Invoice:
        """Withdraw an invoice; what it holds goes back to the payer.

        Raises:
            NotFound: the account has no such invoice.
            NotAllowed: it is settled or expired.

        """
        self.sweep()
        invoice = self.transfer(payee, payment_hash)
        if invoice.payee != payee:
            raise NotAllowed("invoice", "another's to cancel")
        self._commit(network.InvoiceCancellation(payment_hash, int(self._now_s())), payee, invoice.payer)
        return self.state.invoice(payment_hash)

    def transfer(self, node: str, payment_hash: str) -> Invoice:
        """An invoice that `node` issued or has paid. Raises NotFound."""
        self.sweep()
        invoice = self.state.invoices.get(payment_hash)
        if invoice is None or node not in (invoice.payee, invoice.payer):
            raise NotFound("payment_hash", "no invoice or payment of this account")
        return invoice

    def record(self, node: str, payment_hash: str, direction: str) -> Invoice | PaymentRefusal:
        """What the account's record says of what came ("in") or went ("out") by a hash. Raises NotFound."""
        self.sweep()
        invoice = self.state.invoices.get(payment_hash)
        if invoice is not None and node == (invoice.payee if direction == "in" else invoice.payer):
            return invoice
        refused = self.state.refusal(node, payment_hash)
        if direction == "out" and refused is not None:
            return refused
        raise NotFound("payment_hash", "no invoice or payment of this account")

    def outcomes(self, node: str, after: int, limit: int) -> list[Entry]:
        """What happened to the node's invoices and payments after place `after` in the log."""
        self.sweep()
        return self._journal.read(node, after=after, types=OUTCOMES, limit=limit)

    def issued(self, node: str, after: int, limit: int) -> list[Entry]:
        """The node's own invoices made after place `after` in the log."""
        return self._journal.read(node, after=after, types=("Invoiced",), limit=limit)

    def sweep(self) -> None:
        """Have payments arrive or return that were under way for their time, and expire what is due."""
        self._end_travels()
        now_s = int(self._now_s())
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, payment_hash = heapq.heappop(self._deadlines)
            invoice = self.state.invoice(payment_hash)
            is_under_way = invoice.phase == "held" and not invoice.hold_s
            if invoice.phase in ("open", "held") and invoice.deadline_s <= now_s and not is_under_way:
                self._commit(network.InvoiceExpiry(payment_hash, now_s), invoice.payee, invoice.payer)

    def time_s(self) -> float:
        return self._now_s()

    def next_deadline_s(self) -> float | None:
        return min((heap[0][0] for heap in (self._deadlines, self._under_way) if heap), default=None)

    async def change(self, timeout_s: float) -> None:
        """Return when anything happened on the network, or after `timeout_s`."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return

    def close(self) -> None:
        self._journal.close()

    def apply(self, step: Step) -> None:
        """Write a step of the holder's book, and take it there and on the accounts.

        Raises:
            As `holding.apply`; PaymentFailed if the account does not have what the step moves. Then nothing happened.

        """
        book, after = self._stepped(step)
        if book is not self.book or after is not self.state:
            self._journal.append(step)
            self._apply(step)

    def _stepped(self, step: Step) -> tuple[HolderBook, Network]:
        move = holder_book.movement(step, self.book)
        book = holder_book.apply(step, self.book)
        return book, network.apply(move, self.state) if move is not None else self.state

    def _commit(self, event: Event, payee: str | None, payer: str | None) -> None:
        after = network.apply(event, self.state)
        if after is self.state:
            return
        self._journal.append(event, payee=payee, payer=payer)
        self._apply(event)

    def _apply(self, event: Event | Step) -> None:
        if isinstance(event, Step):
            self.book, self.state = self._stepped(event)
        else:
            self.state = network.apply(event, self.state)
            if isinstance(event, network.InvoiceSettlement):
                payer = self.state.invoice(event.payment_hash).payer
                self.book = holder_book.settled(event.payment_hash, payer, event.at_s, self.book)
            if isinstance(event, network.InvoiceIssue | network.PaymentOffer | network.PaymentReturn):
                invoice = self.state.invoice(event.payment_hash)
                if invoice.hold_s or invoice.phase == "open":
                    heapq.heappush(self._deadlines, (invoice.deadline_s, invoice.payment_hash))
        self._changed.set()
        self._changed = asyncio.Event()

    def _send(self, invoice: Invoice, offered_s: float) -> None:
        """Let a plain payment that is held travel. The holder's routes are its own affair."""
        own = invoice.payer == self.book.node
        fate = AT_ONCE if own else self._conditions.fate(invoice.payment_hash)
        heapq.heappush(self._under_way, (offered_s + fate.after_s, invoice.payment_hash))

    def _end_travels(self) -> None:
        while self._under_way and self._under_way[0][0] <= self._now_s():
            self._end_travel(heapq.heappop(self._under_way)[1])

    def _end_travel(self, payment_hash: str) -> None:
        """A plain payment's time is over: it settles, or returns."""
        invoice, now_s = self.state.invoice(payment_hash), int(self._now_s())
        assert invoice.payer is not None and invoice.preimage is not None
        fate = AT_ONCE if invoice.payer == self.book.node else self._conditions.fate(payment_hash)
        event: Event = network.InvoiceSettlement(payment_hash, invoice.preimage, now_s)
        if not fate.arrives:
            reason = "held on its way, and went back" if fate.is_stuck else "no route with enough on its way"
            event = network.PaymentReturn(payment_hash, invoice.payer, reason, now_s)
        self._commit(event, invoice.payee, invoice.payer)

    def _resume(self) -> None:
        """A crash after a plain payment was offered: it goes on, as it would have."""
        for invoice in self.state.invoices.values():
            if invoice.phase == "held" and invoice.preimage is not None:
                self._send(invoice, invoice.held_at_s)
        self._end_travels()
