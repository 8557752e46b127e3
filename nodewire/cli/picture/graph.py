"""`nodewire graph`: a manifest as a picture, with who computes what in a job, or who serves what on the market."""

from __future__ import annotations

import asyncio
import json as jsonlib
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.buy.purchase import can_write
from nodewire.cli.common.manifest_file import read_manifest
from nodewire.cli.common.model_choice import model_at
from nodewire.cli.common.roles import OR_NAMED, check_model, enter_market, name_relays
from nodewire.cli.output import DEVELOPERS, Json, console, counted, one_line, print_json
from nodewire.config import AnyRole, load_role
from nodewire.errors import BadConfig, BadInput, NodewireError, NotFound
from nodewire.protocol.model.manifest import Manifest

if TYPE_CHECKING:
    from nodewire.cli.picture.graph_svg import ProviderLabels
    from nodewire.market import Market
    from nodewire.nostr.pool import Pool

MAX_REPORT_BYTES = 64 * 2**20
_ID = re.compile(r"[0-9a-f]{64}")


def graph(
    manifest: Annotated[
        str,
        typer.Argument(help="A model's name or address, its manifest's file (JSON or msgpack), or that one's folder."),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The SVG file (default: the model's name).")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")
    ] = None,
    job: Annotated[
        str,
        typer.Option(help="Show the providers of this job: a request's id, or the file of a purchase's --report."),
    ] = "",
    live: Annotated[
        bool, typer.Option("--live", help="Show the providers that serve each task on the market now.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw a model's tasks with their tensors, sizes and providers."""
    from nodewire.cli.picture.graph_svg import draw

    role = load_role(config) if config is not None else None
    if job and live:
        raise BadInput("--live", "a job's providers are drawn, or the market's")
    local = Path(manifest)
    found = read_manifest(local) if local.exists() else None
    told = _told(Path(job)) if job and not _ID.fullmatch(job) else None
    assigned = None
    if found is None or live or (job and told is None):
        if found is None:
            check_model(manifest, "MANIFEST", or_file=True)
        if role is None:
            if found is None:
                raise BadInput("MANIFEST", f"{manifest[:80]!r} is no such file{OR_NAMED}")
            raise BadInput("--config", "what is on the market is read from relays: name a role's TOML file")
        with name_relays(role.relays):
            request = job if told is None else ""
            found, assigned = asyncio.run(_from_market(role, manifest, found, request, live=live, asks=not json))
    if told is not None:
        assigned = _of_report(found, told)
    path = out or Path(f"{found.name}.svg")
    can_write(path, "--out")
    try:
        path.write_text(draw(found, assigned), encoding="utf-8")
    except OSError as error:
        raise BadConfig(str(path), f"cannot be written: {error.strerror or error}") from error
    done = {
        "out": str(path),
        "name": found.name,
        "digest": found.digest(),
        "tasks": len(found.tasks),
        "providers": assigned.providers() if assigned is not None else [],
    }
    if json:
        print_json(done)
    else:
        size = counted(len(found.tasks), "task")
        console.print(f"[bold green]drawn[/] {one_line(found.name)}: {size} in {one_line(str(path))}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(graph)


def _told(path: Path) -> Mapping[str, Any]:
    """What a purchase's report says. Raises BadConfig, BadInput."""
    try:
        if path.stat().st_size > MAX_REPORT_BYTES:
            raise BadInput("--job", f"{path} is no report of a purchase")
        said = jsonlib.loads(path.read_text())
    except OSError as error:
        raise BadConfig(str(path), f"no request's id, and cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput("--job", f"{path} is no report of a purchase") from error
    tasks = said.get("tasks") if isinstance(said, dict) else None
    if not isinstance(tasks, list) or not all(isinstance(one, dict) and "task" in one for one in tasks):
        raise BadInput("--job", f"{path} is no report of a purchase")
    found: Mapping[str, Any] = said
    return found


def _of_report(manifest: Manifest, said: Mapping[str, Any]) -> ProviderLabels:
    from nodewire.cli.picture.graph_svg import ProviderLabels, TaskHolders

    tasks = {str(one["task"]): TaskHolders(str(one.get("provider") or ""), (), None) for one in said["tasks"]}
    if unknown := sorted(tasks.keys() - {task.name for task in manifest.tasks}):
        raise BadInput("--job", f"is of another model: this one has no task {unknown[0][:64]}")
    names = said.get("names") if isinstance(said.get("names"), dict) else {}
    assert isinstance(names, dict)
    about = f"job {str(said.get('request', ''))[:12]}"
    return ProviderLabels(about, tasks, {str(public): str(name) for public, name in names.items()})


async def _from_market(
    role: AnyRole, model: str, manifest: Manifest | None, request: str, *, live: bool, asks: bool
) -> tuple[Manifest, ProviderLabels | None]:
    async with AsyncExitStack() as stack:
        keys, pool, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        found, address = manifest, ""
        if found is None:
            at = await model_at(role, keys, pool, market, model, asks=asks)
            found, address = None if request else await market.manifest(at.address, at.digest), at.address
        if request:
            return await _of_job(pool, market, address, found, request)
        assert found is not None
        if not live:
            return found, None
        return found, await _of_snapshot(market, found)


async def _of_job(
    pool: Pool, market: Market, address: str, manifest: Manifest | None, request: str
) -> tuple[Manifest, ProviderLabels]:
    from nodewire.cli.picture.graph_svg import ProviderLabels, TaskHolders
    from nodewire.nostr.nips.nip01 import Filter
    from nodewire.protocol.job import request as job

    events = await pool.fetch([Filter(ids=frozenset({request}))], timeout_s=10.0)
    if not events:
        raise NotFound(request, "no relay has this request")
    asked = job.parse(events[0])
    found = manifest or await market.manifest(address, asked.plan.manifest)
    if found.digest() != asked.plan.manifest:
        raise BadInput("--job", "is of another model, or of another version of it")
    names: dict[str, str] = {}
    try:
        snapshot = await market.snapshot(asked.plan.snapshot)
        names = {public: ad.name for public, ad in snapshot.ads(set(asked.plan.providers())).items()}
    except NodewireError:
        names = {}  # it is gone: the keys stay
    tasks = {one.task: TaskHolders(one.provider, (), one.price_msat) for one in asked.plan.tasks}
    return found, ProviderLabels(f"job {request[:12]}, planned in epoch {asked.plan.epoch}", tasks, names)


async def _of_snapshot(market: Market, manifest: Manifest) -> ProviderLabels:
    from nodewire.cli.picture.graph_svg import ProviderLabels, TaskHolders

    epoch = await market.epoch(timeout_s=30.0)
    snapshot = await market.snapshot(epoch.body.snapshot)
    digest = manifest.digest()
    holders: dict[str, list[str]] = {}
    prices: dict[str, list[int]] = {}
    for node in snapshot.nodes:
        for held in node.held:
            for task in held.tasks if held.manifest == digest else ():
                holders.setdefault(task.task, []).append(node.pubkey)
                prices.setdefault(task.task, []).append(task.price_msat)
    names = {public: ad.name for public, ad in snapshot.ads({one for two in holders.values() for one in two}).items()}
    tasks = {task: TaskHolders("", tuple(publics), min(prices[task])) for task, publics in holders.items()}
    return ProviderLabels(f"the market in epoch {epoch.body.epoch}", tasks, names)
