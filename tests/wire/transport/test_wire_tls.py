"""The channel: every byte comes, whoever stalls or leaves; what was written before the end is read before the end."""

import asyncio
import os
import random
import socket
import ssl
import time

import pytest

from nodewire.nostr.keys import Keys
from nodewire.wire.transport import identity, tls

MiB = 2**20


class Side(asyncio.BufferedProtocol):
    """Reads into buffers of the size that it is told, and keeps what came."""

    def __init__(self, size=65_536):
        self.memory = bytearray(size)
        self.came = bytearray()
        self.paused = 0
        self.is_paused = False
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, channel):
        self.channel = channel

    def get_buffer(self, sizehint):
        return self.memory

    def buffer_updated(self, nbytes):
        self.came += self.memory[:nbytes]

    def pause_writing(self):
        assert not self.is_paused
        self.paused += 1
        self.is_paused = True

    def resume_writing(self):
        assert self.is_paused
        assert self.channel.get_write_buffer_size() == 0
        self.is_paused = False

    def connection_lost(self, error):
        self.over.set_result(error)


def sockets():
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


def contexts():
    shown = identity.make(Keys.generate(), time.time())
    return shown.client, shown.server


@pytest.fixture
async def pair():
    """Two sides with a channel between them over TCP."""
    loop, (client, server) = asyncio.get_running_loop(), contexts()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        near = socket.socket()
        near.setblocking(False)
        await loop.sock_connect(near, listening.getsockname())
        far, _ = await loop.sock_accept(listening)
    sides = Side(), Side(1_000)
    async with asyncio.timeout(20):
        await asyncio.gather(
            tls.secured(near, client, sides[0], is_server=False), tls.secured(far, server, sides[1], is_server=True)
        )
    yield sides
    for side in sides:
        side.channel.abort()


async def until(true):
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("size", [1, 1_000, 20_000, 65_536, 5_000_000])
async def test_all_bytes_come_whatever_the_reader_takes_at_once(pair, size):
    near, far = pair
    far.memory = bytearray(size)
    chance, sent = random.Random(size), bytearray()
    most = 2_000 if size == 1 else 300_000
    for _ in range(12):
        buffers = [os.urandom(chance.randrange(most)) for _ in range(chance.randrange(5))]
        sent += b"".join(buffers)
        near.channel.writelines(buffers)
    await until(lambda: len(far.came) == len(sent))
    assert far.came == sent


async def test_both_prefer_aes_128(pair):
    assert {side.channel.get_extra_info("ssl_object").cipher()[0] for side in pair} == {"TLS_AES_128_GCM_SHA256"}


async def test_who_leaves_without_a_goodbye_is_gone_and_what_it_wrote_before_is_read(pair):
    near, far = pair
    near.channel.write(b"the last")
    near.channel.get_extra_info("socket").shutdown(socket.SHUT_WR)
    async with asyncio.timeout(20):
        assert await far.over is None
    assert far.came == b"the last"


async def test_both_may_write_more_than_the_path_holds(pair):
    data = [os.urandom(24 * MiB), os.urandom(24 * MiB)]
    for side, mine in zip(pair, data, strict=True):
        side.memory = bytearray(MiB)
        side.channel.write(mine)
    await until(lambda: [len(side.came) for side in pair] == [24 * MiB] * 2)
    assert [bytes(side.came) for side in pair] == data[::-1]
    assert not any(side.is_paused for side in pair)


async def stalled(near, far):
    """`near` has written more than goes, since `far` does not read."""
    near_loop = asyncio.get_running_loop()
    near_loop.remove_reader(far.channel.get_extra_info("socket").fileno())
    data = bytearray(os.urandom(32 * MiB))
    near.channel.write(memoryview(data))
    assert near.is_paused
    return data


async def test_memory_that_was_written_and_copied_is_free(pair):
    near, far = pair
    data = await stalled(near, far)
    expected = bytes(data)
    near.channel.copy_pending()
    data[:] = bytes(len(data))
    near.channel.write(b"end")
    far.memory = bytearray(MiB)
    asyncio.get_running_loop().add_reader(far.channel.get_extra_info("socket").fileno(), far.channel._read)
    await until(lambda: far.came.endswith(b"end"))
    assert far.came == expected + b"end"
    assert near.paused == 1


async def test_what_was_written_before_close_is_read_even_by_one_who_writes_all_the_time(pair):
    near, far = pair
    far.memory = bytearray(MiB)
    far.channel.write(bytes(8 * MiB))  # the closing side reads none of it
    near.channel.write(b"x" * 3 * MiB)
    near.channel.close()
    near.channel.write(b"nothing after the close")
    async with asyncio.timeout(20):
        assert await near.over is None
        await far.over
    assert far.came == b"x" * 3 * MiB


async def test_memory_that_was_written_is_free_after_close(pair):
    near, far = pair
    data = await stalled(near, far)
    expected = bytes(data)
    near.channel.close()
    data[:] = bytes(len(data))
    far.memory = bytearray(MiB)
    asyncio.get_running_loop().add_reader(far.channel.get_extra_info("socket").fileno(), far.channel._read)
    async with asyncio.timeout(20):
        await far.over
    assert far.came == expected


async def test_a_peer_that_reads_nothing_delays_the_close_by_a_second_at_most(pair):
    near, far = pair
    await stalled(near, far)
    near.channel.close()
    async with asyncio.timeout(tls._SHUTDOWN_S + 4):
        await near.over
    assert near.channel.get_write_buffer_size() == 0


async def test_an_abort_ends_both_sides(pair):
    near, far = pair
    near.channel.abort()
    async with asyncio.timeout(20):
        assert await near.over is None
        await far.over
    assert near.channel.is_closing()
    assert far.channel.is_closing()


async def test_bytes_that_are_no_record_end_the_channel_with_an_error(pair):
    near, far = pair
    socket.socket.send(near.channel.get_extra_info("socket"), b"not a record of TLS at all" * 9)
    async with asyncio.timeout(20):
        assert isinstance(await far.over, ssl.SSLError)


async def test_a_protocol_that_fails_ends_its_channel(pair):
    near, far = pair
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    far.buffer_updated = lambda nbytes: 1 // 0
    near.channel.write(b"x")
    async with asyncio.timeout(20):
        await far.over
    assert isinstance(told[0], ZeroDivisionError)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 400])
async def test_a_handshake_with_who_speaks_no_tls_fails_and_closes_the_socket(said):
    near, far = sockets()
    with far:
        far.send(said) if said else far.shutdown(socket.SHUT_WR)
        with pytest.raises(ssl.SSLError):
            await tls.secured(near, contexts()[1], Side(), is_server=True)
        assert near.fileno() == -1


async def test_a_handshake_that_is_given_up_leaves_nothing():
    near, far = sockets()
    with far:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tls.secured(near, contexts()[1], Side(), is_server=True)
        assert near.fileno() == -1
        assert far.recv(1) == b""


async def test_a_channel_that_its_protocol_aborts_at_once_says_nothing():
    near, far = sockets()
    sides, (client, server) = (Side(), Side()), contexts()
    sides[0].connection_made = lambda channel: channel.abort()
    await asyncio.gather(
        tls.secured(near, client, sides[0], is_server=False), tls.secured(far, server, sides[1], is_server=True)
    )
    async with asyncio.timeout(20):
        await asyncio.gather(*(side.over for side in sides))
    assert not sides[1].came
