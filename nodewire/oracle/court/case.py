"""What an oracle knows of samples, what happens to them, and what it wants done.

It is plain data for `verdict_rules.apply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.event import Event
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.quorum_certificate import Fault
    from nodewire.protocol.job.chunk import Leaf, Opening
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.verification.complaint import Complaint
    from nodewire.protocol.verification.sample import JobSamples, Sample
    from nodewire.protocol.verification.statement import Equivocation
    from nodewire.protocol.verification.verdict import Certificate, Verdict

RootKey = tuple[str, str, str, int, int]
"""Provider, request, task, chunk, attempt."""

VERIFIED_EPOCHS = 4
"""A verifier's root counts up to this many epochs after the draw."""
LAST_EPOCHS = 5
"""So many epochs after the draw, a producer's opening is no longer waited for where its signed word is shown."""
OPEN_EPOCHS = 6
"""What was drawn can be pulled up to this many epochs after the draw."""
AGAIN_EPOCHS = 9
"""So many epochs after the draw every honest oracle has voted, and the second ballot begins."""
FRAMES = "frames"
"""Among what a case waits for: the provider's own frames."""
KEPT_EPOCHS = 16
"""A sample and the votes on it are forgotten this many epochs after its draw."""


@dataclass(frozen=True, slots=True)
class Parties:
    """Whose sample it is, for the shares of what all samples need."""

    is_bonded: bool = False
    """The provider has a bond, by the snapshot of the draw's epoch."""
    customer: str = ""
    origins: frozenset[str] = frozenset()
    """Of the provider's addresses (`nodewire.net.connection_limits`)."""
    price_msat: int = 0
    """The amount that a pass adds to the provider's account: the plan's price of a chunk."""


# ---- inputs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come this far (unix ms)."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class EpochDraw:
    """An epoch is certified, with its beacon: what was drawn of it, and every root that it certifies.

    Epochs come in order, but for one that was certified late: after it the later ones come again. Samples with those
    first that are to be judged in any case. `manifests` by request; a sample
    whose manifest is not to be had is left out. `audited`: keys of the samples that are computed again in any case.
    """

    epoch: int
    certificate: str
    samples: tuple[Sample, ...]
    manifests: Mapping[str, Manifest]
    roots: Mapping[RootKey, str]
    audited: frozenset[str] = frozenset()
    inspected: frozenset[str] = frozenset()
    """Keys of the samples that are computed again if they are suspect."""
    others: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """By the sample's key: what other nodes committed to with the same root, in this epoch or an earlier one. Of all
    these it can be the work of one only."""
    parties: Mapping[str, Parties] = field(default_factory=dict)
    """By the sample's key."""


@dataclass(frozen=True, slots=True)
class SampledCame:
    """Somebody has published samples (kind 8844)."""

    sampled: JobSamples


@dataclass(frozen=True, slots=True)
class OpeningResult:
    """How a `PullOpening` ended; None: the node is silent, refuses, or sent garbage."""

    key: str
    node: str
    opening: Opening | None
    other: str = ""
    """The key of what it opens, if that is not the sample."""


@dataclass(frozen=True, slots=True)
class RecomputeResult:
    """How a `Recompute` ended.

    None: the inputs are not to be had. `withheld`: because the provider does not show its own part of them.
    """

    key: str
    leaves: tuple[Leaf, ...] | None
    withheld: bool = False
    equivocation: Equivocation | None = None
    """Why there are none: an input's producer signed something else than it committed to."""
    excused: frozenset[int] = frozenset()
    """Of which numbers the verifier's token is another, and excused."""
    beside: str = ""
    """The root of the verifier's opening that `excused` is about; empty: none was there."""
    reference: tuple[Leaf, ...] = ()
    """The same frames in float32, where they are to be had."""
    unopened: Sample | None = None
    """Why there are none: this, which an input's producer committed to, it does not open."""


@dataclass(frozen=True, slots=True)
class InputsDisclosure:
    """All inputs of a `Recompute` are here. The provider withholds nothing, however computing them ends."""

    key: str


@dataclass(frozen=True, slots=True)
class FramesDisclosure:
    """How a `PullFrames` ended: the leaves of the frames that the provider shows.

    They hash to those of its opening. None: it shows none, or others.
    """

    key: str
    leaves: tuple[Leaf, ...] | None


@dataclass(frozen=True, slots=True)
class VoteCame:
    """A verified vote (kind 8850, `t` = vote, `n` = verdict/...), anybody's."""

    event: Event


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """What this oracle has put on record as its vote, now or before a restart; None where it joined others."""

    key: str
    """The ballot's, as in `SayVote`."""
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class VerdictCame:
    """A verdict's certificate (kind 8852), not checked yet."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class UnfoundedComplaint:
    """No certificate of an epoch up to `epoch` holds the roots of the claim that `complaint` is about.

    `task` is the first that the plan has for the accused.
    """

    complaint: Complaint
    epoch: int
    task: str


Input = (
    Tick
    | EpochDraw
    | SampledCame
    | OpeningResult
    | InputsDisclosure
    | RecomputeResult
    | FramesDisclosure
    | VoteCame
    | VoteRecord
    | VerdictCame
    | UnfoundedComplaint
)

# ---- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishSamples:
    sampled: JobSamples


@dataclass(frozen=True, slots=True)
class PullOpening:
    """Ask `node` for its opening of the sample's chunk; comes back as Opened, whatever happens.

    `key`: the case's that it is for; it is another's than the sample's if that has the same root.
    """

    sample: Sample
    epoch: int
    node: str
    key: str


@dataclass(frozen=True, slots=True)
class Recompute:
    """Compute the sample's chunk again; comes back as Recomputed, whatever happens.

    `last`: it is not waited any more for what producers committed to, of inputs that they signed.
    """

    sample: Sample
    epoch: int
    last: bool = False


@dataclass(frozen=True, slots=True)
class PullFrames:
    """Ask the provider for its own frames of the sample's chunk, which `opening` is of.

    It comes back as FramesShown, whatever happens.
    """

    sample: Sample
    epoch: int
    opening: Opening


@dataclass(frozen=True, slots=True)
class SayVote:
    """Put the vote on record and publish it, or what is on record already. `verdict` is None if others are joined."""

    key: str
    """The ballot: the sample's key, or `verdict.second` of it."""
    epoch: int
    x: str
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class PublishVerdict:
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class PublishFault:
    fault: Fault


@dataclass(frozen=True, slots=True)
class Convict:
    """A certified verdict convicts `culprit`."""

    culprit: str
    certificate: Certificate


Action = PublishSamples | PullOpening | PullFrames | Recompute | SayVote | PublishVerdict | PublishFault | Convict

# ---- state --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One sample, as far as this oracle has come with it; or a claim without roots, as a sample that nobody drew."""

    sample: Sample
    epoch: int
    manifest: Manifest | None
    """None only with `complaint`, on which nothing is compared."""
    complaint: Complaint | None = None
    audited: bool = False
    """Computed again here in any case."""
    inspected: bool = False
    """Computed again here if it is suspect (`protocol.verification.arithmetic`)."""
    witness: bool = False
    """Not drawn: it must only be opened, for a sample that was cannot be judged without it."""
    parties: Parties = Parties()
    others: tuple[Sample, ...] = ()
    """What others committed to with the same root."""
    copied: bool = False
    """The root opens to another's work."""
    verified: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """By drawn verifier: the first epoch that certifies a root of its work, and the root."""
    silent: frozenset[str] = frozenset()
    """Verifiers that show nothing, while others might: they decide no more."""
    theirs: Opening | None = None
    """The provider's."""
    checked: Opening | None = None
    """The verifier's."""
    mine: Opening | None = None
    excused: frozenset[int] = frozenset()
    """Beside `mine`: as in `RecomputeResult`."""
    reference: tuple[Leaf, ...] = ()
    """Beside `mine`: the same frames in float32, where they are to be had."""
    frames: tuple[Leaf, ...] | None = None
    """The leaves of the provider's own frames, recomputed here."""
    disputed: bool = False
    """The provider's opening and the verifier's are not alike."""
    withheld: bool = False
    """The provider's inputs were, when they were last asked for."""
    equivocation: Equivocation | None = None
    grey: bool = False
    """Computed again, the provider's work is neither alike nor apart."""
    waiting: frozenset[str] = frozenset()
    """What was asked for and has not come back: a node's pubkey, "" for one's own result, or FRAMES."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """When it was last asked for (unix ms)."""
    said: bool = False
    verdict: Verdict | None = None
    """What this oracle voted for, unless it joined others."""
    said_again: bool = False
    second: Verdict | None = None
    """What it voted for in the second ballot."""
    quorum_ms: int | None = None
    done: Certificate | None = None

    @property
    def key(self) -> str:
        return self.sample.key if self.complaint is None else self.complaint.key

    @property
    def deciding(self) -> tuple[tuple[str, str], ...]:
        """Verifiers with their certified roots: by epoch, of one epoch as they were drawn."""
        order = {verifier: n for n, verifier in enumerate(self.sample.verifiers)}
        found = [
            (epoch, order[one], one, root) for one, (epoch, root) in self.verified.items() if one not in self.silent
        ]
        return tuple((one, root) for _, _, one, root in sorted(found))

    @property
    def verifier(self) -> tuple[str, str] | None:
        """The one that decides."""
        return next(iter(self.deciding), None)


@dataclass(frozen=True, slots=True)
class State:
    """Everything that one oracle (`me`) knows of samples. Mappings are never changed in place."""

    committee: Committee
    digest: str
    me: str
    can_recompute: bool
    now_ms: int = 0
    read: int = -1
    """The newest epoch that was read."""
    cases: Mapping[str, Case] = field(default_factory=dict)
    """By the case's key: the sample's, or the complaint's."""
    votes: Mapping[str, Mapping[str, Event]] = field(default_factory=dict)
    """By ballot (the sample's key, or `verdict.second` of it) and oracle: its first vote."""
    heard: Mapping[str, int] = field(default_factory=dict)
    """By ballot: the epoch in which the first vote in it came."""
    accused: frozenset[tuple[str, str]] = frozenset()
    to_publish: Mapping[tuple[int, str], tuple[JobSamples, ...]] = field(default_factory=dict)
    """By epoch and request: samples that nobody has published yet."""
    drawn_ms: Mapping[int, int] = field(default_factory=dict)
    convicted: frozenset[str] = frozenset()
    """By certified verdicts, ever."""

    @property
    def epoch(self) -> int:
        return self.committee.epoch_at(self.now_ms)

    def with_case(self, case: Case) -> State:
        return replace(self, cases={**self.cases, case.key: case})


Step = tuple[State, tuple[Action, ...]]


def start(committee: Committee, me: str, *, can_recompute: bool, now_ms: int = 0) -> State:
    """The state of oracle `me` (pubkey), which knows nothing yet."""
    return State(committee, committee.digest(), me, can_recompute, now_ms)
