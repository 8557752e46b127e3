"""A bonded provider observes those that a certified body draws it for, and says no more than it is sure of."""

from __future__ import annotations

from types import SimpleNamespace

from nodewire.errors import BadPeer, LinkLost, NotAllowed, TimedOut
from nodewire.protocol.market.observation import MAX_OBSERVED, Observation
from nodewire.provider.market.observer import FRESH_EPOCHS, Observer
from tests.protocol.committee.actors import committee, digest

COMMITTEE, _ = committee()
ME = digest("me")
PEERS = {
    "near": 900,
    "elsewhere": BadPeer("npub", "somebody else"),
    "gone": LinkLost("npub", "refused"),
    "silent": TimedOut("npub", "no answer"),
    "full": NotAllowed("npub", "turned away"),
}


class Link:
    has_jobs = False

    def __init__(self, rtt_us):
        self.rtt_us = rtt_us

    async def is_alive(self):
        return True


class Wire:
    public = ME

    def __init__(self):
        self.peers, self.dialled = {}, []

    async def link(self, peer, addresses):
        self.dialled.append(peer)
        found = next(found for name, found in PEERS.items() if digest(name) == peer)
        if isinstance(found, Exception):
            raise found
        return Link(found)


class Market:
    committee = COMMITTEE

    def __init__(self, units, wire=("127.0.0.1:9",)):
        self.now, self._wire = 5, wire
        nodes = [SimpleNamespace(pubkey=ME, bond_msat=units * COMMITTEE.bond_unit_msat)]
        nodes += [SimpleNamespace(pubkey=digest(name), bond_msat=0) for name in PEERS]
        ads = {digest(name): SimpleNamespace(wire=wire) for name in PEERS}
        self._snapshot = SimpleNamespace(nodes=nodes, ads=lambda wanted: ads)

    async def snapshot(self, sha256, *, keep):
        return self._snapshot

    def newest(self):
        return SimpleNamespace(epoch=self.now)


EPOCH = SimpleNamespace(body=SimpleNamespace(epoch=5, snapshot="", digest=lambda: digest("body")))


def observer(units=1, *, allow_private=True, **market):
    return Observer(Wire(), Market(units, **market), allow_private=allow_private)


async def test_what_is_found_is_said_and_whoever_turned_it_away_is_there():
    one = observer()
    assert one.report() is None
    await one.look(EPOCH)
    last, said = one.report()
    rtts = {digest("near"): 900, digest("elsewhere"): None, digest("gone"): None, digest("silent"): None}
    assert last == digest("body")
    assert said == tuple(Observation(node=node, rtt_us=rtts[node]) for node in sorted(rtts))
    assert len(said) <= MAX_OBSERVED


async def test_what_an_old_body_drew_is_said_no_more():
    one = observer()
    await one.look(EPOCH)
    one._market.now += FRESH_EPOCHS
    assert one.report() is not None
    one._market.now += 1
    assert one.report() is None


async def test_a_provider_without_a_bond_observes_nobody():
    one = observer(0)
    await one.look(EPOCH)
    assert one.report() is None and one._node.dialled == []


async def test_private_addresses_are_not_dialled_from_outside_and_none_at_all_is_unreachable():
    one = observer(allow_private=False)
    await one.look(EPOCH)
    assert one.report() is None and one._node.dialled == []
    bare = observer(wire=())
    await bare.look(EPOCH)
    assert {found.rtt_us for found in bare.report()[1]} == {None} and bare._node.dialled == []


async def test_an_open_link_is_not_dialled_again():
    one = observer()
    one._node.peers[digest("gone")] = Link(77)
    await one.look(EPOCH)
    assert Observation(node=digest("gone"), rtt_us=77) in one.report()[1]
    assert digest("gone") not in one._node.dialled


async def test_a_provider_whose_bond_has_gone_says_why_its_word_counts_for_nothing(caplog):
    one = observer()
    await one.look(EPOCH)
    one._market._snapshot.nodes[0].bond_msat = 0
    await one.look(EPOCH)
    assert "observed: " in caplog.text and "has no bond" in caplog.text
