"""Bytes that are no HTTP, and requests that are only half of one: a short word in the log, and the next is answered."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from tests.gateway.counter import Open, opened

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NO_HTTP = {
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "two lengths": POST + b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "length": POST + b"Content-Length: -1\r\n\r\n",
    "chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "url": b"GET http://[::1/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "port": b"GET http://a:99999999/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
    "header": b"GET /v1/models HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    "long path": b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 9_000 + b"\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


async def answer_to(gateway: Open, data: bytes, *, within_s: float = 5.0) -> bytes:
    """All that comes until the connection ends."""
    port = gateway.client._base_url.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(within_s):
            writer.write(data)
            return await reader.read()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http_is_one_short_line_of_the_log(tmp_path, caplog, data):
    async with opened(tmp_path, keys=[]) as gateway:
        with caplog.at_level(logging.INFO):
            assert (await answer_to(gateway, data)).startswith(b"HTTP/1.0 400 ")
        (line,) = caplog.records
        said = logging.Formatter().format(line)
        assert line.levelno == logging.INFO and line.exc_info is None
        assert said.startswith("no HTTP from 127.0.0.1: ") and len(said) <= 120 and said.isprintable()
        assert (await gateway.post("completions", {"model": "plain", "prompt": "hello"}))[0] == 200


async def test_a_fault_of_its_own_keeps_its_traceback(caplog):
    with caplog.at_level(logging.INFO):
        try:
            raise ValueError("a fault")
        except ValueError:
            logging.getLogger("nodewire.guests").exception("Unhandled exception")
    (line,) = caplog.records
    assert line.levelno == logging.ERROR and line.exc_info is not None


async def test_who_waits_to_be_told_to_go_on_and_does_not_is_not_waited_for(tmp_path, monkeypatch):
    """`Expect: 100-continue`, and then nothing: no purchase, and a connection that ends."""
    monkeypatch.setattr("nodewire.gateway.app.BODY_S", 0.2)
    async with opened(tmp_path, keys=[]) as gateway:
        said = await answer_to(gateway, POST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n")
        first, _, rest = said.partition(b"\r\n\r\n")
        assert first == b"HTTP/1.1 100 Continue" and rest.startswith(b"HTTP/1.1 408 ")
        impossible = b"Expect: the-impossible\r\nContent-Length: 10\r\nConnection: close\r\n\r\n"
        said = await answer_to(gateway, POST + impossible)
        assert said.startswith(b"HTTP/1.1 417 ")
        assert not gateway.buyer.orders
