"""An oracle's own file knows the verdicts that it was shown, and whom they convict."""

from __future__ import annotations

import pytest

import tests.pay.bond_market as bm
from nodewire.pay.bond.presentation_store import PresentationStore

FAIL, PASS = bm.failed(), bm.verdict_of(chunk=1)


@pytest.fixture
def open_store(tmp_path):
    opened = []

    def open_one(digest=bm.COMMITTEE.digest()):  # noqa: B008
        opened.append(PresentationStore(tmp_path / "presented.db", digest))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def store(open_store):
    store = open_store()
    for said in (FAIL, PASS):
        store.certified(said.key, said.epoch, bm.certificate(said))
    return store


def test_those_are_convicted_that_a_verdict_convicts_and_no_others_that_it_names(store):
    assert store.convictions(bm.PROVIDER.public) == {FAIL.key}
    for named in (bm.CUSTOMER, *bm.VERIFIERS, *bm.ORACLES):
        assert store.convictions(named.public) == frozenset()


def test_a_conviction_is_known_after_it_was_presented_and_after_a_restart(store, open_store):
    store.mark(FAIL.key, "done")
    again = open_store()
    assert [one.sample for one in again.open()] == [PASS.key]
    assert again.convictions(bm.PROVIDER.public) == {FAIL.key} and again.knows(FAIL.key)


def test_another_committees_verdicts_are_not_this_ones(store, open_store):
    others = open_store("00" * 32)
    assert (others.open(), others.knows(FAIL.key)) == ([], False)
    assert others.convictions(bm.PROVIDER.public) == frozenset()


def test_what_was_drawn_long_ago_is_forgotten(store):
    store.forget(bm.EPOCH - 1)
    assert len(store.open()) == 2
    store.forget(bm.EPOCH)
    assert (store.open(), store.convictions(bm.PROVIDER.public)) == ([], frozenset())
