"""A driver that says a token now and then that its model did not choose; and verifiers that do."""

from __future__ import annotations

import hashlib

import pytest

from kinds.k8843 import KIND
from nodewire.errors import BadInput
from nodewire.protocol.job.chunk import leaf_of, opening
from nodewire.protocol.model import token_list
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import choices
from nodewire.protocol.verification.comparison import compare
from nodewire.verify.recomputation import ComputedLeaves
from tests.oracle.courtroom import MANIFEST, PROVIDER, VERIFIER, Courtroom, always, sample_of
from tests.protocol.committee.actors import committee, digest

TASK = "driver"
EDGE = choices.tokens_edge(MANIFEST, TASK)
HIDDEN = next(edge.name for edge in MANIFEST.outputs(TASK) if edge.name != EDGE)
RIGHT = {seq: 100 + seq for seq in range(1, 65)}


def said(tokens):
    """A chunk of a driver that said these: its tokens, and the rows that carry them on."""
    found = []
    for seq, token in tokens.items():
        row = Array("float32", (1, 1, 64), hashlib.sha256(b"%d" % token).digest() * 8)
        found.append(leaf_of(MANIFEST.digest(), Frame(HIDDEN, seq + 1, (row,), {})))
        one = Array("int64", (1,), token.to_bytes(8, "little"))
        found.append(leaf_of(MANIFEST.digest(), Frame(EDGE, seq, (one,), {})))
    order = {edge.name: i for i, edge in enumerate(MANIFEST.edges)}
    return tuple(sorted(found, key=lambda leaf: (order[leaf.edge], leaf.seq)))


def show(author, tokens):
    return opening(author, MANIFEST, said(tokens), request=digest("request"), task=TASK, chunk=1, attempt=0)


def tried(provider, verifier, *, own, excused=()):
    """One sample of a driver; an oracle that was given the provider's tokens says `own`."""
    document, seats = committee(f=1)
    court = Courtroom(document, seats, computes=lambda oracle: ComputedLeaves(said(own), frozenset(excused)))
    theirs, checked = show(PROVIDER, provider), show(VERIFIER, verifier)
    court.shows = {PROVIDER.public: always(theirs), VERIFIER.public: always(checked)}
    sample = sample_of(theirs.root(), (VERIFIER.public,)).model_copy(update={"task": TASK})
    court.run_epochs(1)
    court.draw(0, [sample])
    for epoch in range(1, 12):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, checked)] if epoch == 1 else ())
    return court, court.verdict()


@pytest.mark.parametrize("wrong", [[40], [1], [64], range(1, 7)], ids=["one", "the first", "the last", "six"])
def test_one_wrong_token_of_64_convicts(wrong):
    """It was in doubt up to a tenth of them, and nobody was punished."""
    tokens = {seq: token + (seq in wrong) for seq, token in RIGHT.items()}
    assert compare(MANIFEST, TASK, show(VERIFIER, RIGHT), show(PROVIDER, tokens)).outcome == "fail"
    court, found = tried(tokens, RIGHT, own=RIGHT)
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)
    assert found.verifiers == ((VERIFIER.public, True),)
    assert all(court.convicted[oracle] == {PROVIDER.public} for oracle in court.honest)


def test_a_tie_that_a_verifier_took_the_other_way_convicts_nobody():
    """From there on it was given what follows the provider's token, and chose by its own: all of that is let be."""
    tie = {seq: token + (seq >= 20) for seq, token in RIGHT.items()}
    court, found = tried(RIGHT, tie, own=RIGHT, excused={20})
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", "", ((VERIFIER.public, True),))
    assert not any(court.convicted.values())
    assert set(court.recomputed) == set(court.honest)


def test_a_verifier_that_ended_at_a_tie_did_its_part():
    short = {seq: token + (seq == 20) for seq, token in RIGHT.items() if seq <= 20}
    _, found = tried(RIGHT, short, own=RIGHT, excused={20})
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", "", ((VERIFIER.public, True),))


@pytest.mark.parametrize("excused", [(), (21, 22), (64,)])
def test_a_verifier_whose_first_other_token_is_not_excused_is_convicted(excused):
    lies = {seq: token + (seq >= 20) for seq, token in RIGHT.items()}
    _, found = tried(RIGHT, lies, own=RIGHT, excused=excused)
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", VERIFIER.public, ((VERIFIER.public, False),))


def test_a_verifier_that_computed_other_rows_before_a_tie_is_convicted_all_the_same():
    document = show(VERIFIER, {**RIGHT, 20: 1})
    mine = show(PROVIDER, RIGHT)
    rows = [leaf for leaf in document.leaves if leaf.edge == HIDDEN]
    spoilt = tuple(
        leaf.model_copy(update={"tensors": rows[-1].tensors}) if leaf == rows[0] else leaf for leaf in document.leaves
    )
    kept = choices.spared(MANIFEST, TASK, document, mine, {20})
    assert compare(MANIFEST, TASK, mine, kept).outcome == "pass"
    kept = choices.spared(MANIFEST, TASK, document.model_copy(update={"leaves": spoilt}), mine, {20})
    assert compare(MANIFEST, TASK, mine, kept).outcome == "fail"


def test_a_token_that_is_not_its_hash_is_no_token():
    (leaf,) = [one for one in said({1: 7}) if one.edge == EDGE]
    assert choices.of_leaves([leaf], EDGE) == {1: 7}
    other = leaf.tensors[0].model_copy(update={"sketch": (8).to_bytes(8, "little")})
    assert choices.of_leaves([leaf.model_copy(update={"tensors": (other,)})], EDGE) == {}


@pytest.mark.parametrize("name", [token_list.SAID, token_list.BESIDE])
def test_no_customer_has_a_driver_follow_what_it_is_told(name):
    """A request's parameters are sealed, and are those of a generation alone."""
    with pytest.raises(BadInput, match=name):
        KIND.check(MANIFEST, {name: token_list.pack({0: 5})})
