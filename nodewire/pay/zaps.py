"""Zaps for chunks: NIP-57 requests and receipts that name a job, a chunk and a takeover attempt.

https://github.com/nostr-protocol/nips/blob/master/57.md; NIPS.md, "Payment". A chunk's zap request carries besides
NIP-57's tags `["chunk", "<n>"]` and `["attempt", "<n>"]`; its `e` is the job request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from nodewire.errors import BadInput, BadZap
from nodewire.nostr import event as nostr
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.pay import invoices
from nodewire.pay.debts import Key
from nodewire.pay.invoices import Invoice

REQUEST = 9734
RECEIPT = 9735
MAX_REQUEST_BYTES = 4_096
MAX_RELAYS = 16
MAX_CHUNK = 2**31 - 1

_HEX32 = re.compile(r"[0-9a-f]{64}")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_COORDINATE = re.compile(r"([0-9]{1,5}):[0-9a-f]{64}:.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """A zap request that passed appendix D. `text` is its JSON as it came, which the invoice commits to."""

    event: Event
    text: str
    recipient: str
    zapped: str | None
    """The `e`: the job request's id."""
    amount_msat: int | None
    relays: tuple[str, ...]
    lnurl: str | None

    @property
    def sender(self) -> str:
        return self.event.pubkey


@dataclass(frozen=True, slots=True)
class Receipt:
    """A zap receipt that passed appendices E and F. It says that its author was paid; it proves nothing more."""

    event: Event
    request: Request
    invoice: Invoice
    preimage: str | None


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
    """The signed request to zap `key.payee` for one chunk of a job."""
    tags = [
        ["relays", *relays],
        ["amount", str(amount_msat)],
        ["p", key.payee],
        ["e", key.job],
        ["chunk", str(key.chunk)],
        ["attempt", str(key.attempt)],
    ]
    if lnurl is not None:
        tags.append(["lnurl", lnurl])
    return nostr.sign(keys, REQUEST, created_at=created_at, tags=tags)


def parse_request(text: str, amount_msat: int | None, *, receipt_pubkey: str | None = None) -> Request:
    """The zap request in `text`, by every clause of appendix D.

    `amount_msat` is what the invoice is asked for (None: the request's own amount stands), `receipt_pubkey` the key
    that receipts are signed with.

    Raises:
        BadSignature: D.1. BadZap: D.2 to D.8 by the tag's name. BadEvent, TooLarge: it is no event, or over 4 KB.
    """
    event = nostr.parse(text, max_bytes=MAX_REQUEST_BYTES)
    if event.kind != REQUEST:
        raise BadZap("kind", f"{event.kind}, not {REQUEST}")
    if not event.tags:
        raise BadZap("tags", "none")
    recipient = _single(event, "p", _HEX32)
    if recipient is None:
        raise BadZap("p", "missing")
    relays = next((tag[1:] for tag in event.tags if tag[0] == "relays"), ())
    if not 1 <= len(relays) <= MAX_RELAYS:
        raise BadZap("relays", f"{len(relays)}, from 1 to {MAX_RELAYS} are needed")
    amount = _single(event, "amount", _DECIMAL)
    if amount is not None and amount_msat is not None and int(amount) != amount_msat:
        raise BadZap("amount", f"the request says {amount} msat, {amount_msat} are asked for")
    coordinate = _single(event, "a", _COORDINATE)
    if coordinate is not None and int(coordinate.partition(":")[0]) > 65_535:
        raise BadZap("a", "not an event coordinate")
    payer = _single(event, "P", _HEX32)
    if payer is not None and payer != receipt_pubkey:
        raise BadZap("P", "not the key that signs the receipt")
    return Request(
        event=event,
        text=text,
        recipient=recipient,
        zapped=_single(event, "e", _HEX32),
        amount_msat=int(amount) if amount is not None else None,
        relays=relays,
        lnurl=_single(event, "lnurl"),
    )


def chunk_of(request: Request) -> Key:
    """Which chunk a request pays for.

    Raises:
        BadZap: it names no job, or no chunk and attempt.
    """
    if request.zapped is None:
        raise BadZap("e", "names no job")
    numbers = []
    for name in ("chunk", "attempt"):
        text = _single(request.event, name, _DECIMAL)
        if text is None or int(text) > MAX_CHUNK:
            raise BadZap(name, f"missing, or not an integer from 0 to {MAX_CHUNK}")
        numbers.append(int(text))
    return Key(request.zapped, request.recipient, numbers[0], numbers[1])


def build_receipt(keys: Keys, request: Request, bolt11: str, preimage: str, paid_at_s: int) -> Event:
    """The signed receipt for a settled invoice (appendix E); dated when it was paid, so that it can be built again."""
    tags = [["p", request.recipient], ["P", request.sender]]
    tags += [list(tag) for tag in request.event.tags if tag[0] in ("e", "a", "k")]
    tags += [["bolt11", bolt11], ["description", request.text], ["preimage", preimage]]
    return nostr.sign(keys, RECEIPT, created_at=paid_at_s, tags=tags)


def check_receipt(
    event: Event,
    *,
    nostr_pubkey: str,
    network: str,
    lnurl: str | None = None,
    key: Key | None = None,
    seen: Container[str] = (),
) -> Receipt:
    """A verified event as a zap receipt, by every clause of appendices E and F.

    `nostr_pubkey` is the key that the recipient's endpoint announces, `lnurl` that endpoint's URL, `key` the chunk that
    it must be for, `seen` the payment hashes of receipts that were counted before.

    Raises:
        BadZap: a clause is broken, by the tag's name; or the receipt is used again.
        BadInvoice: its invoice is malformed. BadSignature, BadEvent: its request is no signed event.
    """
    if event.kind != RECEIPT:
        raise BadZap("kind", f"{event.kind}, not {RECEIPT}")
    if event.pubkey != nostr_pubkey:
        raise BadZap("pubkey", "not the key that the recipient's endpoint announces")
    bolt11, text = _single(event, "bolt11"), _single(event, "description")
    if bolt11 is None or text is None:
        raise BadZap("bolt11" if bolt11 is None else "description", "missing")
    invoice = invoices.decode(bolt11, network=network)
    if invoice.description_hash != description_hash(text):
        raise BadZap("description", "not what the invoice commits to")
    request = parse_request(text, invoice.amount_msat, receipt_pubkey=event.pubkey)
    for name, expected in (("p", request.recipient), ("e", request.zapped), ("a", _single(request.event, "a"))):
        if _single(event, name) != expected:
            raise BadZap(name, "not the request's")
    sender = _single(event, "P")
    if sender is not None and sender != request.sender:
        raise BadZap("P", "not the request's author")
    if lnurl is not None and request.lnurl is not None and request.lnurl != lnurl:
        raise BadZap("lnurl", "not the recipient's")
    preimage = _single(event, "preimage", _HEX32)
    if preimage is not None and invoices.hash_of(preimage) != invoice.payment_hash:
        raise BadZap("preimage", "does not hash to the invoice's payment hash")
    if key is not None and chunk_of(request) != key:
        raise BadZap("e", "for another job, chunk, attempt or payee")
    if invoice.payment_hash in seen:
        raise BadZap("bolt11", "this payment was counted before")
    return Receipt(event, request, invoice, preimage)


def _single(event: Event, name: str, pattern: re.Pattern[str] | None = None) -> str | None:
    """The value of the only tag called `name`, or None. Raises BadZap for a second one or a malformed value."""
    found = [tag for tag in event.tags if tag[0] == name]
    if not found:
        return None
    if len(found) > 1:
        raise BadZap(name, "more than one")
    value = found[0][1] if len(found[0]) > 1 else ""
    if not value or (pattern is not None and pattern.fullmatch(value) is None):
        raise BadZap(name, f"{value[:80]!r} is malformed")
    return value
