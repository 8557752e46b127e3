"""`nodewire swarm`: keys for a swarm's file, the file itself, and whether its nodes are there."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from nodewire.cli.output import CUSTOMERS, Json, console, print_json
from nodewire.cli.swarm.swarm_options import Key, Split, State, customer_of, key_of
from nodewire.errors import BadInput, NodewireError

app = typer.Typer(help="A swarm by a file: machines of people who know each other, no market.", no_args_is_help=True)


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="swarm", rich_help_panel=CUSTOMERS)


@app.command()
def key(json: Json = False) -> None:
    """Print this machine's npubs, as a node and as a customer; the keys are made if there are none."""
    from nodewire.nostr.keys import Keys

    made = {}
    for role in ("node", "customer"):
        path = key_of(role)
        path.parent.mkdir(parents=True, exist_ok=True)
        made[role] = {"npub": Keys.from_file(path).npub, "file": str(path)}
    if json:
        print_json(made)
        return
    for role, one in made.items():
        console.print(f"{role:9}[bold]{one['npub']}[/]  [dim]{escape(one['file'])}[/]", soft_wrap=True)


@app.command()
def new(
    node: Annotated[list[str], typer.Option(help="NPUB@HOST:PORT of a node, in the ring's order (repeat it).")],
    customer: Annotated[list[str], typer.Option(help="NPUB of a customer (may be repeated).")],
    name: Annotated[str, typer.Option(help="The swarm's name.")] = "home",
    model: Annotated[str, typer.Option(help="The path of the model's folder or GGUF file on each machine.")] = "",
    split: Annotated[str, typer.Option(help="The nodes' layers, such as 0-7,8-15 (default: shared evenly).")] = "",
    json: Json = False,
) -> None:
    """Print a swarm's file, to be put on every machine: `nodewire swarm new ... > swarm.toml`."""
    import tempfile

    from nodewire.protocol.model import layer_ranges
    from nodewire.swarm.file import SwarmFile

    layers = [layer_ranges.written([one]) for one in layer_ranges.parse(split)] if split else [""] * len(node)
    if len(layers) != len(node):
        raise BadInput("--split", f"{len(layers)} stages for {len(node)} nodes")
    lines = [f'name = "{name}"', *([f'model = "{model}"'] if model else [])]
    lines.append(f"customers = [{', '.join(map(_quoted, customer))}]")
    for one, own in zip(node, layers, strict=True):
        who, _, address = one.partition("@")
        lines += ["", "[[nodes]]", f"npub = {_quoted(who)}", f"address = {_quoted(address)}"]
        lines += [f'layers = "{own}"'] if own else []
    text = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as scratch:  # what cannot be read is not printed
        (Path(scratch) / "swarm.toml").write_text(text)
        SwarmFile.read(Path(scratch) / "swarm.toml")
    if json:
        print_json({"file": text})
    else:
        print(text, end="")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The swarm's file.")],
    split: Split = "",
    key: Key = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Check that every node of a file answers, goes by the same file, and holds the same model."""
    member = customer_of(file, split, key, state, None)
    found = asyncio.run(_asked(member))
    well = all(row["says"] == "" for row in found) and len({row["manifest"] for row in found}) == 1
    if json:
        print_json({"well": well, "nodes": found})
    else:
        table = Table("node", "address", "model", "round trip", "", box=None, header_style="bold dim")
        for row in found:
            trip = f"{row['rtt_ms']:.2f} ms" if row["rtt_ms"] is not None else "-"
            says = row["says"].removeprefix(f"{row['name']} ({row['address']}) ")
            table.add_row(row["name"], row["address"], row["manifest"][:12] or "-", trip, escape(says) or "well")
        console.print(table)
        if not well and all(row["says"] == "" for row in found):
            console.print("the nodes hold different copies of the model: give all the same files")
    if not well:
        raise typer.Exit(1)


async def _asked(member: Any) -> list[dict[str, Any]]:
    from nodewire.customer.static_swarm import OTHER_FILE, NodesRecord, in_words, start

    async with AsyncExitStack() as stack:
        session = await start(stack, member)
        assert isinstance(session.public_record, NodesRecord)
        nodes = session.public_record.members
        swarm = member.file.swarm

        async def ask(entry: Any) -> dict[str, Any]:
            row = {"name": entry.called, "npub": entry.npub, "address": entry.address, "manifest": "", "rtt_ms": None}
            try:
                said, link = await nodes.ask(entry)
            except NodewireError as error:
                return {**row, "says": in_words(entry, error)}
            await asyncio.sleep(0.2)  # a heartbeat's round trip
            trip = link.rtt_us
            row |= {"manifest": said.manifest, "rtt_ms": trip / 1000 if trip is not None else None}
            other = said.swarm != swarm.digest()
            return {**row, "says": OTHER_FILE if other else ""}

        return list(await asyncio.gather(*map(ask, member.file.ring)))


def _quoted(text: str) -> str:
    """A TOML string. Raises BadInput."""
    if any(c in text for c in '"\\') or not text.isprintable():
        raise BadInput("--node", f"{text[:80]!r} has what stands in no npub or address")
    return f'"{text}"'
