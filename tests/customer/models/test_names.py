"""What a name of a model stands for, and whose word that is."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.config import ModelPin
from nodewire.customer.models.names import (
    MAX_LISTED,
    MAX_PUBLICATIONS,
    ModelAt,
    ModelNames,
    _held_parts,
    address_in,
)
from nodewire.errors import Ambiguous, BadInput, NotFound, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip19
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.model_name import name_in, skeleton
from nodewire.protocol.market.snapshot import HeldTasks, Node
from nodewire.store.blobs import Blobs
from relay import serve
from relay.limits import Limits
from tests.customer.named_models import (
    FAST,
    FRIEND,
    ME,
    PRICE_MSAT,
    STRANGER,
    Epoch,
    address,
    follow_list,
    model,
    names,
    publication,
    relay_at,
)

MINE, FRIENDS, STRANGERS = (model("smollm2", seed) for seed in ("mine", "friend's", "stranger's"))
OTHER = Keys(b"\x22" * 32)


@pytest.fixture
async def pool(tmp_path):
    async with serve(relay_at(tmp_path)) as relay, Pool([relay.url]) as pool:
        yield pool


@pytest.fixture
async def blobs(tmp_path):
    async with Blobs([], tmp_path / "cache") as blobs:
        yield blobs


async def said(pool, *published):
    for event in published:
        await pool.publish(event)


async def test_an_address_is_itself_and_no_name_is_looked_for(pool, blobs):
    find = (await names(pool, blobs, Epoch())).find
    at = address(FRIEND, "smollm2")
    entity = nip19.build(nip19.Naddr(38840, FRIEND.public, "smollm2"))
    for text in (at, entity, f"nostr:{entity}"):
        assert await find(text) == ModelAt(at)


async def test_a_pin_comes_before_whom_one_follows_and_that_before_what_is_certified(pool, blobs):
    epoch = Epoch([(STRANGERS, 0)])
    await said(pool, publication(STRANGER, STRANGERS), publication(FRIEND, FRIENDS))
    pin = ModelPin(manifest=address(OTHER, "another"), digest="ab" * 32)
    pinned = await names(pool, blobs, epoch, smollm2=pin)
    bare = await names(pool, blobs, epoch)
    assert await pinned.find("smollm2") == ModelAt(pin.manifest, pin.digest, "pin")
    assert await bare.find("smollm2") == ModelAt(address(STRANGER, "smollm2"), STRANGERS.digest(), "record")
    await said(pool, follow_list([FRIEND.public]))
    assert await bare.find("smollm2") == ModelAt(address(FRIEND, "smollm2"), FRIENDS.digest(), "follow list")
    assert await pinned.find("SmolLM2") == ModelAt(pin.manifest, pin.digest, "pin")


async def test_what_a_key_publishes_itself_needs_no_follow_list(pool, blobs):
    await said(pool, publication(ME, MINE), publication(STRANGER, STRANGERS))
    found = await (await names(pool, blobs, Epoch([(STRANGERS, 10_000_000)]))).find("smollm2")
    assert found == ModelAt(address(ME, "smollm2"), MINE.digest(), "follow list")


async def test_who_is_not_followed_and_held_by_nobody_is_not_found(pool, blobs):
    await said(pool, publication(STRANGER, STRANGERS), publication(ME, model("pycoder")))
    market = await names(pool, blobs, Epoch())
    with pytest.raises(NotFound, match="no provider holds it"):
        await market.find("smollm2")
    with pytest.raises(NotFound, match="did you mean pycoder"):
        await market.find("pycoders")


async def test_two_friends_models_of_a_name_are_told_apart_by_somebody_else(pool, blobs):
    await said(
        pool,
        follow_list([FRIEND.public, OTHER.public]),
        publication(FRIEND, FRIENDS),
        publication(OTHER, model("smollm2", "other", bytes_=5_000)),
        publication(STRANGER, STRANGERS),
    )
    with pytest.raises(Ambiguous) as error:
        await (await names(pool, blobs, Epoch([(FRIENDS, 10_000_000), (STRANGERS, 10_000_000)]))).find("smollm2")
    first, second = error.value.as_dict()["candidates"]
    assert (first["address"], second["address"]) == (address(FRIEND, "smollm2"), address(OTHER, "smollm2"))
    assert (first["providers"], first["price_msat"], first["bytes"]) == (1, PRICE_MSAT * 2, 1_000)
    assert (second["providers"], second["price_msat"], second["bytes"]) == (0, None, 5_000)
    assert {first["standing"], second["standing"]} == {"followed"}
    assert first["address"] in error.value.reason and "nodewire models pin smollm2 ADDRESS" in error.value.reason


async def test_two_strangers_models_of_a_name_are_told_apart_too_and_one_that_both_publish_is_one(pool, blobs):
    await said(pool, publication(STRANGER, STRANGERS, ago_s=50), publication(OTHER, STRANGERS))
    epoch = Epoch([(STRANGERS, 0), (FRIENDS, 0)])
    found = await (await names(pool, blobs, epoch)).find("smollm2")
    assert (found.address, found.digest) == (address(STRANGER, "smollm2"), STRANGERS.digest())
    await said(pool, publication(FRIEND, FRIENDS))
    with pytest.raises(Ambiguous) as error:
        await (await names(pool, blobs, epoch)).find("smollm2")
    assert {one["standing"] for one in error.value.candidates} == {"stranger"}
    assert {one["digest"] for one in error.value.candidates} == {STRANGERS.digest(), FRIENDS.digest()}


@pytest.mark.parametrize("typed", ["smo1lm2", "smollm-2", "srnollm2"])
async def test_a_strangers_model_that_looks_like_a_friends_is_not_taken_for_it(pool, blobs, typed):
    imitation = model(typed, "imitation")
    epoch = Epoch([(imitation, 10_000_000)])
    await said(pool, publication(STRANGER, imitation), publication(FRIEND, FRIENDS))
    assert (await (await names(pool, blobs, epoch)).find(typed)).by == "record"
    await said(pool, follow_list([FRIEND.public]))
    with pytest.raises(Ambiguous) as error:
        await (await names(pool, blobs, epoch)).find(typed)
    known, other = error.value.candidates
    assert (known["address"], known["standing"], known["resembles"]) == (address(FRIEND, "smollm2"), "followed", "")
    assert (other["address"], other["resembles"]) == (address(STRANGER, typed), address(FRIEND, "smollm2"))


async def test_a_name_that_looks_like_a_pinned_one_is_asked_about_but_the_pinned_models_own_name_is_not(pool, blobs):
    epoch = Epoch([(STRANGERS, 0)])
    await said(pool, publication(STRANGER, STRANGERS))
    own = ModelPin(manifest=address(STRANGER, "smollm2"))
    assert (await (await names(pool, blobs, epoch, small=own)).find("smollm2")).by == "record"
    other = ModelPin(manifest=address(FRIEND, "another"))
    with pytest.raises(Ambiguous) as error:
        await (await names(pool, blobs, epoch, **{"smol-lm2": other})).find("smollm2")
    assert [one["standing"] for one in error.value.candidates] == ["pinned", "stranger"]
    assert error.value.candidates[1]["resembles"] == other.manifest


async def test_a_pin_does_not_change_when_its_author_publishes_anew(pool, blobs):
    pin = ModelPin(manifest=address(FRIEND, "smollm2"), digest=FRIENDS.digest())
    market = await names(pool, blobs, Epoch(), small=pin)
    await said(pool, publication(FRIEND, FRIENDS, ago_s=60), publication(FRIEND, model("smollm2", "newer")))
    found = await market.find("small")
    assert found == ModelAt(pin.manifest, pin.digest, "pin")
    with pytest.raises(NotFound, match="another version"):
        await market._market.manifest(found.address, found.digest)


async def test_lies_about_a_digest_neither_hide_a_model_nor_have_it_asked_about(pool, blobs):
    """Others cite what a provider holds, with another manifest, or another name of it."""
    lies = [publication(Keys(bytes([100 + i]) * 32), model("smollm2", str(i)), ago_s=500 - i) for i in range(8)]
    lies = [retagged(lie, Keys(bytes([100 + i]) * 32), STRANGERS.digest()) for i, lie in enumerate(lies)]
    await said(pool, *lies, publication(STRANGER, STRANGERS))
    found = await (await names(pool, blobs, Epoch([(STRANGERS, 0)]))).find("smollm2")
    assert found.address == address(STRANGER, "smollm2")


async def test_more_lies_than_are_read_have_it_asked_about(pool, blobs):
    keys = [Keys(bytes([100 + i]) * 32) for i in range(20)]
    lies = [retagged(publication(key, model("smollm2", "x"), ago_s=500), key, FRIENDS.digest()) for key in keys]
    await said(pool, *lies, publication(FRIEND, FRIENDS), publication(STRANGER, STRANGERS))
    with pytest.raises(Ambiguous, match="not all that is published"):
        await (await names(pool, blobs, Epoch([(FRIENDS, 0), (STRANGERS, 0)]))).find("smollm2")


def retagged(event, keys, cited):
    from nodewire.nostr.event import sign

    tags = [("x", cited) if tag[0] == "x" else tag for tag in event.tags]
    return sign(keys, event.kind, created_at=event.created_at, content=event.content, tags=tags)


@pytest.mark.timeout(600)
async def test_ten_thousand_models_of_one_name_by_free_keys_cost_little_and_list_few(tmp_path, blobs):
    """First nobody holds them: they are not looked at. Then free nodes hold all of them, beside a bonded one."""
    keys = [Keys(number.to_bytes(32, "big")) for number in range(1, 10_001)]
    flood = [(key, model("smollm2", str(number))) for number, key in enumerate(keys)]
    digests = [manifest.digest() for _, manifest in flood]
    async with serve(relay_at(tmp_path, FAST)) as relay, Pool([relay.url]) as author:
        await said(author, publication(STRANGER, STRANGERS, ago_s=900))
        for start in range(0, len(flood), 500):
            some = [publication(key, manifest) for key, manifest in flood[start : start + 500]]
            await asyncio.gather(*(author.publish(event, timeout_s=300.0) for event in some))
        async with Pool([relay.url]) as pool:
            market = await names(pool, blobs, Epoch([(STRANGERS, 10_000_000)]))
            assert (await market.find("smollm2")).digest == STRANGERS.digest()
            assert pool.relays[0].events == 1
        async with Pool([relay.url]) as pool:
            crowd = Epoch([(STRANGERS, 10_000_000)])
            free = tuple(node(number, digests[number * 16 : number * 16 + 16]) for number in range(625))
            nodes = tuple(sorted((*crowd.snapshot.nodes, *free), key=lambda one: one.pubkey))
            market = await names(pool, blobs, Epoch(crowd.held, nodes))
            with pytest.raises(Ambiguous) as error:
                await market.find("smollm2")
            assert len(error.value.candidates) == MAX_LISTED
            assert error.value.candidates[0]["digest"] == STRANGERS.digest()
            assert pool.relays[0].events <= 5 * MAX_PUBLICATIONS
            assert len(error.value.as_dict()["reason"]) < 4_000


def node(number: int, held: list[str]) -> Node:
    """One without a bond that says it holds all of these."""
    offer = TaskOffer(task="driver", price_msat=1, us_per_position=1)
    return Node(
        pubkey=f"{number:064x}",
        beat="00" * 32,
        ad="00" * 32,
        held=tuple(HeldTasks(manifest=one, free=1, tasks=(offer,)) for one in held),
        bond_msat=0,
        region="",
        load_ppm=0,
        coordinates=(0, 0, 0),
        epochs=1,
    )


def test_what_bonds_stand_behind_is_looked_at_first():
    free = [node(number, ["aa" * 32]) for number in range(3)]
    bonded = node(9, ["bb" * 32]).model_copy(update={"bond_msat": 1})
    epoch = Epoch(nodes=(*free, node(4, ["cc" * 32]), bonded))
    assert list(_held_parts(epoch.snapshot)) == [["bb" * 32], ["aa" * 32, "cc" * 32]]


async def test_of_a_long_follow_list_everybody_counts(pool, blobs):
    crowd = [f"{number:064x}" for number in range(850)]
    await said(pool, follow_list([*crowd, FRIEND.public]), publication(FRIEND, FRIENDS))
    await said(pool, publication(STRANGER, STRANGERS))
    found = await (await names(pool, blobs, Epoch([(STRANGERS, 0)]))).find("smollm2")
    assert found.address == address(FRIEND, "smollm2")


async def test_a_follow_list_that_cannot_be_read_is_not_taken_for_none(tmp_path, blobs):
    """Else whoever follows more than an event may name would be sold a stranger's model for a friend's."""
    enormous, folder = Limits(event_bytes=300_000, frame_bytes=400_000, tags=4_000), tmp_path / "other"
    folder.mkdir()
    async with (
        serve(relay_at(tmp_path, enormous)) as relay,
        serve(relay_at(folder)) as other,
        Pool([relay.url, other.url]) as pool,
        Pool([relay.url]) as author,
    ):
        crowd = [f"{number:064x}" for number in range(1_900)]
        await said(pool, publication(FRIEND, FRIENDS), publication(STRANGER, STRANGERS))
        await said(author, follow_list([*crowd, FRIEND.public]))
        market = await names(pool, blobs, Epoch([(STRANGERS, 0)]), small=ModelPin(manifest=address(FRIEND, "smollm2")))
        with pytest.raises(TooLarge, match="pin them"):
            await market.find("smollm2")
        assert (await market.find("small")).by == "pin"


async def test_what_cannot_be_read_for_others_takes_no_name(tmp_path, blobs):
    """A stranger's enormous event, asked for beside it, says nothing of the follow list."""
    enormous = Limits(event_bytes=300_000, frame_bytes=400_000)
    async with serve(relay_at(tmp_path, enormous)) as relay, Pool([relay.url]) as pool, Pool([relay.url]) as stranger:
        await said(pool, publication(FRIEND, FRIENDS), follow_list([FRIEND.public]))
        market = await names(pool, blobs, Epoch([]))
        fetch = pool.fetch

        async def beside(*asked, **options):
            async with pool.subscribe([Filter(kinds=frozenset({1}))]) as noise:
                await said(stranger, events.sign(STRANGER, 1, created_at=1, content="x" * 200_000))
                while not noise.unread:
                    await asyncio.sleep(0.01)
                return await fetch(*asked, **options)

        pool.fetch = beside
        assert (await market.find("smollm2")).address == address(FRIEND, "smollm2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smоllm2", "CYRILLIC SMALL LETTER O"),
        ("ｓmollm2", "FULLWIDTH LATIN SMALL LETTER S"),
        ("smollm2\u200b", "ZERO WIDTH SPACE"),
        ("\u212aeras", "KELVIN SIGN"),
        ("smollm2 ", "SPACE"),
        ("smol lm2", "SPACE"),
        ("smollm2\n", "control character"),
        ("", "is no name"),
        ("-smollm2", "is no name"),
        ("x" * 65, "is no name"),
        ("naddr1smollm2", "naddr"),
        ("38840:zz:smollm2", "neither a name nor an address"),
        ("38840:" + "ab" * 32 + ":SmolLM2", "neither a name nor an address"),
        ("38840:" + "ab" * 32 + ":smollm2\n", "neither a name nor an address"),
        ("1:" + "ab" * 32 + ":smollm2", "neither a name nor an address"),
        (nip19.build(nip19.Naddr(38841, "ab" * 32, "main")), "neither a name nor an address"),
    ],
)
async def test_what_only_looks_like_a_name_or_an_address_is_refused(text, says):
    with pytest.raises(BadInput) as error:
        await ModelNames(ME.public, None, None, {}).find(text)
    assert (error.value.field, says in error.value.reason) == ("model", True), error.value.reason


def test_capitals_of_ascii_are_written_small_and_a_name_of_digits_is_no_address():
    assert name_in("SmolLM2-1.7B") == "smollm2-1.7b"
    assert (address_in("38840"), name_in("38840")) == (None, "38840")


def test_names_that_look_alike_have_one_skeleton():
    alike = {"smollm2", "smo1lm2", "smol1m2", "srnollm2", "smollm-2", "s.mollm_2", "sm0llm2", "5mollm2"}
    assert len({skeleton(name) for name in alike}) == 1
    assert skeleton("smollm2") != skeleton("smollm3")
