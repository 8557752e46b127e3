"""A daemon's state: migrated once, committed whole or not at all."""

import sqlite3

import pytest

from nodewire.errors import BadConfig, NotAllowed
from nodewire.store.state import State

ONE = "CREATE TABLE note (text TEXT)"
TWO = "ALTER TABLE note ADD COLUMN at_s INTEGER; UPDATE note SET at_s = 0"


@pytest.fixture
def state(tmp_path):
    state = State(tmp_path / "state.sqlite", [ONE])
    yield state
    state.close()


def test_a_migration_is_applied_once_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "state.sqlite"
    for migrations in ([ONE], [ONE], [ONE, TWO], [ONE, TWO]):
        state = State(path, migrations)
        if len(migrations) == 1:
            with state.transaction() as db:
                db.execute("INSERT INTO note (text) VALUES ('x')")
        rows = [tuple(row) for row in state.query("SELECT * FROM note")]
        state.close()
    assert rows == [("x", 0), ("x", 0)]


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path):
    path = tmp_path / "state.sqlite"
    with pytest.raises(BadConfig):
        State(path, [ONE, "CREATE TABLE half (x); NONSENSE"])
    state = State(path, [ONE])
    assert [row["name"] for row in state.query("SELECT name FROM sqlite_master")] == ["note"]
    state.close()


def test_a_database_of_newer_software_is_not_touched(tmp_path):
    State(tmp_path / "s", [ONE, TWO]).close()
    with pytest.raises(BadConfig, match="version 2"):
        State(tmp_path / "s", [ONE])


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path):
    (tmp_path / "s").write_text("hello" * 500)
    with pytest.raises(BadConfig, match="/s"):
        State(tmp_path / "s", [ONE])


def test_what_raises_is_rolled_back(state):
    def work():
        with state.transaction() as db:
            db.execute("INSERT INTO note VALUES ('x')")
            assert len(state.query("SELECT * FROM note")) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert state.query("SELECT * FROM note") == []


def test_transactions_do_not_nest(state):
    with state.transaction(), pytest.raises(NotAllowed, match="transaction"), state.transaction():
        pass


def test_what_is_committed_is_there_for_another_process(state):
    with state.transaction() as db:
        db.execute("INSERT INTO note VALUES ('x')")
    other = sqlite3.connect(state.path)
    assert other.execute("SELECT count(*) FROM note").fetchone() == (1,)
    other.close()
