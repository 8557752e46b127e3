"""What is computed before it is paid: a few first chunks of each origin or key, and in all what work bounds."""

from __future__ import annotations

import pytest

from nodewire.errors import Busy, NotAllowed, WorkRequired
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip13
from nodewire.pay.accounts.dues import MAX_BROKEN
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.provider.admission import free_chunks
from nodewire.provider.admission.free_chunks import FORGOTTEN_S, FREE_OF_WORK, MOST_OF_ORIGIN, FreeChunks

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
        free.begin(f"job-{n}", f"key-{n}", origin(n))


def request(bits):
    tags = nip13.mine(KEYS.public, kinds.INFERENCE, bits, created_at=0)
    return events.sign(KEYS, kinds.INFERENCE, created_at=0, tags=[list(tag) for tag in tags])


def test_an_origin_has_a_few_at_a_time_however_many_keys_it_has(clock):
    free = FreeChunks(0, clock=clock)
    begin(free, MOST_OF_ORIGIN, lambda n: "203.0.113.9")
    with pytest.raises(Busy) as refused:
        free.begin("another", "its key", "203.0.113.9")
    assert refused.value.field == "credit"
    free.begin("a bystander's", "its key", "203.0.113.10")
    free.paid("job-0")
    free.begin("another", "its key", "203.0.113.9")


def test_a_job_counts_once_and_ten_minutes_long(clock):
    free = FreeChunks(0, clock=clock)
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
    free = FreeChunks(0, clock=clock)
    begin(free, 10 * MOST_OF_ORIGIN, lambda n: origin)
    assert free.bits > 0


@pytest.mark.parametrize(
    ("times", "more"), [(0, 0), (1, 0), (1.01, 1), (2, 1), (2.01, 2), (4, 2), (4.01, 3), (64.01, 7)]
)
def test_work_doubles_with_the_number_of_those_that_are_not_paid(clock, times, more):
    free = FreeChunks(8, clock=clock)
    begin(free, -int(-FREE_OF_WORK * times // 1), lambda n: "")
    assert free.bits == 8 + more


def test_a_request_with_too_little_work_is_told_how_much_is_asked_for(clock):
    free = FreeChunks(4, clock=clock)
    easy = request(4)
    free.check(easy)
    begin(free, 8 * FREE_OF_WORK, lambda n: "")
    with pytest.raises(WorkRequired) as refused:
        free.check(request(4))
    assert refused.value.bits == free.bits == 7
    free.check(request(7))
    for n in range(8 * FREE_OF_WORK):
        free.paid(f"job-{n}")
    free.check(easy)


def test_where_nobody_could_bring_as_much_it_is_busy(clock):
    free = FreeChunks(19, clock=clock)
    begin(free, 4 * FREE_OF_WORK, lambda n: "")
    with pytest.raises(Busy):
        free.check(easy := request(0))
    assert nip13.difficulty(easy.id) < 19


ORIGIN = "203.0.113.9"
EVERYBODY = {"has_paid": lambda customer: True}


def left_unpaid(free, count, customer=KEYS.public, first=0):
    for n in range(first, first + count):
        free.begin(f"left-{n}", customer, ORIGIN)
        free.ended(f"left-{n}")


def test_a_key_that_has_paid_has_any_number_under_way(clock):
    free = FreeChunks(8, **EVERYBODY, clock=clock)
    for n in range(10 * FREE_OF_WORK):
        free.begin(f"job-{n}", KEYS.public, ORIGIN)
    free.check(request(0))
    assert (free.unpaid, free.bits) == (0, 8)


def test_a_key_that_has_paid_and_leaves_a_few_unpaid_is_bounded_until_they_are_paid_or_old(clock):
    free = FreeChunks(8, **EVERYBODY, clock=clock)
    idle = request(0)
    left_unpaid(free, MAX_BROKEN - 1)
    free.check(idle)
    left_unpaid(free, 1, first=MAX_BROKEN)
    with pytest.raises(WorkRequired):
        free.check(idle)
    free.begin("a bystander's", "another key", ORIGIN)
    assert free.unpaid == 0
    for n in range(MOST_OF_ORIGIN):
        free.begin(f"job-{n}", KEYS.public, ORIGIN)
    with pytest.raises(Busy):
        free.begin("another", KEYS.public, ORIGIN)
    free.paid(f"left-{MAX_BROKEN}")
    free.check(idle)
    left_unpaid(free, 1, first=MAX_BROKEN + 1)
    clock.now_s = FORGOTTEN_S + 1
    free.check(idle)


def test_what_is_paid_or_never_begun_is_not_held_against_a_key(clock):
    free = FreeChunks(8, **EVERYBODY, clock=clock)
    for n in range(2 * MAX_BROKEN):
        free.ended(f"never-{n}")
        free.begin(f"job-{n}", KEYS.public, ORIGIN)
        free.paid(f"job-{n}")
        free.begin(f"job-{n}", KEYS.public, ORIGIN)  # a first chunk may have several inputs
        free.ended(f"job-{n}")
    free.check(request(0))


@pytest.mark.parametrize("paid", [True, False])
def test_a_request_that_was_left_unpaid_is_not_served_again(clock, paid):
    free = FreeChunks(0, has_paid=lambda customer: paid, clock=clock)
    asked = request(0)
    free.check(asked)
    free.begin(asked.id, KEYS.public, ORIGIN)
    free.ended(asked.id)
    with pytest.raises(NotAllowed, match="served"):
        free.check(asked)


def test_a_job_that_has_a_slot_and_sends_nothing_counts_in_all(clock):
    free = FreeChunks(8, clock=clock)
    for n in range(FREE_OF_WORK + 1):
        free.opened(f"job-{n}", KEYS.public)
        free.ended(f"job-{n}")
    assert (free.unpaid, free.bits) == (FREE_OF_WORK + 1, 9)
    free.opened("begins", KEYS.public)
    free.begin("begins", KEYS.public, ORIGIN)
    assert free.unpaid == FREE_OF_WORK + 2
    free.paid("begins")
    assert free.unpaid == FREE_OF_WORK + 1
    clock.now_s = FORGOTTEN_S + 1
    assert free.unpaid == 0


def test_what_is_remembered_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(free_chunks, "_MOST", 16)
    free = FreeChunks(8, **EVERYBODY, clock=clock)
    for n in range(40):
        left_unpaid(free, 1, f"key-{n}", first=n)
    assert (len(free._broken._jobs), len(free._broken._of), len(free._open)) == (16, 16, 0)


def test_the_bits_travel_with_the_refusal_and_with_nothing_else():
    said = feedback.Remarks(text=WorkRequired.code, work=12)
    refusal = feedback.build(KEYS, "ab" * 32, "cd" * 32, "error", created_at=0, remarks=said)
    assert (feedback.parse(refusal).work, feedback.parse(refusal).text) == (12, "work-required")
    assert feedback.parse(feedback.build(KEYS, "ab" * 32, "cd" * 32, "busy", created_at=0, remarks=said)).work == 0
