"""The endpoint that Prometheus scrapes: `GET /metrics`, and nothing else.

Whatever is asked how often costs one collection a second, and holds no more than a few connections for a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import sqlite3
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from nodewire.errors import BadConfig
from nodewire.metrics.family import counter, gauge
from nodewire.net import host_port, http_server
from nodewire.net.loopback import is_called_so, is_loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from prometheus_client.core import Metric

PATH = "/metrics"
FRESH_S = 1.0
"""For so long what was collected is shown again."""
MAX_CONNECTIONS = 16
CONNECTION_S = 10.0

BUILD = gauge("nodewire_build_info", "1; the labels say what is running.", "version", "python", "daemon")
FAILURES = counter("nodewire_scrape_failures_total", "Collectors left out of a scrape: a file could not be read.")
FAMILIES = (BUILD, FAILURES)

_log = logging.getLogger("nodewire.metrics")


@dataclass(frozen=True, slots=True)
class MetricsExposition:
    """What a daemon shows, and where: `listen` is host:port, nowhere if empty.

    `here` is collected on the event loop; `apart` on a thread: what reads files and databases and nothing that the
    loop changes.
    """

    daemon: str
    listen: str = ""
    here: Sequence[Collector] = ()
    apart: Sequence[Collector] = ()


class MetricsSnapshot:
    """What was found at one moment, as the library's encoder wants it."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Scrapes:
    """Collects when it is asked for, at most once in FRESH_S."""

    def __init__(self, exposed: MetricsExposition) -> None:
        gc = GCCollector(CollectorRegistry())  # not the library's own registry: that is the whole process's
        self._here = (_Build(exposed.daemon), *exposed.here)
        self._apart = (ProcessCollector(registry=None), gc, *exposed.apart)
        self._failures = 0
        self._collecting: asyncio.Task[bytes] | None = None
        self._until_s = 0.0

    async def text(self) -> bytes:
        """In Prometheus' text format 0.0.4."""
        loop = asyncio.get_running_loop()
        if self._collecting is None or (self._collecting.done() and loop.time() >= self._until_s):
            self._collecting = asyncio.create_task(self._collect())
        return await asyncio.shield(self._collecting)

    async def _collect(self) -> bytes:
        try:
            found, failed = await asyncio.to_thread(self._read)
            self._failures += failed
            for source in self._here:
                found += source.collect()
            return generate_latest(MetricsSnapshot([*found, FAILURES.to_metric(self._failures)]))
        finally:
            self._until_s = asyncio.get_running_loop().time() + FRESH_S

    def _read(self) -> tuple[list[Metric], int]:
        """What is collected apart, and how many could not."""
        found: list[Metric] = []
        failed = 0
        for source in self._apart:
            try:
                found += list(source.collect())  # all of it or nothing
            except (OSError, sqlite3.Error) as error:
                _log.warning("%s is left out: %s", type(source).__name__, error)
                failed += 1
        return found, failed


class _Build:
    def __init__(self, daemon: str) -> None:
        self._labels = (metadata.version("nodewire"), platform.python_version(), daemon)

    def collect(self) -> Iterable[Metric]:
        yield BUILD.by({self._labels: 1})


@asynccontextmanager
async def serve_metrics(exposed: MetricsExposition) -> AsyncIterator[str]:
    """Serve until the block is left; gives the URL to scrape.

    Raises:
        BadConfig: the address cannot be had.

    """
    scrapes = Scrapes(exposed)
    host, _ = host_port.parse(exposed.listen, "metrics.listen", least_port=0, error=BadConfig)

    async def show(request: web.Request) -> web.Response:
        if is_loopback(host) and not is_called_so(request.headers.get(hdrs.HOST)):
            refused = web.Response(status=403, text="on this machine it answers to localhost and 127.0.0.1 alone\n")
            refused.force_close()
            return refused
        # Prometheus takes this format, whatever else it asks for; to choose by Accept would repeat a stranger's words.
        response = web.Response(body=await scrapes.text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
        response.force_close()  # a connection has its time: one that is kept would be cut in the middle of an answer
        return response

    app = web.Application()
    app.router.add_get(PATH, show)
    listening = http_server.listening_socket("metrics.listen", exposed.listen)
    async with http_server.serve_app(app, listening, most=MAX_CONNECTIONS, each_s=CONNECTION_S):
        yield f"http://{host_port.written(host, listening.getsockname()[1])}{PATH}"
