"""What nodewire asks of whoever holds bonds and the verification shares, and how a provider comes by its bond.

Packages bring implementations (`registry`). A statement counts for a committee that lists the holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadInput, NotAllowed, NotFound
from nodewire.nostr.event import Event
from nodewire.nostr.event import verify as verify_event
from nodewire.pay.bond.settlement import committees_share_msat, drawn_at_ms, unit_share_msat
from nodewire.protocol.market import bond as statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bonds import State
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.job.share_statement import ShareStatement


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds: `public` signs statements and zap receipts, `lnurl` is where customers pay ahead for shares."""

    public: str
    committee: str
    unbonding_s: int
    statement_s: int
    lnurl: str
    pool_msat: int
    prolongs: bool = True
    """Whether a bond can be given a later end. Of other holders' bonds one ends, and the next is locked."""
    unit_msat: int = 1
    """A payment to it is of so much, or whole multiples."""
    custodian: str = ""
    """Who could spend the coins against all rules, in words; empty if it is the holder itself, or nobody."""


@dataclass(frozen=True, slots=True)
class HeldBond:
    """A bond as its holder tells it. Times are unix seconds; `cases` are the verdicts that reached it."""

    id: str
    provider: str
    amount_msat: int
    remainder_msat: int
    state: State
    until_s: int
    stated_until_s: int
    frees_at_s: int
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerdictSettlement:
    """A verdict, settled. `refused` says why its slash or refund reached no bond; empty if it did, or none was due."""

    case: str
    request: str
    outcome: str
    culprit: str
    slashes: bool
    bond: str
    payouts: Mapping[str, int]
    """Out of the bond: msat by payee."""
    refused: str
    due: Mapping[str, int]
    """What is still to be claimed, out of the bond or the treasury: msat by payee."""


@dataclass(frozen=True, slots=True)
class ClaimPayment:
    """A payout, bound to an invoice; `is_paid` is False while it is on its way. `payment_hash` is 64 hex digits."""

    amount_msat: int
    payment_hash: str
    is_paid: bool


class BondHolder(Protocol):
    """Every method may raise LinkLost or TimedOut: what was asked may have happened, and may be asked again."""

    async def holder(self) -> Holder: ...

    async def bond(self, provider: str) -> HeldBond:
        """The provider's newest bond. Raises NotFound."""

    async def lock(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        """Lock a bond of `keys`; `key` (at most 64 characters) names the request, which may be asked again.

        Raises:
            NotAllowed: there is a bond that is not over, the key was convicted, or `key` stood for something else.
            PaymentFailed: the wallet has too little.
            BadInput: an impossible amount or end.

        """

    async def top_up(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        """More coins (0: none), a later end, or both. Raises as `lock`, and NotFound."""

    async def statement(self, keys: Keys) -> Event:
        """The holder's statement (kind 8858), renewed when half its time is over. Raises NotFound, NotAllowed."""

    async def release(self, keys: Keys) -> HeldBond:
        """Ask for the bond back; it is free at `frees_at_s`. Raises NotFound, NotAllowed (slashed)."""

    async def present(self, certificate: Event, request: Event) -> VerdictSettlement:
        """Have a verdict's certificate (8852) about the job of `request` (8843) settled.

        Raises:
            BadInput: the certificate does not hold, or the request is another job's.
            NotAllowed: another verdict on the sample was settled before.

        """

    async def case(self, case: str) -> VerdictSettlement:
        """A verdict that was presented before. Raises NotFound."""

    async def claim(self, keys: Keys, case: str) -> int:
        """Have the holder give `keys` what a settled case does, in msat; again is no error and gives nothing more.

        What comes out of the treasury is due then, and paid by `collect`. A bond that a quorum has locked pays at once.

        Raises:
            NotFound, NotAllowed: no such case, or it gives this key nothing.
            PaymentFailed: the bond or the treasury does not hold it (yet).

        """

    async def collect(self, keys: Keys) -> ClaimPayment | None:
        """Pull what is due to `keys` into the wallet, in whole units of both wallets; None if that is nothing.

        An oracle's part of the committee's fees is due to it, too.
        """

    async def cosign(self, keys: Keys, committee: Committee, known: Callable[[str], frozenset[str]]) -> int:
        """Sign, as an oracle of the committee, what closes bonds whose time is over; how many were signed.

        The oracle works out by itself what the certified verdicts pay, and signs nothing else. `known` are the samples
        by which a key was convicted: a closing that leaves one out is not signed. A holder that has the coins itself
        asks nobody: 0.

        Raises:
            BadInput, BadQuorum, NotAllowed: a closing is none that an oracle may sign.

        """

    async def book_shares(self, said: ShareStatement) -> int:
        """Hand over a customer's statement of shares; what the customer has left ahead, in msat.

        Raises:
            NotAllowed: a chunk's share was stated otherwise.
            PaymentFailed: the holder has not heard of so much that was paid ahead (yet).

        """

    async def treasury(self, request: str) -> tuple[int, int]:
        """What came in for a request, less fees, and what is left of it, in msat."""

    async def share_msat(self, request: str, customer: str, chunk: int, before_ms: int) -> int:
        """What the customer (pubkey) had stated for one chunk of the job before then (unix milliseconds).

        The committee's fee is included.
        """

    async def close(self) -> None: ...


class HolderSettings(Protocol):
    """Where a holder is that is apart from the wallet's service, as `[holder]` of a role's file has it."""

    @property
    def kind(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def committee_digest(self) -> str: ...

    @property
    def bitcoin(self) -> Path | None: ...

    @property
    def mint(self) -> str: ...

    @property
    def cap(self) -> int:
        """In satoshis."""

    @property
    def file(self) -> Path: ...


async def is_share_paid(
    holder: BondHolder, request: Request, chunk: int, epoch: int, committee: Committee, number: int = 1
) -> bool:
    """Whether the verification share that `committee` asks for the chunk had come before `epoch` could draw it.

    The chunk is the job's unit of this `number`, from 1.

    Never for what costs nothing, of which nobody can be paid a part; always where the committee asks for none. The
    plan's own share says nothing here: who plans for oneself could write 0. One that comes after the draw could be
    paid for what is drawn alone, and covers nothing.
    """
    if not committee.verify_share_ppm:
        return True
    due_msat = unit_share_msat(committees_share_msat(request.plan, committee), number)
    before_ms = drawn_at_ms(epoch, committee)
    return due_msat > 0 and await holder.share_msat(request.id, request.customer, chunk, before_ms) >= due_msat


def check_locked(bond: HeldBond | None) -> None:
    """Raises NotAllowed: there is a bond that is neither locked nor over, with the date at which it is."""
    if bond is None or bond.state in ("locked", "released"):
        return
    at = datetime.fromtimestamp(bond.frees_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if bond.state == "unbonding":
        raise NotAllowed(
            "bond", f"was asked back, and is free on {at}; until then this key has none: set [bond] amount_msat to 0"
        )
    raise NotAllowed("bond", f"was slashed by a verdict ({bond.state}, over on {at}); this key cannot lock another")


async def ensure_bond(holder: BondHolder, keys: Keys, amount_msat: int, until_s: int) -> Event:
    """A bond of at least `amount_msat` until at least `until_s`: locked, raised or found; its statement (kind 8858).

    The caller publishes the statement and names it in its ad; it asks again before the statement expires, and after a
    crash, since what was locked before is found.

    Raises:
        NotAllowed: the provider's bond is unbonding, or was slashed.
        PaymentFailed: the wallet has too little.
        BadInput: the statement is not about this bond.

    """
    try:
        bond = await holder.bond(keys.public)
    except NotFound:
        bond = None
    # The keys follow from what was found, so that a request whose answer was lost is the same request again.
    if bond is None or bond.state == "released":
        first = f"after {bond.id[:32]}" if bond is not None else "first"
        bond = await holder.lock(keys, amount_msat, until_s, key=first)
    check_locked(bond)
    missing_msat = max(0, amount_msat - bond.remainder_msat)
    if bond.until_s < until_s and not (await holder.holder()).prolongs:
        until_s = bond.until_s
    if missing_msat or bond.until_s < until_s:
        key = f"{bond.amount_msat}+{missing_msat}-{len(bond.cases)}"
        bond = await holder.top_up(keys, missing_msat, max(until_s, bond.until_s), key=f"{key}/{until_s}")
    event = await holder.statement(keys)
    check_statement(event, (await holder.holder()).public, keys.public, amount_msat)
    return event


def check_statement(event: Event, holder: str, provider: str, amount_msat: int) -> None:
    """Raises BadInput unless `event` is `holder`'s statement of at least `amount_msat` for `provider`."""
    verify_event(event)
    said = statements.parse(event)
    if (said.holder, said.provider) != (holder, provider) or said.amount_msat < amount_msat:
        raise BadInput("statement", "not of this holder, or not about this bond")
