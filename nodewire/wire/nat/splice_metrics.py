"""A splice as Prometheus sees it: whom it joined, what it carried, whom it turned away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.metrics.family import CODES, counter, gauge, tallied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from nodewire.wire.nat.splice_server import Splicer

_OUTCOMES = CODES | {"seen", "dialled", "paired", "gone"}

CONNECTIONS = gauge(
    "nodewire_splice_connections",
    "Connections: those that have asked for nothing yet, ends that wait for the other, ends of pairs.",
    "state",
)
ENDED = counter(
    "nodewire_splice_requests_total",
    "Outcomes of connections: seen (told its address), dialled back, paired, gone, or the code of the refusal.",
    "outcome",
)
BYTES = counter("nodewire_splice_bytes_total", "Bytes carried between the ends of pairs, both ways.")
FAMILIES = (CONNECTIONS, ENDED, BYTES)


class SpliceCollector:
    """Of one splice. To be collected on the event loop."""

    def __init__(self, splicer: Splicer) -> None:
        self._splicer = splicer

    def collect(self) -> Iterator[Metric]:
        half_open, waiting, pairs = self._splicer.guests
        yield CONNECTIONS.by({("half-open",): half_open, ("waiting",): waiting, ("paired",): 2 * pairs})
        yield ENDED.by(tallied(self._splicer.outcomes, _OUTCOMES))
        yield BYTES.to_metric(self._splicer.nbytes)
