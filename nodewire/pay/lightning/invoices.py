"""BOLT 11 invoices, read with suspicion and written for a node's key.

https://github.com/lightning/bolts/blob/master/11-payment-encoding.md

The `bolt11` library does the bit work. What it leaves open is closed here: it folds mixed case, ignores what follows
the amount in the prefix, truncates amounts below one millisatoshi, accepts an `n` field that a signature fits without
being recoverable to it, and lets malformed fields escape as whatever exception its bit reader raises.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import bolt11 as _bolt11
from bolt11 import FeatureExtra, FeatureState

from nodewire.errors import BadInvoice, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bolt11.models.routehint import Route

_LAST_S = 253_402_300_799
"""The last second of the year 9999."""
MAX_CHARS = 2_048  # a plain invoice has about 300, one with route hints under 1,000
MAX_MSAT = 10**14 - 1  # bolt11 2.2 shortens multiples of 1,000 BTC once too often
MAX_EXPIRY_S = 366 * 86_400
MAX_FINAL_CLTV = 288
"""How many blocks a payee may ask for at the end of the route: so long, two days, a payment that hangs is locked."""
MAX_HOPS = 3
"""Of a route hint. Most have one, the payee's own channel."""
NETWORKS = ("bc", "tb", "tbs", "bcrt")
REGTEST = "bcrt"

_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PREFIX = re.compile(r"ln(bcrt|bc|tbs|tb)([1-9][0-9]{0,18})([munp]?)")
_PICO_BTC = {"": 10**12, "m": 10**9, "u": 10**6, "n": 10**3, "p": 1}


@dataclass(frozen=True, slots=True)
class Invoice:
    """A decoded invoice whose signature is `payee`'s. Hashes and keys are lowercase hex, times unix seconds."""

    bolt11: str
    network: str
    payee: str
    """The node's compressed public key, 66 hex digits."""
    payment_hash: str
    amount_msat: int
    description: str | None
    description_hash: str | None
    created_at_s: int
    expires_at_s: int
    min_final_cltv_expiry: int
    """Blocks that the payee asks for to claim the payment in."""
    toll_msat: int = 0
    """What the hops take by which the payee wants to be reached (its route hints), the dearest way."""
    toll_blocks: int = 0
    """For how many blocks more they lock it, the longest way."""

    def is_expired(self, now_s: float) -> bool:
        return now_s >= self.expires_at_s


def opens(preimage: str, payment_hash: str) -> bool:
    """Whether `preimage` (64 hex digits) hashes to `payment_hash`: it proves that the payment was made."""
    if _HEX32.fullmatch(preimage) is None:
        return False
    return hashlib.sha256(bytes.fromhex(preimage)).hexdigest() == payment_hash


def decode(text: str, *, network: str | None = None) -> Invoice:
    """The invoice in `text`; of `network` ("bc", "tb", "tbs", "bcrt") if one is named.

    Raises:
        TooLarge: more than 2,048 characters.
        BadInvoice: malformed, without an amount, of another network, or not signed by the node it names.

    """
    if len(text) > MAX_CHARS:
        raise TooLarge("invoice", f"{len(text)} characters, at most {MAX_CHARS}")
    if not text.isascii() or text not in (text.lower(), text.upper()):
        raise BadInvoice("invoice", "not ASCII in one case")
    text = text.lower()
    found, _ = _prefix(text)
    if network is not None and found != network:
        raise _other_network(found, network)
    return _decode(text)


@lru_cache(maxsize=512)  # 3 ms each, and an invoice is looked at several times on its way
def _decode(text: str) -> Invoice:
    found, amount_msat = _prefix(text)
    try:
        raw = _bolt11.decode(text)
        assert raw.signature is not None
        signer = raw.signature.recover_public_key()
        features = raw.features.feature_list if raw.features else {}
        payee, payment_hash, created_at_s, expiry_s = raw.payee, raw.payment_hash, raw.date, raw.expiry
        description, description_hash = raw.description, raw.description_hash
        final_cltv = raw.min_final_cltv_expiry
        hints = [hint.routes for hint in raw.route_hints or ()]
    except Exception as error:  # the library's bit reader raises whatever it stumbled over
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise BadInvoice("invoice", f"it cannot be read: {reason[:200]}; copy all of it") from error
    if payee != signer:
        raise BadInvoice("n", "names another node than the one that signed")
    if any(isinstance(f, FeatureExtra) and state is FeatureState.required for f, state in features.items()):
        raise BadInvoice("features", "requires a feature that is unknown")
    if not 0 < expiry_s <= MAX_EXPIRY_S:
        raise BadInvoice("expiry", f"{expiry_s} s, at most a year")
    if any(len(hops) > MAX_HOPS for hops in hints):  # the library leaves out the last of five
        raise BadInvoice("r", f"a route hint of more than {MAX_HOPS} hops")
    return Invoice(
        bolt11=text,
        network=found,
        payee=signer,
        payment_hash=payment_hash,
        amount_msat=amount_msat,
        description=description,
        description_hash=description_hash,
        created_at_s=created_at_s,
        expires_at_s=created_at_s + expiry_s,
        min_final_cltv_expiry=final_cltv,
        toll_msat=max((_toll_msat(hops, amount_msat) for hops in hints), default=0),
        toll_blocks=max((sum(hop.cltv_expiry_delta % 2**16 for hop in hops) for hops in hints), default=0),
    )


def _toll_msat(hops: Sequence[Route], amount_msat: int) -> int:
    """What these hops take for passing an amount on. The library reads their fees as signed numbers."""
    carried_msat = amount_msat
    for hop in reversed(hops):
        carried_msat += hop.base_fee % 2**32 + carried_msat * (hop.ppm_fee % 2**32) // 1_000_000
    return carried_msat - amount_msat


def check_route(invoice: Invoice, max_fee_msat: int) -> None:
    """Check that an invoice does not send its payer over hops that cost more than that. Some wallets have no cap.

    Raises:
        BadInvoice: they do, or lock the payment for too long.

    """
    if invoice.toll_msat > max_fee_msat:
        toll = f"the payee's own route takes {invoice.toll_msat} msat"
        raise BadInvoice("r", f"{toll}, and fees may be {max_fee_msat} msat at most")
    if invoice.toll_blocks > MAX_FINAL_CLTV:
        raise BadInvoice("r", f"the payee's own route locks it for {invoice.toll_blocks} blocks more")


def check(
    invoice: Invoice,
    *,
    amount_msat: int,
    now_s: float,
    description_hash: str | None = None,
    network: str | None = None,
    payee: str | None = None,
) -> None:
    """Check an invoice against what was asked for, before it is paid.

    Raises:
        BadInvoice: another amount, network, payee or description hash, expired, or of too long a lock at its end.

    """
    if network is not None and invoice.network != network:
        raise _other_network(invoice.network, network)
    if invoice.amount_msat != amount_msat:
        raise BadInvoice("amount", f"{invoice.amount_msat} msat, asked for {amount_msat} msat")
    if description_hash is not None and invoice.description_hash != description_hash:
        raise BadInvoice("description_hash", "not the hash of what is paid for")
    if payee is not None and invoice.payee != payee:
        raise BadInvoice("payee", "another node than before")
    if invoice.is_expired(now_s):
        at = datetime.fromtimestamp(min(invoice.expires_at_s, _LAST_S), UTC).strftime("%Y-%m-%d %H:%M UTC")
        raise BadInvoice("expiry", f"expired at {at}: ask for another invoice")
    if invoice.min_final_cltv_expiry > MAX_FINAL_CLTV:
        blocks = f"{invoice.min_final_cltv_expiry} blocks, at most {MAX_FINAL_CLTV}"
        raise BadInvoice("min_final_cltv_expiry", f"{blocks}: so long a payment may hang. Have the payee ask for less")


def _other_network(found: str, meant: str) -> BadInvoice:
    names = {"bc": "Bitcoin's own", "tb": "testnet's", "tbs": "signet's", "bcrt": "regtest's, play money"}
    words = [f"ln{one} ({names.get(one, 'unknown')})" for one in (found, meant)]
    return BadInvoice("network", f"the invoice is of {words[0]}, and {words[1]} is meant")


def issue(
    secret: bytes,
    *,
    network: str,
    amount_msat: int,
    payment_hash: str,
    created_at_s: int,
    expiry_s: int,
    description: str | None = None,
    description_hash: str | None = None,
    min_final_cltv_expiry: int = 144,
) -> Invoice:
    """A new invoice signed with a node's `secret` (32 bytes); exactly one of description and its hash.

    Raises:
        BadInvoice: a value is out of range.

    """
    if network not in NETWORKS:
        raise BadInvoice("network", f"{network!r} is not one of {', '.join(NETWORKS)}")
    if not 0 < amount_msat <= MAX_MSAT:
        raise BadInvoice("amount", f"{amount_msat} msat")
    if not 0 < expiry_s <= MAX_EXPIRY_S:
        raise BadInvoice("expiry", f"{expiry_s} s, at most a year")
    if (description is None) == (description_hash is None):
        raise BadInvoice("description", "exactly one of description and description_hash")
    if description is not None and not 0 < len(description.encode()) <= 639:
        raise BadInvoice("description", "empty or over 639 bytes")
    fields: dict[str, object] = {"payment_hash": payment_hash, "payment_secret": os.urandom(32).hex()}
    fields |= {"description": description} if description is not None else {"description_hash": description_hash}
    fields |= {
        "min_final_cltv_expiry": min_final_cltv_expiry,
        "expire_time": expiry_s,
        "features": {"var_onion_optin": "required", "payment_secret": "required"},
    }
    raw = _bolt11.Bolt11(
        currency=network,
        date=created_at_s,
        amount_msat=_bolt11.MilliSatoshi(amount_msat),
        tags=_bolt11.Tags.from_dict(fields),
    )
    return decode(_bolt11.encode(raw, secret.hex()))


def hash_of(preimage: str) -> str:
    """The payment hash of a preimage, both 64 hex digits."""
    return hashlib.sha256(bytes.fromhex(preimage)).hexdigest()


def _prefix(text: str) -> tuple[str, int]:
    match = _PREFIX.fullmatch(text[: max(text.rfind("1"), 0)])
    if match is None:
        raise BadInvoice("amount", "the prefix names no network and amount: ask for an invoice with an amount")
    network, digits, unit = match.groups()
    pico_btc = int(digits) * _PICO_BTC[unit]
    if pico_btc % 10 or pico_btc // 10 > MAX_MSAT:
        raise BadInvoice("amount", "not a whole number of millisatoshis, or more than there are")
    return network, pico_btc // 10
