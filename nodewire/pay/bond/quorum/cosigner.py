"""An oracle's part in the closing of a bond: it signs what follows from certified verdicts, and nothing else.

The registrar tells terms, coins, verdicts and the means. The oracle works out the payments by itself. So a registrar, a
provider and f oracles together get no signature of an honest oracle for any other output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, BadQuorum, NotAllowed, TooLarge
from nodewire.nostr.event import parse as parse_event
from nodewire.pay.bond import bonds
from nodewire.pay.bond.quorum.custody import Closing, Custody
from nodewire.pay.bond.quorum.terms import MAX_COINS, SAT_MSAT, BondTerms, Evidence, closing, judged

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bonds import Bond
    from nodewire.protocol.committee.committee import Committee

MAX_VERDICTS = 1_024
Convictions = Callable[[str], frozenset[str]]
"""The samples by which a key (64 hex digits) was convicted, as far as this oracle knows."""


async def sign(said: Any, keys: Keys, committee: Committee, custody: Custody, known: Convictions) -> list[bytes]:
    """The signatures of an oracle for the closing that a registrar tells of.

    Raises:
        BadInput: it is malformed, or fee or means are none to be signed.
        BadQuorum: the bond is not this committee's, or a verdict does not hold.
        NotAllowed: a verdict that convicts the provider, which this oracle knows, is left out.

    """
    if not isinstance(said, dict):
        raise BadInput("closing", "not an object")
    terms = BondTerms.from_document(said.get("terms"))
    oracles = tuple(oracle.pubkey for oracle in committee.oracles)
    if (terms.committee, terms.oracles, terms.quorum) != (committee.digest(), oracles, committee.quorum):
        raise BadQuorum("terms", "not locked by 2f+1 oracles of this committee")
    coins, fee_sat, means = said.get("coins"), said.get("fee_sat"), said.get("means")
    if not (isinstance(coins, list) and 0 < len(coins) <= MAX_COINS and all(isinstance(one, dict) for one in coins)):
        raise BadInput("coins", f"not a list of 1 to {MAX_COINS} objects")
    if type(fee_sat) is not int or fee_sat < 0 or not isinstance(means, dict):
        raise BadInput("fee_sat", "no fee, or no means")
    amount_sat = await custody.worth_sat(terms, coins)
    bond, convicted_by = _derived(terms, amount_sat, said.get("verdicts"), committee)
    if left_out := known(terms.provider) - convicted_by:
        raise NotAllowed("verdicts", f"{len(left_out)} that convict the provider are left out")
    payments = tuple(closing(bond, fee_sat, custody.least_sat))
    if sum(one.amount_sat for one in payments) + fee_sat != amount_sat:
        raise BadInput("fee_sat", "with the payments it is not what the coins are worth")
    asked = Closing(terms, tuple(coins), payments, fee_sat, means)
    await custody.check(asked)
    return [keys.sign(digest) for digest in await custody.digests(asked)]


def _derived(terms: BondTerms, amount_sat: int, said: Any, committee: Committee) -> tuple[Bond, frozenset[str]]:
    """The bond after the verdicts, and the samples of those that convict the provider."""
    if not isinstance(said, list):
        raise BadInput("verdicts", "not a list")
    if len(said) > MAX_VERDICTS:
        raise TooLarge("verdicts", f"{len(said)}, at most {MAX_VERDICTS}")
    bond = bonds.lock(bonds.Lock(terms.id, terms.provider, amount_sat * SAT_MSAT, terms.until_s))
    convicted_by, before_sat = set(), 0
    for one in said:
        if not (isinstance(one, list) and len(one) == 3 and type(one[2]) is int and before_sat <= one[2] <= amount_sat):
            raise BadInput("verdicts", "one is no certificate with its request and the bond's amount then")
        evidence, before_sat = Evidence(parse_event(one[0]), parse_event(one[1])), one[2]
        event = judged(evidence, replace(bond, amount_msat=before_sat * SAT_MSAT), committee, 0)
        if event is None:
            raise BadQuorum("verdicts", "one is not about this provider")
        bond = bonds.apply(event, bond)
        if isinstance(event, bonds.Slash):
            convicted_by.add(event.case)
    return bond, frozenset(convicted_by)
