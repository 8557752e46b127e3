"""A bond's life: a pure state machine, no I/O, no clock.

            ┌──refund──┐
            ▼          │
          locked ──────┴──unbond──▶ unbonding ──free──▶ released     (what remains goes back to who locked it)
            │ ▲ raise, state          │   (refunds go on)
            └─┴──────slash────────────┴─▶ slashed ──free──▶ burnt    (what remains goes to the treasury's pool)
                                           │ ▲
                                           └─┘ slashes and refunds go on

In doubt, offline or short of quorum nobody slashes, and a bond ends released. What a holder has stated stays good: a
bond is free no earlier than `delay_s` after the last moment that a signed statement vouches for it, so that a verdict
on work done under the statement still finds the coins.

Payouts, of slashes and refunds together, take at most half of a bond: whoever plays cheater and customer at once loses
the other half. What a refund forfeits goes to the treasury's pool at once. Whoever holds the coins writes an event
ahead and applies it; applying it twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nodewire.errors import BadInput, NotAllowed

State = Literal["locked", "unbonding", "released", "slashed", "burnt"]
MAX_RAISES = 1_000
MAX_MSAT = 2_100_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Payout:
    """What the verdict on one sample (`case`, 64 hex digits) gives one `payee` (hex pubkey)."""

    case: str
    payee: str
    amount_msat: int


@dataclass(frozen=True, slots=True)
class Lock:
    """How a bond begins."""

    id: str
    provider: str
    amount_msat: int
    until_s: int


@dataclass(frozen=True, slots=True)
class Raise:
    """More coins, a later end, or both. `key` is the asker's: the same key is the same request."""

    key: str
    amount_msat: int
    until_s: int


@dataclass(frozen=True, slots=True)
class HolderStatement:
    """The holder has signed that it holds the bond until `until_s`."""

    until_s: int


@dataclass(frozen=True, slots=True)
class Refund:
    """The provider withheld what a verdict needed: the payees get theirs, `forfeit_msat` is lost, the bond goes on."""

    case: str
    payouts: tuple[Payout, ...]
    forfeit_msat: int = 0


@dataclass(frozen=True, slots=True)
class Slash:
    """The provider is convicted: what the payees do not get is burnt, `delay_s` after `at_s` or the last statement.

    A further conviction does not put that off.
    """

    case: str
    payouts: tuple[Payout, ...]
    at_s: int
    delay_s: int


@dataclass(frozen=True, slots=True)
class Unbond:
    """Release is asked for, or the bond has come to its end."""

    at_s: int
    delay_s: int


@dataclass(frozen=True, slots=True)
class Free:
    """The delay is over."""

    at_s: int


Event = Raise | HolderStatement | Refund | Slash | Unbond | Free


@dataclass(frozen=True, slots=True)
class Bond:
    """`amount_msat` locked by `provider` (hex pubkey) until `until_s`; times are unix seconds."""

    id: str
    provider: str
    amount_msat: int
    until_s: int
    state: State = "locked"
    stated_until_s: int = 0
    frees_at_s: int = 0
    """When an unbonding bond is released, or the rest of a slashed one burnt."""
    payouts: tuple[Payout, ...] = ()
    judged: tuple[Refund | Slash, ...] = ()
    raises: tuple[Raise, ...] = ()

    @property
    def payouts_msat(self) -> int:
        return sum(payout.amount_msat for payout in self.payouts)

    @property
    def forfeited_msat(self) -> int:
        """What refunds took beside their payouts; it is not the bond's any more."""
        return sum(judged.forfeit_msat for judged in self.judged if isinstance(judged, Refund))

    @property
    def remainder_msat(self) -> int:
        """What is left; with the payouts and what was forfeited it makes up the amount."""
        return self.amount_msat - self.payouts_msat - self.forfeited_msat

    @property
    def payable_msat(self) -> int:
        """What verdicts may still give to payees."""
        return min(self.amount_msat // 2 - self.payouts_msat, self.remainder_msat)

    @property
    def is_liable(self) -> bool:
        """Whether a verdict can still reach it."""
        return self.state in ("locked", "unbonding", "slashed")


def lock(event: Lock) -> Bond:
    """A new bond. Raises BadInput for an impossible amount or end."""
    if not 0 < event.amount_msat <= MAX_MSAT:
        raise BadInput("amount_msat", f"not from 1 to {MAX_MSAT} msat")
    if not 0 < event.until_s < 2**53:
        raise BadInput("until_s", "not a unix time in seconds")
    return Bond(event.id, event.provider, event.amount_msat, event.until_s)


def apply(event: Event, bond: Bond) -> Bond:
    """The bond after `event`; the same bond if the event has been applied before.

    Raises:
        NotAllowed: the bond's state does not admit the event (a released bond is never slashed, and vice versa), the
            payouts exceed what verdicts may give, or another verdict on the same case stands.
        BadInput: the event's own values are impossible.

    """
    match event:
        case Raise():
            return _raise(event, bond)
        case HolderStatement(until_s):
            if until_s <= bond.stated_until_s:
                return bond
            _admit(event, bond, "locked")
            if until_s > bond.until_s:
                raise NotAllowed("until_s", f"the bond ends at {bond.until_s}")
            return replace(bond, stated_until_s=until_s)
        case Refund() | Slash():
            return _judge(event, bond)
        case Unbond(at_s, delay_s):
            if bond.state in ("unbonding", "released"):
                return bond
            _admit(event, bond, "locked")
            return replace(bond, state="unbonding", frees_at_s=_free_after(bond, at_s, delay_s))
        case Free(at_s):
            if bond.state in ("released", "burnt"):
                return bond
            _admit(event, bond, "unbonding", "slashed")
            if at_s < bond.frees_at_s:
                raise NotAllowed("bond", f"not free before {bond.frees_at_s}")
            return replace(bond, state="released" if bond.state == "unbonding" else "burnt")


def _raise(event: Raise, bond: Bond) -> Bond:
    if event in bond.raises:
        return bond
    if any(earlier.key == event.key for earlier in bond.raises):
        raise NotAllowed("key", "it stands for another request")
    _admit(event, bond, "locked")
    if event.amount_msat < 0 or event.until_s < bond.until_s or (event.amount_msat, event.until_s) == (0, bond.until_s):
        raise BadInput("amount_msat", "a bond is raised by coins, by a later end, or both")
    if bond.amount_msat + event.amount_msat > MAX_MSAT or event.until_s >= 2**53 or len(bond.raises) >= MAX_RAISES:
        raise BadInput("amount_msat", "more, later or more often than a bond can be raised")
    raises = (*bond.raises, event)
    return replace(bond, amount_msat=bond.amount_msat + event.amount_msat, until_s=event.until_s, raises=raises)


def _judge(event: Refund | Slash, bond: Bond) -> Bond:
    for earlier in bond.judged:
        if earlier.case == event.case:
            same = (type(earlier), earlier.payouts) == (type(event), event.payouts)
            if same and (isinstance(event, Slash) or event == earlier):
                return bond
            raise NotAllowed("case", "another verdict on it stands")
    _admit(event, bond, "locked", "unbonding", "slashed")
    if any(payout.case != event.case or payout.amount_msat <= 0 for payout in event.payouts):
        raise BadInput("payouts", "of another case, or not above zero")
    if len({payout.payee for payout in event.payouts}) != len(event.payouts):
        raise BadInput("payouts", "a payee stands twice")
    wanted_msat = sum(payout.amount_msat for payout in event.payouts)
    if wanted_msat > max(0, bond.payable_msat):
        raise NotAllowed("payouts", f"{wanted_msat} msat, but verdicts may give {max(0, bond.payable_msat)} msat more")
    if isinstance(event, Refund) and not 0 <= event.forfeit_msat <= bond.remainder_msat - wanted_msat:
        raise NotAllowed("forfeit_msat", f"{event.forfeit_msat} msat, more than what is left")
    after = replace(bond, payouts=bond.payouts + event.payouts, judged=(*bond.judged, event))
    if isinstance(event, Refund):
        return after
    if bond.state == "slashed":  # else who is convicted again and again has its coins back before they are burnt
        return after
    frees_at_s = max(bond.frees_at_s, _free_after(bond, event.at_s, event.delay_s))
    return replace(after, state="slashed", frees_at_s=frees_at_s)


def _free_after(bond: Bond, at_s: int, delay_s: int) -> int:
    return max(at_s, bond.stated_until_s) + delay_s


def _admit(event: Event, bond: Bond, *states: State) -> None:
    if bond.state not in states:
        raise NotAllowed("bond", f"{type(event).__name__.lower()} of a bond that is {bond.state}")
