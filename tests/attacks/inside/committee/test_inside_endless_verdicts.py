"""A bonded key claims a millisatoshi for chunk 10 ** 15, and its accomplice complains: the verdict is certified.

Whoever presented it kept the registrar counting shares for as many chunks, with its book locked, at each start again.
"""

from __future__ import annotations

import time

import pytest

import tests.pay.bond_market as bm
from nodewire.pay.bond.quorum.book import Book
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.bond.quorum.registrar import Registrar
from nodewire.pay.bond.treasury import book
from nodewire.pay.ecash.mint import Mint
from tests.pay.bond_market import CUSTOMER, REQUEST, SHARE_MSAT

LAST, AT_ONCE_S = 10**15 - 1, 5.0


class Cashier:
    unit_msat, lnurl = 1_000, ""

    def paid_msat(self, customer):
        return 10 * SHARE_MSAT

    def most_fee_msat(self, amount_msat):
        return 2_000


@pytest.fixture
async def registrar(tmp_path):
    kept = Book(tmp_path / "book.db")
    yield Registrar(bm.HOLDER, bm.COMMITTEE, EcashCustody(Mint("http://127.0.0.1:1")), kept, cashier=Cashier())
    kept.close()


@pytest.mark.parametrize("shares", [[], [(0, SHARE_MSAT), (LAST, 1)]])
async def test_a_verdict_about_a_chunk_that_no_job_has_is_settled_at_once(registrar, monkeypatch, shares):
    monkeypatch.setattr(book, "MOST_CHUNKS", 100)
    for chunk, msat in shares:
        registrar.treasury.book_shares(bm.statement(chunk, msat))
    said = bm.verdict_of(outcome="withheld", verifiers=(), chunk=LAST, claimed="ab" * 32, claimed_msat=1)
    began_s = time.monotonic()
    assert registrar.present(bm.certificate(said), REQUEST)["outcome"] == "withheld"
    assert time.monotonic() - began_s < AT_ONCE_S


async def test_shares_up_to_the_verdicts_chunk_count_as_before(registrar):
    registrar.treasury.book_shares(bm.statement(0, *[SHARE_MSAT] * 5))
    kept, late_ms = registrar.treasury._treasury, int(time.time() * 1_000) + 5_000
    counted = [
        kept.computed_units(REQUEST.id, CUSTOMER.public, chunk, SHARE_MSAT, late_ms) for chunk in (0, 3, 4, LAST)
    ]
    assert counted == [1, 4, 5, 5]
