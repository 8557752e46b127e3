"""The oracle's daemon: relays, blobs, clock and journal around `rules.apply`. It decides nothing itself."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from nodewire.core.loop_turn import LoopTurn, in_slices
from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError
from nodewire.nostr.nips.nip01 import Filter
from nodewire.oracle.committee import rules
from nodewire.oracle.committee.fetches import Fetches
from nodewire.oracle.committee.intake import JUDGED_EPOCHS, KEPT_CERTIFICATES
from nodewire.oracle.committee.node_places import MAX_WAITING
from nodewire.oracle.committee.state import (
    Action,
    BlobCame,
    Conviction,
    Derive,
    FetchBlob,
    FetchCertificates,
    FetchEvents,
    Input,
    KeepBlob,
    KeepEvent,
    KeepSnapshot,
    KeepVerdict,
    PublishCertificate,
    PublishFault,
    PublishPartial,
    SayInventory,
    SayProposal,
    SaySupply,
    SayVote,
    State,
    Tick,
    VerifiedEvent,
    start,
)
from nodewire.oracle.committee.tenure import tenured
from nodewire.oracle.court.counters import OracleFigures
from nodewire.protocol.committee import beacon, commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee import committee as _committee
from nodewire.protocol.committee.committee import VALID_EPOCHS, Committee
from nodewire.protocol.encoding import tags as _tags
from nodewire.protocol.market import bond, heartbeat
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

    from nodewire.kind import Clock
    from nodewire.nostr.event import Event
    from nodewire.nostr.relays import Relays
    from nodewire.oracle.committee.derivation import Derivation
    from nodewire.oracle.journal import Journal
    from nodewire.oracle.setup import Seat
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.verification.verdict import Verdict

_log = logging.getLogger(__name__)
MAX_ASKING = 16_384
"""Certified verdicts of which it is not known yet whether they may be listed: a dozen epochs' full draws."""

_FETCHES = 16
_STRANGERS_FETCHES = 4
"""Fetches at a time of events for nodes without a bond."""
_MAX_WANTED = 16_384
_COLLECTED_INPUTS = 1_024
"""After so many the garbage collector looks at what they left (`oracle.committee.tenure`)."""
_MOST_WAITING = 64
"""Of what has come and is not applied yet; more is left to the relays' links."""
_BLOBS_TOGETHER = 4
"""Commitments' blobs, at most 8 MiB each, that are fetched at a time."""
_PUTS_TOGETHER = 2
"""Of what is kept for others: stores take few uploads at a time, and all oracles keep the same at once."""


class Blobs(Protocol):
    """Where snapshots are kept (`nodewire.store.blobs`). `get` checks the hash; `own`: put also where it is already."""

    async def put(self, source: bytes, *, own: bool = False) -> object: ...

    async def get(self, blob: str, max_bytes: int) -> Path: ...


async def _always(said: Verdict) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Readers:
    """Others in this process who read what the committee certifies; they ask no relay and no store for it."""

    keep: Callable[[Event], None] = lambda event: None
    """Gets each event that may be certified."""
    keep_snapshot: Callable[[str, Snapshot], None] = lambda sha256, snapshot: None
    """Gets, with its SHA-256, each snapshot that this oracle votes for."""


NOBODY = Readers()


class Oracle:
    """One oracle at work. `await run()` until cancelled.

    Args:
        seat: the oracle's secrets (`setup.load_seat`).
        journal: its record of what it has said; must outlive restarts.
        counts: whether what a certified verdict says of a provider may be listed (`oracle.court.shares`).
        readers: who else reads here what the committee certifies.

    """

    def __init__(
        self,
        seat: Seat,
        committee: Committee,
        relays: Relays,
        blobs: Blobs,
        journal: Journal,
        clock: Clock,
        counts: Callable[[Verdict], Awaitable[bool]] = _always,
        readers: Readers = NOBODY,
    ) -> None:
        oracle = committee.oracle(seat.keys.public)
        if oracle is None:
            raise BadConfig("seat", "not an oracle of this committee")
        self._keys, self._share, self._index = seat.keys, seat.share, oracle.share_index
        self._committee, self._digest = committee, committee.digest()
        self._relays, self._blobs, self._journal, self._clock = relays, blobs, journal, clock
        self._keep, self._counts, self._keep_snapshot = readers.keep, counts, readers.keep_snapshot
        self.figures = OracleFigures()
        self._asking: set[str] = set()
        self._fetching_commitments = asyncio.Semaphore(_BLOBS_TOGETHER)
        self._putting = asyncio.Semaphore(_PUTS_TOGETHER)
        self._state = self._begun(0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._inbox = asyncio.Queue[Input](_MOST_WAITING)
        self._urgent = Fetches(self._fetch_ids, self._spawn, at_a_time=_FETCHES, most=_MAX_WANTED)
        self._strangers = Fetches(self._fetch_ids, self._spawn, at_a_time=_STRANGERS_FETCHES, most=MAX_WAITING)

    @property
    def state(self) -> State:
        """What the oracle knows now."""
        return self._state

    def expel(self, pubkey: str) -> None:
        """List this node no more: a certified verdict, which the journal has, convicts it."""
        self._spawn(self._inbox.put(Conviction(pubkey)))

    async def run(self) -> None:
        """Announce the committee, then follow the rules until cancelled.

        Raises:
            ExceptionGroup of LinkLost: every relay has ended the subscription; a supervisor starts the oracle again.

        """
        with tenured():
            await self._run()

    async def _run(self) -> None:
        now_s = int(self._clock.time_s())
        self._spawn(self._publish(_committee.build(self._keys, self._committee, created_at=now_s)))
        # who leads a round must know what was certified before; with all relays silent, it goes on without
        self._state = self._begun(self._now_ms())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._apply())
                await self._guarded(self._fetch(self._newest_certificates()))
                self._spawn(self._fetch_bonds())
                for filters in self._filters():
                    group.create_task(self._listen(filters))
                group.create_task(self._tick())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begun(self, now_ms: int) -> State:
        begun = start(self._committee, self._keys.public, now_ms)
        journal = self._journal
        return replace(begun, convicted=journal.convicted(self._digest), judged=journal.judged(self._digest))

    def _filters(self) -> list[list[Filter]]:
        """Filters, each list for a subscription of its own: strangers' events crowd no oracle's out of a queue."""
        since, long_since = (
            int(self._clock.time_s()) - epochs * self._committee.epoch_ms // 1000 - 1
            for epochs in (VALID_EPOCHS + 1, JUDGED_EPOCHS)
        )
        ours, oracles = {"c": {self._digest}}, {oracle.pubkey for oracle in self._committee.oracles}
        known = [Filter(kinds={oracle_round.KIND, quorum_certificate.KIND}, authors=oracles, tags=ours, since=since)]
        if self._committee.bond_holders:
            known.append(Filter(kinds={bond.KIND}, authors=set(self._committee.bond_holders), since=since))
        anybodys = Filter(kinds={quorum_certificate.KIND}, tags=ours, since=long_since)  # of epochs, and of verdicts
        return [known, [anybodys], [Filter(kinds={heartbeat.KIND, commitment.KIND}, tags=ours, since=since)]]

    async def _listen(self, filters: Sequence[Filter]) -> None:
        async for event in self._relays.subscribe(filters):
            if event.kind == quorum_certificate.KIND and (event.tag("n") or "").startswith(verdict.topic("")):
                self._verdict_came(event)
                await asyncio.sleep(0)
            else:
                await self._inbox.put(VerifiedEvent(event))
        raise LinkLost("relays", "every relay has ended the subscription")

    def _verdict_came(self, event: Event) -> None:
        """Have a certified verdict listed, if it may be; that is looked into once, whoever publishes it how often."""
        try:
            one = verdict.parse(event)
            if one.verdict.key in self._state.judged or one.verdict.key in self._asking:
                return
            one.check(self._committee)
        except BadInput:
            return
        if len(self._asking) < MAX_ASKING:
            self._asking.add(one.verdict.key)
            self._spawn(self._count(event, one.verdict))

    async def _count(self, event: Event, said: Verdict) -> None:
        try:
            if await self._counts(said):
                await self._inbox.put(VerifiedEvent(event))
        finally:
            self._asking.discard(said.key)

    async def _tick(self) -> None:
        while True:
            await self._inbox.put(Tick(self._now_ms()))
            await asyncio.sleep(self._committee.skew_ms / 4000)

    async def _apply(self) -> None:
        """Apply what comes, one input after the other, and leave the loop to others after each slice."""
        turn, applied = LoopTurn(), 0
        while True:
            what = await self._inbox.get()
            # time moves with every input, so that an event is judged by when it came
            if isinstance(what, VerifiedEvent) and self._now_ms() > self._state.now_ms + self._committee.skew_ms:
                await self._move(Tick(self._now_ms()), turn)
            await self._move(what, turn)
            applied += 1
            if applied % _COLLECTED_INPUTS == 0:
                await turn.give_up()
                gc.collect()  # a beat takes the place of an old one, so nothing else would
            if turn.is_over:
                await turn.give_up()

    async def _move(self, what: Input, turn: LoopTurn) -> None:
        before = self._state
        self._state, actions = await in_slices(rules.sliced(what, before), turn)
        self.figures.moved(before, self._state)
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Derive(work):
                self._spawn(self._derive(work))
            case KeepSnapshot() | KeepVerdict() | KeepEvent() | KeepBlob():
                self._keep_record(action)
            case FetchEvents() | FetchCertificates() | FetchBlob():
                self._look_up(action)
            case SayInventory() | SayProposal() | SayVote() | PublishPartial():
                self._say_once(action)
            case SaySupply() | PublishCertificate() | PublishFault():
                self._pass_on(action)

    def _say_once(self, action: SayInventory | SayProposal | SayVote | PublishPartial) -> None:
        """What an oracle may say but once of a round."""
        now_s = int(self._clock.time_s())
        until_s = self._committee.kept_until_s(now_s)
        match action:
            case SayInventory(document):
                event, blob = oracle_round.build_inventory(self._keys, document, created_at=now_s, expires_at_s=until_s)
                self._say("inventory", document.epoch, event, blob)
            case SayProposal(body, blob):
                event = oracle_round.build_proposal(self._keys, body, created_at=now_s, expires_at_s=until_s)
                self._say("proposal", body.epoch, event, blob)
            case SayVote(topic, x):
                self.figures.votes += 1
                event = oracle_round.build_vote(
                    self._keys, self._digest, topic, x, created_at=now_s, expires_at_s=until_s
                )
                self._say("vote", int(topic.removeprefix("epoch/")), event, None)
            case PublishPartial(body):
                event = beacon.build(self._keys, body, self._index, self._share, created_at=now_s, expires_at_s=until_s)
                self._say("partial", body.epoch, event, None)

    def _pass_on(self, action: SaySupply | PublishCertificate | PublishFault) -> None:
        """What others have signed, however often."""
        now_s = int(self._clock.time_s())
        until_s = self._committee.kept_until_s(now_s)
        match action:
            case SaySupply(epoch, events):
                for event in oracle_round.build_supply(
                    self._keys, self._digest, epoch, events, created_at=now_s, expires_at_s=until_s
                ):
                    self._spawn(self._publish(event))
            case PublishCertificate(one):
                _log.info("epoch %d certified: %s", one.body.epoch, one.digest)
                self._spawn(
                    self._publish(quorum_certificate.build(self._keys, one, created_at=now_s, expires_at_s=until_s))
                )
            case PublishFault(fault):
                _log.warning("oracle %s contradicts itself on %s", fault.oracle, fault.topic)
                self.figures.faults += 1
                self._spawn(self._publish(quorum_certificate.build_fault(self._keys, fault, created_at=now_s)))

    def _keep_record(self, action: KeepSnapshot | KeepVerdict | KeepEvent | KeepBlob) -> None:
        match action:
            case KeepSnapshot(sha256, snapshot, blob):
                self._keep_snapshot(sha256, snapshot)
                self._spawn(self._put_if_absent(blob))
            case KeepVerdict(judged):
                self._journal.keep_judged(self._digest, judged, self._state.epoch - JUDGED_EPOCHS)
            case KeepEvent(event):
                self._keep(event)
                self._spawn(self._put(event.hashed()))
            case KeepBlob(data):
                self._spawn(self._put(data))

    def _look_up(self, action: FetchEvents | FetchCertificates | FetchBlob) -> None:
        match action:
            case FetchEvents(ids, is_urgent):
                (self._urgent if is_urgent else self._strangers).add(ids)
            case FetchCertificates():
                self._spawn(self._fetch(self._newest_certificates()))
            case FetchBlob(sha256, max_bytes, is_urgent=True):
                self._spawn(self._fetch_blob(sha256, max_bytes))
            case FetchBlob(sha256, max_bytes):
                self._spawn(self._fetch_in_turn(sha256, max_bytes))

    def _say(self, saying: str, epoch: int, event: Event, blob: bytes | None) -> None:
        """Record, then publish, what may be said only once; after a restart that is what was recorded before."""
        try:
            recorded = self._journal.record(self._digest, saying, epoch, event.tag("x") or "", event)
        except NodewireError as error:
            _log.error("not saying a second %s for epoch %d: %s", saying, epoch, error)
            return
        self._spawn(self._store_and_publish(recorded, blob))

    async def _store_and_publish(self, event: Event, blob: bytes | None) -> None:
        if blob is not None:
            await self._blobs.put(blob)
        await self._inbox.put(VerifiedEvent(event))
        await self._publish(event)

    async def _publish(self, event: Event) -> None:
        await self._relays.publish(event)

    async def _fetch_ids(self, ids: set[str]) -> None:
        await self._guarded(self._fetch([Filter(ids=ids)]))

    async def _fetch(self, filters: Sequence[Filter]) -> None:
        await self._feed_all(await self._relays.fetch(filters))

    async def _feed_all(self, events: Sequence[Event]) -> None:
        for event in events:
            await self._inbox.put(VerifiedEvent(event))

    async def _fetch_bonds(self) -> None:
        """Learn whom a bond backs: nobody else is sure of a place among strangers."""
        if self._committee.bond_holders:
            holders = Filter(kinds={bond.KIND}, authors=set(self._committee.bond_holders))
            await self._feed_all(await self._relays.fetch_all([holders]))

    async def _derive(self, work: Derivation) -> None:
        derived = await in_slices(work.sliced())
        self.figures.refused_observations += derived.refused
        await self._inbox.put(derived)

    async def _put_if_absent(self, data: bytes) -> None:
        """A leader that hides its snapshot hides nothing: whoever votes for one has it."""
        async with self._putting:
            await self._blobs.put(data)

    async def _put(self, data: bytes) -> None:
        async with self._putting:
            await self._blobs.put(data, own=True)

    async def _fetch_in_turn(self, sha256: str, max_bytes: int) -> None:
        async with self._fetching_commitments:
            await self._fetch_blob(sha256, max_bytes)

    async def _fetch_blob(self, sha256: str, max_bytes: int) -> None:
        path = await self._blobs.get(sha256, max_bytes)
        data = await asyncio.to_thread(path.read_bytes)
        await self._inbox.put(BlobCame(sha256, data))

    def _newest_certificates(self) -> list[Filter]:
        ours, epoch = {"c": {self._digest}}, self._committee.epoch_at(self._now_ms())
        recent = {_tags.epoch_topic(n) for n in range(max(epoch - KEPT_CERTIFICATES, 0), epoch + 1)}
        return [  # of a kind with these are the certificates of verdicts, and there may be many
            Filter(kinds={quorum_certificate.KIND}, tags={**ours, "n": recent}),
            Filter(kinds={quorum_certificate.KIND}, tags=ours, limit=KEPT_CERTIFICATES),
        ]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """What relays and blob servers refuse is asked again by the rules, or missed: an epoch is only ever skipped."""
        try:
            await work
        except (NodewireError, OSError) as error:
            _log.warning("%s", error)

    def _now_ms(self) -> int:
        return int(self._clock.time_s() * 1000)
