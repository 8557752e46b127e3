"""What verdicts say of nodes comes into the snapshot alike for all, whoever missed them, lies, or was restarted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.nostr.event import parse
from nodewire.oracle.committee import rules
from nodewire.oracle.committee.state import KeepVerdict, Tick, VerifiedEvent, start
from nodewire.oracle.journal import Journal
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.committee.reputation import COUNTED_AFTER, ReputationVerdict, shown
from nodewire.protocol.market import snapshot
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.verdict import Certificate, Verdict
from tests.oracle.committee.test_oracle_rules import HELD, beats_of
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import Provider, committee, digest, keys

COMMITTEE, SEATS = committee()
GOOD, BAD = Provider("good", COMMITTEE, HELD), Provider("bad", COMMITTEE, HELD)


def certified(n=0, provider=GOOD, outcome="pass", epoch=1, voters=SEATS[:3], verifiers=()):
    """The event that certifies a verdict on chunk `n`."""
    found = Verdict(
        committee=COMMITTEE.digest(),
        epoch=epoch,
        request=digest("request"),
        task="driver",
        chunk=n,
        attempt=0,
        provider=provider.keys.public,
        root=digest("root"),
        outcome=outcome,
        verifiers=verifiers,
        culprit=provider.keys.public if outcome == "fail" else "",
        price_msat=1 if outcome == "pass" else 0,
    )
    votes = tuple(verdict.build_vote(s.keys, found, created_at=5) for s in voters)
    return verdict.build(keys("anyone"), Certificate(found, votes), created_at=6)


class Skies(Sky):
    """Keeps journals as daemons do, counts epochs' certificates only, and can restart an oracle."""

    def __post_init__(self):
        super().__post_init__()
        self.journals = {pubkey: Journal(":memory:") for pubkey in self.states}

    def _do(self, seat, action):
        if isinstance(action, KeepVerdict):
            self.journals[seat.keys.public].keep_judged(COMMITTEE.digest(), action.judged, 0)
        super()._do(seat, action)

    def restart(self, pubkey):
        kept = self.states[pubkey].certified  # a daemon fetches them from relays
        begun = start(COMMITTEE, pubkey, self.now_ms)
        judged = self.journals[pubkey].judged(COMMITTEE.digest())
        self.states[pubkey] = replace(begun, judged=judged, certified=kept)

    def show(self, event, to=None):
        """A verdict's certificate, to some oracles only."""
        for pubkey in to or self.states:
            self._later(10, pubkey, VerifiedEvent(parse(event.as_dict())))

    def accounts(self):
        found = self.latest_snapshot()
        return {
            name: (shown(node.passed), shown(node.withheld))
            for name, node in (("good", found.node(GOOD.keys.public)), ("bad", found.node(BAD.keys.public)))
        }


def skies(faults=None, **fields):
    return Skies(COMMITTEE, SEATS, 1, faults or {}, **fields)


def invent(sky, seat, action, outgoing):
    """Lists verdicts that nobody gave, and hides those that were given."""
    result = []
    for event, to in outgoing:
        if event.kind == oracle_round.KIND and event.tag("t") == "inventory":
            said = oracle_round.parse(event).inventory
            due = said.epoch - COUNTED_AFTER
            made_up = (
                ReputationVerdict(epoch=due, sample=digest("no"), provider=BAD.keys.public, outcome="pass")
                if due >= 0
                else None
            )
            document = said.model_copy(update={"judged": (made_up,) if made_up else ()})
            event, _ = oracle_round.build_inventory(seat.keys, document, created_at=event.created_at)
        result.append((event, to))
    return result


def run(sky, epochs):
    sky.run_epochs(epochs, beats_of(sky, [GOOD, BAD]))


def test_verdicts_count_alike_though_oracles_saw_different_ones_and_one_lies_and_others_restart():
    sky = skies({SEATS[3].keys.public: invent})
    honest = sky.honest
    sky.run_epochs(2, beats_of(sky, [GOOD, BAD]))
    sky.show(certified(0))
    sky.show(certified(1), honest[:2])  # f+1 know it
    sky.show(certified(2), honest[:1])  # too few do
    sky.show(certified(3, BAD, "withheld"), honest)
    sky.show(certified(4, BAD, "unsure"))  # for lack of evidence
    sky.show(certified(5, BAD, "fail"))
    sky.show(certified(6, voters=SEATS[:2]))  # no quorum
    run(sky, 2)
    for pubkey in honest:
        sky.restart(pubkey)
    run(sky, COUNTED_AFTER - 1)
    assert sky.accounts() == {"good": (2, 0), "bad": (0, 1)}
    assert len(sky.latest_snapshot().judged) == 3
    run(sky, 2)
    assert sky.accounts() == {"good": (2, 0), "bad": (0, 1)}
    assert sorted(sky.certificates()) == list(range(16))
    assert not sky.accused()


def test_an_epoch_without_quorum_loses_no_verdict():
    sky = skies()
    run(sky, 2)
    sky.show(certified(0))
    run(sky, COUNTED_AFTER - 2)
    sky.down = set(sorted(sky.states)[:2])
    run(sky, 3)  # in these it would have been counted
    sky.down = set()
    run(sky, 3)
    assert sky.accounts()["good"] == (1, 0)


def forge(sky, seat, action, outgoing):
    """As a leader, gives a node an account that nobody voted for."""
    if type(action).__name__ != "SayProposal":
        return outgoing
    real = snapshot.unpack(action.blob, action.body.snapshot)
    nodes = tuple(node.model_copy(update={"passed": 4_096 * 500}) for node in real.nodes)
    forged = real.model_copy(update={"nodes": nodes})
    blob = forged.pack()
    body = action.body.model_copy(update={"snapshot": snapshot.sha256(blob)})
    sky.blobs[body.snapshot] = blob
    return [(oracle_round.build_proposal(seat.keys, body, created_at=sky.now_ms // 1000), None)]


def invent_judged(sky, seat, action, outgoing):
    """As a leader, counts a verdict that only its own inventory lists."""
    if type(action).__name__ != "SayProposal":
        return outgoing
    real = snapshot.unpack(action.blob, action.body.snapshot)
    made_up = ReputationVerdict(epoch=0, sample=digest("no"), provider=BAD.keys.public, outcome="pass")
    nodes = tuple(n.model_copy(update={"passed": 4_096}) if n.pubkey == BAD.keys.public else n for n in real.nodes)
    forged = real.model_copy(update={"nodes": nodes, "judged": (*real.judged, made_up)})
    blob = forged.pack()
    body = action.body.model_copy(update={"snapshot": snapshot.sha256(blob)})
    sky.blobs[body.snapshot] = blob
    return [(oracle_round.build_proposal(seat.keys, body, created_at=sky.now_ms // 1000), None)]


@pytest.mark.parametrize("fault", [forge, invent_judged])
def test_a_leader_that_makes_up_an_account_gets_no_votes(fault):
    sky = skies({SEATS[1].keys.public: fault})
    run(sky, 6)
    assert sorted(sky.certificates()) == [0, 2, 3, 4]
    assert sky.accounts() == {"good": (0, 0), "bad": (0, 0)}


def test_an_oracle_keeps_what_is_certified_and_only_that_and_lets_go_of_what_was_counted():
    state = start(COMMITTEE, SEATS[0].keys.public, COMMITTEE.close_ms(2))
    state, actions = rules.apply(VerifiedEvent(certified()), state)
    assert [action.judged.provider for action in actions] == [GOOD.keys.public]
    assert rules.apply(VerifiedEvent(certified()), state) == (state, ())
    for other in (certified(1, voters=SEATS[:2]), certified(2, outcome="unsure"), certified(3, epoch=9)):
        assert rules.apply(VerifiedEvent(other), state) == (state, ())
    later, _ = rules.apply(Tick(COMMITTEE.close_ms(60)), state)
    assert not later.judged
    assert rules.apply(VerifiedEvent(certified(4)), later) == (later, ())


def test_work_in_doubt_is_counted_and_what_lacked_evidence_is_not():
    state = start(COMMITTEE, SEATS[0].keys.public, COMMITTEE.close_ms(2))
    verifiers = ((keys("verifier").public, True),)
    state, actions = rules.apply(VerifiedEvent(certified(outcome="unsure", verifiers=verifiers)), state)
    assert [action.judged.outcome for action in actions] == ["unsure"]
    assert rules.apply(VerifiedEvent(certified(1, outcome="unsure")), state) == (state, ())


def test_a_journal_gives_back_what_is_to_be_counted_until_it_is_old(tmp_path):
    path, c = tmp_path / "journal.db", digest("committee")
    old, new = (ReputationVerdict(epoch=n, sample=digest(f"{n}"), provider=digest("p"), outcome="pass") for n in (3, 7))
    Journal(path).keep_judged(c, old, 0)  # never closed: the process died here
    journal = Journal(path)
    assert journal.judged(c) == {old.sample: old}
    journal.keep_judged(c, new.model_copy(update={"outcome": "withheld"}), 3)
    journal.keep_judged(c, new, 4)  # the first stands
    assert journal.judged(c) == {new.sample: new.model_copy(update={"outcome": "withheld"})}
    assert journal.judged(digest("another")) == {}


def test_an_inventory_says_what_it_lists_in_order_and_once():
    one, two = (ReputationVerdict(epoch=n, sample=digest("s"), provider=digest("p"), outcome="pass") for n in (1, 2))
    said = Inventory(committee=COMMITTEE.digest(), epoch=20, beats=(), commitments=(), judged=(one, two))
    event, _ = oracle_round.build_inventory(SEATS[0].keys, said, created_at=1)
    assert oracle_round.parse(event).inventory == said
    for wrong in ((two, one), (one, one)):
        with pytest.raises(ValueError, match="judged"):
            Inventory(committee=COMMITTEE.digest(), epoch=20, beats=(), commitments=(), judged=wrong)
