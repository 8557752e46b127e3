"""`nodewire place`: which machine should hold which tasks of a model, and what that promises beside other rules."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table as Grid

from nodewire.cli.common.manifest_file import read_manifest
from nodewire.cli.common.model_choice import model_at
from nodewire.cli.common.roles import OR_NAMED, check_model, enter_market, name_relays
from nodewire.cli.market import place_nodes
from nodewire.cli.output import DEVELOPERS, Json, console, counted, one_line, print_json, steps
from nodewire.config import AnyRole, load_role
from nodewire.errors import BadInput, NoProvider, OverMemory
from nodewire.protocol.encoding.byte_sizes import in_units

if TYPE_CHECKING:
    from nodewire.plan.place.advice import Advice, Held
    from nodewire.plan.place.model import Pool
    from nodewire.protocol.market.coordinates import Coordinates
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.model.manifest import Manifest

_NODES = (
    'A JSON file of machines: {"nodes": [{"name": "a", "memory": "24GB", "gflops": 50}, ...]}.'
    " docs/how-to/place-tasks.md has all fields. Default: the machines of --config's market."
)
_SHOWN_TASKS = 12
_ROOM = "Add machines or memory, or register the model anew with a smaller --target-vram"


def place(
    model: Annotated[
        str,
        typer.Argument(help="A model's name or address, its manifest's file (JSON or msgpack), or that one's folder."),
    ],
    nodes: Annotated[Path | None, typer.Option(help=_NODES)] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="The objective: throughput, or latency of one request.")
    ] = "throughput",
    driver: Annotated[
        str, typer.Option(help="The place of a decoder's driver: placed, or local (the customer).")
    ] = "placed",
    prompt: Annotated[int, typer.Option(min=1, max=2**20, help="Positions of a decoder's prompt.")] = 256,
    output: Annotated[int, typer.Option(min=2, max=2**20, help="Positions that a session decodes.")] = 128,
    seed: Annotated[int, typer.Option(help="The seed of baselines that draw.")] = 1,
    json: Json = False,
) -> None:
    """Show the best placement of tasks on machines, its prediction, and those of other rules."""
    from nodewire.plan.place.advice import advise, moves
    from nodewire.plan.place.advice import model as described
    from nodewire.plan.place.model import Workload

    goal = _one_of("--objective", objective, ("throughput", "latency"))
    is_local = _one_of("--driver", driver, ("placed", "local")) == "local"
    role = load_role(config) if config is not None else None
    file = Path(model)
    if not file.exists():
        check_model(model, "MODEL", or_file=True)
    if role is None and (nodes is None or not file.exists()):
        if not file.exists():
            raise BadInput("MODEL", f"{model[:80]!r} is no such file{OR_NAMED}")
        raise BadInput("--config", "a role's TOML file says where the market is; or a manifest's file and --nodes")
    manifest = read_manifest(file) if file.exists() else None
    if manifest is None or nodes is None:
        assert role is not None
        with name_relays(role.relays):
            manifest, snapshot, here = asyncio.run(_market(role, model, manifest, asks=not json))
    if nodes is None:
        pool, tables, holding = place_nodes.of_snapshot(snapshot, manifest, here)
    else:
        pool, tables, holding = place_nodes.from_file(nodes)
    workload = Workload(prompt=prompt, output=output)
    what, held = described(manifest, tables), place_nodes.held_by(pool, manifest, holding)
    size = f"{counted(len(manifest.tasks), 'task')} on {counted(len(pool.nodes), 'node')}"
    try:
        with steps(f"placing {size}") as tell:
            chance = Random(seed)  # noqa: S311 - the user's seed makes it come out again
            found = advise(pool, what, workload, goal, chance, is_local=is_local, tell=tell)
            changes = moves(pool, what, workload, goal, held, tell=tell) if holding else None
    except NoProvider as error:  # nobody is asked for anything here: machines lack room
        raise OverMemory(error.field, f"{error.reason}. {_ROOM}") from error
    claimed = [node.name for node in pool.nodes if node.name not in holding] if nodes is None else []
    if json:
        print_json({**_plain(found, pool, manifest, goal, holding, changes), "claimed": claimed})
        return
    _show(found, pool, manifest, goal, holding, changes)
    if claimed:
        console.print(
            f"[dim]nobody has certified how fast {one_line(', '.join(claimed[:_SHOWN_TASKS]))} would be: that is what"
            " their ads say[/]",
            soft_wrap=True,
        )


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(place)


def _one_of(option: str, said: str, known: tuple[str, str]) -> Any:
    if said not in known:
        raise BadInput(option, f"{said[:80]!r} is neither {known[0]} nor {known[1]}")
    return said


async def _market(
    role: AnyRole, model: str, manifest: Manifest | None, *, asks: bool
) -> tuple[Manifest, Snapshot, Coordinates | None]:
    """The manifest, unless it is there already, the newest snapshot, and where this role's daemon is."""
    from nodewire.wire.measure import link_health_store

    async with AsyncExitStack() as stack:
        keys, pool, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        if manifest is None:
            at = await model_at(role, keys, pool, market, model, asks=asks)
            manifest = await market.manifest(at.address, at.digest)
    claim, _ = link_health_store.read(role.state)
    return manifest, snapshot, claim.at if claim is not None else None


def _plain(
    found: list[Advice],
    pool: Pool,
    manifest: Manifest,
    objective: str,
    holding: place_nodes.Holding,
    changes: Held | None,
) -> dict[str, Any]:
    return {
        "model": manifest.name,
        "digest": manifest.digest(),
        "objective": objective,
        "placements": [
            {
                "planner": one.planner,
                "turn_ms": round(one.turn_ms, 3),
                "per_s": round(one.per_s, 3),
                "is_optimal": one.is_optimal,
                "nodes": _by_name(pool, manifest, one.held),
            }
            for one in found
        ],
        "held_now": {name: list(tasks) for name, tasks in holding.items()},
        "load_now": None if changes is None else _by_name(pool, manifest, changes),
    }


def _by_name(pool: Pool, manifest: Manifest, held: Held) -> dict[str, list[str]]:
    return {
        node.name: [manifest.tasks[task].name for task in tasks]
        for node, tasks in zip(pool.nodes, held, strict=True)
        if tasks
    }


def _show(
    found: list[Advice],
    pool: Pool,
    manifest: Manifest,
    objective: Literal["latency", "throughput"],
    holding: place_nodes.Holding,
    changes: Held | None,
) -> None:
    ours = found[0]
    table = Grid("node", "memory", "holds", *(["held now"] if holding else []), box=None, header_style="bold dim")
    for node, tasks in zip(pool.nodes, ours.held, strict=True):
        used = sum(manifest.tasks[task].memory_bytes for task in tasks)
        row = [one_line(node.name), f"{in_units(used) if used else '-'} of {in_units(node.memory_bytes)}"]
        row.append(_names([manifest.tasks[task].name for task in tasks]))
        now = [_names(list(holding.get(node.name, ())))] if holding else []
        table.add_row(*row, *now, style=None if tasks else "dim")
    size = f"{counted(len(manifest.tasks), 'task')} on {counted(len(pool.nodes), 'node')}"
    console.print(f"[bold]{one_line(manifest.name)}[/]: {size}, placed for {objective}; all figures are predicted")
    console.print(table)
    if changes is not None:
        for name, names in _by_name(pool, manifest, changes).items():
            console.print(f"[bold]{one_line(name)}[/] should load {_names(names)}, and may drop its other stages")
        if not any(changes):
            console.print(f"what is held now may stay: {_stays(len(pool.nodes))}")
    is_decoder = manifest.mode == "generate"
    alone = "one token, alone" if is_decoder else "one call, alone"
    rate = "tokens/s, all sessions" if is_decoder else "calls/s"
    figures = Grid("placed by", alone, rate, "", box=None, header_style="bold dim")
    for one in found:
        best = "nothing is quicker" if objective == "latency" else "nothing serves more"
        proved = f"proved: {best}" if one.is_optimal else ""
        style = "bold" if one is ours else None
        figures.add_row(one_line(one.planner), f"{one.turn_ms:,.1f} ms", f"{one.per_s:,.1f}", proved, style=style)
    console.print(figures)


def _stays(nodes: int) -> str:
    from nodewire.plan.place.advice import REPLANNED

    if nodes > REPLANNED:
        return f"every task is held; other placements are compared with it for up to {REPLANNED} nodes"
    return "no other placement is worth the moves"


def _names(tasks: list[str]) -> str:
    """The first few; runs such as stage.3 to stage.9 by their ends."""
    runs: list[list[str]] = []
    for name in tasks:
        base, _, number = name.rpartition(".")
        if runs and number.isdigit() and runs[-1][-1] == f"{base}.{int(number) - 1}":
            runs[-1].append(name)
        else:
            runs.append([name])
    said = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    more = f" and {len(said) - _SHOWN_TASKS} more" if len(said) > _SHOWN_TASKS else ""
    return one_line(", ".join(said[:_SHOWN_TASKS]) + more) or "-"
