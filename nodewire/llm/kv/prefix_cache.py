"""Prompts' beginnings that a stage keeps: pages of keys and values, and what it answered, for who sends them again.

A page is known by what was sent: a chain of hashes over the rows of its 64 positions and of all those before them,
under the name of whose they are. So who finds one has sent just these rows, and gets what would be computed of them
once more, bit by bit. Kept pages take none that a session could have: those that were used longest ago are given up
first, and of one prompt the last first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from nodewire.llm.kv.sequence_cache import Lane, Lanes

_TAG = b"nodewire/prefix/1"
_NEVER = 2**62


@dataclass(slots=True)
class Chain:
    """How far one session's prompt has come: the hash of all of it, its pages, and when it was opened."""

    key: bytes
    opened: int
    pages: int = 0

    def follow(self, rows: Tensor) -> None:
        """Another page's rows [64, width] have come."""
        data = rows.contiguous().cpu().view(torch.uint8).numpy()
        self.key = hashlib.sha256(self.key + hashlib.sha256(data.data).digest()).digest()
        self.pages += 1


@dataclass(slots=True)
class _CachedPrefix:
    pages: list[int]
    """Of the pool: the keys' and values', then the answer's."""
    place: int
    """Which page of its prompt it is."""
    rows: int
    """Of the answer."""
    used: int
    """When the newest session was opened that found it."""


class Prefixes:
    """Those of one stage, in the pages that its lanes leave free.

    Its answers have rows of `width` numbers of `dtype`.
    """

    def __init__(self, lanes: Lanes, width: int, dtype: torch.dtype) -> None:
        self._lanes, self._dtype, self._bytes = lanes, dtype, width * dtype.itemsize
        page = lanes.page(0)
        heads, _, row_bytes = page[0].shape
        self._slice = heads * row_bytes  # bytes of a row in one layer's keys
        self._each = 1 + -(-self._bytes // (self._slice * len(page)))
        self._kept: dict[bytes, _CachedPrefix] = {}
        self._now = 0
        lanes.spare = self

    def __len__(self) -> int:
        return len(self._kept)

    def chain(self, whose: str, lane: Lane) -> Chain:
        """The beginning of a prompt of a session that is opened now; keys that turn otherwise are others'."""
        self._now += 1
        key = hashlib.sha256(_TAG + whose.encode()).digest()
        return Chain(hashlib.sha256(key + b"%d" % lane.angles).digest() if lane.angles else key, self._now)

    def find(self, chain: Chain, lane: Lane) -> Tensor | None:
        """Put the chain's newest page into its place in a lane and say what was answered, [n, width].

        None: it is not kept.
        """
        kept = self._kept.get(chain.key)
        if kept is None:
            return None
        kept.used = max(kept.used, chain.opened)
        for there, here in zip(
            self._lanes.page(lane.pages[chain.pages - 1]), self._lanes.page(kept.pages[0]), strict=True
        ):
            there.copy_(here)
        slices = [one[:, : kept.rows].transpose(0, 1).reshape(kept.rows, -1) for one in self._slices(kept)]
        return torch.cat(slices, dim=1)[:, : self._bytes].contiguous().view(self._dtype)

    def keep(self, chain: Chain, lane: Lane, answer: Tensor) -> None:
        """Keep the chain's newest page as it stands in a lane, with its answer [n, width], 64 rows at most.

        It is kept if there is room beside what sessions as new as this one use.
        """
        if chain.key in self._kept or not self._make_room(chain.opened):
            return
        pages = [self._lanes.lend() for _ in range(self._each)]
        kept = self._kept[chain.key] = _CachedPrefix(pages, chain.pages - 1, len(answer), chain.opened)
        for there, here in zip(self._lanes.page(pages[0]), self._lanes.page(lane.pages[kept.place]), strict=True):
            there.copy_(here)
        whole = F.pad(answer.contiguous().view(torch.uint8), (0, -self._bytes % self._slice))
        for there, part in zip(self._slices(kept), torch.split(whole, self._slice, dim=1), strict=False):
            there[:, : kept.rows] = part.view(kept.rows, len(there), -1).transpose(0, 1)

    def make_way(self, count: int) -> None:
        """Give up so much that `count` pages are free, in one run if lanes leave one; nothing if there are too few."""
        if count > self._lanes.free_rows + self._each * len(self._kept):
            return
        used = torch.full((self._lanes.count,), _NEVER)
        for run in self._lanes.free:
            used[run.start : run.stop] = 0
        for kept in self._kept.values():
            used[kept.pages] = kept.used
        latest = used.unfold(0, count, 1).amax(1)  # of each run of so many
        first = int(latest.argmin())
        way = range(first, first + count) if latest[first] < _NEVER else range(self._lanes.count)
        for key, kept in list(self._kept.items()):
            if any(page in way for page in kept.pages):
                self._give_up(key)

    def _make_room(self, opened: int) -> bool:
        """Whether there is room for one more, at the cost of those that were last used before `opened`."""
        while self._lanes.free_rows < self._each:
            key = min(self._kept, key=lambda one: (self._kept[one].used, -self._kept[one].place), default=None)
            if key is None or self._kept[key].used >= opened:
                return False
            self._give_up(key)
        return True

    def _give_up(self, key: bytes) -> None:
        for page in self._kept.pop(key).pages:
            self._lanes.take_back(page)

    def _slices(self, kept: _CachedPrefix) -> list[Tensor]:
        """Where the answer's bytes are, each [kv_heads, PAGE, bytes]."""
        slices = [one for page in kept.pages[1:] for one in self._lanes.page(page)]
        return slices[: -(-self._bytes // self._slice)]
