"""What a ledger says of a provider's earnings, read beside the daemon."""

import pytest

from nodewire.pay.accounts import earnings
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import NEVER_S, Due
from nodewire.pay.accounts.earnings import Takings
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning.invoices import hash_of
from nodewire.pay.lightning.wallet import Receipt

NOW_S = 1_000


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def owe(ledger, chunk, amount_msat, due_by_s):
    key = Key("10" * 32, "aa" * 32, chunk)
    ledger.owe(Due(key, "cc" * 32, amount_msat, due_by_s))
    return key


def test_what_is_paid_owed_and_overdue_is_summed_apart(ledger, tmp_path):
    path = tmp_path / "ledger.db"
    assert earnings.read(path, NOW_S) == Takings(0, 0, 0, 0)
    for chunk, amount_msat in ((0, 3), (1, 4)):
        key = owe(ledger, chunk, amount_msat, NOW_S)
        preimage = f"{chunk}" * 64
        ledger.quoted(Quote(key, hash_of(preimage), "", "lnbcrt"))
        ledger.settled(Receipt(str(chunk), hash_of(preimage), preimage, amount_msat, NOW_S), "w")
    owe(ledger, 2, 50, NOW_S + 1)
    owe(ledger, 3, 600, NOW_S)
    owe(ledger, 4, 7_000, NOW_S - 100)
    owe(ledger, 5, 80_000, NEVER_S)  # a deposit: nothing was done for it
    found = earnings.read(path, NOW_S + 0.5)
    assert found == Takings(paid_msat=7, paid=2, owed_msat=50, overdue_msat=7_600)
    assert found.paid_msat == ledger.earned_msat()
    ledger.receipted(hash_of("0" * 64), "receipt")
    assert earnings.read(path, NOW_S).paid_msat == 7
