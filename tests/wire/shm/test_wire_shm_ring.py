"""Shared memory without processes: in any order of steps the same bytes come out; lies do nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadPeer
from nodewire.wire.shm import peer_credentials
from nodewire.wire.shm.ring_buffer import Inflow, Outflow

SIZE = 64
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=2 * SIZE)),
        st.tuples(st.just("read"), st.integers(1, 2 * SIZE)),
        st.tuples(st.just("say"), st.sampled_from(["written", "taken"])),
    ),
    max_size=200,
)


def ring() -> tuple[Outflow, Inflow, bytearray]:
    memory = bytearray(SIZE)
    return Outflow(memoryview(memory)), Inflow(memoryview(memory)), memory


@given(STEPS)
def test_bytes_come_out_as_they_went_in_and_never_more_than_were_said(steps):
    out, into, _ = ring()
    sent, got = bytearray(), bytearray()
    for step, what in steps:
        match step:
            case "write":
                free = out.free
                taken = out.write(memoryview(what))
                assert taken == min(len(what), free)
                sent += what[:taken]
            case "read":
                buffer = bytearray(what)
                waiting = into.waiting
                count = into.read_into(memoryview(buffer))
                assert count == min(what, waiting)
                got += buffer[:count]
            case "say":
                into.written(out.written) if what == "written" else out.taken(into.taken)
        assert 0 <= out.free <= SIZE
        assert got == sent[: len(got)]
    into.written(out.written)
    rest = bytearray(SIZE)
    assert got + rest[: into.read_into(memoryview(rest))] == sent


@pytest.mark.parametrize("lie", [101, 39, 2**64 - 1])
def test_a_reader_that_took_what_was_not_written_or_gives_back_is_refused(lie):
    out, _, _ = ring()
    out.write(memoryview(bytes(60)))
    out.taken(40)
    out.write(memoryview(bytes(40)))
    with pytest.raises(BadFrame) as refused:
        out.taken(lie)
    assert refused.value.field == "taken"
    assert out.free == 4


@pytest.mark.parametrize("lie", [SIZE + 31, 39, 2**64 - 1])
def test_a_writer_that_wrote_more_than_there_is_room_for_or_takes_back_is_refused(lie):
    _, into, _ = ring()
    into.written(40)
    into.read_into(memoryview(bytearray(30)))
    with pytest.raises(BadFrame) as refused:
        into.written(lie)
    assert refused.value.field == "written"
    assert into.waiting == 10


COUNTS = st.integers(0, 3 * SIZE) | st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.sampled_from(["written", "taken", "write", "read"]), COUNTS), max_size=100))
def test_whatever_a_peer_says_nobody_reads_or_writes_beyond_the_ring(said):
    out, _, memory = ring()
    into = Inflow(memoryview(memory))
    for what, count in said:
        before = (out.free, into.waiting)
        try:
            match what:
                case "written":
                    into.written(count)
                case "taken":
                    out.taken(count)
                case "write":
                    out.write(memoryview(bytes(min(count, 2 * SIZE))))
                case "read":
                    into.read_into(memoryview(bytearray(min(count, 2 * SIZE))))
        except BadFrame:
            assert what in ("written", "taken")
            assert (out.free, into.waiting) == before
        assert 0 <= out.free <= SIZE
        assert 0 <= into.waiting <= SIZE


@given(st.binary(max_size=100) | st.binary(min_size=31, max_size=33).map(peer_credentials.hello))
def test_what_comes_first_is_a_greeting_or_refused(data):
    if len(data) == peer_credentials.HELLO_BYTES and data.startswith(peer_credentials.MAGIC):
        assert peer_credentials.hello(peer_credentials.parse_hello(data)) == data
    else:
        with pytest.raises(BadPeer, match="hello"):
            peer_credentials.parse_hello(data)
