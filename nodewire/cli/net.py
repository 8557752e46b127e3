"""`nodewire net`: a role's links as its daemon measured them, and how far the nodes of the market are from here."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from nodewire.cli.braille import curve, plane
from nodewire.cli.output import OPERATORS, Json, console, in_words, notes, one_line, print_json
from nodewire.cli.roles import enter_market, naming
from nodewire.config import AnyRole, load_role
from nodewire.errors import BadInput, NodewireError
from nodewire.protocol.coordinates import Coordinates, rtt_us

if TYPE_CHECKING:
    from nodewire.wire.health_log import Edge, Sample
    from nodewire.wire.vivaldi import Claim

_DAY_S = 86_400
_WIDTH, _HEIGHT = 64, 14
_CURVE_LINES = 5
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HERE = "@"


@dataclass(frozen=True, slots=True)
class Placed:
    """A node of the snapshot; `rtt_us` is what is predicted from here, None where it is not known where that is."""

    public: str
    name: str
    region: str
    at: Coordinates
    rtt_us: int | None


def net(
    config: Annotated[Path, typer.Option("--config", "-c", help="A role's TOML file: its state, relays, committee.")],
    peer: Annotated[str, typer.Option(help="Show the last day of one link: the first digits of its key.")] = "",
    chart: Annotated[Path | None, typer.Option(help="Draw the nodes' plane into this SVG file.")] = None,
    json: Json = False,
) -> None:
    """Show this role's links, measured, and the market's nodes: where they are, and how far from here."""
    from nodewire.wire import health_log

    role = load_role(config)
    claim, edges = health_log.read(role.state)
    if peer:
        return _show_one(role, edges, peer.lower(), json)
    try:
        with naming(role.relays):
            nodes = asyncio.run(_placed(role, claim))
        silence = None
    except NodewireError as error:
        nodes, silence = [], error
    here = claim.at if claim is not None else None
    if chart is not None:
        from nodewire.cli.net_plot import plot

        plot([(node.name, node.at) for node in nodes], here, chart)
    if json:
        print_json(
            {
                "here": None if claim is None else {"at": claim.at, "error_ppm": claim.error_ppm},
                "links": [_plain(edge) for edge in edges],
                "nodes": [asdict(node) for node in nodes],
                "market": None if silence is None else silence.as_dict(),
            }
        )
        return
    names = {node.public: node.name for node in nodes}
    _show_links(edges, names, {node.public: node.rtt_us for node in nodes})
    if nodes:
        _show_nodes(nodes, here)
    if silence is not None:
        notes.print(f"[yellow]the market's nodes are not known[/]: {one_line(in_words(silence))}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(net)


async def _placed(role: AnyRole, claim: Claim | None) -> list[Placed]:
    """The nodes of the newest snapshot, the nearest first."""
    async with AsyncExitStack() as stack:
        _, _, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        ads = snapshot.ads({node.pubkey for node in snapshot.nodes})
    nodes = [
        Placed(
            public=node.pubkey,
            name=ads[node.pubkey].name if node.pubkey in ads else node.pubkey[:8],
            region=node.region,
            at=node.coordinates,
            rtt_us=None if claim is None else rtt_us(claim.at, node.coordinates),
        )
        for node in snapshot.nodes
    ]
    return sorted(nodes, key=lambda node: (node.rtt_us or 0, node.public))


def _show_links(edges: list[Edge], names: dict[str, str], predicted_us: dict[str, int | None]) -> None:
    if not edges:
        console.print("no links yet: this role's daemon has not linked to anybody")
        return
    now_s = time.time()
    table = Table("peer", "rung", "RTT", "jitter", "predicted", "loss", "at least", "control", "lost", "", box=None)
    for edge in sorted(edges, key=lambda edge: (not edge.is_open(now_s), edge.peer)):
        up = edge.is_open(now_s)
        said = "[green]open[/]" if up else f"[red]{_ago(now_s - edge.seen_s)} ago[/]"
        ending = one_line(edge.ending.reason) if edge.ending is not None else ""
        table.add_row(
            one_line(names.get(edge.peer, edge.peer[:8])),
            edge.rung,
            _ms(edge.rtt.median_us if edge.rtt else None),
            _ms(edge.rtt.jitter_us if edge.rtt else None),
            _ms(predicted_us.get(edge.peer)),
            "-" if edge.lost_ppm is None else f"{edge.lost_ppm / 1e4:.2f} %",
            f"{edge.bytes_per_s * 8 / 1e6:,.1f} Mbit/s" if edge.bytes_per_s else "-",
            edge.congestion or "-",
            f"{edge.lost}",
            f"{said} [dim]{ending}[/]",
            style=None if up else "dim",
        )
    console.print(table)


def _show_nodes(nodes: list[Placed], here: Coordinates | None) -> None:
    table = Table("", "node", "region", "from here", "last mile", box=None)
    for index, node in enumerate(nodes):
        table.add_row(
            _LETTERS[index] if index < len(_LETTERS) else "",
            one_line(node.name),
            one_line(node.region),
            _ms(node.rtt_us),
            _ms(node.at[2]),
        )
    console.print(table)
    marks = [(float(node.at[0]), float(node.at[1]), _LETTERS[i : i + 1]) for i, node in enumerate(nodes)]
    if here is not None:
        marks.append((float(here[0]), float(here[1]), _HERE))
    lines, across_us = plane(marks, _WIDTH, _HEIGHT)
    console.print("\n".join(lines), soft_wrap=True)
    where = f"; {_HERE} is here" if here is not None else ""
    console.print(f"[dim]{across_us / 1000:.1f} ms from left to right, last miles not counted{where}[/]")


def _show_one(role: AnyRole, edges: list[Edge], peer: str, json: bool) -> None:
    from nodewire.wire import health_log

    found = [edge for edge in edges if edge.peer.startswith(peer)]
    if len(found) != 1:
        raise BadInput("--peer", f"{len(found)} of this role's {len(edges)} links begin with {peer[:80]!r}")
    edge, now_s = found[0], int(time.time())
    samples = health_log.samples(role.state, edge.peer, now_s - _DAY_S)
    if json:
        print_json({**_plain(edge), "samples": [asdict(one) for one in samples]})
        return
    _show_links([edge], {}, {})
    measured = [one.rtt.median_us / 1000 for one in samples if one.rtt is not None]
    if measured:
        console.print("\n".join(curve(measured, _WIDTH, _CURVE_LINES)))
        console.print(
            f"[dim]RTT, {min(measured):.1f} to {max(measured):.1f} ms, over the last {_ago(now_s - samples[0].at_s)}[/]"
        )
    _show_loss(samples)


def _show_loss(samples: list[Sample]) -> None:
    lost_ppm = [one.lost_ppm for one in samples if one.lost_ppm is not None]
    if lost_ppm:  # shared memory loses nothing, and a link says nothing before it has sent enough
        console.print(f"[dim]loss now {lost_ppm[-1] / 1e4:.2f} %, at worst {max(lost_ppm) / 1e4:.2f} %[/]")


def _plain(edge: Edge) -> dict[str, Any]:
    return {**asdict(edge), "open": edge.is_open(time.time())}


def _ms(us: int | None) -> str:
    return "-" if us is None else f"{us / 1000:.1f} ms"


def _ago(seconds: float) -> str:
    for unit, size in (("d", _DAY_S), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
