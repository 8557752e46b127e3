"""A training's journal: what was written is read again, under the tags that journals have on disk."""

import sqlite3
from dataclasses import replace
from typing import get_args

import pytest

from nodewire.customer.training.events import (
    Audited,
    Begun,
    ClosePublished,
    Contribution,
    DepositAsked,
    Event,
    Judged,
    Lost,
    Missed,
    Opened,
    Paid,
    Published,
    Received,
    ResultCame,
    Row,
    Sealed,
    StepHere,
    Stepped,
    StepPublished,
    StepsBy,
    Sufficed,
    Undone,
)
from nodewire.customer.training.journal import Journal

BLOB = Sealed("ab" * 32, 70, "cd" * 32, "ef" * 32)
ROW = Row(0, "ada", 20, 25, 75, "https://a.test", "{}", 9)
USED = Contribution(0, 3, 20, "r0", "ada")
HAPPENED: dict[str, Event] = {
    "Opened": Opened(3, (BLOB, BLOB), BLOB, 1, True, BLOB, 4),
    "Published": Published(0, "r0", "{}", (ROW, replace(ROW, index=1))),
    "DepositAsked": DepositAsked("r0", "ada"),
    "Begun": Begun("r0", "ada"),
    "Delivered": ResultCame("r0", "ada", "{}", 900),
    "Received": Received("r0", "ada", "11" * 32),
    "Judged": Judged("r0", "ada", True, "", True, True, True),
    "Closed": ClosePublished(0, "c0", "{}", (("r0", "ada"), ("r0", "bea"))),
    "Audited": Audited("r0", "ada", False, "other work", "{}", "{}"),
    "Paid": Paid("r0", "ada", 1, 75, 1),
    "Lost": Lost("r0", "ada", "busy"),
    "Missed": Missed("r0", "ada", "slow"),
    "Sufficed": Sufficed(0),
    "Stepped": Stepped(0, 5_000_000, BLOB, (USED,), "s0", "oona", BLOB),
    "Undone": Undone(0, (("r0", "ada"),)),
    "StepsBy": StepsBy(True),
    "StepPublished": StepPublished(0, "s0", "{}", ROW, (USED,), BLOB),
    "StepHere": StepHere(0, "nobody"),
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
    assert journal.events() == [Stepped(0, 5, Sealed("ab", 7, "cd", "ef"))]
