"""Who trains: ads read from relays, and the shards of a round dealt to their providers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodewire.errors import NodewireError, NoProvider
from nodewire.nostr.nip01 import Filter, newest_first
from nodewire.nostr.pool import Pool
from nodewire.protocol import kinds, trainer
from nodewire.protocol.recipe import Recipe
from nodewire.protocol.trainer import TOPIC, Trainer

_FETCH_S = 10.0


@dataclass(frozen=True, slots=True)
class Need:
    """What one shard's provider must have room for."""

    kind: int
    family: str
    memory_bytes: int
    blob_bytes: int
    gflop: int


def need_of(recipe: Recipe, kind: int, *, shard_bytes: int, weights_bytes: int, gflop: int) -> Need:
    """Of a shard, and of the largest of the blobs with weights."""
    memory = max(recipe.memory_bytes() + recipe.upload_bytes() + shard_bytes, recipe.hardware.memory_bytes)
    return Need(kind, recipe.family.name, memory, max(shard_bytes, weights_bytes), gflop)


async def trainers(pool: Pool) -> dict[str, Trainer]:
    """The newest ad of everybody who trains, by public key; malformed ones are left out.

    Raises:
        RelayRefused, TimedOut: no relay answers.
    """
    wanted = Filter(kinds=frozenset({kinds.AD}), tags={"t": frozenset({TOPIC})})
    found: dict[str, Trainer] = {}
    for event in sorted(await pool.fetch([wanted], timeout_s=_FETCH_S), key=newest_first):
        try:
            found.setdefault(event.pubkey, trainer.parse(event))
        except NodewireError:
            continue
    return found


def deal(
    needs: Mapping[int, Need],
    market: Mapping[str, Trainer],
    *,
    busy: Counter[str],
    before: Mapping[int, str],
    excluded: Mapping[int, frozenset[str]],
    failures: Counter[str],
) -> dict[int, str]:
    """A provider for every shard: the one that had it before, or the cheapest that has room, the faster of equals.

    Who has failed more often comes later, whatever it costs. `busy` counts the shards that each has already.

    Raises:
        NoProvider: nobody is left for a shard.
    """
    dealt: dict[int, str] = {}
    taken = Counter(busy)
    kept = [index for index in needs if before.get(index) in market]
    for index in [*kept, *(index for index in needs if index not in kept)]:
        need = needs[index]
        fits = [
            public
            for public, ad in market.items()
            if public not in excluded[index] and taken[public] < ad.concurrency and _takes(ad, need)
        ]
        if not fits:
            raise NoProvider(f"shard {index}", "nobody on the market trains it, or all who do are busy or have failed")
        same = before.get(index)
        dealt[index] = (
            same
            if same in fits
            else min(fits, key=lambda public: (failures[public], *_rank(public, market[public], need)))
        )
        taken[dealt[index]] += 1
    return dealt


def grouped(dealt: Mapping[int, str], last: Mapping[str, str]) -> list[tuple[str | None, Sequence[int]]]:
    """Shards by request: in each a provider stands once, and all had the same request before (None for the new)."""
    groups: list[tuple[str | None, list[int], set[str]]] = []
    for index, provider in sorted(dealt.items()):
        previous = last.get(provider)
        for known, indices, providers in groups:
            if known == previous and provider not in providers:
                indices.append(index)
                providers.add(provider)
                break
        else:
            groups.append((previous, [index], {provider}))
    return [(previous, indices) for previous, indices, _ in groups]


def _takes(ad: Trainer, wanted: Need) -> bool:
    return (
        wanted.kind in ad.kinds
        and wanted.family in ad.families
        and wanted.memory_bytes <= ad.memory_bytes
        and wanted.blob_bytes <= ad.most_bytes
    )


def _rank(public: str, ad: Trainer, wanted: Need) -> tuple[int, int, str]:
    return ad.price_msat(wanted.gflop), -ad.gflops, public
