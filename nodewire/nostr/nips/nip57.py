"""NIP-57: zap requests (9734), zap receipts (9735) and splits.

https://github.com/nostr-protocol/nips/blob/master/57.md

A zap request goes to the recipient's LNURL callback, never to a relay. A receipt is no proof of payment: all it proves
is that the recipient's LNURL server says so. A wallet believes its own ledger; receipts are for the public.

Every clause of the NIP that does not hold raises BadZap with a field of its own. Invoices are parsed elsewhere; their
facts come in as `Invoice`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from nodewire.errors import BadEvent, BadInput, BadSignature, BadZap, TooLarge
from nodewire.nostr import event as _event
from nodewire.nostr.event import Event, Tags, sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.nostr.keys import Keys

REQUEST = 9_734
RECEIPT = 9_735
MAX_REQUEST_BYTES = 8_192  # it travels in a URL
MAX_RELAYS = 32
MAX_SHARES = 256
MAX_MSAT = 21_000_000 * 100_000_000 * 1_000
_HEX64 = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_ADDRESS = re.compile(r"(0|[1-9][0-9]{0,4}):[0-9a-f]{64}:", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_WEIGHT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ZapRequest:
    """What a checked 9734 says. Pubkeys and ids are 64 hex digits."""

    id: str
    sender: str
    recipient: str
    relays: tuple[str, ...]
    amount_msat: int | None
    lnurl: str | None
    event: str | None  # the zapped event's id
    address: str | None  # the zapped event's "kind:pubkey:d"
    content: str
    tags: Tags


@dataclass(frozen=True, slots=True)
class Invoice:
    """The facts of a BOLT-11 invoice that a zap is checked against, as hex where they are hashes or keys."""

    bolt11: str
    amount_msat: int | None
    description_hash: str | None
    payment_hash: str
    payee: str  # the node's compressed public key, 66 hex digits


# Zap requests


@dataclass(frozen=True, slots=True)
class ZapTarget:
    """Who is zapped, by which LNURL, and for what: an event's id, an address of events."""

    recipient: str
    lnurl: str | None = None
    event: str | None = None
    address: str | None = None


def build_request(
    keys: Keys,
    target: ZapTarget,
    *,
    amount_msat: int,
    relays: Iterable[str],
    created_at: int,
    content: str = "",
    others: Iterable[Sequence[str]] = (),
) -> Event:
    """A zap request by `keys`, for the callback of the recipient's LNURL. It passes `check_request` or is not built.

    Raises:
        BadZap: a clause of Appendix D does not hold.

    """
    tags: list[Sequence[str]] = [["relays", *relays], ["amount", str(amount_msat)], ["p", target.recipient]]
    named = (("lnurl", target.lnurl), ("e", target.event), ("a", target.address))
    tags += [[name, value] for name, value in named if value is not None]
    request = sign(keys, REQUEST, created_at=created_at, content=content, tags=[*tags, *others])
    check_request(request, amount_msat=amount_msat)
    return request


def parse_request(text: str, *, amount_msat: int | None = None, receipt_signer: str | None = None) -> ZapRequest:
    """The zap request in JSON text (an LNURL callback's `nostr` parameter), its signature and clauses checked.

    Raises:
        BadZap: see `check_request`; "signature" if the event is not signed by its author, "request" if it is no event.

    """
    try:
        event = _event.parse(text, max_bytes=MAX_REQUEST_BYTES)
    except BadSignature as error:
        raise BadZap("signature", f"{error.field} is {error.reason}") from error
    except (BadEvent, TooLarge) as error:
        raise BadZap("request", str(error)) from error
    return check_request(event, amount_msat=amount_msat, receipt_signer=receipt_signer)


def check_request(event: Event, *, amount_msat: int | None = None, receipt_signer: str | None = None) -> ZapRequest:
    """Check a verified event by the clauses of Appendix D, as the recipient's LNURL server does.

    Args:
        event: the zap request; its id and signature have been checked.
        amount_msat: the `amount` query parameter.
        receipt_signer: the pubkey that will sign the receipt; a request may name it in a `P` tag.

    Raises:
        BadZap: `kind`, `tags`, `p`, `e`, `relays`, `amount`, `a` or `P` breaks its clause.

    """
    if event.kind != REQUEST:
        raise BadZap("kind", f"{event.kind} instead of {REQUEST}")
    if not event.tags:
        raise BadZap("tags", "none")
    recipients, events, addresses, signers = (event.values(name) for name in ("p", "e", "a", "P"))
    if len(recipients) != 1 or not _HEX64.match(recipients[0]):
        raise BadZap("p", "not exactly one public key")
    if len(events) > 1 or not all(_HEX64.match(value) for value in events):
        raise BadZap("e", "not at most one event id")
    if len(addresses) > 1 or not all(_ADDRESS.match(value) for value in addresses):
        raise BadZap("a", "not at most one event coordinate")
    if len(signers) > 1 or (signers and receipt_signer is not None and signers[0] != receipt_signer):
        raise BadZap("P", "not at most one key, the receipt's")
    relays = next((tag[1:] for tag in event.tags if tag[0] == "relays"), ())
    if len(relays) > MAX_RELAYS:
        raise BadZap("relays", f"{len(relays)}, at most {MAX_RELAYS}")
    amount = _amount(event)
    if amount is not None and amount_msat is not None and amount != amount_msat:
        raise BadZap("amount", f"{amount} msat in the request, {amount_msat} msat asked for")
    return ZapRequest(
        id=event.id,
        sender=event.pubkey,
        recipient=recipients[0],
        relays=relays,
        amount_msat=amount,
        lnurl=event.tag("lnurl"),
        event=events[0] if events else None,
        address=addresses[0] if addresses else None,
        content=event.content,
        tags=event.tags,
    )


# Zap receipts


def build_receipt(keys: Keys, request: str, *, bolt11: str, paid_at_s: int, preimage: str | None = None) -> Event:
    """The receipt that an LNURL server signs when the invoice for a zap request has been paid (Appendix E).

    Args:
        keys: the LNURL server's.
        request: the zap request's JSON, byte for byte as the invoice's description hash commits to it.
        bolt11: the invoice that was paid.
        paid_at_s: becomes `created_at`, so that the same payment has the same receipt.
        preimage: what paying it revealed; a receipt need not show it.

    Raises:
        BadZap: the request breaks a clause of Appendix D.

    """
    parsed = parse_request(request, receipt_signer=keys.public)
    tags = [["p", parsed.recipient], ["P", parsed.sender]]
    tags += [[name, value] for name, value in (("e", parsed.event), ("a", parsed.address)) if value is not None]
    tags += [["bolt11", bolt11], ["description", request]]
    if preimage is not None:
        tags.append(["preimage", preimage])
    return sign(keys, RECEIPT, created_at=paid_at_s, tags=tags)


def _check_copies(receipt: Event, request: ZapRequest) -> None:
    """Check that the receipt's tags are those of the request that it answers."""
    if receipt.values("p") != [request.recipient]:
        raise BadZap("p", "the zap is for somebody else")
    for name, wanted, required in (
        ("P", request.sender, False),
        ("e", request.event, True),
        ("a", request.address, True),
    ):
        if (receipt.tag(name) is not None or required) and receipt.tag(name) != wanted:
            raise BadZap(name, "not as the request has it")


def check_receipt(
    receipt: Event,
    invoice: Invoice,
    *,
    nostr_pubkey: str,
    recipient: str,
    lnurl: str | None = None,
    payee: str | None = None,
) -> ZapRequest:
    """Check a verified event by the clauses of Appendices E and F; the zap request that it answers.

    SHOULDs that make a receipt worth something (the description hash, the lnurl) are required here.

    Args:
        receipt: its id and signature have been checked.
        invoice: the facts of the receipt's own `bolt11`.
        nostr_pubkey: what `recipient`'s LNURL endpoint states under that name.
        recipient: whom the zap must have been for.
        lnurl: the recipient's LNURL, if the request must name it where it names one.
        payee: the recipient's Lightning node, where known: a true server's key can still attest another's invoice.

    Raises:
        BadZap: `kind`, `pubkey`, `bolt11`, `description`, `description_hash`, `amount`, `p`, `P`, `e`, `a`, `preimage`,
            `lnurl` or `payee` of the receipt breaks its clause, or the request breaks one of Appendix D.

    """
    if receipt.kind != RECEIPT:
        raise BadZap("kind", f"{receipt.kind} instead of {RECEIPT}")
    if receipt.pubkey != nostr_pubkey:
        raise BadZap("pubkey", "not the recipient's LNURL server")
    if receipt.tag("bolt11") != invoice.bolt11:
        raise BadZap("bolt11", "missing, or another invoice")
    description = receipt.tag("description")
    if description is None:
        raise BadZap("description", "missing")
    if invoice.amount_msat is None:
        raise BadZap("amount", "the invoice states none")
    request = parse_request(description, amount_msat=invoice.amount_msat, receipt_signer=receipt.pubkey)
    if hashlib.sha256(description.encode()).hexdigest() != invoice.description_hash:
        raise BadZap("description_hash", "the invoice is for another description")
    if request.recipient != recipient:
        raise BadZap("p", "the zap is for somebody else")
    _check_copies(receipt, request)
    preimage = receipt.tag("preimage")
    if preimage is not None and not _is_preimage(preimage, invoice.payment_hash):
        raise BadZap("preimage", "does not match the payment hash")
    if lnurl is not None and request.lnurl is not None and request.lnurl.lower() != lnurl.lower():
        raise BadZap("lnurl", "not the recipient's")
    if payee is not None and invoice.payee != payee:
        raise BadZap("payee", "the invoice pays another node")
    return request


# Splits


@dataclass(frozen=True, slots=True)
class Share:
    """One receiver's part of a zap. `relay` is where to find the receiver's profile."""

    pubkey: str
    relay: str
    amount_msat: int


def split_tag(pubkey: str, relay: str, weight: int) -> list[str]:
    """The `zap` tag (Appendix G) by which an event wants `weight` parts of its zaps to go to `pubkey`."""
    if not _HEX64.match(pubkey):
        raise BadInput("zap", "not a public key")
    if not 0 <= weight < 10**9:
        raise BadInput("zap", "not a weight from 0 to 999999999")
    return ["zap", pubkey, relay, str(weight)]


def split(tags: Iterable[Sequence[str]], amount_msat: int) -> list[Share]:
    """`amount_msat` split by the `zap` tags of an event, in the order of the tags; the shares sum up to it exactly.

    Without any weight the shares are equal; where only some tags have weights, the others get nothing and are left
    out. What rounding leaves goes, a millisat each, to the largest remainders, of equal ones to the earlier tag. No zap
    tags, no shares.

    Raises:
        BadZap: a `zap` tag is malformed, there are more than 256, or all weights are zero.

    """
    if not 0 <= amount_msat <= MAX_MSAT:
        raise BadInput("amount_msat", "negative, or more than there is")
    zaps = [tag for tag in tags if tag and tag[0] == "zap"]
    if not zaps:
        return []
    if len(zaps) > MAX_SHARES:
        raise BadZap("zap", f"{len(zaps)} tags, at most {MAX_SHARES}")
    weights = [_weight(tag) for tag in zaps]
    if all(weight is None for weight in weights):
        parts = [Fraction(1)] * len(zaps)
    else:
        parts = [weight or Fraction(0) for weight in weights]
    total = sum(parts)
    if not total:
        raise BadZap("zap", "all weights are zero")
    exact = [amount_msat * part / total for part in parts]
    amounts = [int(share) for share in exact]
    by_remainder = sorted(range(len(zaps)), key=lambda i: amounts[i] - exact[i])
    for i in by_remainder[: amount_msat - sum(amounts)]:
        amounts[i] += 1
    return [
        Share(tag[1], tag[2] if len(tag) > 2 else "", amount)
        for tag, part, amount in zip(zaps, parts, amounts, strict=True)
        if part
    ]


def _weight(tag: Sequence[str]) -> Fraction | None:
    if len(tag) < 2 or not _HEX64.match(tag[1]):
        raise BadZap("zap", "names no public key")
    text = tag[3] if len(tag) > 3 else ""
    if text == "":
        return None
    if not _WEIGHT.match(text):
        raise BadZap("zap", f"{text[:20]!r} is not a weight")
    return Fraction(text)


def _amount(event: Event) -> int | None:
    text = event.tag("amount")
    if text is None:
        return None
    if not _DECIMAL.match(text) or not 0 < int(text) <= MAX_MSAT:
        raise BadZap("amount", f"{text[:20]!r} is not an amount in millisats")
    return int(text)


def _is_preimage(preimage: str, payment_hash: str) -> bool:
    return bool(_HEX64.match(preimage)) and hashlib.sha256(bytes.fromhex(preimage)).hexdigest() == payment_hash
