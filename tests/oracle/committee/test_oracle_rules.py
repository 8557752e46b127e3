"""A committee certifies every epoch, never two things about one, and outlives f oracles of any kind."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.nostr.event import sign
from nodewire.oracle.committee import intake, rules
from nodewire.oracle.committee.state import (
    BlobCame,
    Conviction,
    FetchBlob,
    PublishPartial,
    SayInventory,
    SayProposal,
    SayVote,
    Tick,
    VerifiedEvent,
    start,
)
from nodewire.protocol.committee import commitment, oracle_round
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.market import snapshot
from tests.oracle.sky import Sky, silent
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys, statement

MODEL = digest("model")
HELD = {MODEL: ([("driver", 10, 500)], 2)}


def sky_of(f=1, seed=1, faulty=None, **fields):
    document, seats = committee(f)
    faults = {seats[i].keys.public: fault for i, fault in (faulty or {}).items()}
    return Sky(document, seats, seed, faults, **fields)


def beats_of(sky, providers):
    def beats(epoch):
        certified = [s.certified[-1] for s in sky.states.values() if s.certified]
        last = max(certified, key=lambda c: c.body.epoch).digest if certified else None
        for provider in providers:
            sky.stored.setdefault(provider.ad.id, provider.ad)
            yield provider.beat(epoch, last)

    return beats


def test_a_healthy_committee_certifies_every_epoch_and_its_beacon():
    sky = sky_of()
    providers = [Provider(f"p{i}", sky.committee, HELD) for i in range(3)]
    sky.run_epochs(5, beats_of(sky, providers))
    certified = sky.certificates()
    assert sorted(certified) == [0, 1, 2, 3]
    assert all(len(digests) == 1 for digests in certified.values())
    assert len(sky.beacons()) == 4
    assert not sky.accused()
    found = sky.latest_snapshot()
    assert [node.pubkey for node in found.nodes] == sorted(p.keys.public for p in providers)
    assert {node.epochs for node in found.nodes} == {4}


def test_a_committee_of_one_works():
    sky = sky_of(f=0)
    sky.run_epochs(3, beats_of(sky, [Provider("p", sky.committee, HELD)]))
    assert sorted(sky.certificates()) == [0, 1]
    assert len(sky.latest_snapshot().nodes) == 1


def test_a_silent_leader_costs_its_own_epoch_only():
    sky = sky_of(faulty={1: silent})
    sky.run_epochs(7)
    assert sorted(sky.certificates()) == [0, 2, 3, 4]  # number 1 leads epochs 1 and 5


def test_a_node_that_stops_beating_leaves_the_snapshot_within_three_beats():
    sky = sky_of()
    stays, dies = Provider("stays", sky.committee, HELD), Provider("dies", sky.committee, HELD)
    sky.run_epochs(3, beats_of(sky, [stays, dies]))
    assert len(sky.latest_snapshot().nodes) == 2
    sky.run_epochs(4, beats_of(sky, [stays]))
    assert [node.pubkey for node in sky.latest_snapshot().nodes] == [stays.keys.public]


def test_a_convicted_node_leaves_the_snapshot_though_one_oracle_does_not_know():
    sky = sky_of()
    stays, cheats = Provider("stays", sky.committee, HELD), Provider("cheats", sky.committee, HELD)
    sky.run_epochs(3, beats_of(sky, [stays, cheats]))
    assert len(sky.latest_snapshot().nodes) == 2
    for pubkey in list(sky.states)[:3]:
        sky.states[pubkey], _ = rules.apply(Conviction(cheats.keys.public), sky.states[pubkey])
    sky.run_epochs(3, beats_of(sky, [stays, cheats]))
    assert [node.pubkey for node in sky.latest_snapshot().nodes] == [stays.keys.public]
    assert not sky.accused()


def test_a_beat_that_cites_no_certified_epoch_is_not_listed():
    sky = sky_of()
    ahead = Provider("ahead", sky.committee, HELD)
    sky.stored[ahead.ad.id] = ahead.ad
    sky.run_epochs(6, lambda epoch: [ahead.beat(epoch, digest("not yet certified"))])
    assert sorted(sky.certificates()) == [0, 1, 2, 3, 4]
    assert not sky.latest_snapshot().nodes


def test_commitments_are_certified_under_one_root():
    sky = sky_of()
    provider = Provider("p", sky.committee, HELD)
    chunk = ChunkRoot(request=digest("job"), task="driver", chunk=0, attempt=0, root=digest("root"))
    document = Commitment(committee=sky.committee.digest(), epoch=1, chunks=(chunk,))
    event, _ = commitment.build(provider.keys, document, created_at=1_800_000_003)
    sky.run_epochs(1)
    sky.publish(event)
    sky.run_epochs(3)
    body = next(c.body for c in sky.states[sky.honest[0]].certified if c.body.epoch == 1)
    assert body.commitments == commitment.certified_root([event.id])
    assert sky.states[sky.honest[0]].certified[-1].body.commitments == commitment.certified_root([])


def large_commitment(sky, name, epoch=1, jobs=400):
    """A provider's commitment that does not fit its event; (event, blob)."""
    roots = sorted(
        (
            ChunkRoot(request=digest(f"{name}/{n}"), task="driver", chunk=0, attempt=0, root=digest(f"root/{n}"))
            for n in range(jobs)
        ),
        key=lambda root: root.key,
    )
    document = Commitment(committee=sky.committee.digest(), epoch=epoch, chunks=tuple(roots))
    return commitment.build(keys(name), document, created_at=1_800_000_003)


def certified_commitments(sky, epoch=1):
    return next(c.body.commitments for c in sky.states[sky.honest[0]].certified if c.body.epoch == epoch)


def test_a_commitment_is_listed_when_its_blob_is_at_hand_and_not_before():
    sky = sky_of()
    (early, blob), (late, _), (wrong, other) = (large_commitment(sky, name) for name in ("early", "late", "wrong"))
    sky.run_epochs(1)
    for event in (early, late, wrong):
        sky.publish(event, lossy=False)
    sky.blobs[wrong.tag("blob")] = other[:-1] + b"\x00"
    sky.run_to(sky.committee.close_ms(1))
    sky.blobs[early.tag("blob")] = blob  # it comes just before inventories are said, and is asked for again
    sky.run_to(sky.committee.close_ms(3))
    assert certified_commitments(sky) == commitment.certified_root([early.id])
    assert sorted(sky.certificates()) == [0, 1, 2]


def test_a_blob_that_says_something_else_than_the_event_is_not_listed():
    sky = sky_of()
    event, blob = large_commitment(sky, "p")
    tags_ = [[name, digest("another root") if name == "x" else value] for name, value in event.tags]
    lie = sign(keys("liar"), event.kind, created_at=event.created_at, content="", tags=tags_)
    sky.run_epochs(1)
    sky.blobs[event.tag("blob")] = blob
    sky.publish(lie, lossy=False)
    sky.publish(event, lossy=False)
    sky.run_epochs(3)
    assert certified_commitments(sky) == commitment.certified_root([event.id])


def test_strangers_have_so_many_blobs_fetched_and_no_more():
    sky = sky_of()
    state, asked = next(iter(sky.states.values())), 0
    state, _ = rules.apply(Tick(sky.committee.close_ms(0) + 1), state)
    template, _ = large_commitment(sky, "p")
    for n in range(intake.MAX_UNBONDED_BLOBS + 5):
        tags_ = [[name, digest(f"blob/{n}") if name == "blob" else value] for name, value in template.tags]
        event = sign(keys(f"stranger/{n}"), template.kind, created_at=template.created_at, content="", tags=tags_)
        state, actions = rules.apply(VerifiedEvent(event), state)
        asked += sum(isinstance(action, FetchBlob) for action in actions)
        state, _ = rules.apply(BlobCame(digest(f"blob/{n}"), b"nothing"), state)  # makes no room for more
    assert asked == intake.MAX_UNBONDED_BLOBS


def test_bonded_nodes_with_many_blobs_leave_strangers_theirs():
    document, seats = committee(bond_holders=(HOLDER.public,))
    state = start(document, seats[0].keys.public, document.close_ms(0) + 1)
    template, _ = large_commitment(sky_of(), "p")
    names = [f"bonded/{n}" for n in range(intake.MAX_UNBONDED_BLOBS + 5)]
    for name in names:
        state, _ = rules.apply(VerifiedEvent(statement(keys(name).public, 10**8)), state)
    asked = []
    for name in (*names, "stranger"):
        changed = {"blob": digest(f"blob/{name}"), "c": document.digest()}
        tags_ = [[key, changed.get(key, value)] for key, value in template.tags]
        event = sign(keys(name), template.kind, created_at=template.created_at, content="", tags=tags_)
        state, actions = rules.apply(VerifiedEvent(event), state)
        asked += [one.sha256 for one in actions if isinstance(one, FetchBlob)]
    assert len(asked) == len(names) + 1
    assert digest("blob/stranger") in asked


def test_a_commitment_whose_blob_came_takes_one_place_of_its_epochs(monkeypatch):
    monkeypatch.setattr(oracle_round, "MAX_COMMITMENTS", 2)
    sky = sky_of()
    state = start(sky.committee, next(iter(sky.states)), sky.committee.close_ms(0) + 1)
    (large, blob), small = large_commitment(sky, "large"), large_commitment(sky, "small", jobs=1)[0]
    third = large_commitment(sky, "third", jobs=1)[0]
    for what in (
        VerifiedEvent(large),
        BlobCame(large.tag("blob"), blob),
        VerifiedEvent(small),
        VerifiedEvent(third),
        VerifiedEvent(large),
    ):
        state, _ = rules.apply(what, state)
    assert state.commitments[1] == {one.pubkey: one.id for one in (large, small)}
    assert not state.bare[1]


def equivocate(sky, seat, action, outgoing):
    """Signs something else besides everything that it says, and tells one half this, the other half that."""
    others = sorted(sky.states)
    half = set(others[: len(others) // 2])
    result = []
    for event, _ in outgoing:
        if event.kind != oracle_round.KIND or event.tag("t") == "supply":
            result.append((event, None))
            continue
        said, at = oracle_round.parse(event), event.created_at
        if isinstance(said, oracle_round.Proposal):
            body = said.body.model_copy(update={"commitments": digest("forged")})
            other = oracle_round.build_proposal(seat.keys, body, created_at=at)
        elif isinstance(said, oracle_round.Vote):
            other = oracle_round.build_vote(seat.keys, said.committee, said.topic, digest("other"), created_at=at)
        else:
            lie = Inventory(committee=said.committee, epoch=said.epoch, beats=(digest("invented"),), commitments=())
            other, _ = oracle_round.build_inventory(seat.keys, lie, created_at=at)
        result += [(event, half), (other, set(others) - half)]
        if sky.random.random() < 0.3:  # sometimes both are seen by the same oracles
            sky.publish(event, set(others) - half, lossy=False)
    return result


def lie(sky, seat, action, outgoing):
    """Lists beats that do not exist, hides those that do."""
    result = []
    for event, to in outgoing:
        if event.kind == oracle_round.KIND and event.tag("t") == "inventory":
            said = oracle_round.parse(event)
            invented = tuple(sorted(digest(f"invented {i}") for i in range(3)))
            document = Inventory(committee=said.committee, epoch=said.epoch, beats=invented, commitments=invented)
            event, _ = oracle_round.build_inventory(seat.keys, document, created_at=event.created_at)
        result.append((event, to))
    return result


def forge(sky, seat, action, outgoing):
    """As a leader, proposes a snapshot without the first node; else behaves."""
    if not isinstance(action, SayProposal):
        return outgoing
    real = snapshot.unpack(action.blob, action.body.snapshot)
    forged = real.model_copy(update={"nodes": real.nodes[1:], "events": real.events[1:]})
    blob = forged.pack()
    body = action.body.model_copy(update={"snapshot": snapshot.sha256(blob)})
    sky.blobs[body.snapshot] = blob
    return [(oracle_round.build_proposal(seat.keys, body, created_at=sky.now_ms // 1000), None)]


def test_a_lying_inventory_changes_nothing():
    honest, lied = sky_of(seed=3), sky_of(seed=3, faulty={2: lie})
    for sky in (honest, lied):
        providers = [Provider(f"p{i}", sky.committee, HELD) for i in range(3)]
        sky.run_epochs(6, beats_of(sky, providers))
    assert sorted(lied.certificates()) == sorted(honest.certificates()) == [0, 1, 2, 3, 4]
    assert len(lied.latest_snapshot().nodes) == 3


def test_a_leader_that_forges_the_snapshot_gets_no_votes():
    sky = sky_of(faulty={1: forge})
    providers = [Provider(f"p{i}", sky.committee, HELD) for i in range(3)]
    sky.run_epochs(6, beats_of(sky, providers))
    assert sorted(sky.certificates()) == [0, 2, 3, 4]
    assert len(sky.latest_snapshot().nodes) == 3


def test_an_equivocating_oracle_is_proven_at_fault():
    sky = sky_of(faulty={1: equivocate})
    sky.run_epochs(6)
    assert sky.accused() == {sky.seats[1].keys.public}
    assert all(len(digests) == 1 for digests in sky.certificates().values())


def test_a_beat_that_one_honest_oracle_alone_sees_is_left_out_and_one_that_two_see_is_in():
    sky = sky_of()
    seen_by_one, seen_by_two = Provider("one", sky.committee, HELD), Provider("two", sky.committee, HELD)
    pubkeys = sorted(sky.states)
    for provider, to in ((seen_by_one, pubkeys[:1]), (seen_by_two, pubkeys[:2])):
        sky.publish(provider.ad)
        hidden = provider.beat(0)
        sky.publish(hidden, to)
        del sky.stored[hidden.id]  # no relay has it for those that ask
    sky.run_epochs(2)
    assert sorted(sky.certificates()) == [0]
    assert [node.pubkey for node in sky.latest_snapshot().nodes] == [seen_by_two.keys.public]


def test_an_epoch_without_quorum_is_skipped_and_liveness_returns():
    sky = sky_of()
    providers = [Provider("p", sky.committee, HELD)]
    sky.run_epochs(2, beats_of(sky, providers))
    sky.down = set(sorted(sky.states)[:2])
    sky.run_epochs(3, beats_of(sky, providers))
    before = sorted(sky.certificates())
    sky.down = set()
    sky.run_epochs(4, beats_of(sky, providers))
    after = sorted(sky.certificates())
    assert before == [0]
    assert after[-3:] == [5, 6, 7]
    assert len(sky.latest_snapshot().nodes) == 1


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("f", [1, 2])
def test_f_faulty_oracles_of_any_kind_never_get_two_certificates_and_do_not_stop_the_rest(f, seed):
    kinds = [silent, equivocate, lie, forge]
    n = 3 * f + 1
    faulty = {(seed + 3 * i) % n: kinds[(seed // 2 + i) % len(kinds)] for i in range(f)}
    sky = sky_of(f, seed, faulty, loss_percent=2, delay_ms=(1, 120))
    providers = [Provider(f"p{i}", sky.committee, HELD) for i in range(2)]
    sky.run_epochs(n + 3, beats_of(sky, providers))
    certified = sky.certificates()
    assert all(len(digests) == 1 for digests in certified.values())
    for state in sky.states.values():
        assert len({c.body.epoch for c in state.certified}) == len(state.certified)
    assert sky.accused() <= set(sky.faults)
    assert len(certified) >= 2  # losses may cost honest leaders an epoch, never all of them


@pytest.fixture(scope="module")
def history():
    """Everything that was said in six epochs with an equivocating oracle, and the committee."""
    sky = sky_of(faulty={3: equivocate}, seed=5)
    sky.run_epochs(6, beats_of(sky, [Provider("p", sky.committee, HELD)]))
    return sky.committee, sorted(sky.stored.values(), key=lambda event: event.id), sky.blobs


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_comes_in_whatever_order_an_oracle_says_each_thing_once(history, data):
    committee_, events, blobs = history
    inputs = [VerifiedEvent(event) for event in events] + [BlobCame(sha256, blob) for sha256, blob in blobs.items()]
    inputs += [Tick(committee_.close_ms(0) + ms) for ms in range(0, 10_000, 250)]
    chosen = data.draw(st.lists(st.sampled_from(inputs), max_size=120))
    ticks = iter(sorted(what.now_ms for what in chosen if isinstance(what, Tick)))
    state, said, certified = start(committee_, committee_.leader(1)), set(), {}
    for what in chosen:
        state, actions = rules.apply(Tick(next(ticks)) if isinstance(what, Tick) else what, state)
        for action in actions:
            match action:
                case SayInventory(document):
                    key = "inventory", document.epoch
                case SayProposal(body):
                    key = "proposal", body.epoch
                case SayVote(topic):
                    key = "vote", topic
                case PublishPartial(body):
                    key = "partial", body.epoch
                case _:
                    continue
            assert key not in said
            said.add(key)
        for one in state.certified:
            assert certified.setdefault(one.body.epoch, one.digest) == one.digest


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
_deep = st.sampled_from([1, 100, 700, 1_000, 2_000]).map(lambda depth: "[" * depth + "]" * depth)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_nothing_that_a_stranger_signs_stops_an_oracle(history, data):
    committee_, events, _ = history
    real = data.draw(st.sampled_from(events))
    content, tags_ = real.content, [list(tag) for tag in real.tags]
    match data.draw(st.sampled_from(["content", "field", "deep", "tag", "drop"])):
        case "content":
            content = data.draw(st.text() | _json.map(lambda value: json.dumps(value)))
        case "field" if content.startswith("{"):
            document = json.loads(content)
            document[data.draw(st.sampled_from(sorted(document)))] = data.draw(_json)
            content = json.dumps(document)
        case "deep" if content.startswith("{"):
            document = json.loads(content)
            document[data.draw(st.sampled_from(sorted(document)))] = "HERE"
            content = json.dumps(document).replace('"HERE"', data.draw(_deep))
        case "tag" if tags_:
            data.draw(st.sampled_from(tags_))[1:] = data.draw(st.lists(st.text(max_size=70), max_size=2))
        case "drop" if tags_:
            tags_.remove(data.draw(st.sampled_from(tags_)))
    author = data.draw(st.sampled_from([keys(f"test/oracle/{i}") for i in range(1, 5)] + [keys("provider/p")]))
    event = sign(author, real.kind, created_at=real.created_at, content=content, tags=tags_)
    state = start(committee_, committee_.leader(1), committee_.close_ms(1) + 300)
    state, _ = rules.apply(Tick(committee_.close_ms(1) + 301), state)
    for what in (VerifiedEvent(event), VerifiedEvent(real), Tick(committee_.close_ms(1) + 700), VerifiedEvent(event)):
        state, _ = rules.apply(what, state)
