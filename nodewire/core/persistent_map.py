"""A mapping that is never changed: a new one with one entry more shares all but a small part with the old.

Its entries lie in 256 shards, and a new mapping copies one shard. Of 8,192 entries that is 32. A plain dictionary would
copy all of them with every beat that an oracle hears, and with every payment of the simulated network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Self, TypeVar

V = TypeVar("V")
_SHARDS = 256


class PersistentMap(Mapping[str, V]):
    """Iterates in no particular order."""

    __slots__ = ("_shards", "_size")

    def __init__(self, entries: Mapping[str, V] | None = None) -> None:
        shards: list[dict[str, V]] = [{} for _ in range(_SHARDS)]
        for key, value in (entries or {}).items():
            shards[hash(key) % _SHARDS][key] = value
        self._shards, self._size = tuple(shards), len(entries or ())

    def __getitem__(self, key: str) -> V:
        return self._shards[hash(key) % _SHARDS][key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._shards)

    def __len__(self) -> int:
        return self._size

    def including(self, key: str, value: V) -> Self:
        """The same entries, and this one."""
        at = hash(key) % _SHARDS
        return self._copied(at, {**self._shards[at], key: value})

    def without(self, key: str) -> Self:
        """The same entries but the one of `key`, if there is one."""
        at = hash(key) % _SHARDS
        if key not in self._shards[at]:
            return self
        return self._copied(at, {k: v for k, v in self._shards[at].items() if k != key})

    def _copied(self, at: int, shard: dict[str, V]) -> Self:
        copy = object.__new__(type(self))
        copy._shards = (*self._shards[:at], shard, *self._shards[at + 1 :])
        copy._size = self._size + len(shard) - len(self._shards[at])
        return copy
