"""Which edges a wish narrows: a matter of bytes, bandwidth and latency; never of one that may not be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadPlan
from nodewire.plan.codec import WORTH_PERCENT, Link, Wish, best, codecs, predicted, time_ns
from nodewire.protocol.model.edge_codec import CODECS, can_narrow
from nodewire.protocol.model.manifest import Edge, Tensor
from tests.plan.markets import World, generous, ring

MBIT = 125
"""Bytes per millisecond."""


@pytest.fixture(scope="module")
def world():
    return World(ring(4))


def edge(width: int = 4_096, dtype: str = "float32", **changes) -> Edge:
    tensor = Tensor(name="hidden", dtype=dtype, shape=(1, "n", width))
    nbytes = width * {"float32": 4, "bfloat16": 2, "int64": 8}[dtype]
    return Edge(
        name="hidden.1",
        source="a",
        target="b",
        tensors=(tensor,),
        dims={"n": 4_096},
        bytes_per_position=nbytes,
        **changes,
    )


LINKS = st.builds(Link, st.integers(0, 500_000), st.integers(1, 10**7))
WISHES = st.builds(Wish, st.just("auto"), st.integers(1, 4_096), st.integers(0, 2_000))


def test_a_long_prompt_on_a_slow_link_goes_in_int8():
    assert best(edge(), Wish("auto", positions=512), Link(20_000, 20 * MBIT)) == "int8"


def test_small_frames_on_a_long_way_stay_as_they_are():
    """16 KiB take 1.3 ms at 100 Mbit/s, and 60 ms to get there."""
    assert best(edge(), Wish("auto", positions=1, frames=100), Link(60_000, 100 * MBIT)) is None


def test_within_a_rack_nothing_is_narrowed():
    assert best(edge(256), Wish("auto", positions=64, frames=64), Link(50, 100_000 * MBIT)) is None


def test_a_codec_that_is_hardly_faster_than_a_gentler_one_is_not_taken():
    """Latency is most of what is left after bf16."""
    link = Link(100_000, 100 * MBIT)
    wish = Wish("auto", positions=150)
    own, half, quarter = (time_ns(edge(), wish, link, codec) for codec in (None, *CODECS))
    assert half * 100 <= own * (100 - WORTH_PERCENT)
    assert quarter < half
    assert best(edge(), wish, link) == ("int8" if quarter * 100 <= half * (100 - WORTH_PERCENT) else "bf16")


@given(LINKS, WISHES, st.sampled_from([32, 100, 4_096]), st.sampled_from(["float32", "bfloat16", "int64"]))
def test_whatever_is_chosen_is_worth_it_and_may_be(link, wish, width, dtype):
    made = edge(width, dtype)
    chosen = best(made, wish, link)
    if chosen is not None:
        assert can_narrow(made, chosen)
        assert time_ns(made, wish, link, chosen) * 100 <= time_ns(made, wish, link, None) * (100 - WORTH_PERCENT)
    assert best(edge(width, dtype, exact=True), wish, link) is None


@given(LINKS, WISHES)
def test_less_bandwidth_never_makes_a_narrowed_edge_wide_again(link, wish):
    if best(edge(), wish, link) is not None:
        assert best(edge(), wish, Link(link.latency_us, max(1, link.bytes_per_ms // 2))) is not None


def test_a_wish_for_one_codec_is_for_every_edge_between_two_nodes_and_no_other(world):
    plan = world.assign()
    place = {one.task: one.provider for one in plan.tasks}
    for codec in CODECS:
        found = codecs(plan, world.manifest, world.snapshot, Wish(codec))
        inner = [e for e in world.manifest.edges if "customer" not in (e.source, e.target)]
        assert found == {e.name: codec for e in inner if place[e.source] != place[e.target]}
        alone = tuple(one.model_copy(update={"provider": plan.tasks[0].provider}) for one in plan.tasks)
        together = plan.model_copy(update={"tasks": alone})
        assert codecs(together, world.manifest, world.snapshot, Wish(codec)) == {}


def test_a_wish_for_a_codec_that_nobody_knows_is_refused():
    with pytest.raises(BadInput, match="edge_codec"):
        Wish("int4")


def test_what_the_link_is_like_may_come_from_elsewhere(world):
    plan = world.assign()
    fast = codecs(plan, world.manifest, world.snapshot, Wish("auto", 200), lambda a, b: Link(0, 10**9))
    slow = codecs(plan, world.manifest, world.snapshot, Wish("auto", 200), lambda a, b: Link(0, 1))
    assert (fast, set(slow.values())) == ({}, {"int8"})


def test_a_driver_of_the_customers_own_is_on_no_other_node(world):
    plan = world.assign(generous(driver="local"))
    slow = codecs(plan, world.manifest, world.snapshot, Wish("auto", 200), lambda a, b: Link(0, 1))
    assert {"hidden.0", "return"} <= slow.keys()


def test_links_of_the_customer_itself_are_told_apart(world):
    plan = world.assign(generous(driver="local"))

    def predict(a, b):
        return Link(0, 1 if None in (a, b) else 10**9)

    assert codecs(plan, world.manifest, world.snapshot, Wish("auto", 200), predict).keys() == {"hidden.0", "return"}


@pytest.mark.parametrize("customers", [0, 1])
def test_without_better_knowledge_the_customer_is_beside_the_node_that_it_talks_to(world, customers):
    node = world.snapshot.nodes[0]
    ends = (None, node) if customers else (node, None)
    assert predicted(*ends) == predicted(node, node)


def test_the_plan_that_a_wish_makes_is_the_one_that_assign_gives_for_its_terms(world):
    plan = world.assign()
    wished = {"hidden.0": "int8", "return": "bf16"}
    terms = generous(codecs=wished)
    assert plan.model_copy(update={"terms": terms}) == world.assign(terms)
    with pytest.raises(BadPlan, match=r"^terms\.codecs: tokens"):
        world.assign(generous(codecs={"tokens": "int8"}))
