"""The file of `nodewire relay --config`: its tables have one field for each limit of the relay's own dataclasses."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, create_model

from nodewire.config import File, MetricsConfig, Section, Size
from nodewire.protocol.encoding.schema import Hex32
from relay.limits import BlobLimits, Config, Limits

_DESCRIPTION = str(Config.__dataclass_fields__["description"].default)
DB, BLOBS = Path("relay.db"), Path("blobs")


def _section(name: str, limits: type) -> Any:
    """The table of a file that has one field for each of `limits`, a dataclass of numbers, with its default."""
    hints = get_type_hints(limits)
    types = {f.name: Size if "bytes" in f.name else Annotated[hints[f.name], Field(ge=0)] for f in fields(limits)}
    named: dict[str, Any] = {f.name: (types[f.name], f.default) for f in fields(limits)}
    return create_model(name, __base__=Section, **named)


class _RelayFile(File):
    """The file of `nodewire relay --config`. `limits` and `store` have the fields of `relay.limits`."""

    host: str = "127.0.0.1"
    """The address that the relay listens on."""
    port: int = Field(default=7777, ge=0, le=65_535)
    """The port of the relay. 0 takes a free one."""
    url: str = ""
    """The public ws(s) URL, where it differs from host and port: behind a proxy. AUTH events must name it."""
    proxies: tuple[str, ...] = Field(default=(), max_length=64)
    """Addresses of the operator's own reverse proxies. `X-Forwarded-For` and `X-Forwarded-Proto` are believed from
    there only."""
    db: Path | None = None
    """The SQLite file of events. Empty: relay.db."""
    blobs: Path | None = None
    """The folder of the Blossom store. Empty: blobs."""
    site: Path | None = None
    """A folder of static files that browsers get."""
    name: str = Field(default="nodewire relay", max_length=200)
    """The relay's name, shown by NIP-11."""
    description: str = Field(default=_DESCRIPTION, max_length=2_000)
    """The relay's description, shown by NIP-11."""
    operator: Hex32 | None = None
    """The operator's public key, shown by NIP-11."""
    public_wraps: bool = False
    """Serve gift wraps to any client, not to their authenticated addressees alone."""
    sync: Literal["full", "normal"] = "full"
    """The durability of an OK. `normal` is faster: an OK may not survive a power cut."""
    limits: Any = None
    """Limits of connections."""
    store: Any = None
    """Limits of the blob store."""
    metrics: MetricsConfig = MetricsConfig()
    """The Prometheus endpoint."""

    @property
    def config(self) -> Config:
        return Config(
            db=self.db or DB,
            host=self.host,
            port=self.port,
            url=self.url or None,
            proxies=frozenset(self.proxies),
            blobs=self.blobs or BLOBS,
            site=self.site,
            name=self.name,
            description=self.description,
            operator=self.operator,
            wraps_need_auth=not self.public_wraps,
            synchronous="FULL" if self.sync == "full" else "NORMAL",
            limits=Limits(**self.limits.model_dump()),
            blob_limits=BlobLimits(**self.store.model_dump()),
        )


def _with_defaults(section: Any) -> tuple[Any, Any]:
    return section, section()


RelayFile: Any = create_model(
    "RelayFile",
    __base__=_RelayFile,
    limits=_with_defaults(_section("LimitsSection", Limits)),
    store=_with_defaults(_section("StoreSection", BlobLimits)),
)
