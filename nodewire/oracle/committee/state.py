"""What an oracle knows, what happens to it, and what it wants done: plain frozen data for `rules.apply`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nodewire.core.persistent_map import PersistentMap
from nodewire.oracle.committee.derivation import Derivation, DerivationResult, Key
from nodewire.protocol.market.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.event import Event
    from nodewire.protocol.committee.commitment import CommitmentEvent
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.epoch_body import Body
    from nodewire.protocol.committee.oracle_round import Inventory, InventoryEvent, Proposal
    from nodewire.protocol.committee.quorum_certificate import Certificate, Fault
    from nodewire.protocol.committee.reputation import ReputationVerdict
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.bond import BondStatement
    from nodewire.protocol.market.heartbeat import Beat

# ---- inputs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come this far (unix ms)."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class VerifiedEvent:
    """A verified event, from a relay or by this oracle itself."""

    event: Event


@dataclass(frozen=True, slots=True)
class BlobCame:
    """A blob with this SHA-256, as `FetchBlob` asked."""

    sha256: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Conviction:
    """A certified verdict convicts this node: it is listed no more."""

    pubkey: str


Input = Tick | VerifiedEvent | BlobCame | Conviction | DerivationResult

# ---- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SayInventory:
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Derive:
    """Do this work beside the loop; what it gives comes back as an input."""

    work: Derivation


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Store a snapshot that this oracle votes for, unless the stores have it; nobody here need read it again."""

    sha256: str
    snapshot: Snapshot
    blob: bytes


@dataclass(frozen=True, slots=True)
class SayProposal:
    """Store `blob` (the snapshot), then propose `body`."""

    body: Body
    blob: bytes


@dataclass(frozen=True, slots=True)
class SayVote:
    topic: str
    x: str


@dataclass(frozen=True, slots=True)
class SaySupply:
    """Hand out events that other oracles lack."""

    epoch: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class PublishCertificate:
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class PublishPartial:
    body: Body


@dataclass(frozen=True, slots=True)
class KeepVerdict:
    """Remember over a restart what a certified verdict says, until it is counted."""

    judged: ReputationVerdict


@dataclass(frozen=True, slots=True)
class PublishFault:
    fault: Fault


@dataclass(frozen=True, slots=True)
class FetchEvents:
    """Look for these event ids on the relays; what is found comes back as Received."""

    ids: tuple[str, ...]
    is_urgent: bool = True
    """What is not is for strangers: it waits for its like, and is left if too much of it comes."""


@dataclass(frozen=True, slots=True)
class FetchCertificates:
    """Look for this committee's newest certificates."""


@dataclass(frozen=True, slots=True)
class FetchBlob:
    sha256: str
    max_bytes: int = Snapshot.MAX_BYTES
    is_urgent: bool = True
    """Others wait their turn."""


@dataclass(frozen=True, slots=True)
class KeepEvent:
    """Remember an event that may be certified, and store it, whatever becomes of it on the relays.

    A commitment that this oracle may list, an inventory that a body may cite, a certificate that requests may cite.
    """

    event: Event


@dataclass(frozen=True, slots=True)
class KeepBlob:
    """Claim a blob on the stores: who uploaded it may take it away."""

    data: bytes


Action = (
    SayInventory
    | Derive
    | KeepSnapshot
    | SayProposal
    | SayVote
    | SaySupply
    | PublishCertificate
    | PublishPartial
    | PublishFault
    | KeepVerdict
    | FetchEvents
    | FetchCertificates
    | FetchBlob
    | KeepEvent
    | KeepBlob
)

# ---- state --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """One epoch's round, as far as this oracle has seen it."""

    inventories: Mapping[str, InventoryEvent] = field(default_factory=dict)
    """By event id, at most two per oracle."""
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    """The leader's, by digest of the body, at most two; the first is what this oracle considers."""
    votes: Mapping[tuple[str, str], Event] = field(default_factory=dict)
    """By (digest, oracle)."""
    said: Mapping[tuple[str, str], Event] = field(default_factory=dict)
    """The first event by (oracle, `t`): what a second one may contradict."""
    accused: frozenset[tuple[str, str]] = frozenset()
    extra: Mapping[str, Event] = field(default_factory=dict)
    """Events that this round needs, by id: what this oracle listed, with what that needs, and what others supplied."""
    supplies: Mapping[str, int] = field(default_factory=dict)
    """How many supply events each oracle has sent."""
    chosen: tuple[frozenset[str], bool] | None = None
    """As the leader: the inventories from which this oracle derives, and whether the body is crowded."""
    deriving: frozenset[Key] = frozenset()
    derived: Mapping[Key, DerivationResult] = field(default_factory=dict)
    """Until this oracle has voted."""
    offered: Mapping[str, bytes] = field(default_factory=dict)
    """Proposed snapshots that were fetched, by SHA-256: they have events that this oracle lacks."""
    listed: bool = False
    proposed: str | None = None
    voted: bool = False
    refused: str | None = None
    """Why this oracle does not vote for the proposal."""
    supplied: bool = False
    quorum_ms: int | None = None
    """When 2f+1 votes were first there."""

    @property
    def is_deriving(self) -> bool:
        """Whether work is under way beside the loop."""
        return not self.derived.keys() >= self.deriving


Rank = tuple[int, str, str]
"""Of a node, the best first: minus its bond's units, the id of its ad, its key. See `node_places`."""


@dataclass(frozen=True, slots=True)
class PendingBeats:
    """The beats of a stranger whose ad was asked for at `asked_ms` and has not come."""

    beats: tuple[tuple[Event, Beat], ...]
    asked_ms: int


@dataclass(frozen=True, slots=True)
class State:
    """Everything that one oracle (`me`) knows. Mappings are never changed in place."""

    committee: Committee
    digest: str
    me: str
    now_ms: int = 0
    beats: PersistentMap[tuple[tuple[Event, Beat], ...]] = field(default_factory=PersistentMap)
    """By pubkey, newest first, of the nodes that have a place."""
    ads: PersistentMap[tuple[Event, Ad]] = field(default_factory=PersistentMap)
    """By event id."""
    bonds: PersistentMap[tuple[Event, BondStatement]] = field(default_factory=PersistentMap)
    """By event id."""
    backed: PersistentMap[int] = field(default_factory=PersistentMap)
    """By pubkey, the units of the bond that a listed holder has stated."""
    ranks: PersistentMap[Rank] = field(default_factory=PersistentMap)
    """By pubkey, of the nodes that have a place."""
    order: tuple[Rank, ...] = ()
    """The same ranks, the best first."""
    waiting: PersistentMap[PendingBeats] = field(default_factory=PersistentMap)
    """By pubkey, the newer half."""
    waited: PersistentMap[PendingBeats] = field(default_factory=PersistentMap)
    """The older half."""
    crowded_out: int = 0
    """How many beats and ads found no place so far, and how many nodes lost theirs to others."""
    commitments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By epoch and provider: the id of the first commitment seen, all of which is at hand."""
    bare: Mapping[int, Mapping[str, CommitmentEvent]] = field(default_factory=dict)
    """By epoch and provider: the first commitment seen, while its blob is not at hand. `blob` is None: another came."""
    unbonded_blobs: Mapping[int, int] = field(default_factory=dict)
    """By epoch, how many commitments with blobs were seen of nodes without a bond."""
    rounds: Mapping[int, Round] = field(default_factory=dict)
    certified: tuple[Certificate, ...] = ()
    """Checked, one per epoch, the newest last."""
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    """By SHA-256."""
    convicted: frozenset[str] = frozenset()
    judged: Mapping[str, ReputationVerdict] = field(default_factory=dict)
    """What certified verdicts say, by sample: the first that came."""
    opened: int = -1
    """The last epoch whose round was opened."""
    asked: PersistentMap[int] = field(default_factory=PersistentMap)
    """When something was last asked for (unix ms)."""

    @property
    def epoch(self) -> int:
        return self.committee.epoch_at(self.now_ms)

    def with_round(self, epoch: int, round_: Round) -> State:
        return replace(self, rounds={**self.rounds, epoch: round_})

    def ask(self, key: str, action: Action) -> Step:
        """The action, unless the same (by `key`) was asked for less than a skew ago."""
        if self.is_recent(self.asked.get(key)):
            return self, ()
        return replace(self, asked=self.asked.including(key, self.now_ms)), (action,)

    def is_recent(self, asked_ms: int | None) -> bool:
        """Whether that was less than a skew ago."""
        return asked_ms is not None and self.now_ms < asked_ms + self.committee.skew_ms


Step = tuple[State, tuple[Action, ...]]


def start(committee: Committee, me: str, now_ms: int = 0) -> State:
    """The state of oracle `me` (pubkey), which knows nothing yet; its first round opens with the first tick."""
    return State(committee, committee.digest(), me, now_ms)
