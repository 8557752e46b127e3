"""The endpoint: what it shows, and what hostile HTTP costs it."""

import asyncio
import contextlib
import itertools
import socket
import sqlite3

import aiohttp
import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from nodewire.errors import BadConfig
from nodewire.metrics import endpoint
from nodewire.metrics.durations import EDGES, Durations
from nodewire.metrics.endpoint import FRESH_S, MetricsExposition, serve_metrics
from nodewire.metrics.family import CODES, counter, gauge, histogram, tallied
from tests.metrics.scrape import families, value, values

HERE = "127.0.0.1:0"
COLLECTIONS = gauge("nodewire_test_collections", "How often it was collected.")
TOOK = histogram("nodewire_test_seconds", "How long it took.", "what")
ENDED = counter("nodewire_test_total", "What has ended.", "code")


class Counting:
    """Shows how often it was asked."""

    def __init__(self):
        self.times = 0

    def collect(self):
        self.times += 1
        yield COLLECTIONS.to_metric(self.times)


def port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


async def got(url: str, method: str = "GET", **options) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
        return answer.status, await answer.text()


async def test_it_shows_what_is_collected_here_and_apart_and_the_librarys_own():
    took = Durations()
    for us in (10, 70, 3_000_000):
        took.add(us)

    class Here:
        def collect(self):
            yield TOOK.spread({("a",): took})

    async with serve_metrics(MetricsExposition("relay", HERE, [Here()], [Counting()])) as url:
        status, text = await got(url)
    assert status == 200
    shown = families(text)
    assert shown["nodewire_test_seconds"] == "histogram"
    assert {"process_resident_memory_bytes", "process_start_time_seconds", "python_gc_collections_total"} <= set(shown)
    assert value(text, "nodewire_test_collections") == 1
    assert value(text, "nodewire_test_seconds_count", what="a") == 3
    assert value(text, "nodewire_test_seconds_sum", what="a") == pytest.approx(3.00008)
    assert value(text, "nodewire_test_seconds_bucket", what="a", le="6.4e-05") == 1
    assert value(text, "nodewire_test_seconds_bucket", what="a", le="0.000256") == 2
    (build,) = (dict(labels) for name, labels in values(text) if name == "nodewire_build_info")
    assert build["daemon"] == "relay" and build["version"]


def test_a_duration_is_in_every_bucket_that_is_no_shorter():
    for us in itertools.chain(range(1, 300), (2**n + d for n in range(9, 45) for d in (-1, 0, 1))):
        one = Durations()
        one.add(us)
        for (edge, count), power in zip(one.buckets(), EDGES, strict=False):
            assert count == (us < 2**power), (us, edge)  # whole microseconds: 64 of them are more than 64 us
        assert list(one.buckets())[-1] == ("+Inf", 1)
        assert one.total_us == us


def test_values_that_are_on_no_list_are_one():
    assert tallied({"busy": 2, "made-up-1": 1, "made-up-2": 3}, CODES) == {("busy",): 2, ("other",): 4}
    assert tallied({}, ("a", "b"), zeros=True) == {("a",): 0, ("b",): 0}


async def test_a_scrape_goes_on_without_what_cannot_be_read():
    class Damaged:
        def collect(self):
            raise sqlite3.DatabaseError("malformed")

    async with serve_metrics(MetricsExposition("relay", HERE, [Counting()], [Damaged()])) as url:
        status, text = await got(url)
    assert status == 200
    assert value(text, "nodewire_scrape_failures_total") == 1
    assert value(text, "nodewire_test_collections") == 1


async def test_many_scrapes_cost_one_collection(monkeypatch):
    here, apart = Counting(), Counting()
    apart.collect = lambda: [setattr(apart, "times", apart.times + 1)][:0]
    monkeypatch.setattr(endpoint, "FRESH_S", 60.0)
    async with serve_metrics(MetricsExposition("relay", HERE, [here], [apart])) as url:
        answers = [await asyncio.gather(*(got(url) for _ in range(8))) for _ in range(4)]
    assert {status for some in answers for status, _ in some} == {200}
    assert (here.times, apart.times) == (1, 1)


async def test_what_is_old_is_collected_anew(monkeypatch):
    here = Counting()
    monkeypatch.setattr(endpoint, "FRESH_S", 0.0)
    async with serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        assert [value((await got(url))[1], "nodewire_test_collections") for _ in range(3)] == [1, 2, 3]
    assert FRESH_S > 0


async def test_a_collector_with_a_fault_does_not_make_every_request_cost_a_collection(monkeypatch):
    class Faulty(Counting):
        def collect(self):
            self.times += 1
            raise ValueError("a fault of this software")

    here = Faulty()
    monkeypatch.setattr(endpoint, "FRESH_S", 60.0)
    async with serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        assert [(await got(url))[0] for _ in range(3)] == [500] * 3
    assert here.times == 1


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics/../metrics", "/metricsx", "//metrics", "/debug/pprof"])
async def test_there_is_one_path(path):
    here = Counting()
    async with serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port(url))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.split()[1] == b"404"
    assert here.times == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_it_can_be_read_and_nothing_else(method):
    here = Counting()
    async with serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        assert (await got(url, method))[0] == 405
    assert here.times == 0


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "0.0.0.0", "[::]", ""])
async def test_a_page_whose_host_is_made_to_stand_for_this_machine_reads_nothing(host):
    here = Counting()
    async with serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        assert (await got(url, headers={"Host": host}))[0] == 403
        assert here.times == 0
        for own in ("localhost", f"LOCALHOST:{port(url)}", "127.0.0.1", f"[::1]:{port(url)}"):
            assert (await got(url, headers={"Host": own}))[0] == 200


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=9.9.evil", "text/plain; version=x" * 50, "application/openmetrics-text"],
)
async def test_what_is_asked_for_in_accept_changes_nothing(accept):
    async with (
        serve_metrics(MetricsExposition("relay", HERE, [Counting()])) as url,
        aiohttp.ClientSession(headers={"Accept": accept}) as session,
        session.get(url) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert list(text_string_to_metric_families(await answer.text()))


async def half_a_request(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(url))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    await writer.drain()
    return reader, writer


async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionResetError):
        await reader.read()
    writer.close()


async def silent() -> None:
    async with asyncio.timeout(30), serve_metrics(MetricsExposition("relay", HERE)) as url:
        await gone(*await half_a_request(url))


async def many() -> None:
    async with asyncio.timeout(60), serve_metrics(MetricsExposition("relay", HERE, [Counting()])) as url:
        held = [await half_a_request(url) for _ in range(40)]
        assert (await got(url))[0] == 200
        for one in held:
            await gone(*one)


async def trickling() -> None:
    """A byte at a time, for as long as it is let."""
    async with asyncio.timeout(60), serve_metrics(MetricsExposition("relay", HERE)) as url:
        reader, writer = await half_a_request(url)
        reading = asyncio.create_task(gone(reader, writer))
        while not reading.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"x")
            await asyncio.wait([reading], timeout=0.02)


async def unread() -> None:
    """Asks again and again on one connection and reads nothing: it is closed after the first answer."""
    here = Counting()
    async with asyncio.timeout(60), serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port(url))
        with contextlib.suppress(ConnectionError):
            for _ in range(1_000):
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200") <= 1
        writer.close()
    assert here.times <= 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])  # the daemon's loop, and the one that tests have
@pytest.mark.parametrize("attack", [silent, many, trickling, unread])
def test_hostile_connections_end_soon_and_keep_nobody_from_the_figures(attack, run, monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(endpoint, "CONNECTION_S", 0.5)
    run(attack())


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000,
        b"GET /metrics?" + b"a" * 1_000_000,
        b"\x16\x03\x01\x02\x00" + b"\x00" * 10_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 1_000_000,
    ],
    ids=["header", "query", "not http", "body"],
)
async def test_what_is_too_large_is_refused_and_not_kept(request_):
    here = Counting()
    async with serve_metrics(MetricsExposition("relay", HERE, [here])) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port(url))
        with contextlib.suppress(ConnectionError):
            writer.write(request_)
            await writer.drain()
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 12)
            assert not answer or answer.split()[1][:1] == b"4"
        writer.close()
        assert here.times == 0
        assert (await got(url))[0] == 200


async def test_a_port_that_is_taken_is_a_typed_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadConfig, match=r"metrics\.listen"):
            async with serve_metrics(MetricsExposition("relay", listen)):
                raise AssertionError("it listens")
    with pytest.raises(BadConfig, match="port from 0 to 65535"):
        async with serve_metrics(MetricsExposition("relay", "127.0.0.1:99999")):
            raise AssertionError("it listens")
