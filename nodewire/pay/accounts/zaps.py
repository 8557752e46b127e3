"""Zaps for chunks: NIP-57 requests and receipts that name a job, a chunk and an attempt.

nips/16-payment.md. A chunk's zap request carries besides NIP-57's tags `["chunk", "<n>"]` and `["attempt", "<n>"]`; its
`e` is the job request. NIP-57's own clauses are checked by `nodewire.nostr.nips.nip57`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadInput, BadZap
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts.debts import Key
from nodewire.pay.lightning import invoices

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from nodewire.nostr.event import Event, Tags
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.nips.nip57 import ZapRequest
    from nodewire.pay.lightning.invoices import Invoice

MAX_CHUNK = 2**31 - 1
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}")


class PaymentRequest(Protocol):
    """What says which chunk it pays for: a zap request, or a nutzap."""

    @property
    def recipient(self) -> str: ...
    @property
    def event(self) -> str | None: ...
    @property
    def tags(self) -> Tags: ...


@dataclass(frozen=True, slots=True)
class Zap:
    """What a checked receipt says: its author claims to have been paid `invoice`. It proves nothing more."""

    key: Key
    request: ZapRequest
    invoice: Invoice


def split(total_msat: int, weights: Sequence[int]) -> list[int]:
    """`total_msat` in shares proportional to `weights`, exact to the msat.

    Each share is rounded down; what is left over goes, one msat each, to the largest remainders, the earlier first.

    Raises:
        BadInput: a negative total or weight, or no weight above zero.

    """
    whole = sum(weights)
    if total_msat < 0 or whole <= 0 or min(weights) < 0:
        raise BadInput("weights", "a negative amount or weight, or all are zero")
    shares = [total_msat * weight // whole for weight in weights]
    largest = sorted(range(len(weights)), key=lambda n: (-(total_msat * weights[n] % whole), n))
    for n in largest[: total_msat - sum(shares)]:
        shares[n] += 1
    return shares


def description_hash(text: str) -> str:
    """What an invoice for the zap request `text` commits to."""
    return hashlib.sha256(text.encode()).hexdigest()


def build_request(
    keys: Keys, key: Key, amount_msat: int, *, relays: Sequence[str], lnurl: str | None, created_at: int
) -> Event:
    """The signed request to zap `key.payee` for one chunk of a job. Raises BadZap."""
    return nip57.build_request(
        keys,
        nip57.ZapTarget(key.payee, lnurl=lnurl, event=key.job),
        amount_msat=amount_msat,
        relays=relays,
        created_at=created_at,
        others=[["chunk", str(key.chunk)], ["attempt", str(key.attempt)]],
    )


def is_for_chunk(request: PaymentRequest) -> bool:
    """Whether a request means to pay for a chunk, well or badly formed. Others are ordinary zaps."""
    return any(tag[0] in ("chunk", "attempt") for tag in request.tags)


def chunk_of(request: PaymentRequest) -> Key:
    """Which chunk a request pays for.

    Raises:
        BadZap: it names no job, or not one chunk and one attempt.

    """
    if request.event is None:
        raise BadZap("e", "names no job")
    return Key(request.event, request.recipient, _number(request, "chunk"), _number(request, "attempt"))


def check_receipt(
    event: Event,
    *,
    key: Key,
    nostr_pubkey: str,
    network: str,
    lnurl: str | None = None,
    payee: str | None = None,
    seen: Container[str] = (),
) -> Zap:
    """A verified event as the receipt for one chunk, by every clause of NIP-57 and of nodewire.

    `nostr_pubkey` is the key that the recipient's endpoint announces, `lnurl` that endpoint's URL as "lnurl1...",
    `payee` the recipient's node if it is known, `seen` the payment hashes of receipts that were counted before.

    Raises:
        BadZap: a clause is broken, by the tag's name; or the receipt is for another chunk, or used again.
        BadInvoice, TooLarge: its invoice is malformed.

    """
    facts, invoice = _invoice_of(event, network)
    request = nip57.check_receipt(
        event, facts, nostr_pubkey=nostr_pubkey, recipient=key.payee, lnurl=lnurl, payee=payee
    )
    if (found := chunk_of(request)) != key:
        raise BadZap("e", f"for chunk {found.chunk}, attempt {found.attempt} of {found.job}")
    if invoice.payment_hash in seen:
        raise BadZap("bolt11", "this payment was counted before")
    return Zap(key, request, invoice)


def read_receipt(event: Event, *, recipient: str, nostr_pubkey: str, network: str) -> tuple[ZapRequest, Invoice]:
    """A verified event as the receipt of any zap to `recipient`, by every clause of NIP-57: its request and invoice.

    Raises:
        BadZap, BadInvoice, TooLarge: as `check_receipt`.

    """
    facts, invoice = _invoice_of(event, network)
    return nip57.check_receipt(event, facts, nostr_pubkey=nostr_pubkey, recipient=recipient), invoice


def _invoice_of(event: Event, network: str) -> tuple[nip57.Invoice, Invoice]:
    """A receipt's invoice, as its facts and whole."""
    bolt11 = event.tag("bolt11")
    if bolt11 is None:
        raise BadZap("bolt11", "missing")
    invoice = invoices.decode(bolt11, network=network)
    facts = nip57.Invoice(
        bolt11=bolt11,  # as spelled there: bech32 may be in either case
        amount_msat=invoice.amount_msat,
        description_hash=invoice.description_hash,
        payment_hash=invoice.payment_hash,
        payee=invoice.payee,
    )
    return facts, invoice


def _number(request: PaymentRequest, name: str) -> int:
    values = [tag[1] for tag in request.tags if tag[0] == name and len(tag) > 1]
    if len(values) != 1 or _DECIMAL.fullmatch(values[0]) is None or int(values[0]) > MAX_CHUNK:
        raise BadZap(name, f"not one integer from 0 to {MAX_CHUNK}")
    return int(values[0])
