"""More connections and requests than a gateway has room for: a word and a status for each, and never a reset."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from contextlib import suppress

from nodewire.gateway.openai import completions
from tests.gateway.counter import KEY, Open, StandIn, opened

TEXT = {"model": "plain", "prompt": "hello"}


async def asked(gateway: Open) -> tuple[int, str | None]:
    """Status, and Retry-After, over a connection of its own."""
    body = json.dumps(TEXT).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.client._base_url.port)
    head = f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + head.encode() + body)
    said = await reader.read()
    writer.close()
    headers, _, rest = said.partition(b"\r\n\r\n")
    lines = headers.decode().split("\r\n")
    answer = json.loads(rest)
    assert "error" not in answer or answer["error"].keys() == {"message", "type", "param", "code"}
    after = next((line.partition(": ")[2] for line in lines if line.lower().startswith("retry-after")), None)
    return int(lines[0].split()[1]), after


async def test_a_thousand_requests_at_once_are_answered_or_told_to_come_later(tmp_path):
    """They were reset: a client cannot tell that from a broken network."""
    async with opened(tmp_path, most=96, max_requests=4, max_waiting=8) as gateway:
        async with asyncio.timeout(100):
            said = Counter(await asyncio.gather(*(asked(gateway) for _ in range(600))))
        assert {status for status, _ in said} == {200, 503}
        assert all(after is not None for status, after in said if status == 503)
        assert (await asked(gateway))[0] == 200


async def test_connections_that_say_nothing_are_told_to_go_and_keep_nobody_from_an_answer(tmp_path):
    async with opened(tmp_path, most=8) as gateway:
        port = gateway.client._base_url.port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in silent:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert (await asked(gateway))[0] == 200
        async with asyncio.timeout(60):
            said = [await reader.read() for reader, _ in silent[:10]]
        assert all(one.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: " in one for one in said)
        assert json.loads(said[0].partition(b"\r\n\r\n")[2])["error"]["code"] == "busy"
        for _, writer in silent:
            writer.close()


async def test_half_a_request_ends_with_its_time(tmp_path):
    async with opened(tmp_path, first_s=0.2) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.client._base_url.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\n")
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_a_client_that_does_not_read_its_stream_is_left(tmp_path, monkeypatch):
    """It kept its connection, and what was made for it, for all of a request's time."""
    monkeypatch.setattr(completions, "READ_S", 0.2)
    async with opened(tmp_path, StandIn(says=["x" * 100_000] * 100)) as gateway:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", gateway.client._base_url.port))
        body = json.dumps({**TEXT, "stream": True}).encode()
        head = f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(
            connection, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + head.encode() + body
        )
        async with asyncio.timeout(60):
            while not gateway.figures.requests["/v1/completions", "499"]:
                await asyncio.sleep(0.01)
        connection.close()


async def test_a_gateway_that_stops_ends_what_is_under_way_and_takes_no_more(tmp_path):
    buyer = StandIn(hangs=True)
    async with opened(tmp_path, buyer, drain_s=60) as gateway:
        first = asyncio.create_task(gateway.post("completions", TEXT))
        while not gateway.desk.in_flight:
            await asyncio.sleep(0)
        closing = asyncio.create_task(gateway.desk.close())
        await asyncio.sleep(0)
        assert await asked(gateway) == (503, "2")
        assert not closing.done()
        for answer in list(gateway.desk._answers):
            answer.cancel()  # as if it came to its end
        await closing
        await first
