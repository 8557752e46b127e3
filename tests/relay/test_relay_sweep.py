"""The blob store makes room by what nobody uses any more, never by what somebody relies on."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path
from random import Random

import pytest

from nodewire.errors import NotFound, TooLarge
from relay.blobs import sweeping
from relay.blobs.shelving import Shelf
from relay.limits import BlobLimits
from tests.relay.conversation import ALICE, BOB, NOW

LIMITS = BlobLimits(
    blob_bytes=1_000, least_blob_bytes=1, quota_bytes=4_000, key_quota_bytes=4_000, full_ppm=500_000, kept_s=1_000_000
)
LATER = NOW + LIMITS.kept_s
RANDOM = Random(9)


@pytest.fixture
async def shelf(tmp_path):
    shelf = Shelf(tmp_path, LIMITS)
    yield shelf
    await shelf.close()


async def take(shelf, at_s, keys=ALICE):
    body = RANDOM.randbytes(900)
    sha256 = hashlib.sha256(body).hexdigest()

    async def chunks():
        yield body

    await shelf.take(chunks(), len(body), keys.public, {sha256}, "application/octet-stream", at_s)
    return sha256


def there(shelf, hashes):
    for sha256 in hashes:
        try:
            shelf.find(sha256)
            yield True
        except NotFound:
            assert not shelf.path(sha256).exists()
            yield False


async def test_the_longest_unused_go_where_the_store_is_nearly_full(shelf):
    hashes = [await take(shelf, NOW + age, keys) for age, keys in ((2, ALICE), (0, BOB), (1, ALICE))]
    assert await shelf.sweep(LATER + 2) == 1
    assert list(there(shelf, hashes)) == [True, False, True]
    assert [blob.sha256 for blob in shelf.list(BOB.public, 0, 10**12)] == []
    assert await shelf.sweep(LATER + 2) == 0, "there is room now"


def held(shelf):
    """By uploader and of all, by a look at every blob."""
    sums = "SELECT pubkey, sum(bytes) FROM owner JOIN blob USING (sha256) GROUP BY pubkey"
    return dict(shelf._db.execute(sums)) | {"": shelf._db.execute("SELECT sum(bytes) FROM blob").fetchone()[0] or 0}


async def test_what_each_uploader_holds_is_known_after_every_change(shelf):
    assert sweeping.held_bytes(shelf._db) == 0
    hashes = [await take(shelf, NOW, keys) for keys in (ALICE, BOB, ALICE)]
    body = shelf.path(hashes[0]).read_bytes()

    async def chunks():
        yield body

    for _ in range(2):  # the same blob of another uploader, and once more of the same
        await shelf.take(chunks(), len(body), BOB.public, {hashes[0]}, "application/octet-stream", NOW)
    for change in (lambda: shelf.drop(hashes[0], ALICE.public), lambda: shelf.sweep(LATER + 2)):
        await change()
        assert {key: sweeping.held_bytes(shelf._db, key) for key in held(shelf)} == held(shelf)
    assert sweeping.held_bytes(shelf._db) == 1_800


async def test_whether_an_upload_fits_is_known_without_a_look_at_all_blobs(shelf):
    """A day of a market is a million blobs, and every upload asks this on the event loop."""
    await take(shelf, NOW)
    asked: list[str] = []
    for db in (shelf._db, shelf._writer):
        db.set_trace_callback(asked.append)
    shelf.fits(10, ALICE.public)
    await shelf.sweep(NOW)
    for db in (shelf._db, shelf._writer):
        db.set_trace_callback(None)
    plans = [row[3] for sql in asked for row in shelf._db.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans
    assert not [plan for plan in plans if "SCAN" in plan or "blob" in plan]


async def test_a_store_that_an_older_relay_made_counts_what_it_has(tmp_path):
    shelf = Shelf(tmp_path, LIMITS)
    for keys in (ALICE, BOB, BOB, BOB):
        await take(shelf, NOW, keys)
    for name in ("blob_came", "blob_went", "owner_came", "owner_went"):
        shelf._writer.execute(f"DROP TRIGGER {name}")
    shelf._writer.execute("DROP TABLE held")
    shelf._writer.execute("PRAGMA user_version = 0")
    await shelf.close()
    shelf = Shelf(tmp_path, LIMITS)
    assert {key: sweeping.held_bytes(shelf._db, key) for key in held(shelf)} == held(shelf)
    with pytest.raises(TooLarge):
        shelf.fits(401, ALICE.public)
    await shelf.close()


async def test_what_is_young_stays_and_uploads_are_refused_before_it_goes(shelf):
    hashes = [await take(shelf, NOW) for _ in range(4)]
    assert await shelf.sweep(LATER - 1) == 0
    assert all(there(shelf, hashes))


async def test_who_asks_for_a_blob_or_uploads_it_again_keeps_it(shelf):
    hashes = [await take(shelf, NOW + k) for k in range(3)]
    shelf.use(hashes[0], LATER)
    assert await shelf.sweep(LATER + 2) == 1
    assert list(there(shelf, hashes)) == [True, False, True]


async def test_who_asks_in_the_midst_of_a_sweep_is_either_seen_or_told(shelf, monkeypatch):
    hashes = [await take(shelf, NOW + k) for k in range(3)]
    looks, told = [], []
    used_s, loop = sweeping._used_s, asyncio.get_running_loop()

    async def use(sha256):
        shelf.use(sha256, LATER)

    def asked_at_the_second_look(directory, sha256):
        if sha256 in looks:  # it has been chosen, and is looked at again
            try:
                asyncio.run_coroutine_threadsafe(use(sha256), loop).result(60)
            except NotFound:
                told.append(sha256)
        looks.append(sha256)
        return used_s(directory, sha256)

    monkeypatch.setattr(sweeping, "_used_s", asked_at_the_second_look)
    await shelf.sweep(LATER + 2)
    assert told == [hashes[0]], "who asked was told that it is going"
    assert all(there(shelf, hashes)), "and it was seen that somebody asked"


@pytest.mark.parametrize("at", ["before the commit", "after the commit"])
async def test_a_sweep_that_dies_leaves_nothing_that_no_row_names_to_the_next_start(tmp_path, monkeypatch, at):
    shelf = Shelf(tmp_path, LIMITS)
    hashes = [await take(shelf, NOW + k) for k in range(4)]

    class Died(BaseException):
        pass

    def dies(*args, **kwargs):
        raise Died

    with monkeypatch.context() as broken:
        broken.setattr(*((sweeping, "_forget", dies) if at == "before the commit" else (Path, "unlink", dies)))
        with pytest.raises(Died):
            await shelf.sweep(LATER + 4)
    await shelf.close()
    again = Shelf(tmp_path, LIMITS)
    left = [at == "before the commit"] * 2 + [True, True]
    assert list(there(again, hashes)) == left
    assert [again.path(sha256).exists() for sha256 in hashes] == left
    await again.sweep(LATER + 4)
    assert list(there(again, hashes)) == [False, False, True, True]
    await again.close()


async def test_a_file_whose_upload_died_before_its_row_goes_at_the_next_start(tmp_path):
    shelf = Shelf(tmp_path, LIMITS)
    kept = await take(shelf, NOW)
    await shelf.close()
    stray = tmp_path / "ab" / ("ab" + 62 * "0")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(os.urandom(10))
    again = Shelf(tmp_path, LIMITS)
    assert not stray.exists()
    assert again.path(kept).exists()
    await again.close()


async def test_blobs_are_found_while_a_thread_writes_another(shelf):
    """A connection that two threads use at once answers with another statement's rows, or makes the loop wait."""
    known, writing, found = await take(shelf, NOW), threading.Event(), threading.Event()

    def wait():
        writing.set()
        return not found.wait(60)  # which breaks the statement off

    shelf._writer.set_progress_handler(wait, 1)
    taking = asyncio.create_task(take(shelf, NOW, BOB))
    assert await asyncio.to_thread(writing.wait, 60)
    assert shelf.find(known).sha256 == known
    shelf.fits(10, BOB.public)
    found.set()
    assert shelf.find(await taking).bytes == 900


async def test_a_sweep_that_nobody_waits_for_ends_before_the_next_write_and_before_the_close(shelf, monkeypatch):
    began, may_end, order = threading.Event(), threading.Event(), []

    def slow(directory, db, *rest):
        began.set()
        may_end.wait()
        order.append(("swept", db.execute("SELECT 1").fetchone()))
        return 0

    monkeypatch.setattr(sweeping, "sweep", slow)
    sweep = asyncio.create_task(shelf.sweep(NOW))
    await asyncio.to_thread(began.wait)
    sweep.cancel()
    drop = asyncio.create_task(shelf.drop("ab" * 32, ALICE.public))
    drop.add_done_callback(lambda done: order.append("dropped"))
    await asyncio.sleep(0.05)  # a write that went beside it would be through
    assert order == []
    may_end.set()
    await drop
    assert order == [("swept", (1,)), "dropped"]


async def test_a_store_is_closed_when_what_writes_is_done(tmp_path, monkeypatch):
    shelf, began, may_end, swept = Shelf(tmp_path, LIMITS), threading.Event(), threading.Event(), []

    def slow(directory, db, *rest):
        began.set()
        may_end.wait()
        swept.append(db.execute("SELECT 1").fetchone())
        return 0

    monkeypatch.setattr(sweeping, "sweep", slow)
    sweep = asyncio.create_task(shelf.sweep(NOW))
    await asyncio.to_thread(began.wait)
    sweep.cancel()
    close = asyncio.create_task(shelf.close())
    await asyncio.sleep(0.05)
    may_end.set()
    await close
    assert swept == [(1,)]
