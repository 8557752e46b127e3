"""Whom a customer means: keys, and lists that somebody has published."""

from __future__ import annotations

import time

import pytest

from nodewire.customer.contacts import FOLLOW_SET, MAX_PEOPLE, people
from nodewire.errors import BadInput, NotFound, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys, npub
from nodewire.nostr.nips import nip19
from nodewire.nostr.pool import Pool
from relay import Config, serve

AUTHOR = Keys(b"\7" * 32)
FRIENDS = [Keys(bytes([i + 1]) * 32).public for i in range(3)]


@pytest.fixture
async def pool(tmp_path):
    async with (
        serve(Config(db=tmp_path / "events.sqlite", port=0, blobs=tmp_path / "blobs")) as relay,
        Pool([relay.url]) as pool,
    ):
        yield pool


def listed(name, keys, *, author=AUTHOR, ago_s=0, content=""):
    tags = [["d", name], ["title", "friends"], *(["p", key, "wss://relay.example"] for key in keys)]
    return events.sign(author, FOLLOW_SET, tags=tags, content=content, created_at=int(time.time()) - ago_s)


async def test_a_list_is_its_authors_newest_under_its_name(pool):
    await pool.publish(listed("gpus", FRIENDS[:1], ago_s=60))
    await pool.publish(listed("gpus", FRIENDS[:2], ago_s=5))
    await pool.publish(listed("other", FRIENDS[2:]))
    await pool.publish(listed("gpus", FRIENDS[2:], author=Keys(b"\6" * 32)))
    for named in (
        f"{FOLLOW_SET}:{AUTHOR.public}:gpus",
        f"{FOLLOW_SET}:{AUTHOR.npub}:gpus",
        nip19.build(nip19.Naddr(FOLLOW_SET, AUTHOR.public, "gpus")),
    ):
        assert await people(pool, [named], "trusted") == tuple(FRIENDS[:2])


async def test_keys_and_lists_together_count_each_once(pool):
    await pool.publish(listed("a:b", FRIENDS))
    named = [npub(FRIENDS[2]), FRIENDS[0], f"{FOLLOW_SET}:{AUTHOR.public}:a:b"]
    assert await people(pool, named, "trusted") == (FRIENDS[2], FRIENDS[0], FRIENDS[1])


@pytest.mark.parametrize(
    "named",
    ["", "bob", "npub1bob", "ab" * 31, "30000:bob:x", f"30000:{AUTHOR.public}", f"30001:{AUTHOR.public}:x", "naddr1x"],
)
async def test_what_is_nobody_is_refused_by_its_field(pool, named):
    with pytest.raises(BadInput) as error:
        await people(pool, [named], "--trusted")
    assert error.value.field == "--trusted"


async def test_the_address_of_something_else_is_refused(pool):
    with pytest.raises(BadInput, match="follow set"):
        await people(pool, [nip19.build(nip19.Naddr(30_023, AUTHOR.public, "gpus"))], "trusted")


async def test_a_list_that_is_nowhere_or_names_nobody_in_public_is_no_permission_for_all(pool):
    await pool.publish(listed("hidden", [], content="encrypted"))
    for name in ("nowhere", "hidden"):
        with pytest.raises(NotFound):
            await people(pool, [f"{FOLLOW_SET}:{AUTHOR.public}:{name}"], "trusted")


async def test_rubbish_in_a_list_and_too_many_are_refused(pool):
    await pool.publish(listed("rubbish", ["bob"]))
    await pool.publish(listed("crowd", [f"{i:064x}" for i in range(MAX_PEOPLE + 1)]))
    with pytest.raises(BadInput):
        await people(pool, [f"{FOLLOW_SET}:{AUTHOR.public}:rubbish"], "trusted")
    with pytest.raises(TooLarge):
        await people(pool, [f"{FOLLOW_SET}:{AUTHOR.public}:crowd"], "trusted")
