"""What training leaves in a provider's cache is bounded, and what others keep there stays."""

from __future__ import annotations

import os

from nodewire.store import bounded_cache
from nodewire.store.blobs import Blobs
from nodewire.store.bounded_cache import BoundedBlobs


async def test_what_was_used_longest_ago_goes_and_what_is_others_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_cache, "YOUNG_S", 0.0)
    async with Blobs([], tmp_path / "cache") as blobs:
        served = await blobs.put(os.urandom(600))  # weights that this node serves
        mine = BoundedBlobs(blobs, tmp_path / "used.db", 2_000)
        await mine.get(served)  # a stranger cites them as its own
        first, second, third = [await mine.put(os.urandom(900)) for _ in range(3)]
        assert [blobs.path(one.sha256).exists() for one in (served, first, second, third)] == [True, False, True, True]
        await mine.get(second)
        mine.close()
        again = BoundedBlobs(blobs, tmp_path / "used.db", 2_000)  # restarted
        fourth = await again.put(os.urandom(900))
        assert [blobs.path(one.sha256).exists() for one in (served, second, third, fourth)] == [True, True, False, True]
        again.close()


async def test_what_is_in_use_stays_even_if_it_is_too_much(tmp_path):
    async with Blobs([], tmp_path / "cache") as blobs:
        mine = BoundedBlobs(blobs, tmp_path / "used.db", 1_000)
        put = [await mine.put(os.urandom(900)) for _ in range(3)]
        assert all(blobs.path(one.sha256).exists() for one in put)
        mine.close()
