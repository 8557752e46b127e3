"""What a customer has signed that it owes for a job: it only grows, and is for no more than is due."""

import pytest

from nodewire.errors import BadInput
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger

JOB, CUSTOMER, PAYEE = "10" * 32, "cc" * 32, "aa" * 32


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.db")
    for chunk, amount_msat in enumerate((5, 7, 9)):
        made.owe(Due(Key(JOB, PAYEE, chunk), CUSTOMER, amount_msat, 1_000))
    yield made
    made.close()


def test_a_signed_total_is_kept_until_a_later_one_comes_and_over_a_restart(ledger, tmp_path):
    assert ledger.signed_tab(JOB) == (0, "")
    for chunk, total_msat in ((0, 5), (1, 12), (1, 12), (2, 21)):
        ledger.acknowledge(JOB, CUSTOMER, chunk, total_msat, f"up to {chunk}")
        assert ledger.signed_tab(JOB) == (total_msat, f"up to {chunk}")
    again = Ledger(tmp_path / "ledger.db")
    assert again.signed_tab(JOB) == (21, "up to 2")
    again.close()


@pytest.mark.parametrize(
    ("customer", "chunk", "total_msat", "reason"),
    [
        (CUSTOMER, 2, 11, "12 were signed before"),
        (CUSTOMER, 0, 12, "12 were signed before"),
        (CUSTOMER, 2, 22, "22 msat are signed, and 21 are due up to chunk 2"),
        (CUSTOMER, 1, 13, "13 msat are signed, and 12 are due up to chunk 1"),
        ("dd" * 32, 2, 21, "21 msat are signed, and 0 are due up to chunk 2"),
    ],
)
def test_a_total_that_falls_or_is_beyond_what_is_due_changes_nothing(ledger, customer, chunk, total_msat, reason):
    ledger.acknowledge(JOB, CUSTOMER, 1, 12, "signed")
    with pytest.raises(BadInput, match=reason) as raised:
        ledger.acknowledge(JOB, customer, chunk, total_msat, "another")
    assert raised.value.field == "total_msat"
    assert ledger.signed_tab(JOB) == (12, "signed")
