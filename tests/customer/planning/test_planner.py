"""What a customer knows of links when it chooses what is narrowed."""

from types import SimpleNamespace

import pytest

from nodewire.customer.planning.planner import MarketPlanner, known
from nodewire.errors import LinkLost, NoProvider
from nodewire.plan.assign import LINK_BYTES_PER_MS
from nodewire.plan.codec import Link, Wish, codecs, predicted
from nodewire.wire.measure.link_health import Health
from nodewire.wire.transport.tcp_info import TcpInfo
from tests.plan.markets import World, generous, ring


@pytest.fixture(scope="module")
def world():
    return World(ring(4))


def health(peer, rate, *, limited):
    found = Health(peer)
    found.opened(100, rung="address", dialled=True, address="192.0.2.1:4000")
    found.looked([30_000, 31_000], TcpInfo(1, 0, rate, limited), bytes_in=0, bytes_out=0, congestion="cubic")
    found.lost(200, LinkLost(peer, "closed"))
    return {peer: found}


def test_a_link_of_its_own_is_as_it_was_found(world):
    one, other = world.snapshot.nodes[:2]
    predict = known(health(one.pubkey, 2_500_000, limited=True))
    assert predict(None, one) == predict(one, None) == Link(15_000, 2_500)
    assert predict(other, None) == predicted(other, None)
    assert predict(one, other) == predicted(one, other)


@pytest.mark.parametrize(("rate", "counts"), [(5_000, LINK_BYTES_PER_MS), (40_000_000, 40_000)])
def test_that_little_was_sent_says_nothing_of_the_path_and_that_much_was_does(world, rate, counts):
    one = world.snapshot.nodes[0]
    assert known(health(one.pubkey, rate, limited=False))(None, one).bytes_per_ms == counts


def test_an_edge_of_a_local_driver_stays_wide_where_its_link_is_fast(world):
    plan = world.assign(generous(driver="local"))
    first, last = (plan.assignment(task).provider for task in ("stage.0", "stage.3"))
    fast = known(health(first, 10**12, limited=True))
    found = [codecs(plan, world.manifest, world.snapshot, Wish("auto", 200), p).keys() for p in (known({}), fast)]
    assert found[0] - found[1] == ({"hidden.0", "return"} if last == first else {"hidden.0"})


class Market:
    """What a world's committee certifies."""

    def __init__(self, world):
        self.committee, self._world = world.committee, world

    async def epoch(self, *, timeout_s, after=0):
        return SimpleNamespace(
            body=self._world.certificate.body,
            beacon=self._world.beacon,
            certificate=SimpleNamespace(id="0" * 64),
            partials=(),
        )

    async def snapshot(self, digest):
        return self._world.snapshot


async def drawn(world, manifest, terms):
    return await MarketPlanner(Market(world), "0" * 64, {}).draw(manifest, terms, busy=(), wish=None, patience=0)


async def test_a_model_that_nobody_serves_is_told_from_one_that_is_busy_or_too_dear(world):
    with pytest.raises(NoProvider, match="model: no provider serves ring9 yet"):
        await drawn(world, ring(9), generous())
    cheap = generous().model_copy(update={"max_chunk_msat": 0})
    with pytest.raises(NoProvider, match="under the terms"):
        await drawn(world, world.manifest, cheap)


async def test_where_a_provider_takes_no_guesses_the_plan_has_none(world):
    made = await drawn(world, world.manifest, generous(lookahead=8))
    assert {ad.lookahead for ad in made.ads.values()} == {1}
    assert made.plan.terms.lookahead == 1
