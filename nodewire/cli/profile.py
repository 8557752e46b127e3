"""`nodewire profile`: what this machine does in a second, and how fast the tasks run that a provider serves here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nodewire.cli.output import OPERATORS, Json, console, notes, one_line, print_json
from nodewire.cli.roles import enter_market, load_provider, naming
from nodewire.config import ProviderConfig
from nodewire.errors import BadInput, NotAllowed
from nodewire.kind import Limits, installed
from nodewire.protocol.sizes import parse_size

if TYPE_CHECKING:
    from nodewire.protocol.manifest import BlobRef, Manifest
    from nodewire.provider.profiling import Profile, TaskProfile


def profile(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A provider's TOML file: measure what it serves, as it would.")
    ] = None,
    manifest: Annotated[
        list[str] | None, typer.Option(help="Measure all tasks of this manifest instead: an address. Repeatable.")
    ] = None,
    caps: Annotated[str, typer.Option(help="Also try each task under these memory caps: 500MB,2GB.")] = "",
    device: Annotated[str, typer.Option(help="Without --config: cpu, cuda, cuda:1 or mps.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, max=256, help="Without --config: CPU threads.")] = 1,
    json: Json = False,
) -> None:
    """Measure this machine and, with a configuration, each task that it serves: time, memory, and how well both were
    predicted. A provider whose file names no speed (us_per_position) claims what was measured."""
    from nodewire.provider import profiling

    limit_bytes = [_size(text) for text in caps.split(",") if text.strip()]
    if manifest and config is None:
        raise BadInput("--manifest", "needs a --config: its relays and stores have it")
    with notes.status("measuring") as status:

        def say(what: str) -> None:
            status.update(f"measuring {one_line(what)}")

        if config is None:
            limits = Limits(profiling.MACHINE_BYTES, threads, device)
            made = asyncio.run(profiling.profile(limits, (), _no_blob, Path.cwd(), say=say))
        else:
            made = asyncio.run(_of_role(load_provider(config), manifest or [], limit_bytes, say))
    if json:
        return print_json(made.document())
    _show(made)
    return None


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(profile)


async def _of_role(
    role: ProviderConfig, addresses: Sequence[str], caps: Sequence[int], say: Callable[[str], None]
) -> Profile:
    from nodewire.provider import profiling

    async with AsyncExitStack() as stack:
        stack.enter_context(naming(role.relays))
        _, _, market = await enter_market(stack, role)

        async def fetch(ref: BlobRef) -> Path:
            return await market.fetch_blob(ref.sha256, ref.bytes)

        kinds = installed()
        asked: list[tuple[Manifest, Sequence[str]]] = []
        if addresses:
            found = [await market.manifest(address) for address in addresses]
            asked += [(one, [task.name for task in one.tasks]) for one in found]
        else:
            asked += [(await market.manifest(one.manifest, one.digest), one.tasks) for one in role.serve]
            may = [await market.manifest(address) for address in role.auto.manifests]
            asked += [(one, [task.name for task in one.tasks]) for one in may]
        wanted = []
        for manifest, tasks in asked:
            if manifest.kind not in kinds:
                raise NotAllowed("kind", f"no installed package serves {manifest.kind}")
            wanted.append((manifest, tasks, kinds[manifest.kind].worker_entry))
        made = await profiling.profile(role.worker.limits, wanted, fetch, role.blobs, caps=caps, say=say)
    kept = profiling.keep(role.state, made)
    notes.print(f"[dim]{one_line(str(kept))}: what a provider claims whose \\[\\[serve]] names no speed[/]")
    return made


async def _no_blob(ref: BlobRef) -> Path:
    raise BadInput("blob", "nothing was asked for")


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise BadInput("--caps", str(error)) from error


def _show(made: Profile) -> None:
    for one in made.devices:
        memory = f", {one.memory_bytes / 1e9:.1f} GB" if one.memory_bytes else ""
        slices = "".join(f", MIG {part.profile}" for part in one.slices) + (", shared by MPS" if one.shared else "")
        console.print(f"{one.kind} {one.index}  {one_line(one.name)}{memory}{slices}", soft_wrap=True)
    rates = Table(box=None, pad_edge=False)
    for title in ("dtype", "GFLOP/s", "GB/s", "call us"):
        rates.add_column(title, justify="left" if title == "dtype" else "right")
    for dtype, rate in made.rates.items():
        rates.add_row(dtype, f"{rate.flops_per_s / 1e9:,.1f}", f"{rate.bytes_per_s / 1e9:,.1f}", f"{rate.call_us:,.1f}")
    console.print(rates)
    for task in made.tasks:
        _show_task(made, task)
    if made.fitted:
        console.print(
            f"[dim]predicted: {made.fitted.rates.slower:.1f} times the roofline; half within a factor of"
            f" {made.fitted.within_half:.2f}, nine in ten within {made.fitted.within_most:.2f}[/]"
        )


def _show_task(made: Profile, task: TaskProfile) -> None:
    console.print(f"\n[bold]{one_line(task.task)}[/]  [dim]{task.engine}, {task.manifest[:8]}[/]")
    if task.refused:
        console.print(f"[red]✗[/] {one_line(task.refused)}", soft_wrap=True)
        return
    console.print(
        f"memory {task.peak_bytes / 1e6:,.1f} MB, predicted {task.predicted_bytes / 1e6:,.1f} MB; loaded in"
        f" {task.load_ms:,} ms; {task.busy:.0%} busy",
        soft_wrap=True,
    )
    calls = Table(box=None, pad_edge=False)
    for title in ("positions", "ms", "predicted ms", "positions/s"):
        calls.add_column(title, justify="right")
    for call in task.calls:
        predicted = made.fitted.rates.predicted_us(call.work) / 1000 if made.fitted else 0.0
        calls.add_row(
            f"{call.positions:,}",
            f"{call.us / 1000:,.2f}",
            f"{predicted:,.2f}",
            f"{call.positions / call.us * 1e6:,.0f}",
        )
    console.print(calls)
    for cap, why in task.caps.items():
        mark = f"[red]✗[/] {one_line(why)}" if why else "[green]✓[/]"
        console.print(f"{cap / 1e6:g} MB  {mark}", soft_wrap=True)
