"""The wire's core without sockets: flow control, order over broken links, what a link sends next."""

import random
from collections import deque
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodewire.errors import BadFrame, LinkLost
from nodewire.protocol.job.plan import tensor_key
from nodewire.protocol.tensors.frame import Array
from nodewire.wire import JobChannelSpec, JobMailbox
from nodewire.wire.framing import frames
from nodewire.wire.framing.buffer_pool import LEAST_BYTES, Memory
from nodewire.wire.framing.decoder import Decoder
from nodewire.wire.framing.frames import SEGMENT_BYTES
from nodewire.wire.framing.headers import FRAME_COST_BYTES, TENSOR_COST_BYTES, DataHeader
from nodewire.wire.job.edge_table import JobEdges
from nodewire.wire.job.edge_window import Route
from nodewire.wire.link.heartbeat import Pulse
from nodewire.wire.link.outbox import Outbox, Transfer
from tests.wire.framing.test_wire_frames import Recorder, feed

JOB = "ab" * 32
LIMIT = 12 * 2**20
"""Of a frame: two and a bit fill the window of an edge."""


def header(seq, nbytes, attempt=0):
    return DataHeader(JOB, "e", attempt, seq, tensor_key(JOB, "e", attempt, seq), (("uint8", (nbytes,)),), {}, nbytes)


class Relinks(RuleBasedStateMachine):
    """An edge whose link breaks and is made again, with frames and words under way. All frames are on the tape."""

    def __init__(self):
        super().__init__()
        self.sizes = []  # of the frames that have been put, by seq
        routes = {"e": Route("producer", "consumer")}
        self.consumer = JobEdges("consumer", routes, {"e": LIMIT}, relinks=True)
        self.incoming = self.consumer.incoming["e"]
        self.incoming.granted = self.incoming.window  # the job is open
        self.producer = JobEdges("producer", routes, {"e": LIMIT}, relinks=True)
        self.under_way = None
        self.queue = deque()
        self.got = []
        self.link()

    @property
    def window(self):
        return self.producer.outgoing["e"].window

    def link(self):
        """What two mailboxes tell each other when there is a link between them."""
        self.to_consumer, self.to_producer = deque(), deque()
        self.is_linked = True
        self.tell()

    def tell(self):
        if (first := self.incoming.lacking) is not None:
            self.to_producer.append(("resume", first))
        self.to_producer.append(("credit", self.incoming.granted))

    @rule(size=st.sampled_from([0, 1, 2**20, 5 * 2**20, LIMIT]))
    def put(self, size):
        self.sizes.append(size)

    @property
    def next(self):
        """The frame that may be sent now."""
        seq = self.window.next_seq
        if not self.is_linked or seq is None or seq >= len(self.sizes):
            return None
        frame = header(seq, self.sizes[seq])
        return frame if self.window.fits(frame.cost) else None

    @precondition(lambda self: self.next is not None)
    @rule()
    def send(self):
        frame = self.next
        self.window.send(frame.seq, frame.cost)
        self.to_consumer.append(frame)

    @precondition(lambda self: self.is_linked and self.to_consumer and self.under_way is None)
    @rule()
    def begins(self):
        self.under_way = self.to_consumer.popleft()
        self.incoming.admit(self.under_way)  # it may always come

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def ends(self):
        assert self.incoming.end(self.under_way)
        self.incoming.unread += self.under_way.cost
        self.queue.append(self.under_way)
        self.under_way = None

    @precondition(lambda self: self.is_linked and self.under_way is None)
    @rule(size=st.sampled_from([2**20, 5 * 2**20, LIMIT]))
    def flows(self, size):
        """All that may come comes, and is not read: how windows become full."""
        self.put(size)
        while self.to_producer:
            self.hears()
        while self.next is not None:
            self.send()
        while self.to_consumer:
            self.begins()
            self.ends()

    @precondition(lambda self: self.queue)
    @rule()
    def get(self):
        frame = self.queue.popleft()
        self.got.append(frame.seq)
        limit = self.incoming.consume(frame.cost)
        if limit is not None and self.is_linked:
            self.to_producer.append(("credit", limit))

    @precondition(lambda self: self.is_linked and self.to_producer)
    @rule()
    def hears(self):
        kind, value = self.to_producer.popleft()
        if kind == "credit":
            self.window.grant(value)
        else:
            self.window.resume(value)

    @precondition(lambda self: self.is_linked)
    @rule()
    def breaks(self):
        self.is_linked, self.under_way = False, None
        self.consumer.lost("producer")
        self.producer.lost("consumer")

    @precondition(lambda self: not self.is_linked)
    @rule()
    def is_made_again(self):
        self.link()

    @invariant()
    def each_frame_is_got_once_and_in_order(self):
        assert self.got == list(range(len(self.got)))

    @invariant()
    def no_more_is_held_than_was_granted(self):
        unread = sum(frame.cost for frame in self.queue) + (self.under_way.cost if self.under_way else 0)
        assert unread <= self.incoming.window + 2**20  # what may come before the first grant

    def teardown(self):
        """With a link and a reader all that was put comes: nothing is stuck."""
        if not self.is_linked:
            self.link()
        while self.to_producer or self.to_consumer or self.under_way or self.queue or self.next:
            while self.to_producer:
                self.hears()
            if self.next is not None:
                self.send()
            if self.under_way is not None:
                self.ends()
            if self.to_consumer:
                self.begins()
            if self.queue:
                self.get()
        assert self.got == list(range(len(self.sizes)))


TestRelinks = Relinks.TestCase
TestRelinks.settings = settings(deadline=None, max_examples=150, stateful_step_count=60)


def test_a_frame_of_another_attempt_than_the_first_is_refused():
    routes = {"e": Route("producer", "consumer")}
    job = JobMailbox(SimpleNamespace(public="consumer"), JobChannelSpec(JOB, routes))
    with pytest.raises(BadFrame):
        job.begin("producer", header(0, 1, attempt=1))
    job.begin("producer", header(0, 1))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3 * SEGMENT_BYTES), min_size=1, max_size=5),
    st.lists(st.sampled_from(["take", "urgent", "copy"]), max_size=30),
    st.integers(0, 2**32 - 1).map(random.Random),
)
def test_what_an_outbox_gives_reads_as_what_it_was_given(sizes, acts, chance):
    outbox, finished, given, expected = Outbox(), [], bytearray(), {}
    memories = [bytearray(chance.randbytes(size)) for size in sizes]
    transfers = []
    for seq, memory in enumerate(memories):
        transfer = Transfer(frames.pack_header(header(seq, len(memory))), len(memory), (array(memory),))
        transfer.done = lambda error, seq=seq: finished.append((seq, error))
        transfers.append(transfer)
        outbox.add(transfer)
        expected[seq] = bytes(memory)

    def take():
        buffers = outbox.next_write()
        if buffers is not None:
            given.extend(b"".join(buffers))
            outbox.written()
        return buffers is not None

    urgent = 0
    for act in acts:
        if act == "take":
            take()
        elif act == "urgent":
            outbox.hurry(frames.ping(urgent))
            urgent += 1
            take()
            assert given.endswith(frames.ping(urgent - 1))
        else:
            seq = chance.randrange(len(sizes))
            transfers[seq].copy_rest()
            memories[seq][:] = bytes(len(memories[seq]))
    while take():
        pass
    recorder = Recorder()
    feed(Decoder(recorder), bytes(given))
    came = {item[1].seq: item[2] for item in recorder.seen if item[0] == "data"}
    assert came == expected
    assert [item[1] for item in recorder.seen if item[0] == "ping"] == list(range(urgent))
    assert sorted(finished) == [(seq, None) for seq in sorted(expected)]


def array(memory):
    return Array("uint8", (len(memory),), memory)


def test_a_transfer_that_is_copied_has_no_more_need_of_its_memory():
    outbox, memory = Outbox(), bytearray(b"x" * (2 * SEGMENT_BYTES))
    transfer = Transfer(frames.pack_header(header(0, len(memory))), len(memory), (array(memory),))
    outbox.add(transfer)
    given = b"".join(outbox.next_write())
    transfer.copy_rest()
    memory[:] = bytes(len(memory))
    while (buffers := outbox.next_write()) is not None:
        given += b"".join(buffers)
    assert given.count(b"x") == 2 * SEGMENT_BYTES


def test_borrowed_memory_is_free_only_when_the_channel_holds_nothing_of_it():
    outbox, ends = Outbox(), []
    for seq in range(2):
        transfer = Transfer(frames.pack_header(header(seq, 1)), 1, (array(b"x"),))
        transfer.done = ends.append
        outbox.add(transfer)
    outbox.next_write()
    assert ends == []
    outbox.written()
    assert ends == [None]
    error = LinkLost("peer", "gone")
    outbox.next_write()
    outbox.fail(error)
    assert ends == [None, error]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3 * LEAST_BYTES), st.integers(0, 5)), max_size=40))
def test_memory_is_never_given_out_twice_and_kept_under_its_cap(asked):
    memory, held = Memory(4 * LEAST_BYTES), {}
    for number, (nbytes, place) in enumerate(asked):
        view = memory.allocate(nbytes)
        assert len(view) == nbytes
        view[:] = bytes([number % 256]) * nbytes
        held[place] = (number, view[nbytes // 3 :])  # whoever has a part has the memory
        del view
        assert memory.idle_bytes <= 4 * LEAST_BYTES
        assert all(bytes(part) == bytes([by % 256]) * len(part) for by, part in held.values())


def test_memory_is_used_again_once_nobody_sees_it():
    memory = Memory()
    view = memory.allocate(2**20)
    view[:5] = b"first"
    part = view[:5]
    del view
    assert bytes(memory.allocate(2**20)[:5]) != b"first"
    del part
    assert memory.idle_bytes == 2**21
    memory.clear()
    assert memory.idle_bytes == 0


@given(st.lists(st.integers(1, 9_000_000), min_size=1, max_size=200))
def test_memory_for_other_sizes_wastes_a_quarter_at_most(sizes):
    for nbytes in sizes:
        assert nbytes <= _kept(nbytes) <= max(nbytes * 1.25, nbytes + 1)


def _kept(nbytes):
    memory = Memory()
    memory.allocate(nbytes)
    return memory.idle_bytes or nbytes


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=100))
def test_round_trips_are_those_of_the_heartbeats_that_were_answered(gaps_s):
    pulse, now_s, tags = Pulse(), 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        tags.append((pulse.ping(now_s), now_s))
    assert pulse.rtt_us is None
    assert all(a != b for (a, _), (b, _) in pairwise(tags))
    pulse.pong(70_000, now_s)
    assert pulse.rtt_us is None
    tag, sent_s = tags[-1]
    pulse.pong(tag, now_s + 0.25)
    pulse.pong(tag, now_s + 9)  # an answer counts once
    assert pulse.rtt_us == round((now_s + 0.25 - sent_s) * 1e6)


def test_a_frame_costs_a_window_more_than_nothing():
    assert header(0, 0).cost == FRAME_COST_BYTES + TENSOR_COST_BYTES
