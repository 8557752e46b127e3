"""What a committee and its providers leave on relays: nothing of a day's rounds stays for good."""

from __future__ import annotations

from collections import Counter

from nodewire.nostr.nips import nip40
from nodewire.plan.epoch import Epochs
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.committee import KEPT_EPOCHS
from nodewire.protocol.verification import verdict
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys
from tests.protocol.verification.test_verdict import certified, said

COMMITTEE_KINDS = frozenset({kinds.INVENTORY, kinds.BEACON, kinds.CERTIFICATE, kinds.EVIDENCE, kinds.COMMITMENT})
DAY_BYTES, DAY_PROVIDERS, DAY_EPOCHS = 20_000_000, 300, 8_640


def market(providers=24, epochs=4):
    """A sky whose nodes beat, commit and hold many tasks."""
    document, seats = committee(bond_holders=(HOLDER.public,), epoch_ms=10_000, skew_ms=2_000, beat_ms=3_000)
    sky = Sky(document, seats, 1)
    held = {digest("model"): ([(f"stage.{k}", 10, 500) for k in range(6)], 2)}
    nodes = [Provider(f"p{i}", document, held, bond_msat=10**8) for i in range(providers)]

    def epoch_of(epoch):
        known = [state.certified[-1] for state in sky.states.values() if state.certified]
        last = max(known, key=lambda one: one.body.epoch).digest if known else None
        until_s = document.kept_until_s(sky.now_ms // 1000)
        for node in nodes:
            for event in (node.ad, node.bond):
                sky.stored.setdefault(event.id, event)
            yield node.beat(epoch, last)
            roots = (ChunkRoot(request=digest("job"), task="stage.0", chunk=epoch, attempt=0, root=digest(node.name)),)
            said = Commitment(committee=document.digest(), epoch=epoch, chunks=roots)
            yield commitment.build(node.keys, said, created_at=sky.now_ms // 1000, expires_at_s=until_s)[0]

    sky.run_epochs(epochs, epoch_of)
    return sky


def test_what_stays_of_a_day_of_300_providers_is_under_20_megabytes():
    providers, epochs = 24, 4
    sky = market(providers, epochs)
    assert len(sky.certificates()) == epochs - 1
    left = [event for event in sky.stored.values() if event.kind in COMMITTEE_KINDS]
    assert {event.kind for event in left} >= COMMITTEE_KINDS - {kinds.EVIDENCE}
    stays = sum(len(event.to_json()) for event in left if nip40.parse(event.tags) is None)
    assert stays * DAY_PROVIDERS * DAY_EPOCHS <= DAY_BYTES * providers * epochs
    assert all(len(event.content) <= 4_096 for event in left if event.kind in (kinds.INVENTORY, kinds.COMMITMENT))
    expires = Counter(event.kind for event in left if nip40.parse(event.tags) is not None)
    assert expires[kinds.CERTIFICATE] >= epochs - 1  # the figure is not small because nothing was said


def test_an_inventory_above_4_kb_is_a_blob_that_the_event_cites():
    sky = market(providers=40, epochs=2)
    events = [e for e in sky.stored.values() if e.kind == kinds.INVENTORY and e.tag("t") == "inventory"]
    large = [oracle_round.parse(event) for event in events if event.tag("blob")]
    assert large
    assert all(listed.attach(sky.blobs[listed.blob]).inventory.all_beats for listed in large)


def test_a_verdict_that_convicts_stays_and_one_that_only_counts_expires():
    author = keys("anybody")
    passed = said(outcome="pass", culprit="", verifiers=())
    assert nip40.parse(verdict.build(author, certified(passed), created_at=1, expires_at_s=99).tags) == 99
    assert nip40.parse(verdict.build(author, certified(said()), created_at=1, expires_at_s=99).tags) is None


def test_a_certificate_that_relays_keep_no_longer_is_no_last_and_no_previous():
    sky = market(epochs=3)
    epochs = Epochs(sky.committee)
    events = sorted((e for e in sky.stored.values() if e.kind == quorum_certificate.KIND), key=lambda e: e.id)
    for event in events:
        epochs.add_event(event)
    newest = max(quorum_certificate.parse(event).body.epoch for event in events)
    fresh_ms, stale_ms = (sky.committee.close_ms(newest + n) for n in (KEPT_EPOCHS - 1, KEPT_EPOCHS + 1))
    assert epochs.last(fresh_ms) != sky.committee.digest()
    assert epochs.last(stale_ms) == sky.committee.digest()
    sky.run_to(sky.committee.close_ms(newest + KEPT_EPOCHS + 2), step_ms=sky.committee.epoch_ms * 1_000)
    assert all(not state.certified for state in sky.states.values())
