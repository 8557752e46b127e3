"""What a beacon draws: which certified roots, and who computes them again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.plan.sample import draw, is_audited, is_drawn, is_inspected
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.verification.verdict import MAX_VERIFIERS, sample_key
from tests.customer.public_record import CUSTOMER, PROVIDERS, TASKS, PublicRecord
from tests.protocol.committee.actors import digest, keys

RECORD = PublicRecord()
COMMITTEE, REQUEST = RECORD.committee, RECORD.request
REQUESTS = {REQUEST.id: REQUEST}
MANIFEST = REQUEST.plan.manifest
BEACON = digest("beacon")
STRANGERS = [keys(f"stranger/{n}") for n in range(6)]


def node(who, *, units=1, tasks=TASKS):
    held = (SimpleNamespace(manifest=MANIFEST, tasks=tuple(SimpleNamespace(task=task) for task in tasks)),)
    return SimpleNamespace(pubkey=who.public, bond_msat=units * COMMITTEE.bond_unit_msat, held=held)


def snapshot(nodes=None, *, after=1):
    if nodes is None:
        nodes = [node(who) for who in (*PROVIDERS, CUSTOMER, *STRANGERS)]
    return SimpleNamespace(epoch=REQUEST.plan.epoch + after, nodes=nodes)


def committed(number, chunks, *, said="", author=None, task="", attempt=0):
    task = task or TASKS[number]
    roots = (
        ChunkRoot(request=REQUEST.id, task=task, chunk=n, attempt=attempt, root=digest(f"{task}/{n}{said}"))
        for n in chunks
    )
    document = Commitment(committee=COMMITTEE.digest(), epoch=1, chunks=tuple(roots))
    event, blob = commitment.build(author or PROVIDERS[number], document, created_at=1)
    return commitment.parse(event) if blob is None else commitment.parse(event).attach(blob)


def drawn(commitments, beacon=BEACON, **changes):
    nodes = changes.pop("nodes", None)
    return draw(COMMITTEE, beacon, commitments, REQUESTS, snapshot(nodes, after=changes.pop("after", 1)), **changes)


def test_everybody_draws_the_same_whatever_order_it_reads_in():
    commitments = [committed(number, range(40)) for number in range(3)]
    assert drawn(commitments) == drawn(commitments[::-1])
    assert drawn(commitments) != drawn(commitments, beacon=digest("another"))


def test_verifiers_are_bonded_hold_the_task_and_have_no_part_in_the_job():
    poor, elsewhere = keys("poor"), keys("elsewhere")
    nodes = [*snapshot().nodes, node(poor, units=0), node(elsewhere, tasks=("other",))]
    samples = drawn([committed(number, range(40)) for number in range(3)], nodes=nodes)
    assert len(samples) == 120  # the plan's rate is all of them
    for one in samples:
        assert len(one.verifiers) == len(set(one.verifiers)) <= MAX_VERIFIERS
        assert set(one.verifiers) <= {who.public for who in STRANGERS}
    tasks = {}
    for one in samples:
        for verifier in one.verifiers:
            assert tasks.setdefault(verifier, one.task) == one.task  # another's inputs would show it the answer


def test_a_larger_bond_is_drawn_as_often_as_it_is_larger():
    rich, plain = STRANGERS[:2]
    first = Counter(
        drawn([committed(0, [0])], beacon=digest(f"b{n}"), nodes=[node(rich, units=3), node(plain)])[0].verifiers[0]
        for n in range(400)
    )
    assert 260 < first[rich.public] < 340


def test_more_than_a_thousand_units_are_drawn_no_oftener():
    rich, plain = STRANGERS[:2]
    nodes = [node(rich, units=10_000), node(plain, units=1_000)]
    first = Counter(drawn([committed(0, [0])], beacon=digest(f"b{n}"), nodes=nodes)[0].verifiers[0] for n in range(200))
    assert 70 < first[rich.public] < 130


@pytest.mark.parametrize("rate_ppm", [0, 50_000, 500_000, 1_000_000])
def test_as_many_are_drawn_as_the_rate_says(rate_ppm):
    found = sum(is_drawn(BEACON, digest(f"key/{n}"), rate_ppm) for n in range(10_000))
    assert abs(found - rate_ppm / 100) <= 150
    assert (found == rate_ppm / 100) or 0 < rate_ppm < 1_000_000


def test_a_tenth_of_what_is_drawn_is_audited_and_a_quarter_inspected_and_that_is_drawn_apart():
    drawn_too = [digest(f"key/{n}") for n in range(20_000) if is_drawn(BEACON, digest(f"key/{n}"), 500_000)]
    audited, inspected = ({key for key in drawn_too if among(BEACON, key)} for among in (is_audited, is_inspected))
    assert abs(len(audited) / len(drawn_too) - 0.1) < 0.015
    assert abs(len(inspected) / len(drawn_too) - 0.25) < 0.02
    assert audited < inspected


def test_a_plan_with_another_rate_or_committee_than_this_one_is_nobodys():
    def drawn_of(committee):
        nodes = snapshot()
        return draw(committee, BEACON, [committed(0, [0])], REQUESTS, nodes)

    assert len(drawn_of(COMMITTEE)) == 1
    elsewhere = COMMITTEE.model_copy(update={"name": "another"})
    assert drawn_of(elsewhere) == ()
    plan = REQUEST.plan
    verification = plan.verification.model_copy(update={"rate_ppm": plan.verification.rate_ppm // 2})
    cheap = replace(REQUEST, plan=plan.model_copy(update={"verification": verification}))
    assert draw(COMMITTEE, BEACON, [committed(0, range(20))], {REQUEST.id: cheap}, snapshot()) == ()


def test_only_the_first_root_of_a_chunk_counts():
    first, second = committed(0, [0]), committed(0, [0], said=" again")
    (one,) = drawn([first, second])
    assert one.root == min((first, second), key=lambda c: c.id).commitment.chunks[0].root
    key = sample_key(PROVIDERS[0].public, REQUEST.id, TASKS[0], 0, 0)
    assert drawn([first], seen={key}) == ()
    assert drawn([second], seen={key}) == ()  # who commits again and again would have its work drawn at last


def test_a_root_after_its_deadline_or_by_a_stranger_or_of_anothers_task_is_not_drawn():
    last = REQUEST.plan.deadline_epoch(0, COMMITTEE.epoch_ms) - REQUEST.plan.epoch
    assert len(drawn([committed(0, [0])], after=last)) == 1
    assert drawn([committed(0, [0])], after=last + 1) == ()
    assert drawn([committed(0, [0], author=STRANGERS[0])]) == ()
    assert drawn([committed(0, [0], task=TASKS[1])]) == ()


def test_without_anybody_to_verify_the_sample_is_drawn_all_the_same():
    (one,) = drawn([committed(0, [0])], nodes=[node(who) for who in PROVIDERS])
    assert one.verifiers == ()
