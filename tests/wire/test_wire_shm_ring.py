"""The rings of shared memory, without processes: whatever the order of writing and reading, the same bytes come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame
from nodewire.wire.shm.ring import Inflow, Outflow

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
