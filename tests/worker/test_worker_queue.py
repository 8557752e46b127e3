"""The queue before a worker: bounded, in order within a session, fair between customers, and nobody starves."""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodewire.errors import Busy, TooLarge
from nodewire.worker.queue import AGE, MAX_PATH_US, MAX_SESSION_CALLS, CallEstimates, Entry, Queue

NAMES = st.sampled_from("abc")
US = st.integers(0, 2 * MAX_PATH_US)


def entry(session="s", task="t", customer="c", **more) -> Entry:
    return Entry(task, session, customer, **more)


def taking(queue: Queue, now_us: int = 0, expected_us: int = 0, most: int = 1) -> list[Entry]:
    """The call whose turn it is, and what goes with it."""
    return queue.pop(queue.first(), now_us, expected_us, most)


class Machine(RuleBasedStateMachine):
    """Offers, takes, gives up and closes at random; a plain list of what waits is held beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(max_calls=12, max_bytes=1_000)
        self.now_us = 0
        self.model: list[Entry] = []
        self.taken: list[Entry] = []

    @rule(session=NAMES, task=NAMES, remaining_us=US, nbytes=st.integers(0, 400), like=st.sampled_from((None, 1, 2)))
    def offer(self, session, task, remaining_us, nbytes, like):
        one = entry(session, task, "even" if session == "b" else "odd", remaining_us=remaining_us, nbytes=nbytes)
        one.like = like
        of = [e for e in self.model if e.customer == one.customer]
        free = 12 - len(self.model), 1_000 - sum(e.nbytes for e in self.model)
        fits = len(of) < min(6, free[0]) and sum(e.nbytes for e in of) + nbytes <= min(500, free[1])
        assert self.queue.has_room(one.customer, nbytes) == fits
        if not fits:
            with pytest.raises(Busy):
                self.queue.offer(one, self.now_us)
            return
        self.queue.offer(one, self.now_us)
        self.model.append(one)

    @rule(us=st.integers(0, 10_000_000))
    def wait(self, us):
        self.now_us += us

    @precondition(lambda self: self.model)
    @rule(expected_us=st.integers(0, 10**6), most=st.integers(1, 3))
    def take(self, expected_us, most):
        first = self.queue.first()
        taken = self.queue.pop(first, self.now_us, expected_us, most)
        assert taken[0] is first
        assert 1 <= len(taken) <= most
        heads = {(e.session, e.task): e for e in reversed(self.model)}
        assert all(heads[one.session, one.task] is one for one in taken), "calls of one task and session stay in order"
        mine = [head for head in heads.values() if head.session == first.session]
        assert min(e.due_us for e in mine) == first.due_us, "of a session's calls the most urgent goes"
        assert len({one.session for one in taken}) == len(taken)
        assert len(taken) == 1 or {(one.task, one.like) for one in taken} == {(first.task, first.like)} != {None}
        for one in taken:
            self.model.remove(one)
            self.taken.append(one)

    @precondition(lambda self: self.taken)
    @rule(us=st.integers(0, 10**7))
    def done(self, us):
        self.queue.done(self.taken.pop(0), us)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data):
        one = data.draw(st.sampled_from(self.model))
        assert self.queue.cancel(one)
        assert not self.queue.cancel(one)
        self.model.remove(one)

    @rule(session=NAMES, task=NAMES)
    def close(self, session, task):
        gone = self.queue.drop(task, session)
        assert Counter(map(id, gone)) == Counter(
            id(e) for e in self.model if (e.task, e.session) == (task, session)
        )  # fmt: skip
        self.model = [e for e in self.model if (e.task, e.session) != (task, session)]

    @invariant()
    def it_holds_what_was_offered_and_no_more(self):
        assert self.queue.calls == len(self.model) <= 12
        assert self.queue.nbytes == sum(e.nbytes for e in self.model) <= 1_000
        assert (self.queue.first() is None) == (not self.model)


TestMachine = Machine.TestCase


@given(st.lists(st.tuples(NAMES, NAMES, US), max_size=30))
def test_all_that_is_offered_is_taken_once_and_leaves_nothing_behind(calls):
    queue = Queue()
    offered = [entry(session, task, session, remaining_us=us) for session, task, us in calls]
    for one in offered:
        queue.offer(one, 0)
    taken = [one for _ in offered for one in taking(queue)]
    assert sorted(map(id, taken)) == sorted(map(id, offered))
    assert (queue.calls, queue.nbytes, queue.first(), queue._customers) == (0, 0, None, {})


def test_closing_its_tasks_frees_all_that_a_session_had():
    queue = Queue()
    for n in range(10):
        queue.offer(entry("gone", f"t{n % 2}", nbytes=7), 0)
    queue.offer(entry("stays", nbytes=5), 0)
    assert len(queue.drop("t0", "gone")) + len(queue.drop("t1", "gone")) == 10
    assert (queue.calls, queue.nbytes) == (1, 5)
    assert queue.first().session == "stays"


def test_bounds_are_of_types():
    queue = Queue(max_calls=4 * MAX_SESSION_CALLS, max_bytes=100)
    with pytest.raises(TooLarge):
        queue.offer(entry(nbytes=51), 0)
    queue.offer(entry("large", customer="large", nbytes=50), 0)
    with pytest.raises(Busy, match="50 bytes wait"):
        queue.offer(entry("large", customer="large", nbytes=1), 0)
    for _ in range(MAX_SESSION_CALLS):
        queue.offer(entry(), 0)
    with pytest.raises(Busy, match="session"):
        queue.offer(entry(), 0)
    queue.offer(entry("another"), 0)


def test_customers_who_fill_the_queue_leave_room_for_the_next():
    queue = Queue(max_calls=1_000, max_bytes=100_000)
    for customer in "abcd":
        for n in range(1_000):
            with suppress(Busy):
                queue.offer(entry(f"{customer}{n}", customer=customer, nbytes=200), 0)
    assert queue.nbytes > 90_000
    queue.offer(entry("modest", customer="modest", nbytes=2_000), 0)


def test_the_longest_path_goes_first_and_waiting_counts_as_much():
    queue = Queue()
    queue.offer(entry(task="short", remaining_us=1_000), 0)
    queue.offer(entry(task="long", remaining_us=9_000), 5_000)
    queue.offer(entry(task="late", remaining_us=9_000), 8_001)
    assert [one.task for _ in range(3) for one in taking(queue, 9_000)] == ["long", "short", "late"]


def served(queue: Queue, now_us: int, us: int) -> Entry:
    [one] = taking(queue, now_us, us)
    queue.done(one, us)
    return one


@given(st.integers(1, 50), st.integers(1, 50))
def test_customers_get_the_same_time_however_many_sessions_and_however_long_their_calls(sessions, times):
    """One with many sessions and calls `times` as long beside one with a single session: shares differ by one call."""
    queue, now_us, had_us = Queue(), 0, Counter()
    waiting = Counter()

    def fill():
        for name, count in (("many", sessions), ("one", 1)):
            for n in range(count):
                if not waiting[name, n]:
                    queue.offer(entry(f"{name}{n}", customer=name, what=(name, n)), now_us)
                    waiting[name, n] = 1

    for _ in range(300):
        fill()
        us = {"many": 100 * times, "one": 100}[queue.first().customer]
        one = served(queue, now_us, us)
        waiting[one.what] = 0
        now_us += us
        had_us[one.customer] += us
    longest_us = 100 * times
    assert abs(had_us["many"] - had_us["one"]) <= 2 * longest_us + now_us // AGE


@given(st.integers(1, 10**6), st.integers(0, 20))
def test_a_step_waits_for_one_long_call_of_another_and_no_more(long_us, others):
    """A decoder's step comes while a long call is computed and others of the same job wait."""
    queue = Queue()
    for n in range(others + 1):
        queue.offer(entry("big", f"t{n}", "big", remaining_us=MAX_PATH_US), 0)
    now_us = 0
    for _ in range(3):  # it has been served before, and so has the decoder
        queue.offer(entry("decoder", customer="small"), now_us)
        while taking(queue, now_us, 10)[0].session != "decoder":
            queue.offer(entry("big", "more", "big", remaining_us=MAX_PATH_US), now_us)
            now_us += long_us
    [running] = taking(queue, now_us)
    assert running.session == "big"
    queue.offer(entry("decoder", customer="small"), now_us + long_us // 2)
    queue.done(running, long_us)
    assert queue.first().session == "decoder"


@given(st.lists(st.integers(50, 1_000), min_size=1, max_size=5), st.integers(0, MAX_PATH_US))
def test_nobody_starves_whoever_comes_anew(costs, remaining_us):
    """Against newcomers without end, each another customer with the longest path, who have had nothing yet."""
    queue, now_us = Queue(), 0
    queue.offer(entry("patient", customer="patient"), 0)
    served(queue, 0, 1_000)  # it has had more than newcomers will
    queue.offer(entry("patient", customer="patient", remaining_us=0), 0)
    for n in range(2_000):
        queue.offer(entry(f"new{n}", customer=f"new{n}", remaining_us=MAX_PATH_US), now_us)
        us = costs[n % len(costs)]
        one = served(queue, now_us, us)
        now_us += us
        if one.session == "patient":
            break
    assert one.session == "patient"
    assert now_us <= AGE * (1_000 + max(costs)) + max(costs)


def test_a_sessions_call_is_not_passed_over_for_ever_by_its_own_longer_paths():
    queue, now_us = Queue(), 0
    queue.offer(entry(task="last"), 0)
    for n in range(1_000):
        queue.offer(entry(task=f"t{n}", remaining_us=10 * MAX_PATH_US), now_us)
        if served(queue, now_us, 20_000).task == "last":
            break
        now_us += 20_000
    assert now_us <= MAX_PATH_US + 20_000


def test_what_is_alike_goes_together_in_order_of_urgency():
    queue = Queue()
    for n, like in enumerate(("x", "y", "x", None, "x", "x")):
        queue.offer(entry(f"s{n}", customer=f"c{n}", like=like), n)
    assert [one.session for one in taking(queue, 10, most=3)] == ["s0", "s2", "s4"]
    assert [one.session for one in taking(queue, 10, most=3)] == ["s1"]
    assert [one.session for one in taking(queue, 10, most=3)] == ["s3"]
    assert [one.session for one in taking(queue, 10, most=3)] == ["s5"]


def test_what_goes_together_has_no_more_rows_than_a_block():
    queue = Queue()
    for n, rows in enumerate((1, 60, 4, 3, 64, 100)):
        queue.offer(entry(f"s{n}", customer=f"c{n}", like="x", rows=rows, block=64), n)
    assert [one.session for one in taking(queue, 10, most=9)] == ["s0", "s1", "s3"]
    assert [one.session for one in taking(queue, 10, most=9)] == ["s2"]
    assert [one.session for one in taking(queue, 10, most=9)] == ["s4"]
    assert [one.session for one in taking(queue, 10, most=9)] == ["s5"]


def test_what_calls_take_is_told_by_task_and_size():
    expected = CallEstimates()
    assert expected.us("t", 100) is None
    expected.seen("t", 100, 1_000)
    expected.seen("t", 101, 2_000)
    assert expected.us("t", 90) == 1_250
    assert expected.us("t", 1_000) is None
    assert expected.us("u", 100) is None


def test_what_passes_a_free_queue_counts_as_if_it_had_waited_there():
    through, past = Queue(), Queue()
    for now_us in range(0, 5_000, 1_000):
        one, other = entry(customer="busy"), entry(customer="busy")
        through.offer(one, now_us)
        assert taking(through, now_us, 700) == [one]
        assert past.is_free(other)
        past.passed(other, now_us, 700)
        through.done(one, 900)
        past.done(other, 900)
    found = []
    for queue in (through, past):
        for customer in ("busy", "new", "busy", "new"):
            queue.offer(entry(customer=customer), 5_000)
        assert not queue.is_free(entry())
        found.append([taking(queue, 5_000, 100)[0].customer for _ in range(4)])
    assert found[0] == found[1]


def test_a_call_that_may_never_wait_does_not_pass_either():
    queue = Queue(max_bytes=1_000)
    assert queue.is_free(entry(nbytes=500))
    assert not queue.is_free(entry(nbytes=501))
