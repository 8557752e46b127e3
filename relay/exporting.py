"""The relay as Prometheus sees it: who is connected, what came of events, how long that took, what is stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from nodewire.metrics.endpoint import MetricsExposition
from nodewire.metrics.family import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prometheus_client.core import Metric

    from relay.limits import Config
    from relay.serving import Relay

_BUSY_S = 2.0

CONNECTIONS = gauge("nodewire_relay_connections", "Websockets that are open.")
TURNED_AWAY = counter("nodewire_relay_connections_refused_total", "Websockets refused because of too many.")
CUT = counter("nodewire_relay_connections_cut_total", "Websockets closed because their readers fell behind.")
SUBSCRIPTIONS = gauge("nodewire_relay_subscriptions", "Subscriptions that are open.")
EVENTS = counter(
    "nodewire_relay_events_total",
    "EVENTs answered with OK, accepted or refused; the reason is NIP-01's prefix, empty if nothing was to be said.",
    *("outcome", "reason"),
)
REFUSED = counter(
    "nodewire_relay_messages_refused_total", "Messages, uploads and downloads that were not taken.", "reason"
)
WAITED = counter(
    "nodewire_relay_waited_seconds_total",
    "Seconds for which messages of addresses that had spent their budgets were left unread.",
)
DELIVERED = counter("nodewire_relay_events_delivered_total", "Live events, to each subscription that wants them.")
INGEST = histogram("nodewire_relay_ingest_seconds", "From reading an EVENT to its OK, the commit to disk included.")
FANOUT = histogram("nodewire_relay_fanout_seconds", "From an event taken to its place in the last reader's outbox.")
DB_BYTES = gauge("nodewire_relay_database_bytes", "Bytes of the database of events and its log.")
BLOBS = gauge("nodewire_relay_blobs", "Blobs in the Blossom store.")
BLOB_BYTES = gauge("nodewire_relay_blob_bytes", "Bytes that these blobs take.")
BLOB_CAP = gauge("nodewire_relay_blob_cap_bytes", "Bytes that blobs may take.")
STORED_FAMILIES = (DB_BYTES, BLOBS, BLOB_BYTES, BLOB_CAP)
TALK_FAMILIES = (CONNECTIONS, TURNED_AWAY, CUT, SUBSCRIPTIONS, EVENTS, REFUSED, WAITED, DELIVERED, INGEST, FANOUT)
FAMILIES = (*TALK_FAMILIES, *STORED_FAMILIES)


class Talk:
    """What is said to one relay. To be collected on the event loop."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        counts = self._relay.counts
        yield CONNECTIONS.to_metric(self._relay.connections)
        yield TURNED_AWAY.to_metric(counts.turned_away)
        yield CUT.to_metric(counts.cut)
        yield SUBSCRIPTIONS.to_metric(counts.subscriptions)
        yield EVENTS.by({("accepted" if ok else "refused", why): n for (ok, why), n in counts.answers.items()})
        yield REFUSED.by({(reason,): count for reason, count in counts.refusals.items()})
        yield WAITED.to_metric(counts.waited_s)
        yield DELIVERED.to_metric(counts.delivered)
        yield INGEST.spread({(): counts.ingest})
        yield FANOUT.spread({(): counts.fanout})


class Stored:
    """What one relay has on disk. To be collected apart."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def collect(self) -> Iterator[Metric]:
        db = self._config.db
        files = [path for path in (db, db.with_name(f"{db.name}-wal")) if path.exists()]
        yield DB_BYTES.to_metric(sum(path.stat().st_size for path in files))
        blobs, nbytes = _blobs(self._config.blobs) if self._config.blobs is not None else (0, 0)
        yield BLOBS.to_metric(blobs)
        yield BLOB_BYTES.to_metric(nbytes)
        yield BLOB_CAP.to_metric(self._config.blob_limits.quota_bytes if self._config.blobs is not None else 0)


def exposed(relay: Relay, listen: str) -> MetricsExposition:
    """What is shown of a relay that runs alone."""
    return MetricsExposition("relay", listen, [Talk(relay)], [Stored(relay.config)])


def _blobs(folder: Path) -> tuple[int, int]:
    """How many, and their bytes. Raises sqlite3.Error."""
    path = folder.absolute() / "index.sqlite"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as db:
        blobs, nbytes = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM blob").fetchone()
        return int(blobs), int(nbytes)
