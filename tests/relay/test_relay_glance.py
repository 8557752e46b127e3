"""A small query that is broken off leaves its connection as it was: the next one answers."""

from __future__ import annotations

import pytest

from nodewire.errors import TimedOut
from relay import schema
from relay.querying import _Glance


def test_glances_that_are_broken_off_for_ever_leave_the_connection_free(tmp_path):
    path = tmp_path / "relay.db"
    schema.open_writer(path, "NORMAL").close()
    glance = _Glance(schema.open_reader(path))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    def work(db, before):
        for _ in range(before):  # so that it is broken off a little later each time
            db.execute("SELECT 1").fetchone()
        db.execute(endless).fetchone()

    for before in range(1_500):
        with pytest.raises(TimedOut):
            glance.run(lambda db, before=before: work(db, before))
        assert not glance.db.in_transaction
    assert glance.run(lambda db: db.execute("SELECT count(*) FROM event").fetchone()) == (0,)
