"""What a bond's coins are locked by, and what their closing pays to whom. Pure. nips/09-bonds.md.

A bond is closed by one spend of all its coins, by 2f+1 oracles, when its time is over. What it pays follows from its
book: payees get what verdicts gave them, the pool what was forfeited, and the rest goes to the provider if the bond is
released, or to the pool if it was slashed. What is too little for an output of its own goes to the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nodewire.errors import BadInput, BadQuorum
from nodewire.pay.bond import bonds, settlement
from nodewire.pay.bond.bonds import Bond, Payout
from nodewire.protocol.committee.committee import MAX_ORACLES, Committee
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Hex32, Schema
from nodewire.protocol.job import request as job
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from nodewire.nostr.event import Event

POOL = "pool"
VERDICT_EPOCHS = 16
"""A root is certified by its deadline epoch (closed + 2), drawn in the next, open to verifiers for 6 more; a dispute
has the rest. No bond is free sooner after the last statement about it."""
CLOSING_S = 86_400
"""Of a bond's time before the provider's own: oracles sign its closing, and a block takes it."""
MAX_KEY_CHARS = 64
MAX_COINS = 64
SAT_MSAT = 1_000
_LAST_S = 2**31 - 1


class BondTerms(Schema):
    """From `refund_at_s` on (unix seconds) the provider spends alone; until `until_s` the bond counts."""

    TAG: ClassVar[str] = "nodewire/bond-terms/1"
    NAME: ClassVar[str] = "terms"
    MAX_BYTES: ClassVar[int] = 8_192

    v: Literal[1] = 1
    id: Hex32
    committee: Hex32
    oracles: tuple[Hex32, ...] = Field(min_length=1, max_length=MAX_ORACLES)
    quorum: int = Field(ge=1, le=MAX_ORACLES)
    provider: Hex32
    until_s: int = Field(ge=500_000_000, le=_LAST_S)
    refund_at_s: int = Field(ge=500_000_000, le=_LAST_S)

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.quorum > len(self.oracles) or len(set(self.oracles)) != len(self.oracles):
            raise ValueError("oracles: fewer than the quorum, or one stands twice")
        if self.refund_at_s <= self.until_s:
            raise ValueError("refund_at_s: not after the bond's end")
        return self


def delay_s(committee: Committee) -> int:
    """From a bond's release to its coins, in seconds: so long a verdict on work done under it may take."""
    return -(-VERDICT_EPOCHS * committee.epoch_ms // 1_000)


def terms_of(committee: Committee, provider: str, until_s: int, key: str, *, closing_s: int = CLOSING_S) -> BondTerms:
    """The terms of the provider's bond that is asked for by `key`: the same key, the same bond.

    The coins are the oracles' alone for two delays after its end, one for verdicts and one for further ones after a
    slash, and for `closing_s` more.

    Raises:
        BadInput: an impossible end or key.

    """
    if not 0 < len(key) <= MAX_KEY_CHARS:
        raise BadInput("key", f"not 1 to {MAX_KEY_CHARS} characters")
    refund_at_s = until_s + 2 * delay_s(committee) + closing_s
    if not until_s >= 500_000_000 or refund_at_s > _LAST_S:
        raise BadInput("until_s", f"{until_s} is no unix time that a bond can end at")
    digest = committee.digest()
    return BondTerms(
        id=canonical.digest("nodewire/quorum-bond/1", [digest, provider, until_s, key]),
        committee=digest,
        oracles=tuple(oracle.pubkey for oracle in committee.oracles),
        quorum=committee.quorum,
        provider=provider,
        until_s=until_s,
        refund_at_s=refund_at_s,
    )


def check_terms(terms: BondTerms, committee: Committee, *, closing_s: int = CLOSING_S) -> None:
    """Raises BadQuorum unless the oracles of `committee` can take the coins for as long as a bond needs."""
    oracles = tuple(oracle.pubkey for oracle in committee.oracles)
    if (terms.committee, terms.oracles, terms.quorum) != (committee.digest(), oracles, committee.quorum):
        raise BadQuorum("terms", "not locked by 2f+1 oracles of this committee")
    if terms.refund_at_s < terms.until_s + 2 * delay_s(committee) + closing_s:
        raise BadQuorum("terms.refund_at_s", "the provider's own time begins before verdicts have had theirs")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A verdict's certificate (8852), and the request (8843) that it is about."""

    certificate: Event
    request: Event


def judged(evidence: Evidence, bond: Bond, committee: Committee, at_s: int) -> bonds.Event | None:
    """What the verdict does to the bond; None if nothing.

    Raises:
        BadQuorum, BadInput: the certificate does not hold, or the request is another job's.

    """
    certified = verdict.parse(evidence.certificate)
    certified.check(committee)
    finding = settlement.find(certified.verdict, job.parse(evidence.request), committee)
    if bond.provider in finding.accomplices:
        return bonds.Slash(finding.case, (), at_s, delay_s(committee))
    if finding.culprit != bond.provider:
        return None
    given = settlement.payouts(finding, following=0, payable_msat=bond.payable_msat)
    payouts = tuple(Payout(finding.case, payee, msat) for payee, msat in sorted(given.items()))
    if finding.slashes:
        return bonds.Slash(finding.case, payouts, at_s, delay_s(committee))
    left_msat = bond.remainder_msat - sum(given.values())
    return bonds.Refund(finding.case, payouts, settlement.forfeit_msat(finding, remainder_msat=left_msat))


@dataclass(frozen=True, slots=True)
class Payment:
    """One output of a closing: to a Nostr key (64 hex digits), or to the POOL."""

    payee: str
    amount_sat: int


def closing(bond: Bond, fee_sat: int, least_sat: int) -> list[Payment]:
    """What the closing of a bond pays, in the order of its outputs; with `fee_sat` it is all that the bond has.

    Raises:
        BadInput: the fee leaves nothing of it.

    """
    total_sat = bond.amount_msat // SAT_MSAT
    owed: dict[str, int] = {}
    for payout in bond.payouts:
        owed[payout.payee] = owed.get(payout.payee, 0) + payout.amount_msat
    given = [Payment(payee, msat // SAT_MSAT) for payee, msat in sorted(owed.items()) if msat // SAT_MSAT >= least_sat]
    left_sat = total_sat - fee_sat - sum(one.amount_sat for one in given)
    is_slashed = any(isinstance(one, bonds.Slash) for one in bond.judged)
    own_sat = 0 if is_slashed else min(left_sat, bond.remainder_msat // SAT_MSAT - fee_sat)
    if not is_slashed and left_sat - own_sat < least_sat:
        own_sat = left_sat  # too little for the pool
    if own_sat >= least_sat:
        given.append(Payment(bond.provider, own_sat))
        left_sat -= own_sat
    if left_sat and left_sat < least_sat:
        raise BadInput("fee_sat", f"{fee_sat} sat leave too little of {total_sat} sat")
    return [*given, Payment(POOL, left_sat)] if left_sat else given
