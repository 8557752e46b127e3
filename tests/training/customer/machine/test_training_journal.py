"""A training's journal: what was written is read again, under the tags that journals have on disk."""

import sqlite3
from dataclasses import replace
from typing import get_args

import pytest

from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    ClosePublication,
    Contribution,
    DepositRequest,
    Event,
    LocalStepChoice,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultPayment,
    ResultReceipt,
    ResultTimeout,
    RoundQuorum,
    Row,
    ShardLoss,
    StepCompletion,
    StepOwnerChange,
    StepPublication,
    StepRollback,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.journal import Journal

BLOB = CiphertextRef("ab" * 32, 70, "cd" * 32, "ef" * 32)
ROW = Row(0, "ada", 20, 25, 75, "https://a.test", "{}", 9)
USED = Contribution(0, 3, 20, "r0", "ada")
HAPPENED: dict[str, Event] = {
    "Opened": TrainingStart(3, (BLOB, BLOB), BLOB, 1, True, BLOB, 4),
    "Published": RequestPublication(0, "r0", "{}", (ROW, replace(ROW, index=1))),
    "DepositAsked": DepositRequest("r0", "ada"),
    "Begun": WorkStart("r0", "ada"),
    "Delivered": ResultArrival("r0", "ada", "{}", 900),
    "Received": ResultReceipt("r0", "ada", "11" * 32),
    "Judged": ResultJudgement("r0", "ada", True, "", True, True, True),
    "Closed": ClosePublication(0, "c0", "{}", (("r0", "ada"), ("r0", "bea"))),
    "Audited": AuditOutcome("r0", "ada", False, "other work", "{}", "{}"),
    "Paid": ResultPayment("r0", "ada", 1, 75, 1),
    "Lost": ShardLoss("r0", "ada", "busy"),
    "Missed": ResultTimeout("r0", "ada", "slow"),
    "Sufficed": RoundQuorum(0),
    "Stepped": StepCompletion(0, 5_000_000, BLOB, (USED,), "s0", "oona", BLOB),
    "Undone": StepRollback(0, (("r0", "ada"),)),
    "StepsBy": StepOwnerChange(True),
    "StepPublished": StepPublication(0, "s0", "{}", ROW, (USED,), BLOB),
    "StepHere": LocalStepChoice(0, "nobody"),
}


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


def test_every_event_is_written_under_its_tag_and_read_again(journal, tmp_path):
    assert {type(event) for event in HAPPENED.values()} == set(get_args(Event))
    for event in HAPPENED.values():
        journal.append(event)
    assert journal.events() == list(HAPPENED.values())
    rows = sqlite3.connect(tmp_path / "journal.db").execute("SELECT type FROM events ORDER BY seq")
    assert [tag for (tag,) in rows] == list(HAPPENED)


def test_an_event_of_an_older_journal_has_the_defaults_of_what_it_lacks(journal, tmp_path):
    db = sqlite3.connect(tmp_path / "journal.db")
    blob = '{"sha256": "ab", "bytes": 7, "key": "cd", "plain_sha256": "ef"}'
    db.execute(
        "INSERT INTO events (type, data) VALUES (?, ?)", ("Stepped", f'{{"round": 0, "loss": 5, "theta": {blob}}}')
    )
    db.commit()
    assert journal.events() == [StepCompletion(0, 5, CiphertextRef("ab", 7, "cd", "ef"))]
