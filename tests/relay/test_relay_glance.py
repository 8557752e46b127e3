"""A small query that is broken off leaves its connection as it was: the next one answers."""

from __future__ import annotations

import pytest

from relay.events import schema
from relay.events.reading import Meter, TooLong


def test_glances_that_are_broken_off_for_ever_leave_the_connection_free(tmp_path):
    path = tmp_path / "relay.db"
    schema.open_writer(path, "NORMAL").close()
    glance = Meter(path)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    def work(db, before):
        for _ in range(before):  # so that it is broken off a little later each time
            db.execute("SELECT 1").fetchone()
        db.execute(endless).fetchone()

    for before in range(1_500):
        with pytest.raises(TooLong):
            glance.run(lambda db, before=before: work(db, before), 20_000, 60.0)
        assert not glance.db.in_transaction
    assert glance.run(lambda db: db.execute("SELECT count(*) FROM event").fetchone(), 20_000, 60.0) == (0,)
