"""A provider that sends garbage and commits to its hash, with the sketch of an honest answer beside it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.protocol.job.chunk import leaf_of, opening
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.comparison import compare
from nodewire.protocol.verification.forgery import forged
from tests.oracle.courtroom import MANIFEST, PROVIDER, TASK, VERIFIER, Courtroom, always, leaves, sample_of
from tests.protocol.committee.actors import committee, digest

HONEST = leaves(0.0)
ELSEWHERE = leaves(0.00005)
"""The same work on unlike hardware: not a bit of it is the same, and all of it alike."""


def garbage(leaf):
    """Anything at all, in the shape of an honest answer."""
    shape = leaf.tensors[0].shape
    numbers = np.random.default_rng(7 + leaf.seq).normal(size=shape).astype(np.float32) * 100
    return Frame(leaf.edge, leaf.seq, (Array("float32", shape, numbers.tobytes()),), {})


SENT = tuple(leaf_of(MANIFEST.digest(), garbage(leaf)) for leaf in HONEST)


def disguised(true, disguise):
    """The leaf of bytes that were sent, with another answer's sketch."""
    tensor = true.tensors[0].model_copy(update={"sketch": disguise.tensors[0].sketch})
    return true.model_copy(update={"tensors": (tensor,)})


FORGED = tuple(map(disguised, SENT, HONEST))


def show(author, what):
    return opening(author, MANIFEST, what, request=digest("request"), task=TASK, chunk=1, attempt=0)


def tried(
    theirs, *, checked=HONEST, sent=SENT, audited=False, verified=True, until=10, shows_to=None, without_worker=False
):
    """One sample through a court of four; the provider shows the frames that `sent` are the leaves of."""
    document, seats = committee(f=1)
    court = Courtroom(document, seats, sent=lambda oracle, _: sent if shows_to is None or oracle in shows_to else None)
    if without_worker:
        court.without_worker = frozenset(court.states)
        for oracle in court.states:
            court.restart(oracle)
    shown, verifier = show(PROVIDER, theirs), show(VERIFIER, checked)
    court.shows = {PROVIDER.public: always(shown), VERIFIER.public: always(verifier)}
    court.run_epochs(1)
    court.draw(0, [sample_of(shown.root(), (VERIFIER.public,) if verified else ())], audited=audited)
    for epoch in range(1, until):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, verifier)] if verified and epoch == 1 else ())
    return court, court.verdict()


def test_the_forgery_looks_like_honest_work_to_whoever_believes_a_sketch():
    assert compare(MANIFEST, TASK, show(VERIFIER, HONEST), show(PROVIDER, FORGED)).outcome == "pass"
    assert [one.tensors[0].sha256 for one in FORGED] == [one.tensors[0].sha256 for one in SENT]
    assert forged(FORGED, SENT) == FORGED


@pytest.mark.parametrize("audited", [False, True], ids=["drawn", "audited"])
@pytest.mark.parametrize("verified", [True, False], ids=["verified", "by oracles alone"])
def test_a_sketch_that_is_not_of_the_bytes_that_were_sent_convicts(audited, verified):
    court, found = tried(FORGED, audited=audited, verified=verified)
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)
    assert found.verifiers == (((VERIFIER.public, True),) if verified else ())
    assert all(court.convicted[oracle] == {PROVIDER.public} for oracle in court.honest)


def test_oracles_without_a_worker_find_it_too():
    court, found = tried(FORGED, without_worker=True)
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)
    assert not court.recomputed


def test_one_forged_frame_of_a_chunk_convicts():
    _, found = tried((HONEST[0], FORGED[1]), sent=(HONEST[0], SENT[1]))
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)


def test_a_sketch_just_too_far_for_a_fail_does_not_end_in_doubt():
    """In doubt nobody is punished: a forger would rather be there than convicted."""
    _, found = tried(tuple(map(disguised, SENT, leaves(0.0003))))
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)


def test_a_verifier_with_the_same_forged_leaves_goes_with_its_accomplice():
    court, found = tried(FORGED, checked=(FORGED[0], leaves(0.00002)[1]))
    assert (found.outcome, found.culprit, found.accomplices) == ("fail", PROVIDER.public, (VERIFIER.public,))
    assert all(court.convicted[oracle] == {PROVIDER.public, VERIFIER.public} for oracle in court.honest)


@pytest.mark.parametrize("shown_to", [0, 1])
def test_frames_that_are_not_shown_are_withheld(shown_to):
    _, seats = committee(f=1)
    some = sorted(seat.keys.public for seat in seats)[:shown_to]
    court, found = tried(FORGED, until=12, shows_to=some)
    assert (found.outcome, found.culprit) == ("withheld", "")
    assert not any(court.convicted.values())


def test_honest_work_of_unlike_machines_passes_by_the_frames_that_were_sent():
    court, found = tried(ELSEWHERE, sent=ELSEWHERE)
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", "", ((VERIFIER.public, True),))
    assert set(court.pulled) == set(court.honest)
    assert not court.recomputed


def test_what_is_the_same_to_the_bit_needs_no_frames():
    court, found = tried(HONEST, sent=None)
    assert found.outcome == "pass"
    assert not court.pulled


DTYPES = {"float32": np.float32, "float16": np.float16, "int64": np.int64, "bfloat16": None}


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(DTYPES)), st.integers(1, 130), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_an_honest_leaf_is_never_taken_for_a_forged_one(dtype, rows, width, seed):
    """Whatever adds up a sketch's sums in another order: here float64, rounded once."""
    numbers = np.random.default_rng(seed).normal(size=(rows, width)) * 10.0 ** (seed % 9 - 4)
    if dtype == "bfloat16":
        data = (numbers.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    else:
        data = numbers.astype(DTYPES[dtype]).tobytes()
    frame = Frame("hidden.1", 0, (Array(dtype, (rows, width), data),), {})
    leaf = leaf_of(MANIFEST.digest(), frame)
    assert forged([leaf], [leaf]) == ()
    if dtype != "int64":
        sketch = np.frombuffer(leaf.tensors[0].sketch, "<f4")
        apart = np.random.default_rng(seed + 1).normal(size=sketch.shape) * 2e-6 * np.abs(sketch)
        other = leaf.tensors[0].model_copy(update={"sketch": (sketch + apart).astype("<f4").tobytes()})
        assert forged([leaf.model_copy(update={"tensors": (other,)})], [leaf]) == ()


@pytest.mark.parametrize("sketch", [b"", b"\0", bytes(128), bytes(8_192)], ids=["none", "a byte", "zeros", "too many"])
def test_a_sketch_of_the_wrong_length_is_no_sketch_of_these_bytes(sketch):
    tensor = HONEST[0].tensors[0].model_copy(update={"sketch": sketch})
    assert forged([HONEST[0].model_copy(update={"tensors": (tensor,)})], HONEST)


def test_an_integers_sketch_is_its_bytes():
    data = (5).to_bytes(8, "little")
    leaf = leaf_of(MANIFEST.digest(), Frame("tokens", 0, (Array("int64", (1,), data),), {}))
    assert leaf.tensors[0].sha256 == hashlib.sha256(leaf.tensors[0].sketch).hexdigest()
    other = leaf.tensors[0].model_copy(update={"sketch": (6).to_bytes(8, "little")})
    assert forged([leaf.model_copy(update={"tensors": (other,)})], [leaf])


def test_a_verdict_forgets_the_frames():
    court, _ = tried(ELSEWHERE, sent=ELSEWHERE)
    assert all(case.frames is None for state in court.states.values() for case in state.cases.values())
