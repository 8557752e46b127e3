"""`nodewire oracle | provider | up`: processes that run until they are told to stop.

Each says when it is ready (with `--json` in one JSON document on one line, so that a script knows where it listens).
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.markup import escape

from nodewire.cli.common.roles import load_oracle, load_provider
from nodewire.cli.output import DEVELOPERS, OPERATORS, Json, PlainFormatter, console, price_of_work, print_json
from nodewire.cli.swarm import swarm_node
from nodewire.cli.swarm.swarm_options import Key, Split, State, SwarmAt, no_market
from nodewire.core import heap
from nodewire.errors import BadConfig, BadInput
from nodewire.net.listen_address import named_by
from nodewire.protocol.encoding.byte_sizes import parse_size

Config = Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file (docs/reference/configuration.md).")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Quota = Annotated[str, typer.Option(help="The most bytes that blobs may take; half of it for one uploader.")]
Port = Annotated[int, typer.Option(help="The port to listen on; 0 picks a free one.", min=0, max=65_535)]

_MAX_DESCRIPTORS = 65_536

Metrics = Annotated[str, typer.Option(help="The host:port that Prometheus scrapes; without it nothing listens.")]

Start = Callable[[AsyncExitStack], Awaitable[dict[str, Any]]]
"""Starts a service on the stack; returns what its ready line says."""


Say = Callable[[Mapping[str, Any]], str]
"""What a ready document says to people, in rich's markup."""


def _on_one_line(ready: Mapping[str, Any]) -> str:
    said = "  ".join(f"{key} {value}" for key, value in ready.items() if key != "ready")
    return f"[bold green]{ready['ready']}[/] ready  {escape(said)}"


def allow_descriptors() -> None:
    """Let this process open as many files as the system allows: the usual 1,024 are fewer than a node's links."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # not allowed: what there is must do
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _log_level() -> int:
    """How much daemons log, by the environment's NODEWIRE_LOG. Raises BadConfig."""
    said = os.environ.get("NODEWIRE_LOG", "info")
    level = logging.getLevelNamesMapping().get(said.upper())
    if level is None:
        raise BadConfig("NODEWIRE_LOG", f"{said[:20]!r} is none of debug, info, warning and error")
    return level


def run_until_stopped(start: Start, as_json: bool, say: Say = _on_one_line) -> None:
    """Run a service under uvloop until SIGINT or SIGTERM; what it opened is closed in reverse order.

    A service whose ready document has `wait` (an awaitable) also ends when that does. `metrics` in it is what it shows
    Prometheus, if that is wanted; then the document says where.
    """
    from nodewire.metrics import endpoint

    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname).1s %(name)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=_log_level(), handlers=[handler])
    allow_descriptors()

    async def main() -> None:
        stop = asyncio.Event()
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        is_starting = True

        def stopped() -> None:
            stop.set()
            if is_starting and this is not None:
                this.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped)
        async with AsyncExitStack() as stack:
            ready = await start(stack)
            is_starting = False
            heap.freeze()
            wait = ready.pop("wait", None)
            exposed: endpoint.MetricsExposition | None = ready.pop("metrics", None)
            if exposed is not None and exposed.listen:
                ready["metrics"] = await stack.enter_async_context(endpoint.serve_metrics(exposed))
            if as_json:
                print_json(ready)
            else:
                console.print(say(ready), soft_wrap=True)
            stopping = asyncio.create_task(stop.wait())
            waiting = [stopping] if wait is None else [stopping, asyncio.ensure_future(wait)]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            for task in done:
                if task is not stopping:
                    task.result()

    try:
        uvloop.run(main())
    except asyncio.CancelledError:  # before it was ready
        raise KeyboardInterrupt from None


def oracle(config: Config, json: Json = False) -> None:
    """Run one oracle of a committee."""
    from nodewire.startup.oracle import start as start_oracle

    run_until_stopped(lambda stack: start_oracle(stack, load_oracle(config)), json)


def provider(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The role's TOML file (docs/reference/configuration.md).")
    ] = None,
    swarm: SwarmAt = None,
    split: Split = "",
    key: Key = None,
    state: State = None,
    model: Annotated[
        Path | None, typer.Option(help="This machine's copy of the model's folder.", rich_help_panel="With --swarm")
    ] = None,
    listen: Annotated[
        str, typer.Option(help="The host:port to listen on (default: the file's).", rich_help_panel="With --swarm")
    ] = "",
    memory: Annotated[
        str | None, typer.Option(help="The most memory that it may take, such as 12GB.", rich_help_panel="With --swarm")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1, rich_help_panel="With --swarm")] = None,
    device: Annotated[
        str | None, typer.Option(help="The device: cpu, cuda, cuda:1 or mps.", rich_help_panel="With --swarm")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="The folder of a draft model, for the driver.", rich_help_panel="With --swarm")
    ] = None,
    graphs: Annotated[
        bool | None, typer.Option(help="Capture decode steps, on a CUDA device.", rich_help_panel="With --swarm")
    ] = None,
    sandbox: Annotated[
        str | None,
        typer.Option(
            help='"weak": start workers where the kernel cannot confine them fully, too.',
            rich_help_panel="With --swarm",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a provider: serve tasks of models and be paid for them, or your layers of a swarm's model."""
    if swarm is not None:
        no_market(config=config)
        lent = swarm_node.NodeOptions(
            swarm, split, key, state, model, listen,
            {"memory": memory, "threads": threads, "device": device, "draft": draft, "graphs": graphs,
             "sandbox": sandbox},
        )  # fmt: skip
        run_until_stopped(lambda stack: swarm_node.start(stack, lent), json, swarm_node.ready)
        return
    if config is None:
        raise BadInput("--config", "the provider's TOML file is needed (or --swarm FILE)")
    from nodewire.startup.provider import start as start_provider

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        return await start_provider(stack, load_provider(config))

    run_until_stopped(start, json, lambda ready: provider_ready(ready, config))


def up(
    config: Config,
    host: Host = "127.0.0.1",
    port: Port = 7777,
    quota: Quota = "64GiB",
    json: Json = False,
) -> None:
    """Run a provider with its own relay and blob store beside it, in one process."""
    import relay as room
    from nodewire.startup.provider import start as start_provider
    from relay import exporting

    limits = room.BlobLimits.of(size_of("--quota", quota))

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        settings = load_provider(config)
        settings.state.mkdir(parents=True, exist_ok=True)
        db, blobs = settings.state / "relay.db", settings.state / "blossom"
        beside = room.Config(host=host, port=port, db=db, blobs=blobs, blob_limits=limits)
        with named_by("--port", f"{host}:{port}"):
            running = await stack.enter_async_context(room.serve(beside))
        ready = await start_provider(stack, settings)
        exposed, own = ready["metrics"], exporting.exposed(running, "")
        both = replace(exposed, daemon="up", here=[*exposed.here, *own.here], apart=[*exposed.apart, *own.apart])
        return {**ready, "relay": running.url, "blossom": running.http_url, "metrics": both}

    run_until_stopped(start, json, lambda ready: provider_ready(ready, config))


def size_of(option: str, text: str) -> int:
    """The bytes that an option names. Raises BadConfig."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise BadConfig(option, str(error)) from error


def _at_prices(prices: Mapping[str, int], mode: str, chunk: int) -> str:
    return ", ".join(f"{task} at {price_of_work(msat, mode, chunk)}" for task, msat in prices.items())


def provider_ready(ready: Mapping[str, Any], config: Path) -> str:
    """Who and where, what at what price, how to look at it and to stop it."""
    where = f"wallets reach it at {ready['lnurl']}"
    if "wire" in ready:
        where = f"others reach it at {', '.join(ready['wire'])}, {where}"
    if "relay" in ready:
        where += f"; its relay is {ready['relay']}, its blob store {ready['blossom']}"
    if "metrics" in ready:
        where += f"; Prometheus scrapes {ready['metrics']}"
    serves = "; ".join(
        f"{model}: {_at_prices(prices, *ready['units'][model])}"
        for model, prices in ready.get("prices_msat", {}).items()
    )
    trains = f"trains {', '.join(ready['trains'])}" if "trains" in ready else ""
    follows = "holds what the market lacks" if "specialize" in ready else ""
    sells = "; ".join(part for part in (f"serves {serves}" if serves else "", follows, trains) if part)
    return (
        f"[bold green]provider[/] ready  [bold]{escape(ready['name'])}[/] {ready['public'][:8]}, {escape(where)}\n"
        f"{escape(sells)}\n"
        f"[dim]Ctrl-C stops it; `nodewire earnings --config {escape(str(config))}` shows what it earned[/]"
    )


def add_to(app: typer.Typer) -> None:
    panels: dict[Callable[..., None], str] = {provider: OPERATORS, up: OPERATORS}
    for command in (provider, up, oracle):
        app.command(rich_help_panel=panels.get(command, DEVELOPERS))(command)
