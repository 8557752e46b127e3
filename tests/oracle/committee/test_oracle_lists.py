"""What one oracle lists, hands out to others, derives from as the leader, and votes for: each rule by itself."""

from __future__ import annotations

import re

import pytest

from nodewire.oracle.committee import rules
from nodewire.oracle.committee.state import (
    BlobCame,
    Conviction,
    Derive,
    PublishCertificate,
    SayInventory,
    SayProposal,
    SaySupply,
    SayVote,
    Tick,
    VerifiedEvent,
    start,
)
from nodewire.protocol.committee import commitment, oracle_round
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.market import snapshot
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest

HELD = {digest("model"): ([("driver", 10, 500)], 2)}
BOND_MSAT = 100_000_000
COMMITTEE, SEATS = committee(bond_holders=(HOLDER.public,), epoch_ms=10_000, skew_ms=2_000, beat_ms=3_000)
EPOCH = 4
LISTS_MS = COMMITTEE.close_ms(EPOCH) + COMMITTEE.skew_ms
LEADER = next(seat for seat in SEATS if seat.keys.public == COMMITTEE.leader(EPOCH))


def provider(name, **fields):
    return Provider(name, COMMITTEE, HELD, **fields)


def fed(state, *events):
    for event in events:
        state, _ = rules.apply(VerifiedEvent(event), state)
    return state


def listening(*providers, seat=LEADER, epochs=(EPOCH,), ads=True):
    """An oracle in the epoch, which has heard of these nodes."""
    state = start(COMMITTEE, seat.keys.public, COMMITTEE.close_ms(EPOCH - 1) + 100)
    state, _ = rules.apply(Tick(COMMITTEE.close_ms(EPOCH - 1) + 200), state)
    for one in providers:
        state = fed(state, *([one.bond] if one.bond else []), *(one.beat(e) for e in epochs))
        state = fed(state, one.ad) if ads else state
    return state


def listed(state, now_ms=LISTS_MS):
    state, actions = rules.apply(Tick(now_ms), state)
    said = [one.inventory for one in actions if isinstance(one, SayInventory) and one.inventory.epoch == EPOCH]
    return state, said[0] if said else None


def test_who_is_convicted_in_the_midst_of_a_round_is_not_listed_any_more():
    state, _ = rules.apply(Tick(COMMITTEE.close_ms(EPOCH) + 1), listening(provider("stays"), provider("cheats")))
    state, _ = rules.apply(Conviction(provider("cheats").keys.public), state)
    assert listed(state)[1].all_beats == (provider("stays").beat(EPOCH).id,)


def test_of_a_node_the_newest_two_beats_are_listed():
    one = provider("one")
    begin_s = COMMITTEE.close_ms(EPOCH - 1) // 1000
    beats = [one.beat(EPOCH, created_at=begin_s + n) for n in range(4)]
    state = fed(listening(one), *beats)
    assert set(listed(state)[1].all_beats) == {beat.id for beat in beats[2:]}


def test_a_beat_names_one_of_the_newest_four_bodies_or_while_fewer_are_known_the_committee():
    def certificate(epoch):
        body = {"snapshot": digest("s"), "commitments": digest("c"), "inventories": (digest("i"),)}
        return Certificate(
            Body(committee=COMMITTEE.digest(), epoch=epoch, previous=COMMITTEE.digest(), **body), votes=()
        )

    bodies = [certificate(epoch) for epoch in range(5)]
    nodes = [provider(f"n{n}") for n in range(6)]
    lasts = [*(one.digest for one in bodies), COMMITTEE.digest()]
    beats = [node.beat(EPOCH + 1, last) for node, last in zip(nodes, lasts, strict=True)]
    state = start(COMMITTEE, LEADER.keys.public, COMMITTEE.close_ms(EPOCH) + 100)
    state = fed(rules.apply(Tick(COMMITTEE.close_ms(EPOCH) + 200), state)[0], *beats, *(node.ad for node in nodes))

    def found(known):
        changed = rules.replace(state, certified=tuple(bodies[:known]))
        _, actions = rules.apply(Tick(LISTS_MS + COMMITTEE.epoch_ms), changed)
        said = next(one.inventory for one in actions if isinstance(one, SayInventory))
        return [n for n, beat in enumerate(beats) if beat.id in said.all_beats]

    assert found(5) == [1, 2, 3, 4]
    assert found(4) == [0, 1, 2, 3]
    assert found(3) == [0, 1, 2, 5]


def test_a_beat_that_names_anothers_ad_is_not_listed():
    honest, thief = provider("honest"), provider("thief")
    state = fed(listening(honest, thief), thief.beat(EPOCH, ad=honest.ad.id, created_at=2 * 10**9))
    assert set(listed(state)[1].all_beats) == {honest.beat(EPOCH).id, thief.beat(EPOCH).id}


def test_a_node_whose_bond_statement_is_lacking_is_listed_when_it_has_come():
    one = provider("one", bond_msat=BOND_MSAT)
    state = fed(listening(), one.beat(EPOCH), one.ad)
    assert listed(state)[1].all_beats == ()
    found = listed(fed(state, one.bond))[1]
    assert (found.beats, found.bonded) == ((), (one.beat(EPOCH).id,))


# ---- what others lack ---------------------------------------------------------------------------------------------


def said_by(seat, *providers, commitments=()):
    """An oracle's inventory of these nodes' beats."""
    beats = {bool(one.bond): set() for one in providers} | {True: set(), False: set()}
    for one in providers:
        beats[bool(one.bond)].add(one.beat(EPOCH).id)
    document = Inventory(
        committee=COMMITTEE.digest(),
        epoch=EPOCH,
        beats=tuple(sorted(beats[False])),
        bonded=tuple(sorted(beats[True])),
        commitments=commitments,
    )
    return oracle_round.build_inventory(seat.keys, document, created_at=LISTS_MS // 1000)[0]


def supplied(nodes, *, also=None):
    """What the leader, which lists `nodes`, hands out where one other lists them, too, and one lists none."""
    state, document = listed(listening(*nodes))
    mine = oracle_round.build_inventory(LEADER.keys, document, created_at=LISTS_MS // 1000)[0]
    others = [seat for seat in SEATS if seat is not LEADER]
    state = fed(state, mine, said_by(others[0], *(nodes if also is None else also)), said_by(others[1]))
    _, actions = rules.apply(Tick(COMMITTEE.close_ms(EPOCH) + 2 * COMMITTEE.skew_ms), state)
    return [event.id for one in actions if isinstance(one, SaySupply) for event in one.events]


def test_what_another_lacks_is_handed_out_with_all_that_it_needs_bonded_nodes_first():
    strangers = sorted((provider(f"stranger-{n}") for n in range(3)), key=lambda one: one.beat(EPOCH).id)
    bonded = next(
        one
        for n in range(99)
        if (one := provider(f"bonded-{n}", bond_msat=BOND_MSAT)).beat(EPOCH).id > strangers[-1].beat(EPOCH).id
    )
    ids = supplied([*strangers, bonded])
    assert ids[:3] == [bonded.beat(EPOCH).id, bonded.ad.id, bonded.bond.id]
    assert set(ids[3:]) == {id_ for one in strangers for id_ in (one.beat(EPOCH).id, one.ad.id)}


def test_what_f_plus_one_do_not_list_is_handed_out_to_nobody():
    common, rare = provider("common"), provider("rare")
    assert supplied([common, rare], also=[common]) == [common.beat(EPOCH).id, common.ad.id]


def test_no_more_is_handed_out_than_counts(monkeypatch):
    monkeypatch.setattr(oracle_round, "MAX_SUPPLIES", 2)
    monkeypatch.setattr(oracle_round, "MAX_SUPPLIED", 2)
    assert len(supplied([provider(f"stranger-{n}") for n in range(9)])) == 4


# ---- what the leader derives from ---------------------------------------------------------------------------------


def led(state, *inventories, skews):
    """The leader with these inventories, some skews after the close: its actions."""
    said = []
    for what in (*map(VerifiedEvent, inventories), Tick(COMMITTEE.close_ms(EPOCH) + skews * COMMITTEE.skew_ms)):
        state, actions = rules.apply(what, state)
        said += actions
    return state, said


def of_a_kind(actions, kind):
    return [one for one in actions if isinstance(one, kind)]


@pytest.fixture
def round_of():
    """(state after the leader listed `mine`, its own inventory, the other three seats)."""

    def made(*mine):
        state, document = listed(listening(*mine))
        own = oracle_round.build_inventory(LEADER.keys, document, created_at=LISTS_MS // 1000)[0]
        return state, own, [seat for seat in SEATS if seat is not LEADER]

    return made


def test_the_leader_asks_for_strangers_that_it_lacks_and_calls_the_body_crowded_when_it_is_late(round_of):
    known, hidden = provider("known"), provider("hidden")
    state, own, (a, b, c) = round_of(known)
    said = [own, *(said_by(seat, known, hidden) for seat in (a, b, c))]
    state, _ = led(state, *said, skews=2)
    state, _ = rules.apply(Tick(COMMITTEE.close_ms(EPOCH) + 2 * COMMITTEE.skew_ms + 1), state)
    assert state.rounds[EPOCH].chosen is None, "it waits for what it has asked for"
    state, _ = led(state, skews=3)
    ids, is_crowded = state.rounds[EPOCH].chosen
    assert (len(ids), is_crowded) == (4, True)


def test_more_strangers_than_can_be_asked_for_are_not_waited_for(round_of, monkeypatch):
    monkeypatch.setattr(rules, "MAX_ASKED_IDS", 2)
    known, hidden = provider("known"), [provider(f"hidden-{n}") for n in range(3)]
    state, own, (a, b, c) = round_of(known)
    state, _ = led(state, own, *(said_by(seat, known, *hidden) for seat in (a, b, c)), skews=2)
    assert state.rounds[EPOCH].chosen[1]


def test_of_bonded_nodes_that_the_leader_lacks_the_inventories_with_most_lose_their_place(round_of):
    """Two invent nodes with bonds. One of them is enough to be rid of what f+1 must list."""
    known = provider("known")
    invented = [provider(f"invented-{n}", bond_msat=BOND_MSAT) for n in range(3)]
    state, own, (a, b, c) = round_of(known)
    said = [own, said_by(a, known, *invented), said_by(b, known, *invented[:2]), said_by(c, known)]
    state, actions = led(state, *said, skews=2)
    assert not of_a_kind(actions, SayProposal)
    assert state.rounds[EPOCH].chosen is None
    state, _ = led(state, skews=3)
    ids, _ = state.rounds[EPOCH].chosen
    assert ids == {one.id for one in said} - {said[1].id}


def test_a_leader_that_lost_what_it_had_listed_keeps_its_own_inventory():
    """After a restart it repeats what it said, and may lack what that lists."""
    known = provider("known")
    a, b, c = (seat for seat in SEATS if seat is not LEADER)
    for n in range(99):
        lost = provider(f"lost-{n}", bond_msat=BOND_MSAT)
        own, other = said_by(LEADER, known, lost), said_by(a, known, lost)
        if own.id > other.id:  # of equals the larger id would go
            break
    state, _ = led(listening(known), own, other, said_by(b, known), said_by(c, known), skews=2)
    state, _ = led(state, skews=3)
    ids, _ = state.rounds[EPOCH].chosen
    assert own.id in ids
    assert other.id not in ids


def test_an_oracle_that_says_two_inventories_is_cited_with_neither(round_of):
    known, other = provider("known"), provider("other")
    state, own, (a, b, c) = round_of(known, other)
    twice = [said_by(c, known), said_by(c, known, other)]
    state, _ = led(state, own, *twice, said_by(a, known), said_by(b, known), skews=2)
    ids, _ = state.rounds[EPOCH].chosen
    assert ids.isdisjoint({one.id for one in twice})
    assert len(ids) == 3


# ---- what the others vote for -------------------------------------------------------------------------------------


def settled(state, actions):
    """With all that is to be derived derived: the state, and what is said then."""
    said = [one for one in actions if not isinstance(one, Derive)]
    for one in of_a_kind(actions, Derive):
        state, more = rules.apply(one.work.run(), state)
        said += more
    return state, said


@pytest.fixture
def proposed():
    """The body of a round that all oracles have heard alike, its inventories, and an oracle that is to vote."""
    nodes = [provider(f"n{n}") for n in range(3)]
    said = [said_by(seat, *nodes) for seat in SEATS]
    leader, _ = listed(listening(*nodes))
    _, actions = settled(*led(leader, *said, skews=2))
    (proposal,) = of_a_kind(actions, SayProposal)
    voter = fed(listening(*nodes, seat=next(seat for seat in SEATS if seat is not LEADER)), *said)
    return proposal.body, said, voter


def considered(body, voter, *, by=LEADER, now_ms=None):
    """The voter's state when it has seen a proposal, and its votes."""
    event = oracle_round.build_proposal(by.keys, body, created_at=LISTS_MS // 1000)
    now_ms = COMMITTEE.close_ms(EPOCH) + 2 * COMMITTEE.skew_ms if now_ms is None else now_ms
    voter, _ = rules.apply(Tick(now_ms), voter)
    state, actions = settled(*rules.apply(VerifiedEvent(event), voter))
    return state, of_a_kind(actions, SayVote)


def test_what_follows_from_the_inventories_gets_a_vote_of_the_leaders_proposal_alone(proposed):
    body, _, voter = proposed
    _, votes = considered(body, voter)
    assert [vote.x for vote in votes] == [body.digest()]
    assert considered(body, voter, by=SEATS[SEATS.index(LEADER) - 1])[1] == []
    late, votes = considered(body, voter, now_ms=COMMITTEE.close_ms(EPOCH + 1))
    assert votes == []  # the round is over
    assert late.rounds[EPOCH].refused is None


def test_a_body_that_does_not_follow_gets_no_vote_and_the_reason_is_known(proposed):
    body, said, voter = proposed
    mine = [event for event in said if event.pubkey != LEADER.keys.public]
    second = said_by(next(seat for seat in SEATS if seat.keys.public == mine[0].pubkey), provider("n0"))
    voter = fed(voter, second)
    cited = body.inventories
    wrong = {
        "two of one oracle": {"inventories": tuple(sorted((*cited, second.id)))},
        "not of 2f\\+1 oracles": {"inventories": cited[:2]},
        "leader's inventory": {"inventories": tuple(sorted(one.id for one in mine)), "is_crowded": True},
        "commitments": {"commitments": digest("others")},
        "snapshot": {"snapshot": digest("another")},
    }
    for reason, changes in wrong.items():
        state, votes = considered(body.model_copy(update=changes), voter)
        assert not votes, reason
        assert re.search(reason, state.rounds[EPOCH].refused or ""), reason


def test_a_body_that_follows_another_than_the_newest_certified_gets_no_vote(proposed):
    body, _, voter = proposed
    old = Certificate(body.model_copy(update={"epoch": EPOCH - 2}), votes=())
    voter = rules.replace(voter, certified=(old,), snapshots={body.snapshot: None})
    state, votes = considered(body, voter)  # it cites the committee, as if there were none
    assert not votes
    assert "previous" in state.rounds[EPOCH].refused


def test_a_leader_that_leaves_a_bonded_nodes_ad_out_of_its_blob_gets_no_vote_of_who_has_it():
    """The voter lacks a stranger's beat, and takes it from the blob. Of strangers nothing else need be in that."""
    bonded, known, hidden = provider("bonded", bond_msat=BOND_MSAT), provider("known"), provider("hidden")
    nodes = (bonded, known, hidden)
    said = [said_by(seat, *nodes) for seat in SEATS]
    voter = fed(listening(bonded, known, seat=next(seat for seat in SEATS if seat is not LEADER)), *said)
    beats = [one.beat(EPOCH) for one in nodes]
    for left_out, votes_for_it in ((known, True), (bonded, False)):
        ads = [one.ad for one in nodes if one is not left_out]
        forged = snapshot.derive(COMMITTEE, EPOCH, beats, ads, bonds=[bonded.bond] if votes_for_it else [])
        body = Body(
            committee=COMMITTEE.digest(),
            epoch=EPOCH,
            snapshot=snapshot.sha256(forged.pack()),
            commitments=commitment.certified_root([]),
            inventories=tuple(sorted(one.id for one in said)),
            previous=COMMITTEE.digest(),
        )
        state, votes = considered(body, voter)
        assert not votes  # a beat is lacking
        state, actions = rules.apply(BlobCame(body.snapshot, forged.pack()), state)
        _, actions = settled(state, actions)
        assert bool(of_a_kind(actions, SayVote)) == votes_for_it


def certifying(proposed, voters, *, others=(), now_ms, me=None):
    """What an oracle publishes with these votes for the body, and those of `others` for a body that came first."""
    body, _, voter = proposed
    state = voter if me is None else rules.replace(voter, me=me)
    state, _ = rules.apply(Tick(now_ms), state)
    first = body.model_copy(update={"commitments": digest("first")})
    for one in (first, body) if others else (body,):
        state = fed(state, oracle_round.build_proposal(LEADER.keys, one, created_at=LISTS_MS // 1000))
    votes = [(one, first) for one in others] + [(one, body) for one in voters]
    said = []
    for seat, one in votes:
        topic = f"epoch/{EPOCH}"
        event = oracle_round.build_vote(seat.keys, COMMITTEE.digest(), topic, one.digest(), created_at=LISTS_MS // 1000)
        state, actions = rules.apply(VerifiedEvent(event), state)
        said += actions
    state, actions = rules.apply(Tick(now_ms + COMMITTEE.skew_ms), state)
    return of_a_kind(said, PublishCertificate), of_a_kind(actions, PublishCertificate), body


AT_MS = COMMITTEE.close_ms(EPOCH) + 3 * COMMITTEE.skew_ms


def test_the_leader_publishes_a_certificate_at_once_and_the_others_after_a_skew(proposed):
    at_once, later, body = certifying(proposed, SEATS[:3], now_ms=AT_MS, me=LEADER.keys.public)
    assert [one.certificate.body for one in at_once] == [body]
    assert later == []
    at_once, later, _ = certifying(proposed, SEATS[:3], now_ms=AT_MS)
    assert at_once == []
    assert [one.certificate.body for one in later] == [body]


def test_two_votes_of_four_certify_nothing_beside_three_for_another_body(proposed):
    assert certifying(proposed, SEATS[:2], now_ms=AT_MS)[1] == []
    _, later, body = certifying(proposed, SEATS[:3], others=SEATS[2:], now_ms=AT_MS)
    assert [one.certificate.body for one in later] == [body]
