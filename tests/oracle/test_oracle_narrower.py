"""Eight bits sold as bfloat16: the committee holds suspect results against a float32 reference."""

import numpy as np
import pytest

from nodewire.protocol.job.chunk import Leaf, Opening, leaf_of, opening
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.comparison import compare
from nodewire.verify.recomputation import ComputedLeaves
from tests.oracle import courtroom
from tests.oracle.courtroom import PROVIDER, TASK, VERIFIER, Courtroom, always, sample_of
from tests.protocol.committee.actors import committee, digest
from tests.protocol.documents import manifest

ROUNDING = 0.006
"""How far an honest result of a deep task in bfloat16 is from the truth."""
EIGHT_BITS = 0.0095
"""The same with weights of 8 bits."""

IN_DOUBT = 0.019
"""So far off that the distance of two results alone leaves it open."""


@pytest.fixture(autouse=True)
def narrow_manifest(monkeypatch):
    plain = manifest()
    edges = tuple(
        edge.model_copy(
            update={"tensors": tuple(tensor.model_copy(update={"dtype": "bfloat16"}) for tensor in edge.tensors)}
        )
        if edge.source == TASK
        else edge
        for edge in plain.edges
    )
    narrow = plain.model_copy(update={"edges": edges})
    monkeypatch.setattr(courtroom, "MANIFEST", narrow)
    return narrow


def leaves(noise: float, seed: int, dtype: str = "bfloat16") -> tuple[Leaf, ...]:
    exact = np.random.default_rng(1).normal(size=(64, 256))
    rows = (exact * (1 + noise * np.random.default_rng(seed).normal(size=exact.shape))).astype("<f4")
    found = []
    for seq, row in enumerate(rows):
        raw = ((row.view("<u4") + 0x8000) >> 16).astype("<u2") if dtype == "bfloat16" else row
        frame = Frame("hidden.1", seq, (Array(dtype, (1, 1, len(row)), raw.tobytes()),), {})
        found.append(leaf_of(courtroom.MANIFEST.digest(), frame))
    return tuple(found)


def shown(author, noise: float, seed: int) -> Opening:
    place = {"request": digest("request"), "task": TASK, "chunk": 1, "attempt": 0}
    return opening(author, courtroom.MANIFEST, leaves(noise, seed), **place)


def tried(provider: float, verifier: float, *, inspected: bool = True):
    document, seats = committee(1)
    numbers = {seat.keys.public: 10 + number for number, seat in enumerate(seats)}
    own = ComputedLeaves(()), leaves(0.0, 0, "float32")
    court = Courtroom(
        document, seats, 1, computes=lambda me: ComputedLeaves(leaves(ROUNDING, numbers[me]), own[0].excused, own[1])
    )
    theirs, checked = shown(PROVIDER, provider, 2), shown(VERIFIER, verifier, 3)
    court.shows |= {PROVIDER.public: always(theirs), VERIFIER.public: always(checked)}
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())], inspected=inspected)
    for epoch in range(1, 10):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, checked)] if epoch == 1 else [])
    return court, court.verdict()


def test_eight_bits_fail_where_a_suspect_result_is_inspected():
    court, found = tried(EIGHT_BITS, ROUNDING)
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)
    assert found.verifiers == ((VERIFIER.public, True),)
    assert set(court.recomputed) == set(court.honest)


def test_a_result_in_doubt_by_its_distance_fails_by_the_reference():
    court, found = tried(IN_DOUBT, ROUNDING)
    assert (
        compare(courtroom.MANIFEST, TASK, shown(PROVIDER, ROUNDING, 10), shown(PROVIDER, IN_DOUBT, 2)).outcome == "grey"
    )
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)
    assert set(court.recomputed) == set(court.honest)


def test_two_honest_results_of_a_deep_task_pass_though_they_are_suspect():
    court, found = tried(ROUNDING, ROUNDING)
    assert (found.outcome, found.verifiers) == ("pass", ((VERIFIER.public, True),))
    assert set(court.recomputed) == set(court.honest)


def test_a_verifier_that_computes_in_eight_bits_is_convicted_beside_an_honest_provider():
    _, found = tried(ROUNDING, EIGHT_BITS)
    assert (found.outcome, found.verifiers) == ("pass", ((VERIFIER.public, False),))
    assert VERIFIER.public in found.convicted


def test_what_the_beacon_does_not_inspect_passes_without_being_computed():
    court, found = tried(EIGHT_BITS, ROUNDING, inspected=False)
    assert found.outcome == "pass"
    assert not court.recomputed
