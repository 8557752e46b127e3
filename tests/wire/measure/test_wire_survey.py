"""What nodes learn from their links: where they are, and how the links have been."""

import pytest

from nodewire.errors import LinkLost
from nodewire.wire.framing import frames
from tests.wire.wire_net import until

OFTEN_S = 0.02


async def test_both_ends_of_a_link_say_where_they_are_and_move(net):
    a, b = await net.pair(survey_s=OFTEN_S)
    before = a.survey.place, b.survey.place
    await until(lambda: a.survey.place != before[0] and b.survey.place != before[1])


async def test_what_the_link_has_been_is_known_while_it_is_open_and_afterwards(net):
    a, b = await net.pair(survey_s=OFTEN_S)
    await until(lambda: a.survey.health[b.public].rtt is not None)
    seen = a.survey.health[b.public]
    assert (seen.state, seen.links, seen.rung, seen.dialled) == ("open", 1, "address", True)
    assert seen.address == net.addresses[b.public]
    assert 0 < seen.rtt.least_us <= seen.rtt.median_us
    assert seen.bytes_out > 100_000 and seen.bytes_in > 100_000  # the warm-up of both
    assert seen.congestion == a.peers[b.public].congestion
    assert not b.survey.health[a.public].dialled
    b.peers[a.public].end(LinkLost("b", "goes home"))
    await until(lambda: seen.state == "lost")
    assert "goes home" in seen.endings[-1].reason


async def test_a_link_that_comes_again_is_counted_with_the_first(net):
    a, b = await net.pair(survey_s=OFTEN_S)
    await until(lambda: b.public in a.survey.health)
    for number in (2, 3):
        a.peers[b.public].abort(LinkLost("a", "test"))
        await until(lambda: not b.peers)
        await net.link(a, b)
        await until(lambda number=number: a.survey.health[b.public].links == number)
    assert [one.code for one in a.survey.health[b.public].endings] == ["link-lost"] * 2


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"at": [0, 0], "error": 1},
        {"at": [0, 0, -1], "error": 1},
        {"at": [10_000_001, 0, 0], "error": 1},
        {"at": [True, 0, 0], "error": 1},
        {"at": ["0", 0, 0], "error": 1},
        {"at": [0, 0, 0], "error": -1},
        {"at": [0, 0, 0], "error": 2_000_001},
        {"at": [0, 0, 0], "error": None},
    ],
    ids=str,
)
async def test_coordinates_that_are_none_end_the_link_they_came_on_and_no_other(net, lie):
    a, b = await net.pair(survey_s=OFTEN_S)
    liar = await net.proven(a)
    link = a.peers[liar.keys.public]
    liar.send(frames.control({"t": "coordinates", **lie}))
    await liar.is_closed()
    assert link.error is not None and link.error.code == "bad-frame"
    assert a.peers[b.public].is_open
