"""What was paid for a job: claims against the plan's prices, zap receipts, the customer's receipts and its ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.customer.audit.finding import Line, missing_line, not_yet, ok, wrong
from nodewire.customer.payments.receipt_finalizer import COMMIT_EPOCHS
from nodewire.errors import BadInput, NodewireError
from nodewire.nostr.nips import nip57, nip61
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Debt, Key
from nodewire.pay.nutzaps import authorship
from nodewire.protocol.job import receipt
from nodewire.protocol.market.cached_price import may_be_due

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nodewire.customer.audit.public_events import Record
    from nodewire.nostr.event import Event
    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.job.receipt import Closing, Receipt


def lines(record: Record, network: str) -> Iterator[Line]:
    yield from _payments(record, network)
    yield from _receipts(record)


def _payments(record: Record, network: str) -> Iterator[Line]:
    plan = record.request.plan
    zapped, cited = _Zaps(record, network), _cited(record)
    by_payment: dict[str, int] = {}
    for key, said in sorted(record.claims.items(), key=lambda item: item[0][1:] + item[0][:1]):
        provider, chunk, _ = key
        assert said.due is not None
        due, what = said.due, f"chunk {chunk} to {provider[:8]}"
        price = plan.price_msat(provider)
        if not may_be_due(due.amount_msat, price, due.units, due.cached):
            yield wrong("payment", what, f"{due.amount_msat} msat claimed, {due.units} times {price} are due")
            continue
        payment_hash = zapped.named.get(key) or cited.get(key, "")
        by_payment[payment_hash] = by_payment.get(payment_hash, 0) + due.amount_msat
        yield _paid(said, what, zapped, key, payment_hash, by_payment[payment_hash])


class _Zaps:
    """The zap receipts of a job that hold, and its customer's nutzaps, by what they say."""

    def __init__(self, record: Record, network: str) -> None:
        self.amounts_msat: dict[str, int] = {}
        """By payment hash."""
        self.named: dict[tuple[str, int, int], str] = {}
        """By claim that a zap names: the payment's hash."""
        self.faults: dict[tuple[str, int, int], str] = {}
        """By claim: why its receipt does not hold, or that it has several."""
        self.nutzaps: set[str] = set()
        """Payment hashes that are nutzaps': the word of the customer, and of the mint that nobody asks here."""
        for event in record.zaps:
            if event.kind == nip61.NUTZAP:
                self._add_nutzap(event, record)
                continue
            try:
                named = zaps.chunk_of(nip57.parse_request(event.tag("description") or ""))
            except NodewireError:
                continue
            key = event.pubkey, named.chunk, named.attempt
            if named.job != record.request.id or key not in record.claims:
                continue
            try:
                expected = Key(record.request.id, *key)
                zap = zaps.check_receipt(event, key=expected, nostr_pubkey=event.pubkey, network=network)
            except NodewireError as error:
                self.faults.setdefault(key, f"its zap receipt does not hold: {error}")
                continue
            payment_hash = zap.invoice.payment_hash
            if self.named.setdefault(key, payment_hash) != payment_hash:
                self.faults[key] = "paid twice"
            self.amounts_msat[payment_hash] = zap.invoice.amount_msat

    def _add_nutzap(self, event: Event, record: Record) -> None:
        try:
            nutzap = nip61.parse(event)
            named = zaps.chunk_of(nutzap)
            is_bound = authorship.is_bound(nutzap)
        except NodewireError:
            return
        key = named.payee, named.chunk, named.attempt
        if is_bound and named.job == record.request.id and key in record.claims:
            payment_hash = authorship.payment_hash(nutzap)
            self.nutzaps.add(payment_hash)
            self.amounts_msat[payment_hash] = nutzap.amount_sat * 1_000
            if self.named.setdefault(key, payment_hash) != payment_hash:
                self.faults[key] = "paid twice"


def _cited(record: Record) -> dict[tuple[str, int, int], str]:
    """The payments that the customer's receipts name, by claim; empty where a chunk is still owed."""
    found: dict[tuple[str, int, int], str] = {}
    for event in record.receipts:
        try:
            if receipt.is_closing(event):
                continue
            one = receipt.parse(event)
        except BadInput:
            continue
        for paid in one.chunks:
            found.setdefault((one.provider, paid.chunk, paid.attempt), paid.payment_hash or "")
    return found


def _paid(
    said: Feedback, what: str, zapped: _Zaps, key: tuple[str, int, int], payment_hash: str, together_msat: int
) -> Line:
    """How a claim was paid, with the `together_msat` of the claims that the same payment settles."""
    assert said.due is not None
    due, amount_msat = said.due, zapped.amounts_msat.get(payment_hash)
    if fault := zapped.faults.get(key):
        return wrong("payment", what, fault)
    if amount_msat is None:
        return missing_line(
            "payment", what, "no zap receipt" if not payment_hash else "its payment has no receipt here"
        )
    if together_msat > amount_msat:
        return wrong("payment", what, f"{amount_msat} msat were zapped for {together_msat} msat of claims")
    if payment_hash in zapped.nutzaps:
        return missing_line("payment", what, "a nutzap pays it: its mint alone can say whether that is good")
    found = f", of which {due.cached} were found and not computed" if due.cached else ""
    return ok("payment", what, f"{due.amount_msat} msat, {due.units} times the plan's price{found}; zap receipted")


def _receipts(record: Record) -> Iterator[Line]:
    given: dict[str, Receipt] = {}
    closings: dict[str, Closing] = {}
    for event in record.receipts:
        try:
            if receipt.is_closing(event):
                closing = receipt.parse_closing(event)
                closings.setdefault(closing.receipt, closing)
            else:
                given[event.id] = receipt.parse(event)
        except BadInput as error:
            yield wrong("receipt", f"event {event.id[:16]}", str(error))
    waited = _waited_for(given.values(), record)
    for id_, one in given.items():
        what = f"{one.provider[:8]}, {len(one.chunks)} chunks"
        if fault := _misreceipted(one, record):
            yield wrong("receipt", what, fault)
        elif id_ not in closings:
            reason = "the customer says what became final when its process runs again, or at once with --wait"
            if again_s := record.seconds_to(waited):
                yield not_yet("receipt", what, reason, again_s)
            else:
                yield missing_line("receipt", what, reason)
        elif fault := _misclosed(one, closings[id_], record, waited):
            yield wrong("receipt", what, fault)
        elif never := closings[id_].uncertified:
            yield missing_line(
                "receipt", what, f"paid and not certified in time: {', '.join(f'chunk {n}' for n, _ in never)}"
            )
        else:
            yield ok("receipt", what, "claims, payments, commitments and certificates are the public ones")
    receipted = {one.provider for one in given.values()}
    for provider in sorted({provider for provider, _, _ in record.claims} - receipted):
        yield missing_line("receipt", provider[:8], "the customer has given none")


def _misreceipted(one: Receipt, record: Record) -> str:
    if one.plan != record.request.plan.digest():
        return "of another plan"
    if one.codecs != record.request.plan.terms.lossy:
        return "of other codecs than the plan's edges have"
    for paid in one.chunks:
        said = record.claims.get((one.provider, paid.chunk, paid.attempt))
        if said is None or said.due is None:
            return f"chunk {paid.chunk}: there is no such claim"
        claimed = said.due.root, said.due.amount_msat, said.due.units, said.due.cached
        if (paid.root, paid.amount_msat, paid.units, paid.cached) != claimed:
            return f"chunk {paid.chunk}: not what the provider claimed"
    return ""


def _waited_for(given: Iterable[Receipt], record: Record) -> int:
    """The last epoch whose certificate a closing had to wait for: counted from the last claim that was paid."""
    paid = {(one.provider, paid.chunk, paid.attempt) for one in given for paid in one.chunks}
    claimed_s = [said.created_at for key, said in record.claims.items() if key in paid]
    return record.committee.epoch_at(max([record.request.created_at, *claimed_s]) * 1000) + COMMIT_EPOCHS


def _misclosed(one: Receipt, closing: Closing, record: Record, waited: int) -> str:
    final = {(c.chunk, c.attempt): c for c in closing.final}
    for paid in one.chunks:
        at = paid.chunk, paid.attempt
        held = record.finality.claimed(record.request.plan, one.provider, *at, paid.root)
        if at in final:
            said = final[at]
            if held is None or (said.commitment, said.epoch, said.certificate) != (
                held.commitment,
                held.epoch,
                held.certificate,
            ):
                return f"chunk {paid.chunk}: it is not final by what the closing names"
        elif at not in closing.uncertified:
            return f"chunk {paid.chunk}: the closing does not name it"
        elif held is not None and held.epoch <= waited:
            return f"chunk {paid.chunk}: said to be uncertified, but epoch {held.epoch} certifies it"
    return ""


def ledger(record: Record, debts: Sequence[Debt]) -> Iterator[Line]:
    """The customer's own book against the public record."""
    members = record.request.plan.providers()
    for debt in debts:
        if debt.key.payee not in members:
            continue  # the verification share goes to the treasury
        key, what = debt.key, f"chunk {debt.key.chunk} to {debt.key.payee[:8]}"
        said = record.claims.get((key.payee, key.chunk, key.attempt))
        if said is None or said.due is None:
            yield missing_line("ledger", what, f"{debt.amount_msat} msat {debt.state}, and no relay has the claim")
        elif said.due.amount_msat != debt.amount_msat:
            yield wrong("ledger", what, f"{debt.amount_msat} msat {debt.state}, {said.due.amount_msat} were claimed")
        elif debt.state != "paid":
            yield missing_line("ledger", what, f"{debt.amount_msat} msat {debt.state}")
        else:
            yield ok("ledger", what, f"{debt.amount_msat} msat paid, {debt.fee_msat} msat fees")
