"""Who trains: ads read from relays, and the shards of a round dealt to their providers."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.nostr.nips import nip40
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.protocol import kinds
from nodewire.protocol.model.families import HEADER_BYTES
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.protocol import outer_step, trainer_ad
from nodewire.training.protocol.round import MAX_ASSIGNED
from nodewire.training.protocol.trainer_ad import TOPIC, Trainer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nodewire.nostr.pool import Pool
    from nodewire.training.customer.policy.expected_cost import Record
    from nodewire.training.protocol.recipe import Recipe

_FETCH_S = 10.0
DEARER = 1.5
SLOWER = 2.0
"""So many times as dear as the best that is free, or as slow as another of no higher price and as most, is who loses a
shard: shards that hop are fetched anew each time."""

MOST_DEPOSIT_PPM = 500_000
"""The most of a price that is paid before the work: who wants all of it has nothing to lose by doing none."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one shard's provider must have room for."""

    kind: int
    family: str
    memory_bytes: int
    blob_bytes: int
    gflop: int


@dataclass(frozen=True, slots=True)
class Speeds:
    """What is known of how fast trainers are, by public key."""

    measured_us: Mapping[str, float] = field(default_factory=dict)
    """Of those who have delivered, what a step took."""
    each_us: Mapping[str, float] = field(default_factory=dict)
    """Of all, what a step takes, as far as can be known."""
    late: Collection[str] = ()
    """Who would miss the deadline, as far as can be known; they are asked when nobody else is left."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Who is not asked, or not before others."""

    failed: frozenset[str] = frozenset()
    """Who has failed in this round, or may not train any more."""
    silent: frozenset[str] = frozenset()
    """Who has not answered lately (`unresponsive`); they are asked where all others together get no shard."""
    is_last_resort: bool = True
    """Whether they are asked then; not while somebody is at a shard who may be free later."""


NOBODY = Exclusion()
UNKNOWN_SPEEDS = Speeds()


def need_of(recipe: Recipe, kind: int, *, shard_bytes: int, weights_bytes: int, gflop: int) -> Need:
    """Of a shard, and of the largest of the blobs with weights."""
    memory = max(recipe.round_bytes(shard_bytes), recipe.hardware.memory_bytes)
    return Need(kind, recipe.family.name, memory, max(shard_bytes, weights_bytes), gflop)


def step_need_of(recipe: Recipe, inputs: int, *, updates_bytes: int = 0) -> Need:
    """What the provider of an outer step must have room for; `updates_bytes` is the largest of its inputs."""
    return Need(
        kind=kinds.OUTER,
        family=recipe.family.name,
        memory_bytes=outer_step.memory_bytes(recipe, inputs),
        blob_bytes=max(most_bytes(recipe, max(1, outer_step.momenta_rows(recipe))), updates_bytes),
        gflop=outer_step.work_gflop(recipe, inputs),
    )


def most_bytes(recipe: Recipe, rows: int) -> int:
    """Of a ciphertext of so many numbers for each of theta's."""
    return sealed_bytes(rows * (recipe.state_bytes() + HEADER_BYTES * (len(recipe.shapes()) + 1)))


async def trainers(pool: Pool) -> dict[str, Trainer]:
    """The newest ad of everybody who trains, by public key; malformed and expired ones are left out.

    Raises:
        RelayRefused, TimedOut: no relay answers.

    """
    wanted = Filter(kinds=frozenset({kinds.AD}), tags={"t": frozenset({TOPIC})})
    found: dict[str, Trainer] = {}
    expired: set[str] = set()
    for event in sorted(await pool.fetch([wanted], timeout_s=_FETCH_S), key=newest_first):
        if event.pubkey in expired:
            continue
        try:
            if event.pubkey not in found and nip40.is_expired(event.tags, int(time.time())):
                expired.add(event.pubkey)  # a relay may still have the one before it
                continue
            found.setdefault(event.pubkey, trainer_ad.parse(event))
        except NodewireError:
            continue
    return found


def deal(
    needs: Mapping[int, Need],
    market: Mapping[str, Trainer],
    *,
    busy: Counter[str],
    before: Mapping[int, str],
    record: Record,
    speeds: Speeds = UNKNOWN_SPEEDS,
    exclusion: Exclusion = NOBODY,
) -> dict[int, str]:
    """A provider for every shard, as far as some have room.

    It is the one that had it before, or whose useful results are expected to cost least (`expected_cost`), the faster
    of equals.

    Speed counts where the deadline does not allow for it, or as far as two cost the same. Who had a shard keeps it
    unless another is better by far.

    Args:
        needs: by shard, what its provider must have room for.
        market: the ads, by public key.
        busy: how many shards each is at already.
        before: who had each shard in the round before.
        record: what came of earlier shards, and so what a useful result is expected to cost.
        speeds: who is quick and who would be late.
        exclusion: who is not asked.

    """
    dealer = _Dealer(market, record, speeds, exclusion, Counter(busy))
    silent = exclusion.silent
    if silent and exclusion.is_last_resort:
        others = [public for public in market if public not in silent]
        if not any(dealer.is_free(public, need) for need in needs.values() for public in others):
            silent = frozenset()
    whom = [public for public in market if public not in silent]
    dealt: dict[int, str] = {}
    kept = [index for index in needs if before.get(index) in market]
    for index in [*kept, *(index for index in needs if index not in kept)]:
        best = dealer.choose(needs[index], whom, before.get(index))
        if best is not None:
            dealt[index] = best
            dealer.taken[best] += 1
    return dealt


class _Dealer:
    """Compares those on the market, as far as they have room; `taken`: how many shards each is at."""

    def __init__(
        self,
        market: Mapping[str, Trainer],
        record: Record,
        speeds: Speeds,
        exclusion: Exclusion,
        taken: Counter[str],
    ) -> None:
        self.taken = taken
        self._market, self._record, self._speeds, self._failed = market, record, speeds, exclusion.failed
        measured_us = speeds.measured_us
        self._usual_us = median(measured_us.values()) if measured_us else 0.0
        self._costs: dict[tuple[str, int], float] = {}

    def is_free(self, public: str, need: Need) -> bool:
        ad = self._market[public]
        return public not in self._failed and self.taken[public] < ad.concurrency and not why_not(ad, need)

    def choose(self, need: Need, whom: Sequence[str], before: str | None) -> str | None:
        """Who of `whom` gets a shard that somebody had `before`; None: nobody has room."""
        fits, gflop = [public for public in whom if self.is_free(public, need)], need.gflop
        if not fits:
            return None
        best, late = min(fits, key=lambda public: self._rank(public, gflop)), self._speeds.late
        if before is None or before not in fits or (before in late) > (best in late):
            return best
        if self._cost(before, gflop) < DEARER * max(1.0, self._cost(best, gflop)):
            best = before
        if best == before and self._speeds.measured_us.get(before, 0.0) > SLOWER * self._usual_us:
            return min(self._quicker(before, fits, gflop), key=lambda public: self._rank(public, gflop), default=before)
        return best

    def _quicker(self, same: str, fits: Sequence[str], gflop: int) -> list[str]:
        """Those who are far quicker than `same`, and neither dearer nor known to fail more often."""
        price_msat, each_us = self._market[same].price_msat(gflop), self._speeds.each_us
        return [
            public
            for public in fits
            if SLOWER * each_us[public] <= each_us[same]
            and self._market[public].price_msat(gflop) <= price_msat
            and self._record.failed[public] <= self._record.failed[same]
        ]

    def _cost(self, public: str, gflop: int) -> float:
        key = public, gflop
        if key not in self._costs:
            self._costs[key] = self._record.cost_msat(public, self._market[public].price_msat(gflop))
        return self._costs[key]

    def _rank(self, public: str, gflop: int) -> tuple[bool, float, float, str]:
        each_us = self._speeds.each_us.get(public, 1 / self._market[public].gflops)
        return public in self._speeds.late, self._cost(public, gflop), each_us, public


def why_not(ad: Trainer, need: Need) -> str:
    """Why a trainer does not take a round, in a few words; empty if it does."""
    if need.kind not in ad.kinds:
        return f"takes no rounds of kind {need.kind}"
    if need.family not in ad.families:
        return f"trains no {need.family}, only {', '.join(ad.families)}"
    if need.memory_bytes > ad.memory_bytes:
        return f"has {ad.memory_bytes / 1e6:,.0f} MB of memory, it takes {need.memory_bytes / 1e6:,.0f} MB"
    if need.blob_bytes > ad.most_bytes:
        return f"fetches at most {ad.most_bytes / 1e6:,.0f} MB, shard or weights have {need.blob_bytes / 1e6:,.0f} MB"
    if ad.deposit_ppm > MOST_DEPOSIT_PPM:
        return f"wants {ad.deposit_ppm / 10_000:g} % before it begins"
    return ""


def grouped(dealt: Mapping[int, str], last: Mapping[str, str]) -> list[tuple[str | None, Sequence[int]]]:
    """Shards by request: in each a provider stands once, and all had the same request before (None for the new).

    There are no more in one than it may have.

    A payment stands for one deposit: of a provider's shards the first follows its request before.
    """
    groups: list[tuple[str | None, list[int], set[str]]] = []
    left = dict(last)
    for index, provider in sorted(dealt.items()):
        previous = left.pop(provider, None)
        for known, indices, providers in groups:
            if known == previous and provider not in providers and len(indices) < MAX_ASSIGNED:
                indices.append(index)
                providers.add(provider)
                break
        else:
            groups.append((previous, [index], {provider}))
    return [(previous, indices) for previous, indices, _ in groups]
