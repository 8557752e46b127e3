"""A channel through shared memory keeps asyncio's promises to its protocol, whatever the other end does."""

import asyncio
import os
import random
import socket

from nodewire.wire.shm import channel as channels
from nodewire.wire.shm import mapping as memory
from nodewire.wire.shm.channel import SharedChannel
from nodewire.wire.shm.mapping import RING_BYTES, RingMapping
from tests.wire.wire_net import until


class Recorder(asyncio.BufferedProtocol):
    """Takes what comes in pieces of at most `piece` bytes."""

    def __init__(self, piece: int = 100_000) -> None:
        self.got = bytearray()
        self.buffer = bytearray(piece)
        self.pauses = 0
        self.writable = True
        self.lost: list[Exception | None] = []
        self.on_data = lambda: None

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.got += self.buffer[:nbytes]
        self.on_data()

    def pause_writing(self):
        assert self.writable
        self.writable = False
        self.pauses += 1

    def resume_writing(self):
        assert not self.writable
        self.writable = True

    def connection_lost(self, exc):
        self.lost.append(exc)


class Pair:
    """Two ends; of a `dumb` one the socket alone, which nobody reads."""

    def __init__(self, *, dumb: bool = False) -> None:
        descriptor, self.closed = memory.create(), 0
        sockets = socket.socketpair()
        for one in sockets:
            one.setblocking(False)
        self.protocols = [Recorder(), Recorder(777)]
        self.mappings = [RingMapping(descriptor, dialled=dialled) for dialled in (True, False)]
        os.close(descriptor)
        self.ends = [
            SharedChannel(end, mapping, b"", protocol, self._closed)
            for end, mapping, protocol in list(zip(sockets, self.mappings, self.protocols, strict=True))[: 2 - dumb]
        ]
        self.socket = sockets[1]

    def _closed(self) -> None:
        self.closed += 1


async def test_all_bytes_come_in_order_in_whatever_pieces_they_were_written():
    pair, chance = Pair(), random.Random(1)
    data = chance.randbytes(3 * RING_BYTES + 12_345)
    at = 0
    while at < len(data):
        await until(lambda: pair.protocols[0].writable)
        pieces = [bytearray(data[at : (at := at + chance.choice((1, 16, 5_000, 262_144)))]) for _ in range(2)]
        pair.ends[0].writelines(pieces)
        if chance.random() < 0.5:
            pair.ends[0].copy_pending()
        elif not pair.protocols[0].writable:
            continue
        for piece in pieces:  # their memory may be used again
            piece[:] = bytes(len(piece))
    await until(lambda: len(pair.protocols[1].got) == len(data))
    assert pair.protocols[1].got == data
    assert pair.protocols[0].pauses
    for end in pair.ends:
        end.abort()


async def test_what_exceeds_the_ring_waits_and_what_was_written_before_the_end_arrives():
    pair = Pair()
    data = os.urandom(5 * RING_BYTES)
    pair.ends[0].write(data)
    assert not pair.protocols[0].writable
    assert pair.ends[0].get_write_buffer_size() == 4 * RING_BYTES
    pair.ends[0].close()
    pair.ends[0].write(b"too late")
    await until(lambda: pair.closed == 2)
    assert pair.protocols[1].got == data
    assert pair.protocols[0].lost == pair.protocols[1].lost == [None]


async def test_both_may_be_full_at_once():
    pair = Pair()
    data = [os.urandom(2 * RING_BYTES + n) for n in range(2)]
    for end, mine in zip(pair.ends, data, strict=True):
        end.write(mine)
    await until(lambda: [p.got for p in pair.protocols] == [data[1], data[0]])
    for end in pair.ends:
        end.abort()


async def test_an_end_that_nobody_hears_comes_all_the_same(monkeypatch):
    monkeypatch.setattr(channels, "_CLOSE_S", 0.05)
    pair = Pair(dumb=True)
    pair.ends[0].write(bytes(2 * RING_BYTES))
    pair.ends[0].close()
    await asyncio.sleep(0)
    assert not pair.protocols[0].lost
    await until(lambda: pair.protocols[0].lost == [None])
    pair.socket.close()


async def test_counts_that_the_socket_had_no_room_for_are_made_up_for():
    pair = Pair(dumb=True)
    for n in range(5_000):
        pair.ends[0].write(n.to_bytes(4, "big"))
        await asyncio.sleep(0)
    assert pair.ends[0]._is_full
    late = SharedChannel(pair.socket, pair.mappings[1], b"", pair.protocols[1], lambda: None)
    await until(lambda: len(pair.protocols[1].got) == 20_000)
    assert pair.protocols[1].got == b"".join(n.to_bytes(4, "big") for n in range(5_000))
    assert not pair.ends[0]._is_full
    late.abort(), pair.ends[0].abort()


async def test_who_aborts_while_it_reads_is_given_no_more():
    pair = Pair()
    pair.protocols[1].on_data = lambda: pair.ends[1].abort()
    pair.ends[0].write(bytes(10_000))
    await until(lambda: pair.closed == 2)
    assert len(pair.protocols[1].got) == 777
    assert pair.protocols[0].lost == pair.protocols[1].lost == [None]


async def test_a_protocol_that_fails_loses_its_channel():
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    pair = Pair()

    def fail():
        raise ZeroDivisionError

    pair.protocols[1].on_data = fail
    pair.ends[0].write(b"x")
    await until(lambda: pair.closed == 2)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
