"""A customer's signed tab: what a second implementation must make and refuse."""

from __future__ import annotations

import pytest

from nodewire.errors import BadFrame, BadInput, BadSignature
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.job.tab import Tab

CUSTOMER, PROVIDER, STRANGER = (Keys(bytes([n]) * 32) for n in (1, 2, 3))
JOB = "ab" * 32


def tab(keys=CUSTOMER, **changes):
    return Tab.sign(keys, **{"request": JOB, "payee": PROVIDER.public, "chunk": 2, "total_msat": 18, **changes})


def test_a_tab_travels_as_a_control_document_and_is_its_customers():
    said = tab()
    assert Tab.from_control(said.control()) == said
    said.check(CUSTOMER.public, JOB)
    assert Tab.from_control({"t": "close"}) is None


@pytest.mark.parametrize("changes", [{"total_msat": 19}, {"chunk": 3}, {"payee": STRANGER.public}, {"sig": "00" * 64}])
def test_a_tab_that_was_changed_is_nobodys(changes):
    changed = Tab.from_document({**tab().document(), **changes})
    with pytest.raises(BadSignature):
        changed.check(CUSTOMER.public, JOB)


def test_a_tab_of_another_job_attempt_or_customer_is_refused():
    with pytest.raises(BadFrame):
        tab(request="cd" * 32).check(CUSTOMER.public, JOB)
    with pytest.raises(BadFrame):
        Tab.from_document({**tab().document(), "attempt": 1}).check(CUSTOMER.public, JOB)
    with pytest.raises(BadSignature):
        tab(STRANGER).check(CUSTOMER.public, JOB)


@pytest.mark.parametrize("changes", [{"total_msat": -1}, {"chunk": -1}, {"payee": "x"}, {"v": 2}, {"more": 1}])
def test_a_malformed_tab_is_a_typed_error(changes):
    with pytest.raises(BadInput):
        Tab.from_document({**tab().document(), **changes})


def test_a_ledger_keeps_the_last_tab_and_none_that_falls_or_jumps():
    ledger = Ledger(":memory:")
    for chunk in range(3):
        ledger.owe(Due(Key(JOB, PROVIDER.public, chunk), CUSTOMER.public, 6, 100))
    assert ledger.signed_tab(JOB) == (0, "")
    for chunk, total_msat in ((0, 6), (1, 12), (1, 12)):
        ledger.acknowledge(JOB, CUSTOMER.public, chunk, total_msat, f"{chunk}")
    for chunk, total_msat in ((1, 11), (0, 12), (1, 13), (2, 19), (9, 19)):
        with pytest.raises(BadInput, match="total_msat"):
            ledger.acknowledge(JOB, CUSTOMER.public, chunk, total_msat, "worse")
    with pytest.raises(BadInput):
        ledger.acknowledge("cd" * 32, CUSTOMER.public, 0, 6, "of a job that is not here")
    with pytest.raises(BadInput):
        ledger.acknowledge(JOB, STRANGER.public, 2, 18, "of another customer")
    assert ledger.signed_tab(JOB) == (12, "1")
    ledger.close()
