"""One oracle of four, leading or not: rivals left out, friends made richer, verdicts invented, the beacon held back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.core.slices import whole
from nodewire.oracle.committee import rules
from nodewire.oracle.committee.citation import Citation
from nodewire.oracle.committee.derivation import Derivation
from nodewire.oracle.committee.state import Conviction, PublishPartial, SayInventory, SayProposal
from nodewire.plan.sample import draw
from nodewire.protocol.committee import beacon, commitment, dvrf, oracle_round
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.reputation import COUNTED_AFTER, ReputationVerdict
from nodewire.protocol.job import request as job
from nodewire.protocol.market import snapshot
from tests.attacks.inside.committee.test_inside_crowd import BONDED, request, roots
from tests.attacks.inside.committee.test_inside_crowd import COMMITTEE as CROWD
from tests.attacks.inside.committee.test_inside_crowd import committed as crowd_committed
from tests.attacks.inside.committee.test_inside_crowd import snapshot as crowd_snapshot
from tests.oracle.committee.test_oracle_rules import HELD, beats_of
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys

EPOCHS = 6
DOCUMENT, SEATS = committee(bond_holders=(HOLDER.public,))
FRIEND = Provider("friend", DOCUMENT, HELD)
RIVALS = [Provider(f"rival{n}", DOCUMENT, HELD, bond_msat=10**9) for n in range(3)]
FAULTY = SEATS[1].keys.public


def run(fault, *, epochs=EPOCHS, commits=(), **fields):
    sky = Sky(DOCUMENT, SEATS, 1, {FAULTY: fault}, **fields)
    everybody = [FRIEND, *RIVALS]
    for one in RIVALS:
        sky.stored[one.bond.id] = one.bond
    beats = beats_of(sky, everybody)

    def events(epoch):
        yield from beats(epoch)
        for author in commits:
            yield committed(author, epoch)

    sky.run_epochs(epochs, events)
    return sky


def committed(author, epoch):
    root = ChunkRoot(request=digest("r"), task="driver", chunk=epoch, attempt=0, root=digest(f"{author.name}/{epoch}"))
    said = Commitment(committee=DOCUMENT.digest(), epoch=epoch, chunks=(root,))
    return commitment.build(author.keys, said, created_at=1)[0]


def certified(sky):
    newest = {}
    for state in sky.states.values():
        for one in state.certified:
            newest[one.body.epoch] = one.body
    return newest


def said_again(seat, document):
    return [(oracle_round.build_inventory(seat.keys, document, created_at=1)[0], None)]


def leaving_out_rivals(sky, seat, action, outgoing):
    """Lists its friend's beat and nothing of anybody else."""
    if isinstance(action, SayInventory):
        mine = {e.id for e, _ in sky.states[FAULTY].beats.get(FRIEND.keys.public, ())}
        kept = tuple(id_ for id_ in action.inventory.beats if id_ in mine)
        return said_again(seat, action.inventory.model_copy(update={"beats": kept, "bonded": (), "commitments": ()}))
    return outgoing


def test_who_lists_neither_rivals_nor_their_commitments_keeps_none_of_them_out():
    sky = run(leaving_out_rivals, commits=RIVALS)
    bodies = certified(sky)
    assert len(bodies) == EPOCHS - 1
    for epoch, body in bodies.items():
        expected = commitment.certified_root(sorted(committed(one, epoch).id for one in RIVALS))
        assert body.commitments == expected
        assert len(snapshot.unpack(sky.blobs[body.snapshot], body.snapshot).nodes) == 4


def calling_it_crowded(sky, seat, action, outgoing):
    """As the leader it leaves out whom a leader may leave out: all that it does not list."""
    if not isinstance(action, SayProposal):
        return leaving_out_rivals(sky, seat, action, outgoing)
    body, state = action.body, sky.states[FAULTY]
    cited = Citation.build(body.inventories, True, state.rounds[body.epoch], FAULTY)
    derived = Derivation(
        committee=DOCUMENT,
        epoch=body.epoch,
        key=(),
        beats=tuple(cited.listed(DOCUMENT)[0]),
        judged=(),
        previous=rules._previous(body.epoch, state)[0],
        known=whole(rules._at_hand(state.rounds[body.epoch], state))[0],
        parsed={},
    ).run()
    sky.blobs[derived.sha256] = derived.blob
    body = body.model_copy(update={"snapshot": derived.sha256, "is_crowded": True})
    return [(oracle_round.build_proposal(seat.keys, body, created_at=1), None)]


def test_a_leader_that_calls_an_epoch_crowded_leaves_out_strangers_and_no_bonded_rival():
    stranger = Provider("stranger", DOCUMENT, HELD)
    sky = Sky(DOCUMENT, SEATS, 1, {FAULTY: calling_it_crowded})
    for one in RIVALS:
        sky.stored[one.bond.id] = one.bond
    sky.run_epochs(EPOCHS, beats_of(sky, [FRIEND, stranger, *RIVALS]))
    bodies = certified(sky)
    assert len(bodies) == EPOCHS - 1
    everybody = {one.keys.public for one in (FRIEND, stranger, *RIVALS)}
    for epoch, body in bodies.items():
        found = {node.pubkey for node in snapshot.unpack(sky.blobs[body.snapshot], body.snapshot).nodes}
        assert body.is_crowded == (epoch % 4 == 1)
        assert everybody - found == ({stranger.keys.public} if body.is_crowded else set())


def test_a_crowded_body_that_does_not_cite_its_leaders_inventory_gets_no_vote():
    def fault(sky, seat, action, outgoing):
        if not isinstance(action, SayProposal):
            return outgoing
        said = sky.states[FAULTY].rounds[action.body.epoch].inventories
        others = tuple(id_ for id_ in action.body.inventories if said[id_].oracle != FAULTY)
        body = action.body.model_copy(update={"inventories": others, "is_crowded": True})
        return [(oracle_round.build_proposal(seat.keys, body, created_at=1), None)]

    assert sorted(certified(run(fault))) == [epoch for epoch in range(EPOCHS - 1) if epoch % 4 != 1]


def proposing(change):
    """As the leader it proposes what it likes, with the snapshot that goes with it."""

    def fault(sky, seat, action, outgoing):
        if not isinstance(action, SayProposal):
            return outgoing
        blob = change(snapshot.unpack(action.blob, action.body.snapshot)).pack()
        sky.blobs[snapshot.sha256(blob)] = blob
        body = action.body.model_copy(update={"snapshot": snapshot.sha256(blob)})
        return [(oracle_round.build_proposal(seat.keys, body, created_at=1), None)]

    return fault


def richer(found):
    nodes = tuple(
        n.model_copy(update={"bond_msat": 10**12}) if n.pubkey == FRIEND.keys.public else n for n in found.nodes
    )
    return found.model_copy(update={"nodes": nodes})


def lonely(found):
    return found.model_copy(update={"nodes": tuple(n for n in found.nodes if n.pubkey == FRIEND.keys.public)})


def famous(found):
    nodes = tuple(
        n.model_copy(update={"passed": 10**9} if n.pubkey == FRIEND.keys.public else {"withheld": 10**9})
        for n in found.nodes
    )
    return found.model_copy(update={"nodes": nodes})


@pytest.mark.parametrize("change", [richer, lonely, famous])
def test_a_leader_that_proposes_another_snapshot_gets_no_vote_and_loses_its_epoch_only(change):
    sky = run(proposing(change))
    assert sorted(certified(sky)) == [epoch for epoch in range(EPOCHS - 1) if epoch % 4 != 1]
    for body in certified(sky).values():
        found = snapshot.unpack(sky.blobs[body.snapshot], body.snapshot)
        assert {n.pubkey: n.bond_msat for n in found.nodes} == {
            FRIEND.keys.public: 0,
            **{one.keys.public: 10**9 for one in RIVALS},
        }


def inventing(sky, seat, action, outgoing):
    """Says that verdicts praise its friend and blame a rival, which nobody else has seen."""
    if isinstance(action, SayInventory):
        epoch = action.inventory.epoch
        made = [
            ReputationVerdict(
                epoch=max(0, epoch - COUNTED_AFTER),
                sample=digest(f"s/{n}"),
                provider=who,
                outcome=outcome,
                price_msat=9 if outcome == "pass" else 0,
            )
            for n, (who, outcome) in enumerate(
                [(FRIEND.keys.public, "pass"), (RIVALS[0].keys.public, "withheld"), (RIVALS[1].keys.public, "withheld")]
            )
        ]
        judged = tuple(sorted(made, key=lambda one: one.order))
        return said_again(seat, action.inventory.model_copy(update={"judged": judged}))
    return outgoing


def test_verdicts_that_one_oracle_invents_are_in_nobodys_account():
    sky = run(inventing, epochs=COUNTED_AFTER + 3)
    found = sky.latest_snapshot()
    assert found.epoch > COUNTED_AFTER
    assert not found.judged
    assert not any(node.passed or node.withheld for node in found.nodes)


def two_tongued(sky, seat, action, outgoing):
    """One inventory for half of the others, another for the rest: each would see what it is to see."""
    if isinstance(action, SayInventory):
        event, _ = oracle_round.build_inventory(seat.keys, action.inventory, created_at=1)
        other, _ = oracle_round.build_inventory(
            seat.keys, action.inventory.model_copy(update={"bonded": action.inventory.bonded[:1]}), created_at=1
        )
        half = set(list(sky.states)[:2])
        return [(event, half), (other, set(sky.states) - half)]
    return outgoing


def test_two_inventories_by_one_oracle_certify_nothing_twice():
    sky = run(two_tongued, commits=RIVALS)
    assert all(len(digests) == 1 for digests in sky.certificates().values())
    assert len(sky.latest_snapshot().nodes) == 4


@pytest.mark.parametrize("forged", [False, True])
def test_a_beacon_cannot_be_held_back_nor_bent_by_one_oracle(forged):
    """It would look first, and show its part only if the draw suits its friends."""

    def fault(sky, seat, action, outgoing):
        if not isinstance(action, PublishPartial):
            return outgoing
        if not forged:
            return []
        share = dvrf.deal(4, 3, lambda n: b"\x07" * n).secrets[seat.index]
        return [(beacon.build(seat.keys, action.body, seat.index, share, created_at=1), None)]

    bent, honest = run(fault), run(lambda sky, seat, action, outgoing: outgoing)
    assert sorted(certified(bent)) == sorted(certified(honest))
    assert bent.beacons() == honest.beacons()
    assert len(bent.beacons()) == EPOCHS - 1


def test_two_shares_say_nothing_of_a_beacon():
    """An oracle and whoever else it might turn: the beacon is that of three and of no two."""
    body = digest("body")
    parts = [dvrf.prove(seat.index, seat.share, bytes.fromhex(body)) for seat in SEATS]
    whole = {dvrf.combine([parts[i] for i in range(4) if i != left], 3) for left in range(4)}
    assert len(whole) == 1
    pairs = {
        dvrf.tagged_hash("nodewire/beacon/1", dvrf.interpolate({a.index: a.gamma, b.index: b.gamma}, 0))
        for a in parts
        for b in parts
        if a.index < b.index
    }
    assert whole.isdisjoint(pairs)


def test_a_convicted_friend_that_one_oracle_still_lists_is_in_no_snapshot():
    def fault(sky, seat, action, outgoing):
        """It alone does not know of the verdict; all others do from the third epoch on."""
        if sky.committee.epoch_at(sky.now_ms) >= 3:
            for pubkey in sky.honest:
                sky.states[pubkey], _ = rules.apply(Conviction(FRIEND.keys.public), sky.states[pubkey])
        return outgoing

    sky = run(fault, epochs=8)
    found = sky.latest_snapshot()
    assert found.epoch >= 6
    assert FRIEND.keys.public not in {node.pubkey for node in found.nodes}
    assert len(found.nodes) == len(RIVALS)


def test_of_two_commitments_for_one_epoch_the_same_root_counts_for_everybody():
    """One is shown to half of the oracles, one to the other half; both may be certified, before the beacon is known."""
    asked = request(BONDED[0], keys("customer"))
    one, other = ([root] for root in roots(asked, [0]) * 2)
    other = [root.model_copy(update={"root": digest("the other")}) for root in other]
    first, second = crowd_committed(BONDED[0], one), crowd_committed(BONDED[0], other)
    second = replace(second, id=digest("another event"))
    parsed = {asked.id: job.parse(asked)}
    for n in range(200):
        beacon = digest(f"beacon/{n}")
        both = draw(CROWD, beacon, [first, second], parsed, crowd_snapshot())
        assert both == draw(CROWD, beacon, [second, first], parsed, crowd_snapshot())
        assert len(both) <= 1
        least = min((first, second), key=lambda committed: committed.id)
        assert all(sample.root == least.commitment.chunks[0].root for sample in both)
