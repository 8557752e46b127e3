"""By what a job's calls wait at a provider: its customer, the plan's own estimates, and which frames go together."""

import pytest

from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.provider.tasks.call_priority import turns
from tests.plan.markets import World, diamond, generous, ring


def nodes(world):
    return {node.pubkey: node for node in world.snapshot.nodes}


@pytest.mark.parametrize("made", [diamond(), ring(4)])
def test_who_is_before_another_is_farther_from_the_end(made):
    world = World(made)
    plan = world.assign()
    found = turns(plan, world.manifest, nodes(world))
    assert {turn.customer for turn in found.values()} == {plan.customer}
    for edge in world.manifest.edges:
        if not edge.back and CUSTOMER not in (edge.source, edge.target):
            assert found[edge.source].remaining_us > found[edge.target].remaining_us > 0, edge.name


def test_frames_go_together_where_the_engine_waits_for_all_of_them():
    for made in (diamond(), ring(4)):
        world = World(made)
        for name, turn in turns(world.assign(), world.manifest, nodes(world)).items():
            is_graph = world.manifest.task(name).engine == "graph"
            expected = {edge.name for edge in world.manifest.inputs(name)} if is_graph else set()
            assert turn.together == expected


def test_a_task_at_the_customer_and_a_node_that_left_take_no_time():
    world = World(ring(4))
    plan = world.assign(generous(driver="local"))
    assert {turn.remaining_us for turn in turns(plan, world.manifest, {}).values()} == {0}
    here = turns(plan, world.manifest, nodes(world))
    assert here[world.manifest.driver.name].remaining_us == max(
        turn.remaining_us for name, turn in here.items() if name != world.manifest.driver.name
    )
