"""`nodewire models`: what is on the market, who serves it, and for how much."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from nodewire.cli.output import CUSTOMERS, Json, console, notes, one_line, print_json, sats
from nodewire.cli.roles import enter_market, naming
from nodewire.config import AnyRole, load_role
from nodewire.errors import NodewireError


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
        return
    from rich.table import Table

    for model in found:
        table = Table(f"{model['name']}  {model['mode']}", "memory", "live providers", "a chunk from", box=None)
        for task in model["tasks"]:
            price = "-" if task["min_price_msat"] is None else sats(task["min_price_msat"])
            table.add_row(task["name"], f"{task['memory_bytes'] / 1e6:.1f} MB", str(task["providers"]), price)
        console.print(table)
        for node in model["nodes"]:
            work = f"{node['passed']} samples passed, {node['withheld']} withheld"
            console.print(f"[dim]{node['public'][:8]}: bond {sats(node['bond_msat'])}, {work}[/]", soft_wrap=True)
        console.print(f"[dim]{model['address']}[/]\n", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(models)


async def _models(role: AnyRole) -> list[dict[str, Any]]:
    from nodewire.nostr.nip01 import Filter
    from nodewire.protocol import account, kinds, publish

    async with AsyncExitStack() as stack:
        _, pool, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        found = []
        for event in await pool.fetch([Filter(kinds=frozenset({kinds.MANIFEST}), limit=200)], timeout_s=10.0):
            try:
                manifest = await market.manifest(publish.address(event))
            except NodewireError as error:
                notes.print(f"[dim]{one_line(str(event.tag('d')))}: {one_line(str(error))}[/]", soft_wrap=True)
                continue
            digest = manifest.digest()
            holders = [(n, h) for n in snapshot.nodes for h in n.held if h.manifest == digest]
            offers = [t for _, h in holders for t in h.tasks]
            tasks = []
            for task in manifest.tasks:
                prices = [offer.price_msat for offer in offers if offer.task == task.name]
                tasks.append(
                    {
                        "name": task.name,
                        "memory_bytes": task.memory_bytes,
                        "providers": len(prices),
                        "min_price_msat": min(prices, default=None),
                    }
                )
            nodes = [
                {
                    "public": n.pubkey,
                    "bond_msat": n.bond_msat,
                    "passed": account.times(n.passed),
                    "withheld": account.times(n.withheld),
                }
                for n, _ in holders
            ]
            address, name, mode = publish.address(event), manifest.name, manifest.mode
            found.append({"address": address, "name": name, "mode": mode, "tasks": tasks, "nodes": nodes})
        return found
