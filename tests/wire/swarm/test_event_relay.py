"""Events and small documents over links, for nodes that know each other: what comes, and what ends a link."""

import asyncio

import pytest

from nodewire.errors import BadFrame, LinkLost, NodewireError, NotFound, TimedOut, TooLarge
from nodewire.nostr.event import sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.wire.swarm.event_relay import EVENT, LinkEventTransport
from nodewire.wire.swarm.inventory_exchange import PART_BYTES, InventoryExchange
from tests.wire.wire_net import QUICK, until

KIND = 7000
ONE, TWO, OTHER = (Keys(bytes([n]) * 32) for n in (1, 2, 3))
LONG = bytes(range(256)) * 300


class Member:
    """A node whose events go over its links, and which shows two documents."""

    def __init__(self, keys, addresses=()):
        self.keys = keys
        self.relaying = LinkEventTransport(keys.public, dict(addresses))
        self.showing = InventoryExchange(lambda peer: self.node.open_link(peer), {"long": LONG, "empty": b""}, 0.5)

    async def open(self, net):
        self.node = await net.node(self.keys, on_control=self.heard, patience=QUICK)
        self.relaying.links = self.node
        return self

    def heard(self, peer, document):
        if not self.relaying.handle(peer, document):
            self.showing.handle(peer, document)

    def said(self, to, content="", keys=None):
        return sign(keys or self.keys, KIND, created_at=1, content=content, tags=[["p", to.keys.public]])


@pytest.fixture
async def pair(net):
    """Who is dialled, and who dials it."""
    two = await Member(TWO).open(net)
    one = await Member(ONE, {TWO.public: (net.addresses[TWO.public],)}).open(net)
    return one, two


def mine(member):
    return [Filter(tags={"p": frozenset({member.keys.public})})]


async def test_an_event_goes_to_whom_it_names_and_an_answer_back_over_the_same_link(pair):
    one, two = pair
    async with two.relaying.subscribe(mine(two)) as here, one.relaying.subscribe(mine(one)) as there:
        await one.relaying.publish(one.said(two, "hello"))
        assert (await anext(here)).content == "hello"
        await two.relaying.publish(two.said(one, "and you"))
        assert (await anext(there)).content == "and you"
        await one.relaying.publish(one.said(two, "again"))
        again = await anext(here)
        await one.relaying.publish(again)  # once is enough
        await one.relaying.publish(one.said(two, "last"))
        assert (await anext(here)).content == "last"
    assert await one.relaying.fetch(mine(one)) == await one.relaying.fetch_all(mine(one)) == []
    assert len(one.node.peers) == 1


async def test_a_wrap_may_be_of_anybody_and_an_event_of_nobody_else(pair):
    one, two = pair
    rumor = nip59.rumor(ONE.public, 28841, created_at=1, content="secret")
    async with two.relaying.subscribe(mine(two)) as here:
        await one.relaying.publish(nip59.wrap(rumor, ONE, TWO.public, now_s=1, ephemeral=True))
        assert nip59.unwrap(await anext(here), TWO).content == "secret"
        await one.relaying.publish(one.said(two, "mine", OTHER))  # as if a member could speak for another
        await until(lambda: not two.node.peers)
        assert not here.queued


@pytest.mark.parametrize("text", [1, "", "{}", "[" * 9_000, '{"id":1}'])
async def test_what_is_no_event_ends_the_link_and_nothing_else(pair, text):
    one, two = pair
    link = await one.node.link(TWO.public, one.relaying._addresses[TWO.public])
    link.send_control({"t": EVENT, "event": text})
    await until(lambda: not two.node.peers and not one.node.peers)  # what goes into a link that ends is lost
    async with two.relaying.subscribe(mine(two)) as here:
        await one.relaying.publish(one.said(two, "well"))
        assert (await anext(here)).content == "well"


async def test_a_forged_signature_ends_the_link(pair):
    one, two = pair
    event = one.said(two, "true").to_json().replace("true", "false")
    link = await one.node.link(TWO.public, one.relaying._addresses[TWO.public])
    link.send_control({"t": EVENT, "event": event})
    await until(lambda: not two.node.peers)


async def test_who_is_not_there_is_an_error(pair, net):
    one, two = pair
    await two.node.close()
    with pytest.raises(NodewireError) as failed:
        await one.relaying.publish(one.said(two))
    assert isinstance(failed.value, LinkLost | TimedOut)
    stranger = Member(OTHER)  # without an address it is for it to come
    with pytest.raises(NodewireError):
        await one.relaying.publish(one.said(stranger))


async def test_a_document_is_shown_part_by_part(pair):
    one, _ = pair
    link = await one.node.link(TWO.public, one.relaying._addresses[TWO.public])
    assert len(LONG) > 2 * PART_BYTES
    assert await asyncio.gather(one.showing.ask(link, "long", 10**6), one.showing.ask(link, "long", 10**6)) == [
        LONG,
        LONG,
    ]
    for what in ("empty", "none"):
        with pytest.raises(NotFound, match=what):
            await one.showing.ask(link, what, 10**6)
    with pytest.raises(TooLarge, match="long"):
        await one.showing.ask(link, "long", len(LONG) - 1)


async def test_who_says_nothing_or_nonsense_is_not_waited_for(pair):
    one, two = pair
    link = await one.node.link(TWO.public, one.relaying._addresses[TWO.public])
    two.showing.handle = lambda peer, document: True
    with pytest.raises(TimedOut, match="does not say"):
        await one.showing.ask(link, "long", 10**6)

    def nonsense(peer, document):
        two.node.open_link(peer).send_control({**document, "t": "show", "of": 10, "part": b"x" * 11})
        return True

    def drip(peer, document):  # as slowly as patience allows
        two.node.open_link(peer).send_control({**document, "t": "show", "of": 10**6, "part": b"x"})
        return True

    for said in (nonsense, drip):
        two.showing.handle = said
        with pytest.raises(BadFrame, match="parts"):
            await one.showing.ask(link, "long", 10**6)
    asking = asyncio.create_task(one.showing.ask(link, "other", 10**6))
    two.showing.handle = lambda peer, document: two.node.open_link(peer).abort(LinkLost(peer, "leaves")) is None
    with pytest.raises((LinkLost, BadFrame)):
        await asking


async def test_who_stops_waiting_takes_nobody_elses_answer_away(pair):
    one, two = pair
    link = await one.node.link(TWO.public, one.relaying._addresses[TWO.public])
    asked, answer = [], two.showing.handle
    two.showing.handle = lambda peer, document: asked.append((peer, document)) is None
    first, second = (asyncio.create_task(one.showing.ask(link, "long", 10**6)) for _ in range(2))
    await until(lambda: asked)
    first.cancel()
    await asyncio.wait([first])
    third = asyncio.create_task(one.showing.ask(link, "long", 10**6))
    await until(lambda: len(asked) == 2)
    second.cancel()
    await asyncio.wait([second])
    two.showing.handle = answer
    answer(*asked[1])
    assert await third == LONG


@pytest.mark.parametrize(
    "document",
    [
        {"t": "ask"}, {"t": "ask", "what": "long", "at": -1}, {"t": "ask", "what": "x" * 65, "at": 0},
        {"t": "ask", "what": "long", "at": True}, {"t": "show", "what": "long", "at": 0, "of": 1, "part": "text"},
        {"t": "show", "what": "long", "at": 0, "of": -1, "part": b""},
    ],
)  # fmt: skip
async def test_a_malformed_question_or_answer_ends_the_link(pair, document):
    one, two = pair
    link = await one.node.link(TWO.public, one.relaying._addresses[TWO.public])
    link.send_control(document)
    await until(lambda: not two.node.peers)
