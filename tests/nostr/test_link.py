"""A link to one relay, driven by hand: what it sends, and what it makes of every answer."""

import asyncio
import contextlib
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.nostr import event as events
from nodewire.nostr import link as links
from nodewire.nostr.keys import Keys
from nodewire.nostr.link import Link
from nodewire.nostr.nips import nip42
from nodewire.nostr.nips.nip01 import ClosedMessage, Eose, Filter, Notice, Ok, RelayAuth, RelayCount, RelayEvent

URL, KEYS = "wss://relay.example.com", Keys(b"\x01" * 32)
EVENT = events.sign(KEYS, 1, created_at=1_000, content="x")
WANTED = (Filter(kinds={1}),)


class Listened:
    def __init__(self, takes=True):
        self.takes, self.events, self.stood, self.lost = takes, [], [], 0

    def accept(self, event, size):
        self.events.append(event)
        return self.takes

    def lose(self):
        self.lost += 1

    def stand(self, url, standing, reason):
        self.stood.append((standing, reason))


class Relay:
    """A relay whose words the test says itself."""

    def __init__(self, keys=None, **options):
        self.link = Link(URL, keys, lambda: 1_800_000_000.0, **options)
        self.heard = []

    def up(self):
        self.heard.clear()
        self.link.up(lambda text: self.heard.append(json.loads(text)))

    def says(self, message):
        self.link.receive(message.to_json())

    def verbs(self):
        return [message[0] for message in self.heard]


async def soon(check):
    """Let the tasks that are ready run until `check` holds."""
    for _ in range(20):
        if check():
            return
        await asyncio.sleep(0)
    raise AssertionError("did not happen")


async def test_subscriptions_are_sent_on_every_connection():
    relay, listener = Relay(), Listened()
    relay.link.subscribe("s", WANTED, listener)
    for _ in range(2):
        relay.up()
        assert relay.heard == [["REQ", "s", {"kinds": [1]}]]
        relay.says(Eose("s"))
        relay.link.down("gone")
    assert [standing for standing, _ in listener.stood] == ["pending", "eose", "unreachable"] * 2
    assert relay.link.status.connections == 2
    assert relay.link.status.reason == "gone"


async def test_a_closed_subscription_is_not_sent_again_and_late_events_are_ignored():
    relay, listener = Relay(), Listened()
    relay.up()
    relay.link.subscribe("s", WANTED, listener)
    relay.link.unsubscribe("s")
    relay.link.unsubscribe("s")
    assert relay.verbs() == ["REQ", "CLOSE"]
    relay.says(RelayEvent("s", EVENT))
    relay.says(Eose("s"))
    assert listener.events == []
    relay.link.down("gone")
    relay.up()
    assert relay.heard == []


async def test_a_subscription_on_a_relay_that_is_known_to_be_down_is_told_so():
    relay, listener = Relay(), Listened()
    relay.link.down("refused")
    relay.link.subscribe("s", WANTED, listener)
    assert listener.stood == [("unreachable", "refused")]


async def test_a_publication_waits_for_the_connection_and_is_sent_again_on_the_next():
    relay = Relay()
    answer = asyncio.create_task(relay.link.publish(EVENT))
    await asyncio.sleep(0)
    for _ in range(2):
        relay.up()
        await soon(lambda: relay.verbs() == ["EVENT"])
        relay.link.down("gone")
        await asyncio.sleep(0)
    relay.up()
    await soon(lambda: relay.verbs() == ["EVENT"])
    relay.says(Ok(EVENT.id, True, "thanks"))
    assert await answer == Ok(EVENT.id, True, "thanks")


async def test_two_publications_of_one_event_get_the_same_answer():
    relay = Relay()
    relay.up()
    answers = [asyncio.create_task(relay.link.publish(EVENT)) for _ in range(2)]
    await soon(lambda: relay.verbs() == ["EVENT"] * 2)
    relay.says(Ok(EVENT.id, False, "blocked: no"))
    assert {await answer for answer in answers} == {Ok(EVENT.id, False, "blocked: no")}


async def test_a_duplicate_is_as_good_as_a_yes():
    relay = Relay()
    relay.up()
    answer = asyncio.create_task(relay.link.publish(EVENT))
    await soon(lambda: relay.heard)
    relay.says(Ok(EVENT.id, False, "duplicate: have it"))
    assert (await answer).accepted


async def test_an_answer_of_another_sort_under_the_same_id_is_no_answer():
    relay = Relay()
    relay.up()
    answer = asyncio.create_task(relay.link.publish(EVENT))
    await soon(lambda: relay.heard)
    relay.says(ClosedMessage(EVENT.id, "error: confused"))
    relay.says(RelayCount(EVENT.id, 5))
    relay.says(Ok(EVENT.id, True, ""))
    assert (await answer).accepted


async def test_a_count_is_answered_by_a_number_or_a_refusal():
    relay = Relay()
    relay.up()
    for said in (RelayCount("c", 5), ClosedMessage("c", "unsupported: no counting")):
        relay.heard.clear()
        answer = asyncio.create_task(relay.link.count("c", WANTED))
        await soon(lambda: relay.heard)
        relay.says(said)
        assert await answer == said


# AUTH


def answer_to_challenge(relay, challenge="c"):
    relay.says(RelayAuth(challenge))
    verb, answer = relay.heard.pop()
    assert verb == "AUTH"
    parsed = events.parse(answer)
    nip42.check(parsed, relay_url=URL, challenge=challenge, now_s=1_800_000_000)
    return parsed.id


async def test_what_was_refused_before_auth_is_sent_once_more_after_it():
    relay, listener = Relay(KEYS), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    auth_id = answer_to_challenge(relay)
    publication = asyncio.create_task(relay.link.publish(EVENT))
    await soon(lambda: relay.verbs() == ["REQ", "EVENT"])
    relay.says(ClosedMessage("s", "auth-required: who are you"))
    relay.says(Ok(EVENT.id, False, "auth-required: who are you"))
    await asyncio.sleep(0)
    relay.heard.clear()
    relay.says(Ok(auth_id, True, ""))
    await soon(lambda: relay.verbs() == ["REQ", "EVENT"])
    assert relay.link.status.authenticated
    relay.says(Eose("s"))
    relay.says(Ok(EVENT.id, True, ""))
    assert (await publication).accepted
    assert [standing for standing, _ in listener.stood] == ["pending", "pending", "eose"]


async def test_who_still_needs_auth_after_auth_is_refused():
    relay, listener = Relay(KEYS), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    relay.says(Ok(answer_to_challenge(relay), True, ""))
    publication = asyncio.create_task(relay.link.publish(EVENT))
    for _ in range(2):
        await soon(lambda: "EVENT" in relay.verbs())
        relay.heard.clear()
        relay.says(ClosedMessage("s", "auth-required: as somebody else"))
        relay.says(Ok(EVENT.id, False, "auth-required: as somebody else"))
        await asyncio.sleep(0)
    assert not (await publication).accepted
    assert listener.stood[-1] == ("refused", "auth-required: as somebody else")


async def test_a_relay_that_does_not_accept_our_key_refuses_what_waited_for_it():
    relay, listener = Relay(KEYS), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    auth_id = answer_to_challenge(relay)
    publication = asyncio.create_task(relay.link.publish(EVENT))
    await soon(lambda: "EVENT" in relay.verbs())
    relay.says(ClosedMessage("s", "auth-required: x"))
    relay.says(Ok(EVENT.id, False, "auth-required: x"))
    relay.says(Ok(auth_id, False, "restricted: not you"))
    assert (await publication) == Ok(EVENT.id, False, "auth-required: x")
    assert listener.stood[-1] == ("refused", "restricted: not you")
    assert not relay.link.status.authenticated


async def test_without_keys_nothing_is_signed_and_auth_required_is_a_refusal():
    relay, listener = Relay(), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    relay.says(RelayAuth("c"))
    assert relay.verbs() == ["REQ"]
    relay.says(ClosedMessage("s", "auth-required: x"))
    assert listener.stood[-1] == ("refused", "auth-required: x")


async def test_a_connection_lost_while_auth_is_pending_starts_over():
    relay = Relay(KEYS)
    relay.up()
    answer_to_challenge(relay)
    publication = asyncio.create_task(relay.link.publish(EVENT))
    await soon(lambda: "EVENT" in relay.verbs())
    relay.says(Ok(EVENT.id, False, "auth-required: x"))
    await asyncio.sleep(0)
    relay.link.down("gone")
    relay.up()
    await soon(lambda: "EVENT" in relay.verbs())
    relay.says(Ok(EVENT.id, True, ""))
    assert (await publication).accepted


async def test_challenges_are_answered_so_often_and_no_more():
    relay = Relay(KEYS)
    relay.up()
    for n in range(links.MAX_CHALLENGES + 5):
        relay.says(RelayAuth(str(n)))
    assert len(relay.heard) == links.MAX_CHALLENGES


# CLOSED


@pytest.mark.parametrize("reason", ["unsupported: x", "restricted: x", "blocked: x", "invalid: x", "pow: x"])
async def test_a_refused_subscription_is_not_asked_for_again(reason):
    relay, listener = Relay(retry_closed_s=0), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    relay.says(ClosedMessage("s", reason))
    relay.link.down("gone")
    relay.up()
    assert relay.heard == []
    assert listener.stood == [("pending", ""), ("refused", reason)]


@pytest.mark.parametrize("reason", ["error: shutting down idle subscription", "rate-limited: slow down", "bye", ""])
async def test_a_subscription_ended_for_a_passing_reason_is_asked_for_again(reason):
    relay, listener = Relay(retry_closed_s=0), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    relay.says(ClosedMessage("s", reason))
    assert listener.stood[-1] == ("closed", reason)
    await soon(lambda: relay.verbs() == ["REQ", "REQ"])
    assert listener.stood[-1] == ("pending", "")


async def test_a_pause_that_outlives_its_connection_or_its_subscription_sends_nothing():
    relay, listener = Relay(retry_closed_s=0), Listened()
    relay.link.subscribe("s", WANTED, listener)
    relay.up()
    relay.says(ClosedMessage("s", "error: x"))
    relay.link.down("gone")
    relay.up()
    relay.link.subscribe("t", WANTED, listener)
    relay.says(ClosedMessage("t", "error: x"))
    relay.link.unsubscribe("t")
    for _ in range(5):
        await asyncio.sleep(0)
    assert relay.verbs() == ["REQ", "REQ", "CLOSE"]


# What a bad relay says


async def test_false_events_are_counted_and_too_many_make_the_relay_hostile():
    relay = Relay()
    relay.up()
    relay.link.subscribe("s", WANTED, Listened(takes=False))
    for _ in range(links.MAX_INVALID - 1):
        relay.says(RelayEvent("s", EVENT))
    assert not relay.link.is_hostile
    relay.link.receive("no JSON")
    assert relay.link.is_hostile
    assert (relay.link.status.invalid, relay.link.status.events) == (links.MAX_INVALID, 0)
    relay.link.down("gone")
    relay.up()
    assert not relay.link.is_hostile


async def test_an_event_that_cannot_be_read_is_lost_to_its_own_subscription():
    relay, one, other = Relay(), Listened(), Listened()
    relay.up()
    relay.link.subscribe("one", WANTED, one)
    relay.link.subscribe("other", WANTED, other)
    relay.link.receive('["EVENT","other",{"id":"half')
    relay.link.receive(b' [ "EVENT" , "other" , {"kind":"many"}]')
    relay.link.receive("nonsense")
    relay.link.receive('["EVENT","nobody",{}]')
    assert (one.lost, other.lost, relay.link.status.invalid) == (0, 2, 4)
    relay.link.exceed()  # it ended the connection, and nobody knows whose it was
    assert (one.lost, other.lost) == (1, 3)


async def test_a_notice_is_kept_cut_short_and_unknown_verbs_are_ignored():
    relay = Relay()
    relay.up()
    relay.says(Notice("x" * 1_000))
    relay.link.receive('["NEG-MSG","s","61"]')
    assert relay.link.status.notice == "x" * links.MAX_WORDS_CHARS
    assert relay.link.status.invalid == 0


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = (
    texts | st.integers(-5, 5) | st.booleans() | st.none() | st.just("s") | st.just(EVENT.id) | st.just(EVENT.as_dict())
)


@given(
    st.lists(
        st.lists(st.sampled_from(["EVENT", "OK", "EOSE", "CLOSED", "AUTH", "COUNT"]) | values, max_size=4), max_size=8
    )
)
def test_no_words_of_a_relay_break_the_link(messages):
    async def talk():
        relay = Relay(KEYS)
        relay.link.subscribe("s", WANTED, Listened())
        relay.up()
        tasks = [asyncio.create_task(relay.link.publish(EVENT)), asyncio.create_task(relay.link.count("c", WANTED))]
        await asyncio.sleep(0)
        for message in messages:
            relay.link.receive(orjson.dumps(message))
            await asyncio.sleep(0)
        relay.link.down("gone")
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert isinstance(await task, Ok | RelayCount | ClosedMessage)

    asyncio.run(talk())
