"""The committee (kind 38841): who the oracles are, when epochs close, and the numbers that assignment takes from it.

n = 3f+1 oracles, quorum 2f+1, both for votes and for beacons. Epoch e runs from genesis_s*1000 + e*epoch_ms to its
close, one epoch length later. A committee is cited by its digest; whoever publishes the event signs only for having it.

Event: `d` = name, `x` = digest, `p` = each oracle; content = the document as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadHash, BadInput, BadQuorum
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.committee import dvrf
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Hex32, Name, Schema, Seconds
from nodewire.protocol.encoding.validation_errors import shaped

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.COMMITTEE
MAX_ORACLES = 31
KEPT_EPOCHS = 8_192
"""Relays keep what a round says for so long, twice as long as a job may run; nothing reaches further back."""
STAKE = 100
"""What cheating pays for a chunk, a hundred times over: `nodewire.plan.policy`."""
VALID_EPOCHS = 3
"""A snapshot is good for requests until this many epochs after its own."""

Ppm = Annotated[int, Field(ge=0, le=1_000_000)]
Point = Annotated[str, shaped(r"^0[23][0-9a-f]{64}$", "a compressed secp256k1 point in hex")]
"""A compressed secp256k1 point, 33 bytes as hex."""
RelayUrl = Annotated[str, shaped(r"^wss?://[!-~]{1,248}$", "a ws:// or wss:// URL")]
HttpUrl = Annotated[str, shaped(r"^https?://[!-~]{1,248}$", "an http(s) URL")]


class Oracle(Schema):
    """`pubkey` signs votes; share number `share_index` (1 to n) of the beacon's key is public as `share_public`."""

    pubkey: Hex32
    share_index: int = Field(ge=1, le=MAX_ORACLES)
    share_public: Point


class Committee(Schema):
    TAG: ClassVar[str] = "nodewire/committee/1"
    MAX_BYTES: ClassVar[int] = 32_768
    ERROR: ClassVar[type[BadInput]] = BadQuorum

    v: Literal[1] = 1
    name: Name
    oracles: tuple[Oracle, ...] = Field(min_length=1, max_length=MAX_ORACLES)
    """In share order; the leader of epoch e is number e mod n, counted from 0."""
    f: int = Field(ge=0, le=10)
    genesis_s: Seconds
    epoch_ms: int = Field(ge=100, le=3_600_000)
    skew_ms: int = Field(ge=10, le=600_000)
    """How far clocks and relays may lag: inventories go out this long after an epoch's close."""
    beat_ms: int = Field(ge=50, le=600_000)
    """How often a node beats; three missed beats and it is out of the next snapshot."""
    fee_ppm: Ppm = 0
    vrf_public: Point
    relays: tuple[RelayUrl, ...] = Field(default=(), max_length=16)
    blobs: tuple[HttpUrl, ...] = Field(default=(), max_length=16)
    """Blossom servers that hold the snapshots."""
    min_us_per_position: int = Field(default=100, ge=1, le=2**40)
    """The fastest speed that a node is credited with as long as nothing certifies a faster one: claims are cheap."""
    bond_unit_msat: int = Field(default=1_000_000, ge=1, le=2_100_000_000_000_000_000)
    """One unit of weight; a node with at least one unit counts as bonded."""
    bond_holders: tuple[Hex32, ...] = Field(default=(), max_length=16)
    """Whose bond statements (kind 8858) count."""
    verify_rate_ppm: Ppm = 0
    verify_share_ppm: Ppm = 0
    stake: int = Field(default=STAKE, ge=0, le=1_000_000)
    """How many times a slot's price a bond must be for every slot that it counts for; left out at its default."""

    @model_serializer(mode="wrap")
    def _without_its_default(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if self.stake == STAKE:
            del said["stake"]
        return said

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        n = len(self.oracles)
        if n != 3 * self.f + 1:
            raise ValueError(f"oracles: {n}, but 3f+1 is {3 * self.f + 1}")
        if len({oracle.pubkey for oracle in self.oracles}) != n:
            raise ValueError("oracles: a pubkey stands twice")
        if [oracle.share_index for oracle in self.oracles] != list(range(1, n + 1)):
            raise ValueError("oracles: share indexes are not 1 to n in order")
        if self.skew_ms * 5 > self.epoch_ms:
            raise ValueError("skew_ms: more than a fifth of an epoch leaves no time to vote")
        publics = {oracle.share_index: bytes.fromhex(oracle.share_public) for oracle in self.oracles}
        first = {i: publics[i] for i in range(1, self.quorum + 1)}
        try:
            expected = {i: dvrf.interpolate(first, i) for i in range(self.quorum + 1, n + 1)}
            group = dvrf.interpolate(first, 0)
        except ValueError:
            raise ValueError("oracles: a public share is not a point of the curve") from None
        if group.hex() != self.vrf_public or any(publics[i] != point for i, point in expected.items()):
            raise ValueError("vrf_public: the public shares are not those of one key with threshold 2f+1")
        return self

    @property
    def quorum(self) -> int:
        return 2 * self.f + 1

    @property
    def live_epochs(self) -> int:
        """For how many epochs after its own a beat counts: three beats' time, rounded up."""
        return -(-3 * self.beat_ms // self.epoch_ms)

    def leader(self, epoch: int) -> str:
        return self.oracles[epoch % len(self.oracles)].pubkey

    def oracle(self, pubkey: str) -> Oracle | None:
        return next((oracle for oracle in self.oracles if oracle.pubkey == pubkey), None)

    def close_ms(self, epoch: int) -> int:
        """When `epoch` ends, in unix milliseconds."""
        return self.genesis_s * 1000 + (epoch + 1) * self.epoch_ms

    def kept_until_s(self, now_s: int) -> int:
        """When what is said now may go from relays (NIP-40), in unix seconds."""
        return now_s + -(-KEPT_EPOCHS * self.epoch_ms // 1000)

    def is_bond(self, msat: int) -> bool:
        """Whether a bond of so much counts: its node is a bonded one."""
        return msat >= self.bond_unit_msat

    def epoch_at(self, now_ms: int) -> int:
        """The epoch that `now_ms` (unix) lies in; negative before genesis."""
        return (now_ms - self.genesis_s * 1000) // self.epoch_ms


def build(keys: Keys, committee: Committee, *, created_at: int) -> Event:
    members = [("p", oracle.pubkey) for oracle in committee.oracles]
    tags_ = [("d", committee.name), ("x", committee.digest()), *members]
    return sign(keys, KIND, created_at=created_at, content=committee.to_json(), tags=tags_)


def parse(event: Event) -> Committee:
    """The committee in a verified event.

    Raises:
        BadEvent, BadTag, BadQuorum, BadVersion, TooLarge: the event or its document is malformed.
        BadHash: the tag `x` is not the document's digest.

    """
    tags.check_kind(event, KIND)
    committee = Committee.parse(event.content)
    if committee.digest() != tags.hex32(event, "x"):
        raise BadHash("x", "not the committee's digest")
    return committee
