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


DAY_S = 86_400


def job(ledger, number, amounts_msat, *, paid=True, at_s=NOW_S, tasks=None, model="smol"):
    """A job of so many chunks, paid or owed, whose work is noted if it has `tasks`."""
    for chunk, amount_msat in enumerate(amounts_msat):
        key = Key(f"{number:064x}", "aa" * 32, chunk)
        ledger.owe(Due(key, "cc" * 32, amount_msat, at_s + 30))
        if paid:
            preimage = f"{number:032x}{chunk:032x}"
            ledger.quoted(Quote(key, hash_of(preimage), "", "lnbcrt"))
            ledger.settled(Receipt(f"{number}.{chunk}", hash_of(preimage), preimage, amount_msat, at_s), "w")
    if tasks is not None:
        ledger.work.note(f"{number:064x}", model, tasks, at_s)


def test_a_jobs_money_is_split_over_its_tasks_by_their_prices_and_none_is_lost(ledger, tmp_path):
    job(ledger, 1, [7, 4], tasks={"driver": (1, 3_600_000_000), "stage.0": (2, 1_800_000_000)})
    job(ledger, 2, [5], paid=False, tasks={"stage.0": (9, 600_000_000)})
    job(ledger, 3, [100], tasks={"stage.0": (9, 0)}, model="other", at_s=NOW_S + DAY_S)
    found = earnings.by_task(tmp_path / "ledger.db")
    assert [(one.day, one.model, one.task) for one in found] == [
        ("1970-01-02", "other", "stage.0"),
        ("1970-01-01", "smol", "driver"),
        ("1970-01-01", "smol", "stage.0"),
    ]
    _, driver, stage = found
    assert (driver.settled_msat, stage.settled_msat) == (4, 7)
    assert (driver.unsettled_msat, stage.unsettled_msat) == (0, 5)
    assert (driver.chunks, stage.chunks, driver.work_us, stage.work_us) == (2, 3, 3_600_000_000, 2_400_000_000)
    assert (driver.msat_per_hour, stage.msat_per_hour, found[0].msat_per_hour) == (4, 10, None)
    assert earnings.msat_per_hour(found) == 11 * 3_600 // 6_000
    assert sum(one.settled_msat for one in found) == ledger.earned_msat()
    assert [one.model for one in earnings.by_task(tmp_path / "ledger.db", DAY_S)] == ["other"]


def test_what_a_ledger_knows_no_work_of_is_told_all_the_same(ledger, tmp_path):
    job(ledger, 1, [7])
    job(ledger, 2, [5], paid=False)
    owe(ledger, 9, 80_000, NEVER_S)
    job(ledger, 3, [9], tasks={"a": (0, 5), "b": (0, 5)})  # tasks without a price
    found = earnings.by_task(tmp_path / "ledger.db")
    assert [(one.model, one.task, one.settled_msat, one.unsettled_msat) for one in found] == [
        ("", "", 7, 5),
        ("smol", "a", 5, 0),
        ("smol", "b", 4, 0),
    ]


def test_a_jobs_work_is_noted_once(ledger, tmp_path):
    job(ledger, 1, [7], tasks={"a": (1, 5)})
    ledger.work.note(f"{1:064x}", "smol", {"a": (1, 50)}, NOW_S)
    assert [one.work_us for one in earnings.by_task(tmp_path / "ledger.db")] == [5]
