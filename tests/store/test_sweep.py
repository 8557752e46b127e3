"""What a sweep removes from a blob cache, what it leaves, and what is left where it was cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodewire.store.blobs import Blobs
from nodewire.store.sweep import INCOMING_S, KEPT_S, YOUNG_S, sweep

NOW_S = 2_000_000_000.0


@pytest.fixture
async def blobs(tmp_path):
    async with Blobs([], tmp_path / "cache") as blobs:
        yield blobs


async def aged(blobs, ages_s):
    """A blob of 1,000 bytes used so long ago, for each of these ages."""
    refs = [await blobs.put(os.urandom(1_000)) for _ in ages_s]
    for ref, age_s in zip(refs, ages_s, strict=True):
        os.utime(blobs.path(ref.sha256), (NOW_S - age_s, NOW_S - age_s))
    return refs


def there(blobs, refs):
    return [blobs.path(ref.sha256).exists() for ref in refs]


async def test_the_longest_unused_go_until_the_rest_fits(blobs, tmp_path):
    refs = await aged(blobs, [3 * YOUNG_S, 9 * YOUNG_S, 6 * YOUNG_S, 2 * YOUNG_S])
    assert sweep(tmp_path / "cache", 2_500, NOW_S) == 2_000
    assert there(blobs, refs) == [True, False, False, True]


@pytest.mark.parametrize("most_bytes", [10**9, None])
async def test_what_nobody_used_for_long_goes_though_there_is_room(blobs, tmp_path, most_bytes):
    refs = await aged(blobs, [KEPT_S + 1, KEPT_S - 1])
    sweep(tmp_path / "cache", most_bytes, NOW_S)
    assert there(blobs, refs) == [False, True]


async def test_what_is_young_or_held_stays_even_if_it_is_too_much(blobs, tmp_path):
    refs = await aged(blobs, [YOUNG_S - 1, 2 * KEPT_S, 2 * KEPT_S])
    sweep(tmp_path / "cache", 0, NOW_S, but={refs[1].sha256})
    assert there(blobs, refs) == [True, True, False]


async def test_to_get_a_blob_is_to_use_it(blobs, tmp_path):
    (ref,) = await aged(blobs, [NOW_S - 1])  # of 1970
    path = await blobs.get(ref)
    sweep(tmp_path / "cache", 0, path.stat().st_mtime + YOUNG_S - 1)
    assert path.exists()
    sweep(tmp_path / "cache", 0, path.stat().st_mtime + YOUNG_S)
    assert not path.exists()


async def test_a_sweep_that_is_cut_off_leaves_whole_blobs_and_the_next_one_ends_it(blobs, tmp_path, monkeypatch):
    refs = await aged(blobs, [(9 - k) * YOUNG_S for k in range(4)])
    unlink, removed = Path.unlink, []

    def dies_at_the_second(path, missing_ok=False):
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "cache", 1_000, NOW_S)
    monkeypatch.undo()
    assert there(blobs, refs) == [False, True, True, True]
    sweep(tmp_path / "cache", 1_000, NOW_S)
    assert there(blobs, refs) == [False, False, False, True]
    path = await blobs.get(refs[3])
    assert path.stat().st_size == 1_000


async def test_parts_that_a_crash_left_go_and_those_under_way_stay(blobs, tmp_path):
    incoming = tmp_path / "cache" / "incoming"
    for name, age_s in (("left", INCOMING_S), ("under-way", INCOMING_S - 1)):
        (incoming / name).write_bytes(b"part")
        os.utime(incoming / name, (NOW_S - age_s, NOW_S - age_s))
    assert sweep(tmp_path / "cache", 10**9, NOW_S) == 4
    assert [path.name for path in incoming.iterdir()] == ["under-way"]
