"""A node's links as Prometheus sees them: how many by which way, bytes, round trips, and who was turned away."""

from __future__ import annotations

from collections import Counter
from statistics import median, quantiles
from typing import TYPE_CHECKING

from nodewire.metrics.family import CODES, Labels, counter, gauge, tallied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from nodewire.wire.evidence.spool import Spool
    from nodewire.wire.node import Node

RUNGS = ("address", "punch", "splice", "shm")
_REASONS = ("spent", "unproven", "displaced", "not-allowed", "busy")

LINKS = gauge("nodewire_wire_links", "Links that are open, by how they came about.", "rung")
OPENED = counter("nodewire_wire_links_opened_total", "Links that have been opened.", "rung")
REOPENED = counter("nodewire_wire_reconnects_total", "Of these, those to a peer that had had one.")
LOST = counter("nodewire_wire_links_lost_total", "Links that have ended, by the code of the reason.", "code")
BYTES = counter("nodewire_wire_bytes_total", "Bytes over links, in and out.", "way")
HALF_OPEN = gauge("nodewire_wire_half_open_connections", "Connections that have not proven themselves yet.")
REFUSED = counter("nodewire_wire_handshakes_refused_total", "Connections that got no link.", "reason")
RTT = gauge(
    "nodewire_wire_round_trip_seconds",
    "Round trips of the open links, of each the median of its last ones.",
    "quantile",
)
SPOOLED = gauge("nodewire_wire_spool_bytes", "Frames of jobs that are kept on disk.")
SPOOL_CAP = gauge("nodewire_wire_spool_cap_bytes", "Bytes of such frames that may be kept.")
FAMILIES = (LINKS, OPENED, REOPENED, LOST, BYTES, HALF_OPEN, REFUSED, RTT)
SPOOL_FAMILIES = (SPOOLED, SPOOL_CAP)


class Links:
    """Of one node. To be collected on the event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        survey = self._node.survey
        open_ = [one for one in survey.health.values() if one.state == "open"]
        now: Counter[str] = Counter(one.rung for one in open_)
        yield LINKS.by({(rung,): now[rung] for rung in RUNGS})
        yield OPENED.by({(rung,): survey.opened[rung] for rung in RUNGS})
        yield REOPENED.to_metric(survey.reopened)
        yield LOST.by(tallied(survey.lost, CODES))
        yield BYTES.by(dict(zip((("in",), ("out",)), survey.nbytes, strict=True)))
        yield HALF_OPEN.to_metric(self._node.half_open)
        yield REFUSED.by(tallied(self._node.turned_away, _REASONS, zeros=True))
        yield RTT.by(_summary([one.rtt.median_us / 1e6 for one in open_ if one.rtt is not None]))


class SpoolCollector:
    """What a spool holds, of the `cap_bytes` that it may. To be collected on the event loop."""

    def __init__(self, spool: Spool, cap_bytes: int) -> None:
        self._spool = spool
        self._cap_bytes = cap_bytes

    def collect(self) -> Iterator[Metric]:
        yield SPOOLED.to_metric(self._spool.bytes)
        yield SPOOL_CAP.to_metric(self._cap_bytes)


def _summary(values: list[float]) -> dict[Labels, float]:
    """Median, 95 of 100, and the longest; nothing of none."""
    if not values:
        return {}
    high = quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
    return {("0.5",): median(values), ("0.95",): high, ("1",): max(values)}
