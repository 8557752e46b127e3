"""`nodewire models`: what is on the market, who serves it, and for how much."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.output import CUSTOMERS, Json, console, notes, one_line, print_json, sats
from nodewire.cli.roles import enter_market, naming
from nodewire.config import AnyRole, load_role
from nodewire.errors import NodewireError

if TYPE_CHECKING:
    from nodewire.protocol.manifest import Manifest


def models(
    config: Annotated[Path, typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")],
    json: Json = False,
) -> None:
    """List the models on the market: who serves what, at what price."""
    role = load_role(config)
    with naming(role.relays):
        found = asyncio.run(_models(role))
    if json:
        print_json({"models": found})
    else:
        _show(found)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(models)


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
        console.print(f"[dim]{model['address']}[/]\n", soft_wrap=True)
    for node in {node["public"]: node for model in found for node in model["nodes"]}.values():
        work = f"{sats(node['passed_msat'])} of samples passed, {node['withheld']} withheld"
        console.print(f"[dim]{node['public'][:8]}: bond {sats(node['bond_msat'])}, {work}[/]", soft_wrap=True)


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
    from nodewire.protocol.signature import Signature, described

    if manifest.mode != "run":
        return {}
    signature = Signature.of(manifest)
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
    from nodewire.nostr.nip01 import Filter
    from nodewire.protocol import account, kinds, publish

    async with AsyncExitStack() as stack:
        _, pool, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        profiles = snapshot.profiles({node.pubkey for node in snapshot.nodes})
        found = []
        for event in await pool.fetch([Filter(kinds=frozenset({kinds.MANIFEST}), limit=200)], timeout_s=10.0):
            try:
                manifest = await market.manifest(publish.address(event))
                called_with = _signature(manifest)
            except NodewireError as error:
                notes.print(f"[dim]{one_line(str(event.tag('d')))}: {one_line(str(error))}[/]", soft_wrap=True)
                continue
            digest = manifest.digest()
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
                    "passed_msat": account.shown(n.passed),
                    "withheld": account.shown(n.withheld),
                }
                for n, _ in holders
            ]
            said = {"address": publish.address(event), "name": manifest.name, "mode": manifest.mode}
            found.append({**said, "tasks": tasks, "nodes": nodes, **called_with})
        return found
