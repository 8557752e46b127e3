"""A mint can sign any number. Of a few nutzaps of its accomplice no ledger of 63 bits could have kept the sum."""

from __future__ import annotations

import orjson
import pytest

from nodewire.errors import BadZap
from nodewire.nostr.event import sign
from nodewire.nostr.nips import nip61
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Receipt
from tests.pay import nutzap_market as market
from tests.pay.nutzap_market import CUSTOMER, PROVIDER
from tests.pay.pay_market import JOB, Key

MINT = "https://mint.example"


def nutzap(*amounts_sat, sender=CUSTOMER):
    outputs = market.secrets([*amounts_sat], "00" + "ab" * 7, sender, salt="11" * 32)
    told = [{"amount": one.amount_sat, "id": one.id, "secret": one.secret, "C": "02" + "11" * 32} for one in outputs]
    tags = [["proof", orjson.dumps(one).decode()] for one in told]
    tags += [["u", MINT], ["p", PROVIDER.public], ["salt", "11" * 32]]
    return sign(sender, nip61.NUTZAP, created_at=1, tags=tags)


@pytest.mark.parametrize("amounts_sat", [(2**52,), (2**37,), (2**36, 2**35), (2**32,) * 32])
def test_a_nutzap_of_more_than_a_thousand_bitcoins_is_none(tmp_path, amounts_sat):
    claims = market.claims(tmp_path, MINT)
    assert claims.enter(nutzap(2**36), is_known=lambda _: True) is not None
    with pytest.raises(BadZap, match=r"amount|more than there is"):
        claims.enter(nutzap(*amounts_sat), is_known=lambda _: True)


def test_a_ledger_counts_thousands_of_the_largest_payments(tmp_path):
    """Its desk ended by an overflow, at each start again."""
    ledger = Ledger(tmp_path / "ledger.db")
    for n in range(1_000):
        key, preimage = Key(JOB, PROVIDER.public, n), f"{n:064x}"
        ledger.owe(Due(key, CUSTOMER.public, 1_000, 2_000_000_000))
        ledger.quoted(Quote(key, invoices.hash_of(preimage), "", "", "cashu:x"))
        ledger.settled(Receipt("", invoices.hash_of(preimage), preimage, nip61.MOST_SAT * 1_000, n + 1), "cashu:x")
    assert ledger.paid_msat(CUSTOMER.public) == 1_000 * nip61.MOST_SAT * 1_000
    ledger.close()
