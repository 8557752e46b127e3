"""The oracle's second half: relays, nodes, worker and journal around `verdict_rules.apply`.

It decides nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadInput, LinkLost, NodewireError, Withheld
from nodewire.nostr.nips.nip01 import Filter
from nodewire.oracle.court import verdict_rules
from nodewire.oracle.court.case import (
    KEPT_EPOCHS,
    OPEN_EPOCHS,
    Action,
    Convict,
    FramesDisclosure,
    Input,
    InputsDisclosure,
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
from nodewire.oracle.court.complaints import Complaints
from nodewire.oracle.court.counters import CourtFigures
from nodewire.oracle.court.epoch_reader import EpochReader
from nodewire.plan.epoch import Epochs
from nodewire.protocol import kinds
from nodewire.protocol.committee import oracle_round, quorum_certificate
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.comparison import compare
from nodewire.protocol.verification.verdict import Verdict
from nodewire.verify.inquiry import Overloaded
from nodewire.verify.recomputation import MAX_BYTES, ComputedLeaves, Equivocated, Inputs, Unopened, most_input_bytes
from nodewire.verify.waiting_list import Cap, WaitingList

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from nodewire.kind import Clock
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.relays import Relays
    from nodewire.oracle.court.docket import Docket
    from nodewire.oracle.journal import Journal
    from nodewire.protocol.job.chunk import Leaf, Opening
    from nodewire.protocol.verification.sample import Sample

MAX_ASKING = 32
"""Cases at a time of which openings are pulled; and as many of which inputs are fetched, or wait to be computed."""
MAX_INPUT_BYTES = 2 * MAX_BYTES
"""Of inputs that are in memory."""
STRANGERS_PART = 2
"""Of both, and of the bytes, providers without a bond have one in so many among them: keys are free."""
MAX_OF_A_PROVIDER = 2
MAX_OF_AN_ORIGIN = 4
MAX_OF_A_CUSTOMER = 8
"""Customers' keys are free, too, and so are the samples of their jobs."""
STRANGERS_EPOCHS = 2
"""For how long a case of a provider without a bond may hold its turn. Others' may until the sample's time is over."""

MAX_LACKING = 4_096
"""Cases of which it is remembered what they lack."""

_log = logging.getLogger("nodewire.oracle.court")


class Evidence(Protocol):
    """How a sample is looked into (`nodewire.verify.inquiry`)."""

    @property
    def can_recompute(self) -> bool: ...

    async def opening(self, sample: Sample, epoch: int, node: str) -> Opening:
        """`node`'s opening of the sample's chunk, of whatever content. Raises a NodewireError if there is none."""

    async def frames(self, sample: Sample, epoch: int, opening: Opening) -> tuple[Leaf, ...]:
        """The leaves of the provider's own frames, which hash to those of its `opening`.

        Raises a NodewireError if it shows none.
        """

    async def inputs(self, sample: Sample, epoch: int, *, last: bool, within_s: float) -> Inputs:
        """All that the task was given, checked; `last` as in `case.Recompute`.

        Raises:
            Equivocated: a producer signed something else than it committed to.
            Withheld: the provider does not show its part.
            NodewireError: they are not to be had.

        """

    async def recompute(
        self, inputs: Inputs, *, judged: Opening | None, beside: Opening | None, within_s: float
    ) -> ComputedLeaves:
        """The chunk, computed here; `judged` is the provider's opening, `beside` the verifier's.

        Raises:
            Overloaded: this machine was too slow for it.
            NodewireError: they cannot be computed.

        """


class Court:
    """Draws, judges and certifies beside an `Oracle`. `await run()` until cancelled.

    `convict` is told of every node that a certified verdict convicts.
    """

    def __init__(
        self,
        keys: Keys,
        relays: Relays,
        market: Market,
        docket: Docket,
        evidence: Evidence,
        journal: Journal,
        clock: Clock,
        convict: Callable[[str], None] = lambda culprit: None,
    ) -> None:
        committee = market.committee
        self._keys, self._committee, self._digest = keys, committee, committee.digest()
        self._relays, self._evidence = relays, evidence
        self._journal, self._clock, self._convict = journal, clock, convict
        self._epochs = Epochs(committee)
        self._reading = EpochReader(committee, self._epochs, docket, clock, self._feed)
        self.figures = CourtFigures()
        self._complaints = Complaints(market, relays, clock, docket.snapshots, self._feed)
        self._state = start(committee, keys.public, can_recompute=evidence.can_recompute)
        self._pulling, self._fetching, self._computing = WaitingList(), WaitingList(), WaitingList()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lacking = BoundedDict[str, str](MAX_LACKING)
        """By the case's key: why what it needs is not here, as was last heard."""

    @property
    def state(self) -> State:
        """What the oracle knows of samples now."""
        return self._state

    async def run(self) -> None:
        """Follow the rules until cancelled. Raises as `Oracle.run`."""
        try:
            async with asyncio.TaskGroup() as group:
                for filters in self._filters():
                    group.create_task(self._listen(filters))
                group.create_task(self._tick())
                group.create_task(self._reading.run())
                group.create_task(self._complaints.run())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _filters(self) -> list[list[Filter]]:
        """Filters, each list for a subscription of its own: strangers' events crowd no oracle's out of a queue."""
        since = int(self._clock.time_s()) - (KEPT_EPOCHS + 1) * self._committee.epoch_ms // 1000 - 1
        ours = {"c": {self._digest}}
        oracles = {oracle.pubkey for oracle in self._committee.oracles}
        said = [
            Filter(kinds={kinds.BEACON, kinds.CERTIFICATE}, authors=oracles, since=since),
            Filter(kinds={oracle_round.KIND}, authors=oracles, tags={**ours, "t": {"vote"}}, since=since),
            Filter(kinds={kinds.VERIFICATION}, authors=oracles, tags=ours, since=since),
        ]
        return [said, [Filter(kinds={kinds.EVIDENCE}, tags=ours, since=since)]]

    async def _listen(self, filters: Sequence[Filter]) -> None:
        async for event in self._relays.subscribe(filters):
            with suppress(BadInput):  # one author's malformed event; the others' go on
                self._came(event)
            await asyncio.sleep(0)
        raise LinkLost("relays", "every relay has ended the subscription")

    def _came(self, event: Event) -> None:
        if event.kind == kinds.VERIFICATION:
            sampled = verification.parse(event)
            # Verifiers heed oracles alone, and ask relays for what is new: nothing else counts as published.
            is_new = event.created_at * 1000 + 1000 > self._committee.close_ms(sampled.epoch)
            if is_new and self._committee.oracle(event.pubkey) is not None:
                self._feed(SampledCame(sampled))
        elif event.kind == oracle_round.KIND:
            self._feed(VoteCame(event))
        elif event.kind == kinds.EVIDENCE:
            if event.tag("e") is not None:  # the other evidence is of oracles' faults
                self._complaints.add(event)
        elif event.kind == kinds.CERTIFICATE and (event.tag("n") or "").startswith("verdict/"):
            self._feed(VerdictCame(verdict.parse(event)))
        else:
            self._epochs.add_event(event)

    async def _tick(self) -> None:
        """Tell the time; and the log, when this machine does not keep up with it: then nobody else is to blame."""
        pause_s, said_s = self._committee.skew_ms / 4000, -math.inf
        while True:
            self._feed(Tick(self._now_ms()))
            due_s = self._clock.monotonic_s() + pause_s
            await asyncio.sleep(pause_s)
            now_s = self._clock.monotonic_s()
            if now_s - due_s > self._committee.skew_ms / 1000 and now_s > said_s + self._committee.epoch_ms / 1000:
                said_s = now_s
                self.figures.overloads += 1
                _log.warning("overloaded: this oracle woke up %.1f s late, which is more than a skew", now_s - due_s)

    def _feed(self, what: Input) -> None:
        if isinstance(what, RecomputeResult):
            self._say_apart(what)
        before = self._state
        self._state, actions = verdict_rules.apply(what, before)
        if isinstance(what, VerdictCame):
            self.figures.moved(what.certificate, before, self._state)
        for action in actions:
            if isinstance(action, PublishVerdict):
                self.figures.moved(action.certificate, before, self._state)
            self._do(action)

    def _say_apart(self, what: RecomputeResult) -> None:
        """To the log, how far the provider's work is from what was computed here."""
        case = self._state.cases.get(what.key)
        if case is None or case.theirs is None or case.manifest is None or what.leaves is None:
            return
        order = {edge.name: i for i, edge in enumerate(case.manifest.edges)}
        leaves = tuple(sorted(what.leaves, key=lambda leaf: (order[leaf.edge], leaf.seq)))
        mine = case.theirs.model_copy(update={"leaves": leaves})
        found = compare(case.manifest, case.sample.task, mine, case.theirs)
        off = f"{found.ppm / 10_000:.4f} % off" + (f" at {found.where}" if found.where else "")
        _log.info("sample %s: %s by %s is %s", what.key[:8], case.sample.task, case.sample.provider[:8], off)

    def _do(self, action: Action) -> None:
        now_s = int(self._clock.time_s())
        match action:
            case PublishSamples(sampled):
                self._spawn(self._publish(verification.build(self._keys, sampled, created_at=now_s)))
            case PullOpening():
                self._spawn(self._pull(action))
            case PullFrames(sample, epoch, opening):
                self._spawn(self._pull_frames(sample, epoch, opening))
            case Recompute(sample, epoch, last):
                self._spawn(self._recompute(sample, epoch, last))
            case SayVote():
                self.figures.votes += 1
                self._vote(action, now_s)
            case PublishVerdict(one):
                self._lacking.pop(one.verdict.key, None)
                _log.info("sample %s: %s", one.verdict.key[:8], one.verdict.outcome)
                until_s = self._committee.kept_until_s(now_s)
                self._spawn(self._publish(verdict.build(self._keys, one, created_at=now_s, expires_at_s=until_s)))
            case PublishFault(fault):
                _log.warning("oracle %s contradicts itself on %s", fault.oracle, fault.topic)
                self.figures.faults += 1
                self._spawn(self._publish(quorum_certificate.build_fault(self._keys, fault, created_at=now_s)))
            case Convict(culprit, one):
                _log.warning("%s is convicted by sample %s", culprit, one.verdict.key[:8])
                self.figures.convictions += 1
                self._journal.convict(self._digest, culprit, verdict.build(self._keys, one, created_at=now_s))
                self._convict(culprit)

    def _vote(self, action: SayVote, now_s: int) -> None:
        """Record, then publish, what may be said only once; after a restart that is what was recorded before."""
        lacking = self._lacking.get(action.key)
        if action.verdict is not None and lacking is not None and action.verdict.outcome in ("unsure", "withheld"):
            _log.info("sample %s: found %s, for lack of evidence: %s", action.key[:8], action.verdict.outcome, lacking)
        topic = verdict.topic(action.key)
        until_s = self._committee.kept_until_s(now_s)
        event = oracle_round.build_vote(
            self._keys, self._digest, topic, action.x, created_at=now_s, expires_at_s=until_s
        )
        document = action.verdict.to_json() if action.verdict is not None else ""
        try:
            document, event = self._journal.record_vote(self._digest, action.key, action.epoch, document, event)
        except NodewireError as error:
            _log.error("not voting on sample %s: %s", action.key[:8], error)
            return
        self._feed(VoteRecord(action.key, Verdict.parse(document) if document else None))
        self._feed(VoteCame(event))
        self._spawn(self._publish(event))

    async def _pull(self, of: PullOpening) -> None:
        sample, epoch, node, opening = of.sample, of.epoch, of.node, None
        try:
            async with self._pulling.turn(*self._asking(of.key, node)), asyncio.timeout(self._epoch_s):
                opening = await self._evidence.opening(sample, epoch, node)
        except (NodewireError, OSError, TimeoutError) as error:
            self._lacks(of.key, f"the opening of {node[:8]}: {_said(error)}")
        except Exception:  # noqa: BLE001 - a fault in one sample must not end the others
            _log.exception("opening of sample %s by %s: a fault of this software", sample.key[:8], node[:8])
        self._feed(OpeningResult(of.key, node, opening, sample.key if sample.key != of.key else ""))

    async def _pull_frames(self, sample: Sample, epoch: int, opening: Opening) -> None:
        leaves = None
        try:
            turn = self._pulling.turn(*self._asking(sample.key, sample.provider))
            async with turn, asyncio.timeout(self._epoch_s):
                leaves = await self._evidence.frames(sample, epoch, opening)
        except (NodewireError, OSError, TimeoutError) as error:
            self._lacks(sample.key, f"the frames of {sample.provider[:8]}: {_said(error)}")
        except Exception:  # noqa: BLE001 - a fault in one sample must not end the others
            _log.exception("frames of sample %s: a fault of this software", sample.key[:8])
        self._feed(FramesDisclosure(sample.key, leaves))

    async def _recompute(self, sample: Sample, epoch: int, last: bool) -> None:
        computed, beside, equivocation, withheld, unopened = None, None, None, False, None
        try:
            computed, beside = await self._computed(sample, epoch, last)
        except Equivocated as error:
            _log.info("sample %s: %s", sample.key[:8], error)
            equivocation = error.equivocation
        except Unopened as error:
            self._lacks(sample.key, f"an input: {_said(error)}")
            unopened = error.sample
        except Overloaded as error:
            self.figures.overloads += 1
            self._lacks(sample.key, f"own result, overloaded: {_said(error)}", logging.WARNING)
        except (NodewireError, OSError, TimeoutError) as error:
            self._lacks(sample.key, f"own result: {_said(error)}")
            withheld = isinstance(error, Withheld)
        except Exception:  # noqa: BLE001 - a fault in one sample must not end the others
            _log.exception("sample %s is not computed again: a fault of this software", sample.key[:8])
        ended = RecomputeResult(sample.key, None, withheld, equivocation, unopened=unopened)
        if computed is not None:
            root = beside.root() if beside is not None else ""
            ended = RecomputeResult(
                sample.key, computed.leaves, excused=computed.excused, beside=root, reference=computed.reference
            )
        self._feed(ended)

    async def _computed(self, sample: Sample, epoch: int, last: bool) -> tuple[ComputedLeaves, Opening | None]:
        """Fetch the inputs beside other cases' fetches, then compute when it is this case's turn.

        With the verifier's opening that it was computed beside.

        Raises:
            Overloaded: other cases took all of its time, or this machine is too slow.
            NodewireError: as `Evidence`.

        """
        case = self._state.cases.get(sample.key)
        is_bonded = case is not None and case.parties.is_bonded
        rank, caps = self._asking(sample.key, sample.provider)
        if case is not None and case.manifest is not None:
            size = most_input_bytes(case.manifest, sample.task)
            caps += _parted("bytes", MAX_INPUT_BYTES, size, is_bonded)
        async with self._fetching.turn(rank, caps):
            inputs = await self._evidence.inputs(
                sample, epoch, last=last, within_s=self._left_s(epoch, math.inf if is_bonded else STRANGERS_EPOCHS)
            )
            self._feed(InputsDisclosure(sample.key))
            async with self._computing.turn(rank, [Cap("worker", 1)]):
                left_s = self._left_s(epoch, math.inf if is_bonded else 1)
                case = self._state.cases.get(sample.key)
                judged, beside = (case.theirs, case.checked) if case is not None else (None, None)
                return await self._evidence.recompute(inputs, judged=judged, beside=beside, within_s=left_s), beside

    def _asking(self, key: str, node: str) -> tuple[int, list[Cap]]:
        """The rank of a case where its `node` is asked for something, and the shares that bound it."""
        case = self._state.cases.get(key)
        parties = case.parties if case is not None else Parties()
        caps = [
            *_parted("cases", MAX_ASKING, 1, parties.is_bonded),
            Cap(f"provider {node}", MAX_OF_A_PROVIDER),
            Cap(f"customer {parties.customer}", MAX_OF_A_CUSTOMER),
            *(Cap(f"origin {origin}", MAX_OF_AN_ORIGIN) for origin in sorted(parties.origins)),
        ]
        return (0 if parties.is_bonded else 1), caps

    def _left_s(self, epoch: int, epochs: float) -> float:
        """What is left of a sample's time, at most so many epochs. Raises Overloaded: nothing."""
        left_s = (self._committee.close_ms(epoch + OPEN_EPOCHS) - self._now_ms()) / 1000
        if left_s <= 0:
            raise Overloaded("computing here", "its time passed while others were looked into")
        return min(left_s, epochs * self._epoch_s)

    @property
    def _epoch_s(self) -> float:
        return self._committee.epoch_ms / 1000

    def _lacks(self, key: str, what: str, level: int = logging.INFO) -> None:
        """Say to the log, now and when a vote comes of it, what is not to be had for a case."""
        self._lacking[key] = what
        _log.log(level, "sample %s lacks %s", key[:8], what)

    async def _publish(self, event: Event) -> None:
        await self._relays.publish(event)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """What relays refuse is missed: 2f+1 others say the same."""
        try:
            await work
        except (NodewireError, OSError) as error:
            _log.warning("%s", error)

    def _now_ms(self) -> int:
        return int(self._clock.time_s() * 1000)


def _parted(name: str, most: int, amount: int, is_bonded: bool) -> list[Cap]:
    """The cap of all, and for a provider without a bond that of all strangers."""
    caps = [Cap(name, most, amount)]
    return caps if is_bonded else [*caps, Cap(f"strangers' {name}", most // STRANGERS_PART, amount)]


def _said(error: Exception) -> str:
    """The error with its type: some have no words."""
    name = error.code if isinstance(error, NodewireError) else type(error).__name__
    return f"{name}: {error}" if str(error) else name
