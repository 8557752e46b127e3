"""`nodewire models`: what is on the market, who serves it, for how much, and what you call it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.common.model_choice import warning
from nodewire.cli.common.roles import enter_market, name_relays
from nodewire.cli.output import Json, console, notes, one_line, print_json, sats
from nodewire.config import AnyRole, ModelPin, OracleConfig, load_role
from nodewire.errors import BadConfig, BadInput, NodewireError

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import Manifest


app = typer.Typer(help="List the models on the market, and give them names of your own.")
_CONFIG = typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")
MAX_SHOWN = 200
"""Models in the list: what is pinned, followed or held comes before what anybody publishes."""


@app.callback(invoke_without_command=True)
def models(ctx: typer.Context, config: Annotated[Path | None, _CONFIG] = None, json: Json = False) -> None:
    """List the models on the market: who serves what, at what price; `pin` gives one a name of your own."""
    if ctx.invoked_subcommand is not None:
        if config is not None:
            raise BadInput("--config", f"stands behind `{ctx.invoked_subcommand}`: it is an option of that")
        return
    if config is None:
        raise BadInput("--config", "a role's TOML file says where the market is")
    role = load_role(config)
    with name_relays(role.relays):
        found = asyncio.run(_models(role))
    if json:
        print_json({"models": found})
    else:
        _show(found)


@app.command()
def pin(
    name: Annotated[str, typer.Argument(help="Your name for the model: a-z, 0-9, ., _ and -.")],
    address: Annotated[str, typer.Argument(help="Its address (38840:<author>:<name>), or an naddr.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file, which gets a line.")],
    any_version: Annotated[
        bool,
        typer.Option(
            "--any-version",
            help="Pin every version that the author publishes there, and not only the version that is there now.",
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Pin the name even if it stands for another model.")
    ] = False,
    json: Json = False,
) -> None:
    """Pin a name to a model, at its present version. Later publications do not change it."""
    from nodewire.cli.common import pins
    from nodewire.customer.models.names import address_in
    from nodewire.protocol.market.model_name import name_in

    alias, at, role = name_in(name, "NAME"), address_in(address, "ADDRESS"), load_role(config)
    if at is None:
        raise BadInput("ADDRESS", f"{address[:80]!r} is a name; `nodewire models --config FILE` lists addresses")
    if isinstance(role, OracleConfig):
        raise BadConfig(str(config), "this is an oracle's file, which has no [names]")
    digest = None
    if not any_version:
        with name_relays(role.relays):
            digest = asyncio.run(_digest(role, at))
    model = ModelPin(manifest=at, digest=digest)
    is_new = pins.pin(config, alias, model, replace=replace)
    if json:
        print_json({"name": alias, **model.model_dump(), "new": is_new})
        return
    version = f", version {digest[:12]}" if digest else ", any version"
    console.print(f"[bold green]pinned[/] {alias} is {at}{version}", soft_wrap=True)


@app.command()
def unpin(
    name: Annotated[str, typer.Argument(help="A name that is pinned.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file, which loses a line.")],
    json: Json = False,
) -> None:
    """Take a name back."""
    from nodewire.cli.common import pins
    from nodewire.protocol.market.model_name import name_in

    alias = name_in(name, "NAME")
    load_role(config)
    pins.unpin(config, alias)
    if json:
        print_json({"name": alias})
        return
    console.print(f"[bold green]unpinned[/] {alias}")


async def _digest(role: AnyRole, address: str) -> str:
    async with AsyncExitStack() as stack:
        _, _, market = await enter_market(stack, role)
        return (await market.manifest(address)).digest()


def _show(found: Sequence[Mapping[str, Any]]) -> None:
    """Each model, then each node that serves any."""
    from rich.table import Table

    for model in found:
        titles = ("memory", "live providers", "a chunk from", "measured", "a position", "many at once")
        table = Table(f"{model['name']}  {model['mode']}", *titles, box=None)
        for task in model["tasks"]:
            price = "-" if task["min_price_msat"] is None else sats(task["min_price_msat"])
            row = (f"{task['memory_bytes'] / 1e6:.1f} MB", str(task["providers"]), price)
            table.add_row(task["name"], *row, *_measured(task["measured"]))
        console.print(table)
        for line in _called_with(model):
            console.print(line, soft_wrap=True)
        if any(task["measured"] for task in model["tasks"]):
            console.print("[dim]measured by providers: the most memory, and the least time, that one of them says[/]")
        console.print(f"[dim]served by {', '.join(node['public'][:8] for node in model['nodes']) or 'nobody'}[/]")
        console.print(f"[dim]{model['address']}[/]", soft_wrap=True)
        for line in _whose(model):
            console.print(line, soft_wrap=True)
        console.print()
    for node in {node["public"]: node for model in found for node in model["nodes"]}.values():
        work = f"{sats(node['passed_msat'])} of samples passed, {node['withheld']} withheld"
        console.print(f"[dim]{node['public'][:8]}: bond {sats(node['bond_msat'])}, {work}[/]", soft_wrap=True)


def _whose(model: Mapping[str, Any]) -> list[str]:
    """Whose the model is, and whether its name may be taken for another's, for people."""
    lines = [f"pinned as {', '.join(model['pinned_as'])}"] if model["pinned_as"] else []
    if model["standing"] in ("own", "followed"):
        lines.append("published by you" if model["standing"] == "own" else "published by a key that you follow")
    if odd := warning({**model, "fault": ""}, "[yellow]{}[/]"):
        lines.append(odd)
    return lines


def _called_with(model: Mapping[str, Any]) -> list[str]:
    """What a model of mode "run" takes and gives, for people; nothing of others."""
    lines = [
        f"{word} {one_line(', '.join(f'{name} {kind}' for name, kind in model[word].items()))}"
        for word in ("takes", "gives")
        if word in model
    ]
    if most := model.get("most"):
        lines[0] += f"  [dim]{one_line(', '.join(f'{dim} up to {size:,}' for dim, size in most.items()))}[/]"
    return lines


def _signature(manifest: Manifest) -> dict[str, Any]:
    """The types of what a model of mode "run" takes and gives, by name, and the largest sizes that one task takes."""
    from nodewire.protocol.model.signature import Signature, described

    if manifest.mode != "run":
        return {}
    signature = Signature.from_manifest(manifest)
    inputs, outputs = signature.inputs.items(), signature.outputs.items()
    return {
        "takes": {name: described(tensor) for name, tensor in inputs},
        "gives": {name: described(tensor) for name, tensor in outputs},
        "most": dict(signature.dims),
    }


def _measured(said: list[dict[str, int]]) -> tuple[str, str, str]:
    """Of what providers published of a task: memory, one position's time, and the least of one of many."""
    if not said:
        return "-", "-", "-"
    alone = min(one["us"] for one in said) / 1_000
    together = min(said, key=lambda one: one["us_together"] / one["positions"])
    each = together["us_together"] / together["positions"] / 1_000
    memory = max(one["peak_bytes"] for one in said) / 1e6
    return f"{memory:.1f} MB", f"{alone:.3g} ms", f"{each:.3g} ms of {together['positions']:,}"


async def _models(role: AnyRole) -> list[dict[str, Any]]:
    from nodewire.customer.models.names import ModelNames
    from nodewire.market import read_manifest
    from nodewire.protocol.committee import reputation
    from nodewire.protocol.model import manifest_event

    async with AsyncExitStack() as stack:
        keys, pool, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        profiles = snapshot.profiles({node.pubkey for node in snapshot.nodes})
        pinned = {} if isinstance(role, OracleConfig) else role.names
        names = ModelNames(keys.public, pool, market, pinned)
        known = await names.known()
        found = []
        for event in await names.market_events(known, snapshot, MAX_SHOWN):
            try:
                manifest = await read_manifest(event, market.blobs)
                called_with = _signature(manifest)
            except NodewireError as error:
                notes.print(f"[dim]{one_line(str(event.tag('d')))}: {one_line(str(error))}[/]", soft_wrap=True)
                continue
            digest, address = manifest.digest(), manifest_event.address(event)
            published = [one.tasks for one in profiles.values()]
            holders = [(n, h) for n in snapshot.nodes for h in n.held if h.manifest == digest]
            offers = [t for _, h in holders for t in h.tasks]
            tasks = []
            for task in manifest.tasks:
                told = [one[digest, task.name] for one in published if (digest, task.name) in one]
                prices = [offer.price_msat for offer in offers if offer.task == task.name]
                tasks.append(
                    {
                        "name": task.name,
                        "memory_bytes": task.memory_bytes,
                        "providers": len(prices),
                        "min_price_msat": min(prices, default=None),
                        "measured": [asdict(one) for one in told],
                    }
                )
            nodes = [
                {
                    "public": n.pubkey,
                    "bond_msat": n.bond_msat,
                    "passed_msat": reputation.shown(n.passed),
                    "withheld": reputation.shown(n.withheld),
                }
                for n, _ in holders
            ]
            whose = {
                "publisher": event.pubkey,
                "standing": known.standing(address),
                "resembles": known.resembled(address),
                "pinned_as": [alias for alias, one in pinned.items() if one.manifest == address],
            }
            said = {"address": address, "digest": digest, "name": manifest.name, "mode": manifest.mode, **whose}
            found.append({**said, "bytes": manifest.weight_bytes, "tasks": tasks, "nodes": nodes, **called_with})
        return found
