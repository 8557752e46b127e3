"""`nodewire gateway`: OpenAI's HTTP API on this machine, bought on the market."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from nodewire.cli.common.roles import name_relays
from nodewire.cli.daemon.daemons import run_until_stopped
from nodewire.cli.output import CUSTOMERS, Json, console, print_json
from nodewire.errors import BadInput


def gateway(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The gateway's TOML file.")] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make an API key, and print its lines for the file.")
    ] = False,
    json: Json = False,
) -> None:
    """Serve OpenAI's HTTP API: each request buys on the market."""
    if new_key:
        _say_new_key(as_json=json)
        return
    if config is None:
        raise BadInput("--config", "the gateway's TOML file is needed (docs/reference/configuration.md)")
    from nodewire.config import CustomerConfig
    from nodewire.gateway.config import GatewayConfig
    from nodewire.startup.gateway import start as start_gateway

    settings = GatewayConfig.load(config)

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        with name_relays(CustomerConfig.load(settings.customer).relays):
            return await start_gateway(stack, settings)

    run_until_stopped(start, json, _ready)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(gateway)


def _say_new_key(*, as_json: bool) -> None:
    from nodewire.gateway.keys import new_key

    key, sha256 = new_key()
    if as_json:
        print_json({"key": key, "sha256": sha256})
        return
    console.print(f"[bold]{key}[/]\n[dim]it is shown this once; the gateway's file has its hash:[/]", soft_wrap=True)
    console.print(f'\n\\[\\[keys]]\nname = "somebody"\nsha256 = "{sha256}"\nbudget_msat = 1_000_000', soft_wrap=True)


def _ready(ready: Mapping[str, Any]) -> str:
    keys = f"{ready['keys']} API keys" if ready["keys"] else "no API keys: whoever reaches it spends"
    where = f"; Prometheus scrapes {ready['metrics']}" if "metrics" in ready else ""
    return (
        f"[bold green]gateway[/] ready  [bold]{escape(ready['url'])}[/]  models {escape(', '.join(ready['models']))};"
        f" {keys}{escape(where)}\n[dim]Ctrl-C stops it[/]"
    )
