"""A derivation has all that it needs in it, or takes it from the proposed snapshot and checks it."""

from __future__ import annotations

import msgpack
import pytest

from nodewire.oracle.committee.derivation import Derivation
from nodewire.oracle.committee.state import FetchBlob
from nodewire.protocol.market import snapshot
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import Provider, committee, digest

COMMITTEE, SEATS = committee()
HELD = {digest("model"): ([("driver", 10, 500)], 2)}
PROVIDERS = [Provider(f"p{i}", COMMITTEE, HELD) for i in range(3)]
EPOCH = 5
BEATS = [provider.beat(EPOCH) for provider in PROVIDERS]
EVENTS = {event.id: event for event in (*BEATS, *(provider.ad for provider in PROVIDERS))}
WHOLE = snapshot.derive(COMMITTEE, EPOCH, BEATS, [provider.ad for provider in PROVIDERS])


def work(known=EVENTS, blob=b"", bonded=()):
    ids = tuple(sorted(beat.id for beat in BEATS))
    return Derivation(COMMITTEE, EPOCH, ("key",), ids, (), None, known, {}, blob, bonded)


def test_a_derivation_gives_the_snapshot_and_its_bytes():
    found = work().run()
    assert (found.snapshot, found.blob, found.sha256) == (WHOLE, WHOLE.pack(), snapshot.sha256(WHOLE.pack()))


@pytest.mark.parametrize("lacking", [BEATS[0].id, PROVIDERS[0].ad.id], ids=["a beat", "an ad"])
def test_what_is_lacking_here_is_taken_from_the_proposed_snapshot(lacking):
    known = {id_: event for id_, event in EVENTS.items() if id_ != lacking}
    assert work(known).run().snapshot is None
    assert work(known, WHOLE.pack()).run().snapshot == WHOLE


def without(provider):
    """A proposal that leaves a node's ad out, and so the node."""
    ads = [one.ad for one in PROVIDERS if one is not provider]
    return snapshot.derive(COMMITTEE, EPOCH, BEATS, ads).pack()


def test_a_strangers_ad_that_the_proposed_snapshot_lacks_counts_nowhere_and_a_bonded_nodes_does():
    blob = without(PROVIDERS[0])
    assert work(EVENTS, blob).run().blob == blob
    assert work(EVENTS, blob, bonded=(BEATS[0].id,)).run().snapshot == WHOLE
    known = {id_: event for id_, event in EVENTS.items() if id_ != PROVIDERS[0].ad.id}
    assert work(known, blob).run().blob == blob
    assert work(known, blob, bonded=(BEATS[0].id,)).run().snapshot is None


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xc1",
        msgpack.packb({"events": 3}),
        msgpack.packb({"events": [3]}),
        WHOLE.pack().replace(BEATS[0].sig[:8].encode(), b"00000000"),
        b"\x81" * 5_000,
    ],
    ids=["none", "no msgpack", "no list", "no text", "a forged signature", "nested"],
)
def test_a_proposed_snapshot_that_is_not_sound_gives_nothing(blob):
    known = {id_: event for id_, event in EVENTS.items() if id_ != BEATS[0].id}
    assert work(known, blob).run().snapshot is None


def test_an_oracle_that_holds_all_events_fetches_no_snapshot():
    sky = Sky(COMMITTEE, SEATS, 1)
    fetched = []

    def seen(sky, seat, action, outgoing):
        if isinstance(action, FetchBlob) and action.max_bytes == snapshot.Snapshot.MAX_BYTES:
            fetched.append(action.sha256)
        return outgoing

    sky.faults = {seat.keys.public: seen for seat in SEATS}

    def beats(epoch):
        known = [state.certified[-1] for state in sky.states.values() if state.certified]
        last = max(known, key=lambda one: one.body.epoch).digest if known else None
        for one in PROVIDERS:
            sky.stored.setdefault(one.ad.id, one.ad)
            yield one.beat(epoch, last)

    sky.run_epochs(4, beats)
    assert len(sky.certificates()) == 3
    assert len(sky.latest_snapshot().nodes) == 3
    assert not fetched
