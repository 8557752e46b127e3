"""What a certified verdict gives whom: pure rules over the verdict and the job's plan. nips/09-bonds.md.

Out of the bond of the convicted, in this order, and never more than its `payable_msat`:
1. the customer, for re-execution: the task's price for the failed chunk and for each chunk after it whose verification
   share had come in before the draw (nothing if the convicted is a verifier: the work was good). So it
   is, too, if the producer of an input is convicted, which equivocated;
2. each verifier that agreed: the pay that it would have had for a pass, so nobody gains by a fail. It is for all that
   it computed, the chunks before the sampled one, too: as many as shares came for (`verifier_pay_msat`);
3. each oracle: one chunk's price of the task, for re-executing it.
One that does not fit whole is left out (the customer takes what is there). The rest is burnt to the treasury's pool.

`withheld` gives the customer the price of the one chunk and slashes nobody, but it forfeits a multiple of what the
chunk stands for: one in 1 / rate is drawn, so WITHHELD_TIMES the price of that many. Who cheats and shows nothing when
it is drawn loses that many times what it was paid, on average. A claim that was never committed to (`claimed`) stands
for itself alone: the customer gets what was claimed, WITHHELD_TIMES of it are lost in all.

A verifier that committed to the same as a provider that failed, its accomplice, loses all of its bond to the pool.
Without a conviction verifiers are paid out of the treasury.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadInput
from nodewire.protocol.tensors.fingerprint import MILLION

if TYPE_CHECKING:
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.verification.verdict import Verdict

PREFILL_DISCOUNT = 12
"""A position before the sampled chunk is paid by this part of a decoded one's price, as they are computed many at once.
With a price 1.2 times the cost that covers all costs where such a position costs a tenth of a decoded one, or less."""
MAX_COMPUTED_UNITS = 2**20
FLAT_UNITS = 21
"""Up to so many chunks of context a share of three times the rate pays a verifier, without growing."""

WITHHELD_TIMES = 4
"""At 1 it would be no worse to cheat and show nothing than to be honest."""


@dataclass(frozen=True, slots=True)
class PricedVerdict:
    """A verdict with the plan's prices: all that settling it needs. Keys and ids are 64 hex digits."""

    case: str
    """The sample's key: one sample is settled once."""
    digest: str
    request: str
    outcome: str
    customer: str
    task: str
    chunk: int
    price_msat: int
    """The task's, per chunk; of a claim that was not committed to, what was claimed."""
    chunk_msat: int
    """All tasks', per chunk."""
    share_msat: int
    """The verification share that the committee asks for the job's first chunk."""
    rate_ppm: int
    """Of a million chunks, so many are found if they are like this one: the plan's, or all."""
    drawn_at_ms: int
    """From then on (unix milliseconds) it can be known that this chunk is a sample."""
    provider: str
    culprit: str
    """Whose bond pays; empty if nobody's."""
    slashes: bool
    accomplices: tuple[str, ...]
    """Whose bonds are burnt whole."""
    agreed: tuple[str, ...]
    oracles: tuple[str, ...]
    computed_units: int = 1
    """Chunks' worth of positions up to the sampled one, by the shares that came for them."""


def find(verdict: Verdict, request: Request, committee: Committee) -> PricedVerdict:
    """The facts to settle `verdict` by; its votes have been checked.

    Raises:
        BadInput: `request` is not the verdict's job, or its plan has another committee, or not the task with this
            provider.

    """
    if request.id != verdict.request:
        raise BadInput("request", "not the one that the verdict is about")
    if request.plan.committee != committee.digest() or verdict.committee != committee.digest():
        raise BadInput("committee", "another than this holder's")
    assigned = next((a for a in request.plan.tasks if a.task == verdict.task), None)
    if assigned is None or verdict.provider != assigned.provider:
        raise BadInput("task", "the plan does not give it to this provider")
    if verdict.equivocated is not None and verdict.culprit not in request.plan.providers():
        raise BadInput("culprit", "has no part in the plan, and so sent nothing")
    slashes = verdict.culprit != ""
    liable = verdict.provider if verdict.outcome == "withheld" else ""
    culprit = verdict.culprit if slashes else liable
    agreed = tuple(pubkey for pubkey, agrees in verdict.verifiers if agrees and pubkey != culprit)
    return PricedVerdict(
        case=verdict.key,
        digest=verdict.digest(),
        request=verdict.request,
        outcome=verdict.outcome,
        customer=request.customer,
        task=verdict.task,
        chunk=verdict.chunk,
        price_msat=verdict.claimed_msat or assigned.price_msat,
        chunk_msat=request.plan.chunk_msat,
        share_msat=committees_share_msat(request.plan, committee),
        rate_ppm=MILLION if verdict.claimed else request.plan.verification.rate_ppm,
        drawn_at_ms=drawn_at_ms(verdict.epoch, committee),
        provider=verdict.provider,
        culprit=culprit,
        slashes=slashes,
        accomplices=verdict.accomplices,
        agreed=tuple(dict.fromkeys(agreed)),
        oracles=tuple(oracle.pubkey for oracle in committee.oracles),
    )


def share_msat(plan: Plan, units: int = 1, first: int = 1) -> int:
    """The verification share of so many units of a job, which its customer zaps to the treasury; rounded up.

    `first` is the number of the first of them, from 1. Of a generation every unit has the context before it.
    """
    unit_msat = -(-plan.chunk_msat * plan.verification.share_ppm // 1_000_000)
    return sum(unit_share_msat(unit_msat, number) for number in range(first, first + units))


def drawn_at_ms(epoch: int, committee: Committee) -> int:
    """Before that nobody can know what the epoch draws: oracles publish nothing until one skew after its close."""
    return committee.close_ms(epoch) + committee.skew_ms


def committees_share_msat(plan: Plan, committee: Committee) -> int:
    """The share of a job's first unit that the committee asks: who plans for oneself could write another."""
    return -(-plan.chunk_msat * committee.verify_share_ppm // MILLION)


def unit_share_msat(unit_msat: int, number: int) -> int:
    """The share of a generation's unit of this number, where the first has `unit_msat`; rounded up.

    It is the same up to number FLAT_UNITS, and grows with the context from there on, as a verifier's pay does.
    """
    return -(-unit_msat * max(32, number + 32 - FLAT_UNITS) // 32)


def job_share_ppm(share_ppm: int, units: int) -> int:
    """What a job of so many units, or fewer, pays in shares at most, in parts of its price; rounded up."""
    beyond = max(0, units - FLAT_UNITS)
    each_32 = 32 * (units - beyond) + beyond * (beyond + 65) // 2
    return -(-share_ppm * each_32 // (32 * units))


def funded_units(came_msat: int, unit_msat: int) -> int:
    """The units, from the first on, whose shares come to `came_msat` or less; at least 1."""
    units = 0
    while units < MAX_COMPUTED_UNITS and (came_msat := came_msat - unit_share_msat(unit_msat, units + 1)) >= 0:
        units += 1
    return max(1, units)


def verifier_pay_msat(price_msat: int, computed_units: int = 1) -> int:
    """What a verifier that agreed gets for one chunk of a task with this price, if it is the last of so many."""
    return price_msat + price_msat * (min(computed_units, MAX_COMPUTED_UNITS) - 1) // PREFILL_DISCOUNT


def forfeit_msat(finding: PricedVerdict, *, remainder_msat: int) -> int:
    """What the culprit of a `withheld` loses beside the payouts; `remainder_msat` is left after those."""
    if finding.outcome != "withheld" or not finding.rate_ppm:
        return 0
    stands_for_msat = -(-WITHHELD_TIMES * finding.price_msat * 1_000_000 // finding.rate_ppm)
    return max(0, min(stands_for_msat - finding.price_msat, remainder_msat))


def payouts(finding: PricedVerdict, *, following: int, payable_msat: int) -> dict[str, int]:
    """What the culprit's bond gives, by payee, in msat; a payee in two roles gets both.

    Args:
        finding: the verdict, with the plan's prices.
        following: chunks after the failed one whose share had come in before the draw.
        payable_msat: what verdicts may still take for payees.

    """
    if finding.outcome == "withheld":
        wanted = [(finding.customer, finding.price_msat)]
    elif finding.slashes:
        chunks = 0 if finding.outcome == "pass" else 1 + following
        wanted = [(finding.customer, chunks * finding.price_msat)]
        wanted += [(pubkey, verifier_pay_msat(finding.price_msat, finding.computed_units)) for pubkey in finding.agreed]
        wanted += [(pubkey, finding.price_msat) for pubkey in finding.oracles]
    else:
        return {}
    given: dict[str, int] = {}
    left_msat = max(0, payable_msat)
    for n, (payee, amount_msat) in enumerate(wanted):
        amount_msat = min(amount_msat, left_msat) if n == 0 else amount_msat
        if payee != finding.culprit and 0 < amount_msat <= left_msat:
            given[payee] = given.get(payee, 0) + amount_msat
            left_msat -= amount_msat
    return given
