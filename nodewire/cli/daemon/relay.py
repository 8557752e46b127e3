"""`nodewire relay`: the embedded relay and Blossom store, as flags and a file say."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from nodewire.cli.daemon.daemons import run_until_stopped, size_of
from nodewire.cli.output import DEVELOPERS, Json
from nodewire.errors import BadConfig
from nodewire.net import host_port
from nodewire.net.listen_address import named_by


def relay(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file (docs/reference/configuration.md).")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on; 7777. 0 picks a free one.", min=0, max=65_535)
    ] = None,
    db: Annotated[Path | None, typer.Option(help="SQLite file of events; relay.db.")] = None,
    blobs: Annotated[Path | None, typer.Option(help="Folder of the Blossom store; blobs.")] = None,
    quota: Annotated[
        str | None, typer.Option(help="The most bytes that blobs may take, half of it for one key or address; 64GiB.")
    ] = None,
    events_quota: Annotated[str | None, typer.Option(help="The most bytes that events may take; 16GiB.")] = None,
    connections: Annotated[int | None, typer.Option(help="The most websockets; 2048.", min=1)] = None,
    url: Annotated[str | None, typer.Option(help="The public ws(s) URL, behind a proxy.")] = None,
    public_wraps: Annotated[bool, typer.Option("--public-wraps", help="Serve gift wraps to anybody.")] = False,
    metrics: Annotated[str | None, typer.Option(help="The host:port that Prometheus scrapes.")] = None,
    json: Json = False,
) -> None:
    """Run the embedded relay and Blossom store."""
    from nodewire.cli.daemon.relay_file import RelayFile
    from relay import BlobLimits, exporting, serve

    said = RelayFile.load(config) if config is not None else RelayFile()
    flags = {"host": host, "port": port, "db": db, "blobs": blobs, "url": url, "public_wraps": public_wraps or None}
    changes: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    limits = {
        "connections": connections,
        "events_bytes": None if events_quota is None else size_of("--events-quota", events_quota),
    }
    given = {name: value for name, value in limits.items() if value is not None}
    changes["limits"] = said.limits.model_copy(update=given)
    if quota is not None:
        blob_limits = BlobLimits.of(size_of("--quota", quota))
        names = ("quota_bytes", "key_quota_bytes", "address_bytes")
        changes["store"] = said.store.model_copy(update={name: getattr(blob_limits, name) for name in names})
    wanted = said.model_copy(update=changes)
    listen = wanted.metrics.listen if metrics is None else metrics
    if metrics:
        host_port.parse(metrics, "--metrics", least_port=0, error=BadConfig)

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        with named_by("--port", f"{wanted.config.host}:{wanted.config.port}"):
            running = await stack.enter_async_context(serve(wanted.config))
        exposed = exporting.exposed(running, listen)
        return {"ready": "relay", "url": running.url, "blossom": running.http_url, "metrics": exposed}

    run_until_stopped(start, json)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(relay)
