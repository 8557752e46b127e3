"""NIP-01 and friends, said to this relay and to rust-nostr's: what the NIPs fix must come out the same.

The cases follow mikedilger/relay-tester's checklist.
"""

import nostr_sdk
import pytest

from relay import Config, serve
from tests.relay.conversation import ALICE, BOB, NOW, note, talk


@pytest.fixture(params=["nodewire", "rust-nostr"])
async def url(request, tmp_path):
    if request.param == "nodewire":
        async with serve(
            Config(db=tmp_path / "events.sqlite", port=0, synchronous="NORMAL"), clock=lambda: NOW
        ) as running:
            yield running.url
    else:
        local = nostr_sdk.LocalRelayBuilder().build()
        await local.run()
        yield str(await local.url())
        local.shutdown()


@pytest.fixture
async def client(url):
    async with talk(url) as client:
        yield client


@pytest.fixture
async def other(url):
    async with talk(url) as client:
        yield client


async def published(client, *events):
    for event in events:
        accepted, message = await client.publish(event)
        assert accepted, message
    return [event.id for event in events]


# Publishing


async def test_a_published_event_is_found_by_its_id(client):
    [id_] = await published(client, note(content='héllo \n " \\ \x08 🜁'))
    assert await client.ask({"ids": [id_]}) == [id_]


async def test_an_event_comes_back_with_the_fields_it_was_signed_with(client):
    event = note(content="\x7f\u2028\t", tags=[["t", "x", "y"], ["empty"], ["e", "0" * 64, "", "reply"]])
    await published(client, event)
    await client.say("REQ", "s", {"ids": [event.id]})
    assert (await client.hear())[2] == event.as_dict()


async def test_a_second_copy_is_accepted_as_a_duplicate(client):
    event = note()
    await published(client, event)
    accepted, message = await client.publish(event)
    assert accepted
    assert message.startswith("duplicate:")


@pytest.mark.parametrize(
    ("field", "value"), [("id", "0" * 64), ("sig", "0" * 128), ("content", "forged"), ("created_at", 1)]
)
async def test_a_forged_event_is_refused_as_invalid(client, field, value):
    accepted, message = await client.publish({**note(content="true").as_dict(), field: value})
    assert not accepted
    assert message.startswith("invalid:")


# Filters


async def test_events_come_newest_first_and_of_one_second_the_lowest_id_first(client):
    events = [note(ago=ago, content=str(n)) for n, ago in enumerate([5, 3, 3, 3, 9, 1])]
    await published(client, *events)
    expected = [e.id for e in sorted(events, key=lambda e: (-e.created_at, e.id))]
    assert await client.ask({"kinds": [1]}) == expected
    assert await client.ask({"kinds": [1], "limit": 3}) == expected[:3]


async def test_fields_of_a_filter_are_anded_and_filters_are_ored(client):
    mine, theirs, other_kind = note(), note(BOB), note(kind=7)
    await published(client, mine, theirs, other_kind)
    assert await client.ask({"authors": [ALICE.public], "kinds": [1]}) == [mine.id]
    both = await client.ask({"authors": [ALICE.public], "kinds": [7]}, {"authors": [BOB.public]})
    assert set(both) == {other_kind.id, theirs.id}


async def test_an_event_that_two_filters_match_comes_once(client):
    [id_] = await published(client, note())
    assert await client.ask({"ids": [id_]}, {"kinds": [1]}) == [id_]


async def test_since_and_until_are_inclusive(client):
    old, middle, new = await published(client, note(ago=30), note(ago=20), note(ago=10))
    assert await client.ask({"kinds": [1], "since": NOW - 20}) == [new, middle]
    assert await client.ask({"kinds": [1], "until": NOW - 20}) == [middle, old]
    assert await client.ask({"kinds": [1], "since": NOW - 20, "until": NOW - 20}) == [middle]


async def test_a_tag_filter_looks_at_the_first_value_of_single_letter_tags_only(client):
    hit = note(tags=[["t", "wanted", "second"]])
    await published(client, hit, note(ago=1, tags=[["t", "other", "wanted"]]), note(ago=2, tags=[["title", "wanted"]]))
    assert await client.ask({"#t": ["wanted"]}) == [hit.id]
    assert await client.ask({"#t": ["second"]}) == []


async def test_values_of_one_tag_are_ored_and_different_tags_are_anded(client):
    a, b = note(tags=[["t", "a"], ["r", "x"]]), note(ago=1, tags=[["t", "b"]])
    await published(client, a, b)
    assert await client.ask({"#t": ["a", "b"]}) == [a.id, b.id]
    assert await client.ask({"#t": ["a", "b"], "#r": ["x"]}) == [a.id]


async def test_letters_of_tags_are_case_sensitive(client):
    lower, upper = note(tags=[["k", "1"]]), note(ago=1, tags=[["K", "1"]])
    await published(client, lower, upper)
    assert await client.ask({"#k": ["1"]}) == [lower.id]
    assert await client.ask({"#K": ["1"]}) == [upper.id]


async def test_limit_zero_asks_for_live_events_only(client, other):
    await published(client, note())
    assert await client.ask({"kinds": [1], "limit": 0}, name="live") == []
    [id_] = await published(other, note(BOB))
    assert (await client.hear())[2]["id"] == id_


# Subscriptions


async def test_a_live_event_reaches_every_matching_subscription_of_another_connection(client, other):
    await client.ask({"authors": [BOB.public]}, name="by author")
    await client.ask({"kinds": [1]}, name="by kind")
    await client.ask({"#t": ["x"]}, name="by tag")
    await client.ask({"kinds": [7]}, name="not this")
    [id_] = await published(other, note(BOB, tags=[["t", "x"]]))
    heard = [await client.hear() for _ in range(3)]
    assert {message[1] for message in heard} == {"by author", "by kind", "by tag"}
    assert {message[2]["id"] for message in heard} == {id_}


async def test_limit_does_not_bound_live_events(client, other):
    await client.ask({"kinds": [1], "limit": 1}, name="live")
    ids = await published(other, note(content="1"), note(content="2"))
    assert [(await client.hear())[2]["id"] for _ in ids] == ids


async def test_a_second_request_under_a_name_replaces_the_first(client, other):
    await client.ask({"kinds": [1]}, name="s")
    await client.ask({"kinds": [7]}, name="s")
    _, id_ = await published(other, note(), note(kind=7))
    assert (await client.hear())[2]["id"] == id_


async def test_a_closed_subscription_hears_nothing_more(client, other):
    await client.ask({"kinds": [1]}, name="gone")
    await client.say("CLOSE", "gone")
    await client.ask({"kinds": [7]}, name="here")
    await published(other, note())
    [id_] = await published(other, note(kind=7))
    message = await client.hear()
    assert message[1] == "here"
    assert message[2]["id"] == id_


async def test_names_of_subscriptions_are_a_connections_own(client, other):
    await client.ask({"kinds": [1]}, name="s")
    await other.ask({"kinds": [1]}, name="s")
    await other.say("CLOSE", "s")
    await published(other, note())
    assert (await client.hear())[1] == "s"


# Replaceable, addressable and ephemeral kinds


@pytest.mark.parametrize("kind", [0, 3, 10_000, 11_998, 19_999])
async def test_of_a_replaceable_kind_only_the_newest_is_kept(client, kind):
    old, new = note(kind=kind, ago=10), note(kind=kind, ago=5)
    await published(client, old, new)
    assert await client.ask({"kinds": [kind]}) == [new.id]
    await client.publish(note(kind=kind, ago=7))
    assert await client.ask({"kinds": [kind]}) == [new.id]


@pytest.mark.parametrize("kind", [10_002, 30_023])
async def test_of_two_versions_of_the_same_second_the_lower_id_stays(client, kind):
    low, high = sorted((note(kind=kind, content=c, tags=[["d", ""]]) for c in "ab"), key=lambda e: e.id)
    await client.publish(high)
    await client.publish(low)
    assert await client.ask({"kinds": [kind]}) == [low.id]
    await client.publish(high)
    assert await client.ask({"kinds": [kind]}) == [low.id]


async def test_an_addressable_event_is_replaced_only_under_its_own_d_tag(client):
    a1, a2 = note(kind=30_023, ago=9, tags=[["d", "a"]]), note(kind=30_023, ago=5, tags=[["d", "a"]])
    b, theirs = note(kind=30_023, ago=6, tags=[["d", "b"]]), note(BOB, kind=30_023, ago=7, tags=[["d", "a"]])
    await published(client, a1, b, theirs, a2)
    assert await client.ask({"kinds": [30_023]}) == [a2.id, b.id, theirs.id]
    assert await client.ask({"kinds": [30_023], "authors": [ALICE.public], "#d": ["a"]}) == [a2.id]


async def test_an_ephemeral_event_is_passed_on_and_not_stored(client, other):
    await client.ask({"kinds": [20_001]}, name="live")
    event = note(kind=20_001)
    accepted, _ = await other.publish(event)
    assert accepted
    assert (await client.hear())[2]["id"] == event.id
    assert await other.ask({"kinds": [20_001]}) == []


# NIP-09, NIP-40, NIP-42, NIP-45


async def test_an_author_deletes_its_event_and_it_does_not_come_back(client):
    event = note()
    await published(client, event)
    deletion = note(kind=5, tags=[["e", event.id]])
    await published(client, deletion)
    assert await client.ask({"ids": [event.id]}) == []
    accepted, _ = await client.publish(event)
    assert not accepted
    assert await client.ask({"kinds": [5]}) == [deletion.id]


async def test_nobody_deletes_the_event_of_another(client):
    event = note()
    await published(client, event)
    await client.publish(note(BOB, kind=5, tags=[["e", event.id]]))
    assert await client.ask({"ids": [event.id]}) == [event.id]


async def test_a_deletion_by_address_reaches_versions_up_to_its_own_time(client):
    tags = [["d", "x"]]
    old, new = note(kind=30_023, ago=10, tags=tags), note(kind=30_023, ago=2, tags=tags)
    await published(client, old)
    await published(client, note(kind=5, ago=5, tags=[["a", f"30023:{ALICE.public}:x"]]))
    assert await client.ask({"kinds": [30_023]}) == []
    await published(client, new)
    assert await client.ask({"kinds": [30_023]}) == [new.id]


async def test_an_expired_event_is_refused_and_one_that_will_expire_is_not(client):
    accepted, _ = await client.publish(note(ago=100, tags=[["expiration", str(NOW - 50)]]))
    assert not accepted
    await published(client, note(tags=[["expiration", str(NOW + 10 * 86_400)]]))  # another relay has a clock of its own


async def test_count_answers_how_many_events_match(client):
    await published(client, note(content="1"), note(content="2"), note(BOB))
    assert await client.count({"kinds": [1]}) == 3
    assert await client.count({"authors": [ALICE.public]}) == 2
    assert await client.count({"kinds": [7]}) == 0


# What is not understood


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "null", "[1]", "\x00", "[" * 2_000, '"EVENT"', '["NONSENSE",1]'),
        *('["EVENT"]', '["EVENT",1]', '["EVENT",{}]', '["EVENT",{"id":5}]', '["AUTH",[]]', '["CLOSE"]', '["COUNT"]'),
        *('["REQ"]', '["REQ",""]', '["REQ",5,{}]', '["REQ","s",1]', '["REQ","s",{"since":-1}]'),
        *('["REQ","s",{"kinds":["1"]}]', '["REQ","s",{"ids":["zz"]}]'),
    ],
)
async def test_what_is_malformed_does_not_end_the_conversation_of_others(client, other, text):
    await other.socket.send(text)
    [id_] = await published(client, note())
    assert await client.ask({"ids": [id_]}) == [id_]
