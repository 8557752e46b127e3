"""What one client, one event and one blob may cost this relay; every cap is checked before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of the relay. Sizes in bytes, spans in seconds; a rate of 0 means no limit."""

    frame_bytes: int = 131_072  # bytes of one message
    event_bytes: int = 65_536  # bytes of one event, as JSON
    tags: int = 2_000  # tags of one event
    tag_value_bytes: int = 1_024  # bytes of an indexed (single-letter) tag
    future_s: int = 900  # seconds that created_at may be ahead of our clock
    ephemeral_age_s: int = 60  # seconds after which an ephemeral event is refused
    connections: int = 2_048  # connections, shared by the addresses they come from
    idle_connections: int = 256  # connections without a request under way; a websocket is a request
    idle_s: float = 20.0  # seconds after which such a connection is closed
    subscriptions: int = 200  # subscriptions per connection
    filters: int = 32  # filters per REQ or COUNT
    keys: int = 64  # keys per connection that have authenticated: each query is held against all
    standing_values: int = 131_072  # filters of open subscriptions, and the values in them, per address
    tests_per_s: float = 500_000.0  # filters of one address that are held against events; about 0.4 microseconds each
    tests_burst: int = 1_000_000  # such tests that are saved up
    query_limit: int = 500  # stored events per filter; also used where a filter has no `limit`
    query_s: float = 5.0  # seconds of one query's work
    query_steps: int = 20_000_000  # steps of SQLite's virtual machine: about a second
    work_per_s: float = 3_000.0  # units of work per address; one is about 100 microseconds of a core (working.py)
    work_burst: int = 6_000  # such units that are saved up
    bad_signatures: int = 16  # bad signatures per connection; then it is closed
    events_bytes: int = 16 * 1024**3  # bytes of all stored events, as JSON
    key_events_bytes: int = 1024**3  # bytes of one author's events
    address_bytes_per_day: int = 512 * 1024**2  # bytes that one address may add; a quarter of it at once
    key_bytes_per_day: int = 256 * 1024**2  # bytes that one key may add; a quarter of it at once
    messages_per_s: float = 500.0  # messages per connection, on average
    messages_burst: int = 2_000  # messages that are saved up
    unanswered_events: int = 1_024  # events per connection that are read and not yet committed
    outbox_bytes: int = 4 * 1_048_576  # unsent bytes per connection; a reader that falls further behind is closed
    address_outbox_bytes: int = 64 * 1_048_576  # unsent bytes per address; beyond it its connections have 128 KiB each
    stall_s: float = 30.0  # seconds after which a reader that takes nothing is closed


@dataclass(frozen=True, slots=True)
class BlobLimits:
    """Caps of the blob store.

    `quota_bytes` is for all blobs together, `key_quota_bytes` for one uploader's, and `address_bytes` for what one
    address uploads in `kept_s`.

    Where more than `full_ppm` of the quota is taken, blobs that nobody uploaded or asked for in `kept_s` go, the
    longest unused first; what is younger stays, and uploads are refused before it goes.
    """

    blob_bytes: int = 4 * 1024**3  # bytes of one blob; no node fetches a larger one
    least_blob_bytes: int = 4_096  # bytes that a blob counts as at least, since it takes so much of a disk
    quota_bytes: int = 64 * 1024**3  # bytes of all blobs
    key_quota_bytes: int = 32 * 1024**3  # bytes of one uploader's blobs
    address_bytes: int = 32 * 1024**3  # bytes from one address in `kept_s`
    uploads: int = 64  # uploads at the same time, shared by the addresses they come from
    downloads: int = 512  # downloads at the same time, shared by the addresses they come from
    stall_s: float = 30.0  # seconds over which an upload brings `least_bytes_s` on average, or is ended
    least_bytes_s: int = 16_384  # the least bytes a second; a slower upload or download ends
    list_length: int = 1_000  # blobs in one answer to /list
    full_ppm: int = 900_000  # millionths of the quota, above which unused blobs go
    kept_s: int = 7 * 86_400  # seconds that a blob stays without use, at least

    @classmethod
    def of(cls, quota_bytes: int) -> Self:
        """For so much in all, half of it of one uploader or one address."""
        return cls(quota_bytes=quota_bytes, key_quota_bytes=quota_bytes // 2, address_bytes=quota_bytes // 2)


@dataclass(frozen=True, slots=True)
class Config:
    """How to run one relay.

    `db` is the SQLite file of events. `blobs` is the directory of the Blossom store; without it there is none. `site`
    is a directory of static files served to browsers. `url` is the public ws(s) URL where it differs from host and port
    (behind a proxy): AUTH events must name it. `wraps_need_auth` serves kinds 1059 and 21059 only to the keys they are
    addressed to, once these have authenticated (NIP-59). `proxies` are the operator's own reverse proxies: their
    X-Forwarded-For is believed. `permanent_kinds` cannot be deleted by NIP-09. `lasting_kinds` cannot carry an
    expiration: evidence must persist, and what a deletion names is remembered as long as the deletion is there.
    `synchronous` is SQLite's: FULL means that an OK survives a power cut, NORMAL that it survives a crash of this
    process only.
    """

    db: Path
    host: str = "127.0.0.1"
    port: int = 7777
    url: str | None = None
    blobs: Path | None = None
    site: Path | None = None
    name: str = "nodewire relay"
    description: str = "Events, and blobs by hash, for a nodewire market"
    operator: str | None = None  # hex public key, shown by NIP-11
    wraps_need_auth: bool = True
    proxies: frozenset[str] = frozenset()
    permanent_kinds: frozenset[int] = frozenset(range(8850, 8857))
    lasting_kinds: frozenset[int] = frozenset({5, 8853, 8856})
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    sweep_s: float = 60.0
    limits: Limits = field(default_factory=Limits)
    blob_limits: BlobLimits = field(default_factory=BlobLimits)
