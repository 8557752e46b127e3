"""What is computed for keys that have never paid: a few first chunks of each origin, and in all what work bounds."""

from __future__ import annotations

import pytest

from nodewire.errors import Busy, WorkRequired
from nodewire.nostr import event as events
from nodewire.nostr import nip13
from nodewire.nostr.keys import Keys
from nodewire.protocol import feedback, kinds
from nodewire.provider.free_chunks import FORGOTTEN_S, FREE_OF_WORK, MOST_OF_ORIGIN, FreeChunks

KEYS = Keys(b"\x07" * 32)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def begin(free, count, origin=lambda n: f"198.51.100.{n}", first=0):
    for n in range(first, first + count):
        free.begin(f"job-{n}", origin(n))


def request(bits):
    tags = nip13.mine(KEYS.public, kinds.INFERENCE, bits, created_at=0)
    return events.sign(KEYS, kinds.INFERENCE, created_at=0, tags=[list(tag) for tag in tags])


def test_an_origin_has_a_few_at_a_time_however_many_keys_it_has(clock):
    free = FreeChunks(0, clock)
    begin(free, MOST_OF_ORIGIN, lambda n: "203.0.113.9")
    with pytest.raises(Busy) as refused:
        free.begin("another", "203.0.113.9")
    assert refused.value.field == "credit"
    free.begin("a bystander's", "203.0.113.10")
    free.paid("job-0")
    free.begin("another", "203.0.113.9")


def test_a_job_counts_once_and_ten_minutes_long(clock):
    free = FreeChunks(0, clock)
    for _ in range(3):
        begin(free, MOST_OF_ORIGIN, lambda n: "203.0.113.9")
    assert free.unpaid == MOST_OF_ORIGIN
    clock.now_s = FORGOTTEN_S + 1
    assert free.unpaid == 0
    begin(free, MOST_OF_ORIGIN, lambda n: "203.0.113.9", first=100)
    free.paid("never begun")
    assert free.unpaid == MOST_OF_ORIGIN


@pytest.mark.parametrize("origin", ["", "127.0.0.1"])
def test_this_machines_own_and_those_without_an_address_are_bounded_in_all_alone(clock, origin):
    free = FreeChunks(0, clock)
    begin(free, 10 * MOST_OF_ORIGIN, lambda n: origin)
    assert free.bits > 0


@pytest.mark.parametrize(
    ("times", "more"), [(0, 0), (1, 0), (1.01, 1), (2, 1), (2.01, 2), (4, 2), (4.01, 3), (64.01, 7)]
)
def test_work_doubles_with_the_number_of_those_that_are_not_paid(clock, times, more):
    free = FreeChunks(8, clock)
    begin(free, -int(-FREE_OF_WORK * times // 1), lambda n: "")
    assert free.bits == 8 + more


def test_a_request_with_too_little_work_is_told_how_much_is_asked_for(clock):
    free = FreeChunks(4, clock)
    easy = request(4)
    free.check_work(easy)
    begin(free, 8 * FREE_OF_WORK, lambda n: "")
    with pytest.raises(WorkRequired) as refused:
        free.check_work(request(4))
    assert refused.value.bits == free.bits == 7
    free.check_work(request(7))
    for n in range(8 * FREE_OF_WORK):
        free.paid(f"job-{n}")
    free.check_work(easy)


def test_where_nobody_could_bring_as_much_it_is_busy(clock):
    free = FreeChunks(19, clock)
    begin(free, 4 * FREE_OF_WORK, lambda n: "")
    with pytest.raises(Busy):
        free.check_work(easy := request(0))
    assert nip13.difficulty(easy.id) < 19


def test_the_bits_travel_with_the_refusal_and_with_nothing_else():
    said = {"created_at": 0, "work": 12}
    refusal = feedback.build(KEYS, "ab" * 32, "cd" * 32, "error", text=WorkRequired.code, **said)
    assert (feedback.parse(refusal).work, feedback.parse(refusal).text) == (12, "work-required")
    assert feedback.parse(feedback.build(KEYS, "ab" * 32, "cd" * 32, "busy", **said)).work == 0
