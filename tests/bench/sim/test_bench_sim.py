"""The simulator: what can be said in closed form comes out, and nobody gets lost."""

from dataclasses import replace
from random import Random

import pytest

from bench.sim import routers
from bench.sim.arms import placed
from bench.sim.pools import LLAMA_70B_INT4, lasting
from bench.sim.simulator import DETECT_MS, Simulation
from bench.sim.traces import Change, Session, churn, poisson
from nodewire.plan.place.model import Chain, Node, Placement, Pool, Stage, Task, Workload, turn_ms
from nodewire.plan.place.planners import OURS, PLANNERS
from nodewire.plan.place.rebalance import Balance, Departure, Rules, step


def small() -> tuple[Pool, Chain, Placement]:
    nodes = (Node("a", 10, at=(3.0, 0.0, 1.0), up=10.0), Node("b", 10, at=(0.0, 4.0, 1.0), up=20.0))
    chain = Chain((Task("x", 4, ((1, 2.0), (2, 3.0)), out_bytes=30), Task("y", 4, ((1, 5.0),), out_bytes=20)), 10)
    return Pool(nodes), chain, Placement((Stage(0, 0, 1), Stage(1, 1, 2)))


def test_one_session_alone_takes_what_its_turns_add_up_to():
    pool, chain, placement = small()
    found = Simulation(pool, chain, placement, routers.ours, Workload()).run([Session(100.0, 1, 5)])
    ((session, first_ms, ms),) = found.finished
    turn = turn_ms(pool, chain, placement.stages)
    assert first_ms == pytest.approx(turn)
    assert ms == pytest.approx(5 * turn)
    assert len(found.made_ms) == session.output


def test_frames_that_wait_together_are_served_together():
    node, chain = Node("n", 10), Chain((Task("x", 1, ((1, 10.0), (100, 10.0))),))
    sessions = [Session(0.0, 1, 2), *(Session(1.0, 1, 1) for _ in range(3))]
    found = Simulation(Pool((node,)), chain, Placement((Stage(0, 0, 1),)), routers.ours, Workload()).run(sessions)
    assert sorted(ms for _, _, ms in found.finished) == pytest.approx([19.0, 19.0, 19.0, 30.0])


@pytest.mark.parametrize("name", PLANNERS)
def test_every_session_of_a_trace_is_served_to_its_end(name):
    pool, chain, workload = lasting(14, 3, LLAMA_70B_INT4), LLAMA_70B_INT4.chain(), Workload(per_s=0.3)
    trace = poisson(0.3, 30.0, Random(2), prompt=64, output=16)
    placement, router = placed(name, pool, chain, workload, "latency", 1)
    found = Simulation(pool, chain, placement, router, workload).run(trace)
    assert len(found.finished) == len(trace)
    assert found.unserved == 0
    assert len(found.made_ms) == sum(session.output for session in trace)


def test_sessions_survive_nodes_that_go_and_come_back():
    pool, chain, workload = lasting(14, 3, LLAMA_70B_INT4), LLAMA_70B_INT4.chain(), Workload(per_s=0.3)
    trace = poisson(0.5, 60.0, Random(2), prompt=64, output=16)
    changes = churn(len(pool.nodes), 30.0, 60.0, Random(5), away_s=5.0)
    placement, router = placed(OURS, pool, chain, workload, "latency", 1)
    found = Simulation(pool, chain, placement, router, workload).run(trace, changes)
    assert found.lost > 0
    assert len(found.finished) == len(trace)


def test_a_session_waits_while_nobody_holds_what_it_needs():
    pool, chain, placement = small()
    changes = [Change(1.0, 1, False), Change(1_000.0, 1, True)]
    found = Simulation(pool, chain, placement, routers.ours, Workload()).run([Session(10.0, 1, 1)], changes)
    ((_, _, ms),) = found.finished
    assert ms == pytest.approx(990.0 + DETECT_MS + turn_ms(pool, chain, placement.stages))


def test_what_a_node_that_is_gone_for_good_held_is_served_by_whom_rebalancing_names():
    pool, chain, placement = small()
    pool = replace(pool, nodes=(*pool.nodes, Node("c", 4, at=(0.0, 4.0, 1.0))))
    state = Balance(frozenset(range(3)), placement.stages)
    rules = Rules(lambda nodes: placement, lambda _: 1.0, lambda node, first: 1, len(chain.tasks))

    def replan(gone: frozenset[int]) -> Placement:
        nonlocal state
        for node in gone & state.nodes:
            state, _ = step(state, Departure(node, 0), rules)
        return state.placement()

    sessions, changes = [Session(0.0, 1, 9), Session(10.0, 1, 1)], [Change(1.0, 1, False)]
    found = Simulation(pool, chain, placement, routers.ours, Workload(), replan=replan).run(sessions, changes)
    assert state.stages == (Stage(0, 0, 1), Stage(2, 1, 2))
    assert (found.lost, len(found.finished)) == (1, 2)
    kept = Simulation(pool, chain, placement, routers.ours, Workload()).run(sessions, changes)
    assert kept.unserved == 2


def test_traces_and_runs_are_the_same_each_time():
    pool, chain, workload = lasting(14, 3, LLAMA_70B_INT4), LLAMA_70B_INT4.chain(), Workload()
    trace = poisson(2.0, 20.0, Random(1), prompt=64, output=16)
    assert trace == poisson(2.0, 20.0, Random(1), prompt=64, output=16)

    def finished(name: str) -> list[tuple[Session, float, float]]:
        placement, router = placed(name, pool, chain, workload, "throughput", 1)
        return Simulation(pool, chain, placement, router, workload).run(trace).finished

    assert finished("random") == finished("random")
    assert finished(OURS) == finished(OURS)
