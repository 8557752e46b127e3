"""`nodewire splice`: join nodes that cannot dial each other, on a machine that all of them can reach."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape

from nodewire.cli.daemon.daemons import Metrics, run_until_stopped
from nodewire.cli.output import OPERATORS, Json, counted
from nodewire.errors import BadConfig, BadInput, NodewireError
from nodewire.net import host_port
from nodewire.net.address_policy import are_private
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.validation_errors import in_words

if TYPE_CHECKING:
    from nodewire.wire.nat.splice_server import SpliceTotals

_EVERY_S = 3_600.0
_AGAIN_S = 60.0
"""After an ad that no relay took."""
log = logging.getLogger("nodewire.splice")


def splice(
    key: Annotated[Path, typer.Option(help="The splice's nsec, made if missing.")],
    relay: Annotated[list[str], typer.Option(help="A relay where it is announced; repeat for more.")],
    listen: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0:7790",
    announce: Annotated[
        list[str] | None, typer.Option(help="The host:port at which others reach it (default: the listening address).")
    ] = None,
    friend: Annotated[list[str] | None, typer.Option(help="npub of a key that has no limits; repeat for more.")] = None,
    rate: Annotated[str, typer.Option(help="Bytes per second that a pair of strangers may send.")] = "4MB",
    most: Annotated[str, typer.Option(help="Bytes that a pair of strangers may send in all.")] = "16GB",
    name: Annotated[str, typer.Option(help="The ad's name.")] = "splice",
    metrics: Metrics = "",
    json: Json = False,
) -> None:
    """Run a splice: it joins two connections and carries bytes that it cannot read, free within limits.

    It also dials a node back that asks whether its own port is open.
    """
    from nodewire.metrics.endpoint import MetricsExposition
    from nodewire.nostr.keys import Keys, from_npub
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.market import splice_ad as splices
    from nodewire.wire.nat.splice_metrics import SpliceCollector
    from nodewire.wire.nat.splice_server import Limits, Splicer

    host, port = host_port.parse(listen, "--listen", least_port=0, error=BadConfig)
    for one in announce or ():
        host_port.parse(one, "--announce", error=BadConfig)
    if metrics:
        host_port.parse(metrics, "--metrics", least_port=0, error=BadConfig)
    try:
        limits = Limits(bytes_per_s=parse_size(rate), most_bytes=parse_size(most))
    except ValueError as error:
        raise BadInput("--rate or --most", str(error)) from error

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        keys = Keys.from_file(key)
        pool = await stack.enter_async_context(Pool(relay, keys=keys))
        splicer = Splicer(
            keys.public,
            friends=[from_npub(one) for one in friend or ()],
            strangers=limits,
            allow_private=await are_private(relay),
        )
        stack.callback(_say_carried, splicer.carried)
        stack.push_async_callback(splicer.close)
        try:
            listening = await splicer.listen(host, port)
        except OSError as error:
            raise BadConfig("--listen", f"cannot listen at {listen}: {error.strerror}") from error
        at = tuple(announce or (listening,))
        if not announce and host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            raise BadConfig("--announce", "missing, and --listen is all addresses: name the host:port that others dial")
        try:
            ad = splices.Splice(name=name, at=at, bytes_per_s=limits.bytes_per_s, most_bytes=limits.most_bytes)
        except ValidationError as error:
            fault = error.errors()[0]
            option = "announce" if fault["loc"][0] == "at" else fault["loc"][0]
            raise BadInput(f"--{option}", in_words(fault)) from error

        async def announcing() -> None:
            while True:
                try:
                    await pool.publish(splices.build(keys, ad, created_at=int(time.time())))
                except NodewireError as error:
                    log.warning("the ad is not out, and nobody finds this splice: %s", error)
                    await asyncio.sleep(_AGAIN_S)
                else:
                    await asyncio.sleep(_EVERY_S)

        task = asyncio.create_task(announcing())
        stack.callback(task.cancel)
        addresses = [f"splice:{keys.public}@{one}" for one in at]
        exposed = MetricsExposition("splice", metrics, [SpliceCollector(splicer)])
        return {"ready": "splice", "npub": keys.npub, "addresses": addresses, "metrics": exposed}

    run_until_stopped(start, json, _ready)


def _ready(ready: Mapping[str, Any]) -> str:
    """What it is, and the lines of the others' files that name it."""
    table = f"[wire]\nsplices = {dumps(ready['addresses'])}"
    return (
        f"[bold green]splice[/] ready  {escape(ready['npub'])}\n"
        "[dim]nodes that cannot be dialled find it by its ad, or by these lines in their files (Ctrl-C stops it):[/]\n"
        f"{escape(table)}"
    )


def _say_carried(carried: SpliceTotals) -> None:
    log.info(
        "stopped: %s joined, %s carried, %s dialled back",
        counted(carried.pairs, "link"),
        f"{carried.nbytes / 1e6:,.1f} MB",
        counted(carried.dials, "node"),
    )


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(splice)
