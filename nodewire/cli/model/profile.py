"""`nodewire profile`: what this machine does in a second, and how fast the tasks run that a provider serves here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from nodewire.cli.common.model_choice import model_at
from nodewire.cli.common.roles import check_model, enter_market, load_provider, name_relays
from nodewire.cli.output import OPERATORS, Json, console, counted, notes, one_line, print_json, steps
from nodewire.config import Device, ProviderConfig
from nodewire.errors import BadInput, Busy, NotAllowed
from nodewire.kind import Limits, installed
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.validation_errors import in_words

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import BlobRef, Manifest
    from nodewire.provider.profile.node_profile import Profile, TaskProfile


def profile(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="A provider's TOML file: measure the tasks that it serves, as it serves them."
        ),
    ] = None,
    manifest: Annotated[
        list[str] | None,
        typer.Option(
            help="A model whose tasks are all measured instead: a name or an address (repeatable). Or a folder that"
            " `nodewire.register` wrote, which needs no --config."
        ),
    ] = None,
    caps: Annotated[str, typer.Option(help="Memory caps to try each task under, such as 500MB,2GB.")] = "",
    device: Annotated[str, typer.Option(help="The device: cpu, cuda, cuda:1 or mps (without --config).")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, max=256, help="CPU threads (without --config).")] = 1,
    json: Json = False,
) -> None:
    """Measure this machine and, with a configuration or a folder, the time and memory of each task in it.

    Predictions stand beside both. A provider whose file names no speed (us_per_position) claims the measured one.
    """
    from nodewire.provider.profile import node_profile

    ends: list[str] = []
    limit_bytes = [_size(text) for text in caps.split(",") if text.strip()]
    folder = _folder(manifest or ())
    if manifest and folder is None:
        for address in manifest:
            check_model(address, "--manifest", or_file=True)
        if config is None:
            raise BadInput("--manifest", "needs a --config: its relays and stores have it")
    with steps("measuring", at_once=True) as tell:

        def say(what: str) -> None:
            tell(one_line(what))

        if config is None:
            limits = Limits(node_profile.MACHINE_BYTES, threads, _device(device))
        elif folder is not None:
            limits = load_provider(config).limits
        if folder is not None:
            made = asyncio.run(_of_folder(folder, limits, limit_bytes, say))
        elif config is None:
            made = asyncio.run(node_profile.profile(limits, (), _no_blob, Path.cwd(), say=say))
        else:
            made, ends = asyncio.run(_of_role(load_provider(config), manifest or [], limit_bytes, say))
    if json:
        print_json(made.document())
    else:
        _show(made)
    for line in ends:
        notes.print(f"[dim]{one_line(line)}[/]", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(profile)


def _folder(said: Sequence[str]) -> Path | None:
    """The folder that --manifest names, if it names one. Raises BadInput: beside others."""
    found = [Path(one).resolve() for one in said if Path(one).is_dir()]
    if found and len(said) > 1:
        raise BadInput("--manifest", f"{found[0]} is a folder, which is measured by itself")
    return found[0] if found else None


async def _of_folder(folder: Path, limits: Limits, caps: Sequence[int], say: Callable[[str], None]) -> Profile:
    """The profile of what lies in a folder, with room for its largest task at least.

    Raises as `registration_in`; NotAllowed: its kind is not installed.
    """
    from nodewire.cli.common.registration_folder import registration_in
    from nodewire.provider.profile import node_profile

    made = registration_in(folder)

    async def fetch(ref: BlobRef) -> Path:
        return made.blobs[ref.sha256]

    largest = max(task.memory_bytes for task in made.manifest.tasks)
    room = replace(limits, memory_bytes=max(limits.memory_bytes, 2 * largest))
    wanted = [(made.manifest, [task.name for task in made.manifest.tasks], _entry(made.manifest))]
    return await node_profile.profile(room, wanted, fetch, folder, caps=caps, say=say)


def _entry(manifest: Manifest) -> str:
    """The worker's entry of the kind that serves a manifest. Raises NotAllowed: it is not installed."""
    kinds = installed()
    if manifest.kind not in kinds:
        raise NotAllowed("kind", f"no installed package serves {manifest.kind}")
    return kinds[manifest.kind].worker_entry


async def _of_role(
    role: ProviderConfig, models: Sequence[str], caps: Sequence[int], say: Callable[[str], None]
) -> tuple[Profile, list[str]]:
    """The profile, and what is said of it at the end. Raises Busy: the provider is running."""
    from nodewire.provider.profile import node_profile
    from nodewire.store.state_lock import held

    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(held(role.state))
        except Busy as error:
            raise Busy(
                error.field, f"{error.reason}; stop it first: beside it only what it leaves is measured"
            ) from error
        stack.enter_context(name_relays(role.relays))
        keys, pool, market = await enter_market(stack, role)

        async def fetch(ref: BlobRef) -> Path:
            return await market.fetch_blob(ref.sha256, ref.bytes)

        asked: list[tuple[Manifest, Sequence[str]]] = []
        named: dict[tuple[str, str], int | None] = {}
        if models:
            following = asyncio.create_task(market.follow())
            stack.callback(following.cancel)
            at = [await model_at(role, keys, pool, market, model, asks=False) for model in models]
            found = [await market.manifest(one.address, one.digest) for one in at]
            asked += [(one, [task.name for task in one.tasks]) for one in found]
        else:
            for one in role.serve:
                asked.append((await market.manifest(one.manifest, one.digest), one.tasks))
                named |= {(asked[-1][0].digest(), task): one.us_per_position for task in one.tasks}
            may = [await market.manifest(address) for address in role.auto.manifests]
            asked += [(one, [task.name for task in one.tasks]) for one in may]
        wanted = [(manifest, tasks, _entry(manifest)) for manifest, tasks in asked]
        made = await node_profile.profile(role.limits, wanted, fetch, role.blobs, caps=caps, say=say)
    kept = node_profile.keep(role.state, made)
    return made, [f"kept in {kept}", *_claims(made, named, {manifest.digest(): manifest.name for manifest, _ in asked})]


def _claims(made: Profile, named: Mapping[tuple[str, str], int | None], names: Mapping[str, str]) -> list[str]:
    """What an ad will say of each task that was measured; `named`: by manifest and task, what [[serve]] says itself."""
    lines = []
    for digest, speeds in made.speeds().items():
        for task, us in speeds.items():
            key, claim = (digest, task), f"the ad will claim {us:,} us a position"
            if key not in named:
                claim += ", once it is served"
            elif own := named[key]:
                claim = f"the ad will claim {own:,} us a position, since [[serve]] names it (us_per_position)"
            lines.append(f"{names[digest]} {task}: {claim}")
    return lines


async def _no_blob(ref: BlobRef) -> Path:
    raise BadInput("blob", "nothing was asked for")


def _device(text: str) -> str:
    """Raises BadInput: it is none that a configuration may name."""
    try:
        return TypeAdapter[str](Device).validate_python(text)
    except ValidationError as error:
        raise BadInput("--device", in_words(error.errors(include_url=False)[0])) from error


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
    if fitted := made.fitted:
        console.print(
            f"[dim]predicted: {fitted.rates.call_us / 1000:,.2f} ms a call, and {fitted.rates.slower:.1f} times what"
            f" the fastest kernels above would take; fitted to {counted(fitted.count, 'call')}. Half of them were"
            f" within a factor of {fitted.within_half:.2f} of it, nine in ten within {fitted.within_most:.2f}. Drivers,"
            " and calls that compute next to nothing, are not predicted.[/]",
            soft_wrap=True,
        )
    elif made.tasks:
        console.print("[dim]nothing is predicted: no task here computes enough for it[/]", soft_wrap=True)


def _show_task(made: Profile, task: TaskProfile) -> None:
    console.print(f"\n[bold]{one_line(task.task)}[/]  [dim]{task.engine}, {task.manifest[:8]}[/]")
    if task.refused:
        console.print(f"[red]✗[/] {one_line(task.refused)}", soft_wrap=True)
        return
    console.print(
        f"memory {task.peak_bytes / 1e6:,.1f} MB in its process,"
        f" {task.peak_bytes / max(task.predicted_bytes, 1):.0%} of the {task.predicted_bytes / 1e6:,.1f} MB that its"
        f" manifest predicts; loaded in {task.load_ms:,} ms; {task.busy:.0%} busy",
        soft_wrap=True,
    )
    if task.overrun is not None:
        console.print(f"[yellow]{task.overrun.code}[/] {one_line(str(task.overrun))}", soft_wrap=True)
    calls = Table(box=None, pad_edge=False)
    for title in ("positions", "ms", "predicted ms", "positions/s"):
        calls.add_column(title, justify="right")
    for call in task.calls:
        predicted = made.predicted_us(task, call)
        calls.add_row(
            f"{call.positions:,}",
            f"{call.us / 1000:,.2f}",
            "-" if predicted is None else f"{predicted / 1000:,.2f}",
            f"{call.positions / call.us * 1e6:,.0f}",
        )
    console.print(calls)
    for cap, why in task.caps.items():
        mark = f"[red]✗[/] {one_line(why)}" if why else "[green]✓[/]"
        console.print(f"{cap / 1e6:g} MB  {mark}", soft_wrap=True)
