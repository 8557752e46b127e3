"""Free keys that stall disputes: real courts, of which each stall takes as much as a stranger can take."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

from nodewire.errors import Withheld
from nodewire.oracle.court.case import EpochDraw, Parties
from nodewire.oracle.court.court import Court
from nodewire.oracle.journal import Journal
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.sample import Sample
from nodewire.verify.inquiry import Overloaded
from nodewire.verify.recomputation import ComputedLeaves, Patience
from tests.oracle.courtroom import MANIFEST, TASK, leaves, opened
from tests.oracle.test_oracle_daemon import Relay
from tests.protocol.committee.actors import GENESIS_S, committee, digest, keys

STALLS, CHEATS = 100, 20
EPOCH_S = 4.0
COMMITTEE, SEATS = committee(f=1, epoch_ms=int(EPOCH_S * 1000), skew_ms=400)


class Clock:
    def __init__(self):
        self.began_s = time.monotonic()

    def time_s(self):
        return GENESIS_S + 2 * EPOCH_S + time.monotonic() - self.began_s

    def monotonic_s(self):
        return time.monotonic()


class Stalling:
    """Evidence as an inquiry has it. A third of the stalls computes on, a third shows no input, a third no opening."""

    can_recompute = True

    def __init__(self, openings, stalls):
        self.openings, self.stalls = (
            openings,
            {sample.request: n % 2 if 3 * n < 2 * STALLS else 2 for n, sample in enumerate(stalls)},
        )
        self.stalled = set()

    async def opening(self, sample, epoch, node):
        if self.stalls.get(sample.request) == 2:
            await self._forever(sample)
        return self.openings[sample.request]

    async def frames(self, sample, epoch, opening):
        return opening.leaves

    async def inputs(self, sample, epoch, *, last, within_s):
        if self.stalls.get(sample.request) == 1:
            try:
                async with Patience(EPOCH_S).on(sample.provider):
                    await self._forever(sample)
            except TimeoutError as error:
                raise Withheld("inputs", "not shown in time") from error
        return sample

    async def recompute(self, inputs, *, judged, beside, within_s):
        if self.stalls.get(inputs.request) == 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._forever(inputs)
            raise Overloaded("computing here", "a stranger's")
        return ComputedLeaves(leaves())

    async def _forever(self, sample):
        self.stalled.add(sample.request)
        await asyncio.Event().wait()


def _sample(who, name, noise):
    request = digest(name)
    shown = opened(who, noise, request=request)
    place = {"task": TASK, "chunk": 1, "attempt": 0}
    return Sample(provider=who.public, request=request, root=shown.root(), verifiers=(), **place), shown


async def test_a_hundred_stalls_by_free_keys_save_no_cheat(tmp_path):
    """The stalls are under way when the cheats are drawn, and of every one an oracle lacks something for an epoch."""
    openings, stalls, cheats = {}, [], []
    for n in range(STALLS + CHEATS):
        mine, name, noise = (stalls, f"stall {n}", 0.0) if n < STALLS else (cheats, f"cheat {n}", 0.5)
        sample, openings[digest(name)] = _sample(keys(name), name, noise)
        mine.append(sample)
    strangers = {one.key: Parties(customer=digest(one.request)) for one in stalls}
    bonded = {one.key: Parties(True, digest("customer")) for one in cheats}
    manifests = {one.request: MANIFEST for one in (*stalls, *cheats)}
    relay, clock = Relay(), Clock()
    market, docket = SimpleNamespace(committee=COMMITTEE), SimpleNamespace(snapshots=dict)
    evidence = [Stalling(openings, stalls) for _ in SEATS]
    async with contextlib.AsyncExitStack() as stack:
        courts = []
        for number, (seat, shown) in enumerate(zip(SEATS, evidence, strict=True)):
            journal = Journal(tmp_path / f"{number}.db")
            stack.callback(journal.close)
            courts.append(Court(seat.keys, relay, market, docket, shown, journal, clock))
        tasks = [asyncio.create_task(court._tick()) for court in courts]
        tasks += [asyncio.create_task(court._listen(said)) for court in courts for said in court._filters()]
        try:
            for court in courts:
                court._feed(EpochDraw(1, digest("b"), tuple(stalls), manifests, {}, parties=strangers))
            async with asyncio.timeout(2 * EPOCH_S):
                while not all(set(one.stalls.values()) == {one.stalls[r] for r in one.stalled} for one in evidence):
                    await asyncio.sleep(EPOCH_S / 100)  # until every way of stalling is under way everywhere
            for court in courts:
                court._feed(EpochDraw(1, digest("c"), tuple(cheats), manifests, {}, parties=bonded))
            done = lambda found: len(_failed(found)) == CHEATS  # noqa: E731
            await relay.until(done, 6 * EPOCH_S)
        finally:
            for task in tasks:
                task.cancel()
            for court in courts:
                for task in court._tasks:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert _failed(relay.stored.values()) == {one.provider for one in cheats}


def _failed(found):
    events = [one for one in found if one.kind == verdict.KIND and one.tag("n").startswith("verdict/")]
    said = [verdict.parse(one).verdict for one in events]
    return {one.provider for one in said if one.outcome == "fail"}
