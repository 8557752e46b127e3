"""One oracle of a large market, on its own event loop: what an epoch costs it, and whom strangers can crowd out.

What is real: the daemon, the rules, signatures, inventories as blobs, the derivation in its thread. What is not: the
relay and the store are in this process, and the three other oracles say what this one says. Time is this process's work
(`own_machine`), so neighbours change nothing.

epoch: 4,096 nodes of up to 100 tasks beat every 3 s. CPU of one epoch of 10 s, and how late the loop ever is.
crowd: 8,192 new keys beat at once among 100 bonded nodes, all with work as chance gives it; then a bonded one comes.
    Four oracles; once each hears all, in its own order, and once each loses 30 % of the beats.
growth: what a day leaves on relays for good, and what lies there at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from bench.report import Report, run
from bench.tools import own_machine
from nodewire.nostr.event import Event, sign, verify
from nodewire.nostr.nips import nip40
from nodewire.nostr.nips.nip01 import Filter
from nodewire.oracle.committee.state import Action, SayInventory, VerifiedEvent
from nodewire.oracle.daemon import Oracle
from nodewire.oracle.journal import Journal
from nodewire.oracle.setup import Seat
from nodewire.protocol import kinds
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.committee.committee import KEPT_EPOCHS, Committee
from nodewire.protocol.committee.oracle_round import InventoryEvent, Proposal
from nodewire.protocol.market import snapshot
from processes.progress import say
from tests.oracle.sky import Sky
from tests.oracle.test_oracle_growth import COMMITTEE_KINDS, market
from tests.protocol.committee.actors import GENESIS_S, HOLDER, Provider, committee, digest
from tests.protocol.committee.actors import Seat as Dealt

CPU_S, LAG_MS, DAY_MB = 3.0, 200.0, 20.0
BEATS_AN_EPOCH = 10 / 3
"""Of each node."""
LED = 4
"""The measured epoch: the oracle leads it, and the nodes' ads have come long before."""


class LoopClock:
    """Unix time that goes as the loop's."""

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s

    def start(self) -> None:
        self._start_s -= asyncio.get_running_loop().time()

    def time_s(self) -> float:
        return self._start_s + asyncio.get_running_loop().time()

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def until(self, at_ms: int) -> None:
        await asyncio.sleep(max(0.0, at_ms / 1000 - self.time_s()))


class Store:
    """Blobs of this process, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, source: bytes, *, own: bool = False) -> None:
        await asyncio.to_thread((self._folder / snapshot.sha256(source)).write_bytes, source)

    async def get(self, blob: str, max_bytes: int) -> Path:
        return self._folder / blob


class Relay:
    """What the oracle hears: beats that were signed before, ads and statements by id, and three oracles that agree."""

    def __init__(self, ours: Committee, others: Sequence[Dealt], stored: dict[str, Event]) -> None:
        self._committee, self._others, self._stored = ours, others, stored
        self.inbox: asyncio.Queue[Event] = asyncio.Queue()
        self.certified: list[int] = []

    async def subscribe(self, filters: Sequence[Filter]) -> AsyncIterator[Event]:
        while True:
            event = await self.inbox.get()
            verify(event)  # as the pool does, once
            yield event

    async def fetch(self, filters: Sequence[Filter]) -> list[Event]:
        await asyncio.sleep(0.02)
        return [self._stored[id_] for one in filters for id_ in one.ids or () if id_ in self._stored]

    async def fetch_all(self, filters: Sequence[Filter]) -> list[Event]:
        return [event for event in self._stored.values() if event.kind == kinds.BOND]

    async def publish(self, event: Event) -> None:
        if event.kind == kinds.CERTIFICATE:
            self.certified.append(int((event.tag("n") or "").removeprefix("epoch/")))
        if event.kind != kinds.INVENTORY or event.tag("t") not in ("inventory", "proposal"):
            return
        said = oracle_round.parse(event)
        for seat in self._others:
            tags = [tag for tag in event.tags if tag[0] != "e"]
            if isinstance(said, InventoryEvent):
                self.inbox.put_nowait(_signed(seat, event, tags))
            elif isinstance(said, Proposal):
                topic = event.tag("n") or ""
                vote = oracle_round.build_vote(
                    seat.keys, said.body.committee, topic, said.x, created_at=event.created_at
                )
                self.inbox.put_nowait(vote)


def _signed(seat: Dealt, event: Event, tags: Sequence[tuple[str, ...]]) -> Event:
    return sign(seat.keys, event.kind, created_at=event.created_at, content=event.content, tags=tags)


def _epoch_alone(report: Report, nodes: int, tasks: int, epoch_ms: int, seed: int) -> None:
    own_machine.run(_epoch(report, nodes, tasks, epoch_ms, seed))


async def _epoch(report: Report, nodes: int, tasks: int, epoch_ms: int, seed: int) -> None:
    start_s = GENESIS_S
    ours, seats = committee(
        bond_holders=(HOLDER.public,),
        genesis_s=start_s,
        epoch_ms=epoch_ms,
        skew_ms=epoch_ms // 5,
        beat_ms=3 * epoch_ms // 10,
    )
    providers = _providers(ours, nodes, tasks, Random(seed))
    stored = {event.id: event for one in providers for event in (one.ad, one.bond) if event is not None}
    with TemporaryDirectory() as folder:
        (Path(folder) / "blobs").mkdir()
        relay = Relay(ours, seats[1:], stored)
        journal = Journal(Path(folder) / "journal.db")
        seat = Seat(seats[0].keys, seats[0].share)
        clock = LoopClock(start_s - 1)
        oracle = Oracle(seat, ours, relay, Store(Path(folder) / "blobs"), journal, clock)
        beats = _beats(providers)
        say(f"{nodes} nodes of up to {tasks} tasks")
        clock.start()
        probe = LoopProbe()
        running = [asyncio.create_task(one) for one in (oracle.run(), probe.run(), _beat(ours, relay, beats, clock))]
        try:
            await clock.until(ours.close_ms(LED))
            before_s, first = time.process_time(), len(probe.lags_ms)
            await clock.until(ours.close_ms(LED + 1))
            load = EpochLoad(
                time.process_time() - before_s,
                max(probe.lags_ms[first:], default=0.0),
                max(probe.turns_ms[first:], default=0.0),
                max(probe.turns_ms, default=0.0),
            )
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            journal.close()
        last = oracle.state.certified[-1].body if oracle.state.certified else None
        listed = len(oracle.state.snapshots[last.snapshot].nodes) if last is not None else 0
    report.arms["epoch"] = {
        "nodes": nodes,
        "tasks": tasks,
        "epoch_s": epoch_ms / 1000,
        **load.rounded(),
        "certified_epochs": sorted(set(relay.certified)),
        "nodes_in_the_last_snapshot": listed,
    }
    report.line(
        "the measured epoch is certified with all nodes", listed if last and last.epoch == LED else 0, "==", nodes
    )
    report.line("CPU of an epoch (s)", round(load.cpu_s, 2), "<=", CPU_S)
    report.line("the loop is never later than (ms)", round(load.worst_lag_ms, 1), "<=", LAG_MS)
    report.line("the loop's own work between two turns (ms of CPU)", round(load.turn_ms, 1), "<=", LAG_MS)


def _providers(ours: Committee, nodes: int, tasks: int, chance: Random) -> list[Provider]:
    """A quarter of them with all tasks, the others with a quarter of these; every second one has a bond."""
    names = [f"stage.{n}" for n in range(tasks)]
    providers = []
    for n in range(nodes):
        own = names if n % 4 == 0 else chance.sample(names, max(1, tasks // 4))
        offers = [(name, chance.randint(500, 2_000), chance.randint(300, 3_000)) for name in own]
        bond_msat = 10**8 if n % 2 else 0
        providers.append(Provider(f"s{n}", ours, {digest("model"): (offers, 4)}, bond_msat=bond_msat))
    return providers


def _beats(providers: Sequence[Provider]) -> dict[int, list[Event]]:
    """By epoch, signed ahead: that is not the oracle's work."""
    number = int(len(providers) * BEATS_AN_EPOCH)
    beats = {}
    for epoch in range(LED + 2):
        beats[epoch] = [one.beat(epoch, load_ppm=k) for k in range(4) for one in providers][:number]
    return beats


@dataclass(frozen=True, slots=True)
class EpochLoad:
    """What the measured epoch cost: CPU of this process in seconds, and of the loop in milliseconds."""

    cpu_s: float
    worst_lag_ms: float
    turn_ms: float
    """The loop's longest turn, of CPU."""
    turn_since_start_ms: float

    def rounded(self) -> dict[str, float]:
        """As the report names them."""
        return {
            "cpu_s": round(self.cpu_s, 2),
            "worst_lag_ms": round(self.worst_lag_ms, 1),
            "longest_turn_cpu_ms": round(self.turn_ms, 1),
            "longest_turn_cpu_ms_since_start": round(self.turn_since_start_ms, 1),
        }


class LoopProbe:
    """How late the loop is, and what of that was work of its own thread, in milliseconds, every 10 ms."""

    def __init__(self) -> None:
        self.lags_ms: list[float] = []
        self.turns_ms: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            loop = asyncio.get_running_loop()
            before_s, before_cpu_s = loop.time(), time.thread_time()
            await asyncio.sleep(0.01)
            self.lags_ms.append((loop.time() - before_s - 0.01) * 1000)
            self.turns_ms.append((time.thread_time() - before_cpu_s) * 1000)


async def _beat(ours: Committee, relay: Relay, beats: dict[int, list[Event]], clock: LoopClock) -> None:
    """Every epoch's beats, evenly over the epoch."""
    for epoch, events in beats.items():
        start_ms = ours.close_ms(epoch - 1)
        await clock.until(start_ms)
        sent = 0
        while sent < len(events):
            due = int(len(events) * min(1.0, (clock.time_s() * 1000 - start_ms) / (ours.epoch_ms * 0.95)))
            for event in events[sent:due]:
                relay.inbox.put_nowait(event)
            sent = max(sent, due)
            await asyncio.sleep(0.01)


class TimedSky(Sky):
    """Counts what each oracle computes in an epoch, signatures among it."""

    cpu_s: dict[tuple[int, str], float]
    listed: dict[tuple[int, str], set[str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cpu_s, self.listed = {}, {}

    def _feed(self, pubkey: str, what: object) -> None:
        before_s = time.process_time()
        if isinstance(what, VerifiedEvent):
            verify(what.event)  # as the pool does, once
        super()._feed(pubkey, what)
        key = self.committee.epoch_at(self.now_ms), pubkey
        self.cpu_s[key] = self.cpu_s.get(key, 0.0) + time.process_time() - before_s

    def _do(self, seat: Dealt, action: Action) -> None:
        if isinstance(action, SayInventory):
            self.listed[action.inventory.epoch, seat.keys.public] = set(action.inventory.bonded)
        super()._do(seat, action)


def _crowd(report: Report, bonded: int, free: int, lost_percent: int, seed: int) -> None:
    """In each of six epochs all beat at once; each oracle loses others of the beats. In the fourth, a node comes."""
    held = {digest("model"): ([("driver", 10, 500)], 2)}
    ours, seats = committee(bond_holders=(HOLDER.public,), epoch_ms=10_000, skew_ms=2_000, beat_ms=3_000)
    sky = TimedSky(ours, seats, seed)
    good = [Provider(f"bonded-{n}", ours, held, bond_msat=10**8) for n in range(bonded)]
    strangers = [Provider(f"free-{n}", ours, held) for n in range(free)]
    newcomer, comes, epochs = Provider("newcomer", ours, held, bond_msat=10**8), 3, 6
    for one in (*good, newcomer, *strangers):
        sky.stored[one.ad.id] = one.ad
    for epoch in range(epochs):
        known = [state.certified[-1] for state in sky.states.values() if state.certified]
        last = max(known, key=lambda one: one.body.epoch).digest if known else None
        everybody = [*strangers, *good, *([newcomer] if epoch >= comes else [])]
        sky.random.shuffle(everybody)
        for one in everybody:
            if one.bond is not None and one.bond.id not in sky.stored:
                sky.publish(one.bond)
        for number in range(3):
            for one in everybody if number == 0 else [one for one in everybody if one.bond is not None]:
                hearing = [pubkey for pubkey in sky.states if sky.random.randrange(100) >= lost_percent]
                sky.publish(one.beat(epoch, last, load_ppm=number), hearing)
            sky.run_to(min(sky.now_ms + ours.beat_ms, ours.close_ms(epoch)), step_ms=500)
        sky.run_to(ours.close_ms(epoch), step_ms=500)
        used_s = max(s for (at, _), s in sky.cpu_s.items() if at == epoch)
        say(f"crowd, {lost_percent} % lost: certified {sorted(sky.certificates())}, CPU {used_s:.2f} s")
    certified = {one.body.epoch: one.body for state in sky.states.values() for one in state.certified}
    of = {event.id: event.pubkey for event in sky.stored.values()}
    backed = {one.keys.public for one in good}
    fewest = min(len({of[id_] for id_ in ids} & backed) for ids in sky.listed.values())
    snapshots = {epoch: snapshot.unpack(sky.blobs[body.snapshot], body.snapshot) for epoch, body in certified.items()}
    in_all = min((sum(found.node(pubkey) is not None for pubkey in backed) for found in snapshots.values()), default=0)
    after = [
        epoch - comes + 1 for epoch in sorted(snapshots) if snapshots[epoch].node(newcomer.keys.public) is not None
    ]
    cpu_s = max(sky.cpu_s.values())
    name = "crowd" if not lost_percent else f"crowd, {lost_percent} % lost"
    report.arms[name] = {
        "bonded": bonded,
        "free": free,
        "certified_epochs": sorted(certified),
        "crowded_epochs": [epoch for epoch, body in sorted(certified.items()) if body.is_crowded],
        "nodes_in_snapshots": [len(snapshots[epoch].nodes) for epoch in sorted(snapshots)],
        "bonded_listed_by_every_oracle": fewest,
        "bonded_in_every_snapshot": in_all,
        "epochs_to_a_bonded_newcomer": after[:1],
        "cpu_s": [round(max(s for (at, _), s in sky.cpu_s.items() if at == epoch), 2) for epoch in range(epochs)],
        "crowded_out": min(state.crowded_out for state in sky.states.values()),
    }
    report.line(f"{name}: epochs without a certificate", epochs - 1 - len(certified), "==", 0)
    if not lost_percent:
        report.line(f"{name}: bonded nodes that every oracle lists in each epoch", fewest, "==", bonded)
    report.line(f"{name}: bonded nodes in every snapshot", in_all, "==", bonded)
    report.line(f"{name}: epochs until a bonded newcomer is in a snapshot", (after or [99])[0], "<=", 3)
    report.line(f"{name}: CPU of an epoch (s)", round(cpu_s, 2), "<=", CPU_S)


def _growth(report: Report, providers: int, epochs: int) -> None:
    sky = market(providers, epochs)
    events = [event for event in sky.stored.values() if event.kind in COMMITTEE_KINDS]
    sizes = [(len(event.to_json()), nip40.parse(event.tags) is None) for event in events]
    scale = 300 / providers / epochs
    stays = sum(size for size, is_for_good in sizes if is_for_good) * scale * 8_640 / 1e6
    lies = sum(size for size, is_for_good in sizes if not is_for_good) * scale * KEPT_EPOCHS / 1e6
    blobs = sum(map(len, sky.blobs.values())) * scale * 8_640 / 1e9
    report.arms["growth"] = {
        "providers": 300,
        "for_good_mb_a_day": round(stays, 2),
        "on_a_relay_at_any_time_mb": round(lies),
        "blobs_gb_a_day": round(blobs, 1),
    }
    report.line("what a day of 300 providers leaves for good (MB)", round(stays, 2), "<=", DAY_MB)


async def measure(report: Report, options: argparse.Namespace) -> None:
    quick = options.quick
    if options.only in ("", "growth"):
        _growth(report, 30 if quick else 300, 4)
    if options.only in ("", "crowd"):
        for lost_percent in (0, 30):
            _crowd(report, 20 if quick else 100, 400 if quick else 8_192, lost_percent, options.seed)
    if options.only in ("", "epoch"):
        await asyncio.to_thread(
            _epoch_alone,
            report,
            200 if quick else 4_096,
            10 if quick else 100,
            2_000 if quick else 10_000,
            options.seed,
        )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", choices=["", "epoch", "crowd", "growth"], help="one arm")


if __name__ == "__main__":
    run("oracle_scale", __doc__, measure, add=_options)
