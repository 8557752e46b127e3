"""Fair turns: however much one origin asks, another that asks little waits for one piece of work at most."""

from hypothesis import given
from hypothesis import strategies as st

from relay.turns.queueing import Turns

COST = 10.0


def test_an_origin_that_asks_little_goes_before_one_that_asks_much():
    turns = Turns[str]()
    for n in range(1_000):
        turns.add(["greedy"], f"greedy {n}")
    for _ in range(50):
        turns.take()
        turns.charge(["greedy"], COST)
    turns.add(["honest"], "honest")
    assert turns.take() == "honest"


def test_connections_of_one_address_have_together_the_share_of_one_address():
    turns = Turns[str]()
    for connection in range(100):
        for _ in range(10):
            turns.add(["10.0.0.1", str(connection)], "many")
    for _ in range(10):
        turns.add(["10.0.0.2", "0"], "one")
    taken = []
    for _ in range(20):
        taken.append(work := turns.take())
        turns.charge(["10.0.0.1" if work == "many" else "10.0.0.2", "0"], COST)
    assert taken.count("one") == 10


def test_idleness_saves_nothing_up():
    turns = Turns[str]()
    turns.add(["idle"], "idle")
    turns.take()
    for _ in range(100):
        turns.add(["busy"], "busy")
        turns.take()
        turns.charge(["busy"], COST)
    for _ in range(10):
        turns.add(["idle"], "idle")
        turns.add(["busy"], "busy")
    taken = []
    for _ in range(8):
        taken.append(work := turns.take())
        turns.charge([work], COST)
    assert taken.count("busy") >= 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=60))
def test_everything_is_taken_once_and_in_order_for_each_connection(steps):
    turns, added, taken = Turns[tuple[str, str, int]](), [], []
    for n, (address, connection, takes) in enumerate(steps):
        turns.add([address, connection], (address, connection, n))
        added.append((address, connection, n))
        if takes:
            taken.append(turns.take())
            turns.charge(taken[-1][:2], n)
    while turns.waits:
        taken.append(turns.take())
    assert sorted(taken) == sorted(added)
    for line in {one[:2] for one in taken}:
        own = [one for one in taken if one[:2] == line]
        assert own == sorted(own)


def test_origins_without_number_take_bounded_memory():
    turns = Turns[int]()
    for n in range(10_000):
        turns.add([str(n)], n)
        turns.take()
        turns.charge([str(n)], COST)
    assert len(turns._within) <= 2_100
