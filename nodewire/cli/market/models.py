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
from nodewire.cli.output import CUSTOMERS, Json, console, notes, one_line, per_million, price_of_work, print_json, sats
from nodewire.config import AnyRole, ModelPin, OracleConfig, load_role
from nodewire.errors import BadConfig, BadInput, NodewireError
from nodewire.protocol.market.cached_price import WHOLE_PPM, cached_msat
from nodewire.protocol.market.token_price import per_million_msat

if TYPE_CHECKING:
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.snapshot import HeldTasks, Node
    from nodewire.protocol.model.manifest import Manifest, Task


app = typer.Typer(help="List the models on the market, and give them names of your own.")
_CONFIG = typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")
MAX_SHOWN = 200
"""Models in the list: what is pinned, followed or held comes before what anybody publishes."""


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="models", rich_help_panel=CUSTOMERS)


@app.callback(invoke_without_command=True)
def models(ctx: typer.Context, config: Annotated[Path | None, _CONFIG] = None, json: Json = False) -> None:
    """List the models on the market: who serves what, at what price; `pin` gives one a name of your own."""
    if ctx.invoked_subcommand is not None:
        for option, is_given in (("--config", config is not None), ("--json", json)):
            if is_given:
                raise BadInput(
                    option,
                    f"belongs behind `{ctx.invoked_subcommand}`: write `models {ctx.invoked_subcommand} {option}`",
                )
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
        unit = "a million tokens from" if model["mode"] == "generate" else "a call from"
        titles = ("memory", "live providers", unit, "measured", "a position", "many at once")
        table = Table(f"{model['name']}  {model['mode']}", *titles, box=None)
        for task in model["tasks"]:
            price = _price(task["min_price_msat"], model)
            row = (f"{task['memory_bytes'] / 1e6:.1f} MB", str(task["providers"]), price)
            table.add_row(task["name"], *row, *_measured(task["measured"]))
        console.print(table)
        for line in (*_prices(model), *_called_with(model)):
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


def _price(msat: int | None, model: Mapping[str, Any]) -> str:
    if msat is None:
        return "-"
    return per_million(msat, model["chunk"]) if model["mode"] == "generate" else sats(msat)


def _prices(model: Mapping[str, Any]) -> list[str]:
    """The least price of all tasks of a model, for people; nothing if one has no provider."""
    price = model["price"]
    if price["whole_msat"] is None:
        return []
    whole = price_of_work(price["whole_msat"], model["mode"], model["chunk"])
    if model["mode"] != "generate":
        return [f"[bold]{whole}[/] at least"]
    found = per_million(price["cached_msat"], model["chunk"])
    return [f"[bold]{whole}[/] at least, in or out; {found} of a prompt's beginning that was found"]


def _least(manifest: Manifest, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The least price of all tasks: a chunk (or a call), and a million tokens in, out, and found.

    Tasks that keep nothing of a prompt cost the same where it was found.
    """
    whole = [task["min_price_msat"] for task in tasks]
    found = [task["min_cached_msat"] for task in tasks]
    price: dict[str, Any] = {"whole_msat": None if None in whole else sum(whole)}
    price["cached_msat"] = None if None in found else sum(found)
    if manifest.mode != "generate":
        return {"whole_msat": price["whole_msat"]}
    for name, msat in (("in", "whole_msat"), ("out", "whole_msat"), ("cached", "cached_msat")):
        known = price[msat]
        price[f"{name}_msat_per_million"] = None if known is None else int(per_million_msat(known, manifest.chunk))
    return price


def _task_row(
    task: Task, holders: Sequence[tuple[Node, HeldTasks]], told: Sequence[Any], ads: Mapping[str, Ad]
) -> dict[str, Any]:
    """One task: who serves it, for how much at least, and what providers have measured of it."""
    keeps = task.engine == "decoder.stage"
    prices, found = [], []
    for node, held in holders:
        for offer in held.tasks:
            if offer.task == task.name:
                ppm = ads[node.pubkey].cached_ppm if keeps and node.pubkey in ads else WHOLE_PPM
                prices.append(offer.price_msat)
                found.append(cached_msat(offer.price_msat, ppm))
    return {
        "name": task.name,
        "memory_bytes": task.memory_bytes,
        "providers": len(prices),
        "min_price_msat": min(prices, default=None),
        "min_cached_msat": min(found, default=None),
        "measured": [asdict(one) for one in told],
    }


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
        everybody = {node.pubkey for node in snapshot.nodes}
        profiles, ads = snapshot.profiles(everybody), snapshot.ads(everybody)
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
            tasks = []
            for task in manifest.tasks:
                told = [one[digest, task.name] for one in published if (digest, task.name) in one]
                tasks.append(_task_row(task, holders, told, ads))
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
            cost = {"chunk": manifest.chunk, "price": _least(manifest, tasks)}
            found.append(
                {**said, **cost, "bytes": manifest.weight_bytes, "tasks": tasks, "nodes": nodes, **called_with}
            )
        return found
