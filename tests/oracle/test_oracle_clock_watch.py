"""An oracle with a wrong clock says so in its log, once a look."""

import pytest

from nodewire.errors import NotFound
from nodewire.oracle.clock_watch import ClockWatch
from tests.protocol.committee.actors import committee

COMMITTEE, _ = committee(epoch_ms=10_000, skew_ms=2_000)


@pytest.mark.parametrize(("offset_s", "side"), [(300.0, "300 s ahead of"), (-300.0, "300 s behind"), (2.9, "")])
async def test_a_clock_that_is_off_by_more_than_a_skew_is_one_line_of_the_log(offset_s, side, caplog):
    async def measure():
        return offset_s

    watch = ClockWatch(COMMITTEE, measure)
    assert await watch.look() == (not side)
    assert watch.offset_s == offset_s
    lines = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(lines) == bool(side)
    assert all(side in line and "NTP" in line for line in lines)


async def test_relays_that_say_no_time_are_no_reason_to_doubt_the_clock(caplog):
    async def measure():
        raise NotFound("clock", "nobody answers")

    assert await ClockWatch(COMMITTEE, measure).look()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
