"""Beacon partials (kind 8851) and the beacon that 2f+1 of them combine to; `dvrf` has the mathematics.

The input is the digest of an epoch's certified body, and an honest oracle publishes its partial only when it holds the
certificate: nobody knows the beacon before 2f+1 oracles voted for that body.

The threshold is 2f+1, like the votes'. f faulty oracles hold too few shares to know a beacon early, and so do 2f.
(With a threshold of f+1, f+1 colluders would predict every beacon without a trace; a double vote always leaves one.)
And f faulty oracles cannot withhold it: the 2f+1 honest ones suffice, as many as any certificate needs anyway.

Event: `c`, `n` = epoch/<number>, `x` = digest of the body; content = {"v": 1, "index", "gamma", "c", "s"} in hex.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadQuorum, BadSignature, NoQuorum
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.committee import dvrf
from nodewire.protocol.committee.committee import MAX_ORACLES, Committee, Point
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Hex32, Schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.keys import Keys
    from nodewire.protocol.committee.epoch_body import Body

KIND = kinds.BEACON


class Share(Schema):
    """A partial as it travels: Gamma_i and its DLEQ proof."""

    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    index: int = Field(ge=1, le=MAX_ORACLES)
    gamma: Point
    c: Hex32
    s: Hex32


@dataclass(frozen=True, slots=True)
class BeaconPartial:
    """A parsed partial; only `check` says that its oracle made it."""

    id: str
    oracle: str
    committee: str
    epoch: int
    body: str
    partial: dvrf.Partial

    def check(self, committee: Committee) -> None:
        """Check that the author is the oracle of that share and that the proof holds.

        Raises:
            BadQuorum: another committee, or the author is not the oracle of this share.
            BadSignature: the proof does not hold.

        """
        oracle = committee.oracle(self.oracle)
        if self.committee != committee.digest():
            raise BadQuorum("committee", "the partial names another committee")
        if oracle is None or oracle.share_index != self.partial.index:
            raise BadQuorum("index", "the author is not the oracle of this share")
        dvrf.verify(self.partial, bytes.fromhex(oracle.share_public), bytes.fromhex(self.body))


def build(
    keys: Keys, body: Body, index: int, secret: bytes, *, created_at: int, expires_at_s: int | None = None
) -> Event:
    """Oracle `index`'s partial (its share is `secret`, 32 bytes) over a body that it knows to be certified."""
    partial = dvrf.prove(index, secret, bytes.fromhex(body.digest()))
    share = Share(index=index, gamma=partial.gamma.hex(), c=partial.c.hex(), s=partial.s.hex())
    tags_ = [("c", body.committee), ("n", tags.epoch_topic(body.epoch)), ("x", body.digest())]
    tags_ += tags.expiration(expires_at_s)
    return sign(keys, KIND, created_at=created_at, content=share.to_json(), tags=tags_)


def parse(event: Event) -> BeaconPartial:
    """The partial in a verified event. Raises BadEvent, BadTag, BadVersion, TooLarge."""
    tags.check_kind(event, KIND)
    share = Share.parse(event.content)
    gamma, c, s = (bytes.fromhex(value) for value in (share.gamma, share.c, share.s))
    return BeaconPartial(
        event.id,
        event.pubkey,
        tags.hex32(event, "c"),
        tags.epoch_of(event),
        tags.hex32(event, "x"),
        dvrf.Partial(share.index, gamma, c, s),
    )


def combine(committee: Committee, body: str, partials: Iterable[BeaconPartial]) -> str:
    """The beacon (64 hex digits) over the body with digest `body`; partials that prove nothing are passed over.

    Raises:
        NoQuorum: fewer than 2f+1 distinct oracles' partials hold.

    """
    valid: dict[int, dvrf.Partial] = {}
    for candidate in partials:
        if candidate.body != body or candidate.partial.index in valid:
            continue
        try:
            candidate.check(committee)
        except (BadQuorum, BadSignature):
            continue
        valid[candidate.partial.index] = candidate.partial
        if len(valid) == committee.quorum:
            return dvrf.combine(list(valid.values()), committee.quorum).hex()
    raise NoQuorum("beacon", f"{len(valid)} valid partials, {committee.quorum} needed")
