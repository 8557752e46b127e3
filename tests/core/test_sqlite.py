"""A file of a room's own: made, led to its version all at once, and refused where nothing leads there."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from nodewire.core.sqlite import open_versioned
from nodewire.errors import BadConfig

SCHEMA = "CREATE TABLE IF NOT EXISTS a (x INTEGER, y INTEGER) STRICT; CREATE INDEX IF NOT EXISTS a_x ON a (x);"
STEPS = {1: "ALTER TABLE a RENAME COLUMN z TO x", 2: "ALTER TABLE a ADD COLUMN y INTEGER"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.db"


def made(path, version, columns):
    db = sqlite3.connect(path)
    db.execute(f"CREATE TABLE a ({columns})")
    db.execute("INSERT INTO a VALUES (7)")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()


def test_a_new_file_has_the_schema_and_keeps_what_is_written(path):
    db = open_versioned(path, "a book", SCHEMA, 3, STEPS)
    db.execute("INSERT INTO a VALUES (1, 2)")
    db.close()
    db = open_versioned(path, "a book", SCHEMA, 3, STEPS)
    assert db.execute("SELECT x, y FROM a").fetchall() == [(1, 2)]
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    db.close()


@pytest.mark.parametrize(("version", "columns"), [(1, "z INTEGER"), (2, "x INTEGER")])
def test_a_file_of_an_older_version_is_led_step_by_step(path, version, columns):
    made(path, version, columns)
    for _ in range(2):
        db = open_versioned(path, "a book", SCHEMA, 3, STEPS)
        assert db.execute("SELECT x, y FROM a").fetchall() == [(7, None)]
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
        db.close()


@pytest.mark.parametrize(("version", "steps"), [(4, STEPS), (-1, STEPS), (1, {2: STEPS[2]}), (1, {})])
def test_a_file_from_which_nothing_leads_here_is_refused_and_left_alone(path, version, steps):
    made(path, version, "z INTEGER")
    with pytest.raises(BadConfig, match=f"a book of version {version}; this software writes 3"):
        open_versioned(path, "a book", SCHEMA, 3, steps)
    db = sqlite3.connect(path)
    assert db.execute("SELECT z FROM a").fetchall() == [(7,)]
    db.close()


def test_a_step_that_fails_leaves_the_version_before(path):
    made(path, 1, "z INTEGER")
    with pytest.raises(BadConfig):
        open_versioned(path, "a book", SCHEMA, 3, {**STEPS, 2: "ALTER TABLE b ADD COLUMN y INTEGER"})
    db = sqlite3.connect(path)
    assert db.execute("SELECT z FROM a").fetchall() == [(7,)]
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()


def test_what_is_no_database_is_refused(path):
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(BadConfig):
        open_versioned(path, "a book", SCHEMA, 3)
    with pytest.raises(BadConfig):
        open_versioned(path / "below", "a book", SCHEMA, 3)


def test_a_file_that_one_process_has_alone_is_refused_to_others_at_once(path):
    held = open_versioned(path, "rows", SCHEMA, 1, alone=True)
    with pytest.raises(BadConfig, match="locked"):
        open_versioned(path, "rows", SCHEMA, 1, alone=True)
    held.close()


def test_a_new_file_is_its_owners_and_one_that_is_damaged_says_what_to_do(path):
    open_versioned(path, "rows", SCHEMA, 1).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(os.urandom(8_192))
    with pytest.raises(BadConfig, match="move it away"):
        open_versioned(path, "rows", SCHEMA, 1)


def test_a_disk_without_room_is_no_mistake_in_the_configuration(path):
    """The kernel's limit on file sizes stands for the full disk."""
    script = """
import resource, sys
from nodewire.core.sqlite import open_versioned
from nodewire.errors import NodeFailed
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
try:
    open_versioned(sys.argv[1], "a book", "CREATE TABLE a (x INTEGER)", 1)
except NodeFailed as error:
    print(error.field)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(path)], done.stderr
