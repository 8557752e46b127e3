"""A seeded courtroom for tests: oracles that judge one another's samples, nodes that show what a test has them show.

Each oracle is the real state machine of `judging` behind the real codecs; what stands in for the daemon is signing,
a journal in memory, and delivery with delays and losses. A fault is a function that replaces what an oracle sends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import numpy as np

from nodewire.errors import Withheld
from nodewire.nostr.event import Event
from nodewire.oracle.court import verdict_rules
from nodewire.oracle.court.case import (
    Convict,
    EpochDraw,
    FramesDisclosure,
    OpeningResult,
    Parties,
    PublishFault,
    PublishSamples,
    PublishVerdict,
    PullFrames,
    PullOpening,
    Recompute,
    RecomputeResult,
    SampledCame,
    SayVote,
    State,
    Tick,
    VerdictCame,
    VoteCame,
    VoteRecord,
    start,
)
from nodewire.protocol.committee import oracle_round, quorum_certificate
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.job.chunk import Leaf, Opening, leaf_of, opening
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.sample import Sample
from nodewire.protocol.verification.statement import Equivocation
from nodewire.protocol.verification.verdict import Verdict
from nodewire.verify.recomputation import ComputedLeaves
from tests.protocol.committee.actors import GENESIS_S, Seat, digest, keys
from tests.protocol.documents import manifest

MANIFEST = manifest()
PROVIDER, VERIFIER, SECOND = keys("provider"), keys("verifier"), keys("second verifier")
TASK = "stage.0"
PRICE_MSAT = 7

Outgoing = list[tuple[Event, "set[str] | None"]]
Fault = Callable[["Courtroom", Seat, object, Outgoing], Outgoing]
Shown = Callable[[str, int], "Opening | None"]
"""What a node shows an oracle (pubkey) that asks for the nth time."""


def leaves(noise: float = 0.0, *, frames: int = 2, seed: int = 1) -> tuple[Leaf, ...]:
    """What a stage puts out in a chunk, with some relative noise."""
    found = []
    for seq in range(frames):
        rows = np.random.default_rng(seed + seq).normal(size=(1, 3, 64)).astype(np.float32)
        apart = np.random.default_rng(99 + seq).normal(size=rows.shape).astype(np.float32)
        data = (rows + noise * apart).astype(np.float32).tobytes()
        found.append(leaf_of(MANIFEST.digest(), Frame("hidden.1", seq, (Array("float32", rows.shape, data),), {})))
    return tuple(found)


def opened(author, noise: float = 0.0, *, request: str = digest("request"), **changes) -> Opening:
    place = {"request": request, "task": TASK, "chunk": 1, "attempt": 0}
    return opening(author, MANIFEST, leaves(noise, **changes), **place)


def sample_of(root: str, verifiers=(VERIFIER.public, SECOND.public), request: str = digest("request")) -> Sample:
    return Sample(
        provider=PROVIDER.public, request=request, task=TASK, chunk=1, attempt=0, root=root, verifiers=tuple(verifiers)
    )


def always(shown: Opening | None) -> Shown:
    return lambda oracle, times: shown


@dataclass
class Courtroom:
    committee: Committee
    seats: list[Seat]
    seed: int = 1
    shows: dict[str, Shown] = field(default_factory=dict)
    """By node; who is not here is silent."""
    computes: Callable[[str], tuple[Leaf, ...] | ComputedLeaves | Withheld | Equivocation | None] = lambda oracle: (
        leaves()
    )
    """An oracle's own result."""
    sent: Callable[[str, Opening], tuple[Leaf, ...] | None] = lambda oracle, opening: opening.leaves
    """By oracle and the provider's opening: the leaves of the frames that the provider shows; None: it shows none."""
    without_worker: frozenset[str] = frozenset()
    faults: dict[str, Fault] = field(default_factory=dict)
    delay_ms: tuple[int, int] = (1, 60)
    loss_percent: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.now_ms = GENESIS_S * 1000
        self.states: dict[str, State] = {}
        self.journals: dict[str, dict[str, tuple[Verdict | None, Event]]] = {}
        self.asked: dict[tuple[str, str], int] = {}
        self.recomputed: list[str] = []
        self.pulled: list[str] = []
        """Oracles that asked for the provider's own frames."""
        self.stored: list[Event] = []
        self.convicted: dict[str, set[str]] = {}
        self.queue: list[tuple[int, int, str, object]] = []
        self.order = count()
        for seat in self.seats:
            self.journals[seat.keys.public] = {}
            self.restart(seat.keys.public)

    @property
    def honest(self) -> list[str]:
        return [pubkey for pubkey in self.states if pubkey not in self.faults]

    def restart(self, pubkey: str) -> None:
        """An oracle begins anew, knowing its journal only."""
        can = pubkey not in self.without_worker
        self.states[pubkey] = start(self.committee, pubkey, can_recompute=can, now_ms=self.now_ms)

    def draw(self, epoch: int, samples=(), roots=(), audited=False, others=(), inspected=False) -> None:
        """All oracles read this epoch: its samples, and the roots ((author, Opening) ...) that it certifies."""
        certified = {(a.public, o.request, o.task, o.chunk, o.attempt): o.root() for a, o in roots}
        manifests = {sample.request: MANIFEST for sample in samples}
        parties = {sample.key: Parties(price_msat=PRICE_MSAT) for sample in samples}
        for pubkey in self.states:
            keys_ = frozenset(sample.key for sample in samples if audited)
            same = {sample.key: tuple(others) for sample in samples if others}
            seen = frozenset(sample.key for sample in samples if audited or inspected)
            body = digest(f"body/{epoch}")
            drawn = EpochDraw(
                epoch, body, tuple(samples), manifests, certified, keys_, seen, others=same, parties=parties
            )
            self._later(self.random.randint(*self.delay_ms), pubkey, drawn)

    def run_epochs(self, epochs: int) -> None:
        self.run_to(self.now_ms + epochs * self.committee.epoch_ms)

    def run_to(self, now_ms: int, step_ms: int = 50) -> None:
        while self.now_ms < now_ms:
            self.now_ms += step_ms
            for pubkey in self.states:
                self.feed(pubkey, Tick(self.now_ms))
            while self.queue and self.queue[0][0] <= self.now_ms:
                _, _, pubkey, what = heapq.heappop(self.queue)
                self.feed(pubkey, what)

    def publish(self, event: Event, to: set[str] | None = None) -> None:
        self.stored.append(event)
        for pubkey in self.states if to is None else to:
            if event.pubkey != pubkey and self.random.randrange(100) < self.loss_percent:
                continue
            self._later(self.random.randint(*self.delay_ms), pubkey, _input(event))

    def verdicts(self) -> dict[str, set[str]]:
        """Digests of all valid verdict certificates, by sample."""
        found: dict[str, set[str]] = {}
        for one in self.certificates():
            one.check(self.committee)
            found.setdefault(one.verdict.key, set()).add(one.verdict.digest())
        return found

    def certificates(self) -> list[verdict.Certificate]:
        return [verdict.parse(event) for event in self.stored if event.kind == verdict.KIND]

    def verdict(self) -> Verdict | None:
        """The one verdict, if there is one."""
        found = {one.verdict.digest(): one.verdict for one in self.certificates()}
        assert len(found) <= 1
        return next(iter(found.values()), None)

    def accused(self) -> set[str]:
        faults = [event for event in self.stored if event.kind == quorum_certificate.FAULT_KIND]
        return {quorum_certificate.parse_fault(event, self.committee).oracle for event in faults}

    def _later(self, delay_ms: int, pubkey: str, what: object) -> None:
        heapq.heappush(self.queue, (self.now_ms + delay_ms, next(self.order), pubkey, what))

    def feed(self, pubkey: str, what) -> None:
        self.states[pubkey], actions = verdict_rules.apply(what, self.states[pubkey])
        seat = next(s for s in self.seats if s.keys.public == pubkey)
        for action in actions:
            self._do(seat, action)

    def _do(self, seat: Seat, action: object) -> None:
        at, me, outgoing = self.now_ms // 1000, seat.keys.public, []
        match action:
            case PublishSamples(sampled):
                outgoing.append((verification.build(seat.keys, sampled, created_at=at), None))
            case PullOpening(sample, _, node, key):
                times = self.asked[me, node] = self.asked.get((me, node), 0) + 1
                shown = self.shows.get(node, always(None))(me, times)
                self._later(
                    self.random.randint(5, 200),
                    me,
                    OpeningResult(key, node, shown, sample.key if sample.key != key else ""),
                )
            case PullFrames(sample, _, shown):
                self.pulled.append(me)
                self._later(self.random.randint(5, 200), me, FramesDisclosure(sample.key, self.sent(me, shown)))
            case Recompute(sample, _):
                self.recomputed.append(me)
                own = self.computes(me)
                withheld, lied = isinstance(own, Withheld), own if isinstance(own, Equivocation) else None
                owed = own if isinstance(own, Sample) else None
                ended = RecomputeResult(
                    sample.key, None if withheld or lied or owed else own, withheld, lied, unopened=owed
                )
                if isinstance(own, ComputedLeaves):
                    checked = self.states[me].cases[sample.key].checked
                    beside = checked.root() if checked is not None else ""
                    ended = RecomputeResult(
                        sample.key, own.leaves, excused=own.excused, beside=beside, reference=own.reference
                    )
                self._later(self.random.randint(50, 400), me, ended)
            case SayVote(key, _, x, found):
                vote = oracle_round.build_vote(seat.keys, self.committee.digest(), verdict.topic(key), x, created_at=at)
                found, vote = self.journals[me].setdefault(key, (found, vote))
                self._later(0, me, VoteRecord(key, found))
                outgoing.append((vote, None))
            case PublishVerdict(one):
                outgoing.append((verdict.build(seat.keys, one, created_at=at), None))
            case PublishFault(fault):
                outgoing.append((quorum_certificate.build_fault(seat.keys, fault, created_at=at), None))
            case Convict(culprit, _):
                self.convicted.setdefault(me, set()).add(culprit)
        fault = self.faults.get(me)
        for event, to in fault(self, seat, action, outgoing) if fault else outgoing:
            self.publish(event, to)


def _input(event: Event):
    if event.kind == verification.KIND:
        return SampledCame(verification.parse(event))
    if event.kind == verdict.KIND:
        return VerdictCame(verdict.parse(event))
    return VoteCame(event)
