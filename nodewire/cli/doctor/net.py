"""`nodewire net`: a role's links as its daemon measured them, and how far the nodes of the market are from here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from nodewire.cli.common.braille import curve, plane
from nodewire.cli.common.roles import enter_market, name_relays
from nodewire.cli.output import OPERATORS, Json, console, counted, in_words, notes, one_line, print_json
from nodewire.config import AnyRole, load_role
from nodewire.errors import BadInput, NodewireError
from nodewire.protocol.encoding.byte_sizes import in_units
from nodewire.protocol.market.coordinates import Coordinates, rtt_us

if TYPE_CHECKING:
    from nodewire.wire.measure.link_health_store import Edge, Sample
    from nodewire.wire.measure.vivaldi import Claim

_DAY_S = 86_400
_WIDTH, _HEIGHT = 64, 14
_CURVE_LINES = 5
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HERE = "@"
_DIGITS = 8
_MOST_LISTED = 8
_ONE_PLACE_US = 1_000


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the snapshot; `rtt_us` is what is predicted from here, None where it is not known where that is.

    The rest is what its ad says and nobody certifies: memory for tasks, and what its device does in float32.
    """

    public: str
    name: str
    region: str
    at: Coordinates
    rtt_us: int | None
    memory_bytes: int = 0
    flops_per_s: int | None = None
    bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class _MarketView:
    """What was known when the command looked: where this node is, and the market's nodes or why they are not known."""

    claim: Claim | None
    nodes: Mapping[str, NodeRow]
    silence: NodewireError | None
    now_s: float

    def name(self, public: str) -> str | None:
        return self.nodes[public].name if public in self.nodes else None

    def called(self, public: str) -> str:
        """The name, which others may have as well, and the key's first digits."""
        name, digits = self.name(public) or "", public[:_DIGITS]
        return name if digits in name else f"{name} {digits}".strip()

    def predicted_us(self, public: str) -> int | None:
        return self.nodes[public].rtt_us if public in self.nodes else None

    def unpredicted(self, public: str) -> str | None:
        """Why no round trip is predicted; None if one is."""
        if self.predicted_us(public) is not None:
            return None
        if self.silence is not None:
            return f"the market's nodes are not known: {in_words(self.silence)}"
        if self.claim is None:
            return "it is not known yet where this node is"
        return "it is no live provider of the market, and only those say where they are"


def net(
    config: Annotated[Path, typer.Option("--config", "-c", help="A role's TOML file: its state, relays, committee.")],
    peer: Annotated[str, typer.Option(help="Show one link's last day: the node's name, npub, or first digits.")] = "",
    chart: Annotated[Path | None, typer.Option(help="Draw the nodes' plane into this SVG file.")] = None,
    json: Json = False,
) -> None:
    """Show this role's links, measured, and the market's nodes: where they are, and how far from here."""
    from nodewire.wire.measure import link_health_store

    role = load_role(config)
    claim, edges = link_health_store.read(role.state)
    if peer and not edges:
        raise BadInput("--peer", "this role has had no link yet")
    try:
        with name_relays(role.relays):
            nodes = asyncio.run(_placed(role, claim))
        silence = None
    except NodewireError as error:
        nodes, silence = [], error
    seen = _MarketView(claim, {node.public: node for node in nodes}, silence, time.time())
    if peer:
        _show_one(role, _chosen(edges, seen, peer), seen, json)
        return
    if chart is not None:
        _draw(chart, nodes, seen)
    if json:
        print_json(
            {
                "here": None if claim is None else {"at": claim.at, "error_ppm": claim.error_ppm},
                "links": [_plain(edge, seen) for edge in edges],
                "nodes": [asdict(node) for node in nodes],
                "market": None if silence is None else silence.as_dict(),
            }
        )
        return
    _show_links(edges, seen)
    if nodes:
        _show_nodes(nodes, None if claim is None else claim.at)
    if silence is not None:
        notes.print(f"[yellow]the market's nodes are not known[/]: {one_line(in_words(silence))}", soft_wrap=True)
    elif edges and claim is None:
        notes.print("[yellow]no round trip is predicted[/]: it is not known yet where this node is", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(net)


async def _placed(role: AnyRole, claim: Claim | None) -> list[NodeRow]:
    """The nodes of the newest snapshot, the nearest first."""
    async with AsyncExitStack() as stack:
        _, _, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        publics = {node.pubkey for node in snapshot.nodes}
        ads, profiles = snapshot.ads(publics), snapshot.profiles(publics)
    nodes = []
    for node in snapshot.nodes:
        ad, profile = ads.get(node.pubkey), profiles.get(node.pubkey)
        rate = profile.rates.get("float32") if profile is not None else None
        nodes.append(
            NodeRow(
                public=node.pubkey,
                name=ad.name if ad is not None else node.pubkey[:_DIGITS],
                region=node.region,
                at=node.coordinates,
                rtt_us=None if claim is None else rtt_us(claim.at, node.coordinates),
                memory_bytes=ad.memory_bytes if ad is not None else 0,
                flops_per_s=rate.flops_per_s if rate is not None else None,
                bytes_per_s=rate.bytes_per_s if rate is not None else None,
            )
        )
    return sorted(nodes, key=lambda node: (node.rtt_us or 0, node.public))


def _chosen(edges: list[Edge], seen: _MarketView, wanted: str) -> Edge:
    """The link that is meant by a node's name, its npub, the first digits of its key, or what `net` calls it.

    Raises BadInput: there is none, or more than one.
    """
    from nodewire.nostr.keys import from_npub

    public = from_npub(wanted) if wanted.startswith("npub1") else wanted.lower()
    called = [edge for edge in edges if wanted in (seen.name(edge.peer), seen.called(edge.peer))]
    found = called or [edge for edge in edges if edge.peer.startswith(public)]
    if len(found) == 1:
        return found[0]
    among = [seen.called(edge.peer) for edge in found or edges]
    listed = ", ".join(among[:_MOST_LISTED]) + (" ..." if len(among) > _MOST_LISTED else "")
    fits = f"{len(found)} links fit" if found else "no link fits"
    unnamed = "" if seen.silence is None else ". Names are not known: the market is silent"
    raise BadInput("--peer", f"{fits} {wanted[:80]!r}; there {'is' if len(among) == 1 else 'are'} {listed}{unnamed}")


def _show_links(edges: list[Edge], seen: _MarketView) -> None:
    """Those that are open, then those that were."""
    if not edges:
        console.print("no links yet: this role has not linked to anybody")
        return
    edges = sorted(edges, key=lambda edge: (edge.age_s(seen.now_s), edge.peer))
    now = [edge for edge in edges if edge.is_open(seen.now_s)]
    past = [edge for edge in edges if not edge.is_open(seen.now_s)]
    if now:
        console.print("[bold]open now[/]")
        console.print(_table(now, seen))
    else:
        console.print("no link is open now")
    if past:
        console.print("[bold]past[/], as they were at last")
        console.print(_table(past, seen))


def _table(edges: list[Edge], seen: _MarketView) -> Table:
    """Of figures those that some link has."""
    titles = ("peer", "rung", "RTT", "jitter", "predicted", "loss", "at least", "control", "lost", "")
    rows = [
        (
            one_line(seen.called(edge.peer)),
            edge.rung,
            _ms(edge.rtt.median_us if edge.rtt else None),
            _ms(edge.rtt.jitter_us if edge.rtt else None),
            _ms(seen.predicted_us(edge.peer)),
            "-" if edge.lost_ppm is None else f"{edge.lost_ppm / 1e4:.2f} %",
            f"{edge.bytes_per_s * 8 / 1e6:,.1f} Mbit/s" if edge.bytes_per_s else "-",
            edge.congestion or "-",
            f"{edge.lost}",
            _standing(edge, seen.now_s),
        )
        for edge in edges
    ]
    shown = [k for k in range(len(titles)) if any(row[k] != "-" for row in rows)]
    table = Table(box=None)
    for k in shown:
        table.add_column(titles[k], no_wrap=bool(titles[k]))
    for edge, row in zip(edges, rows, strict=True):
        table.add_row(*(row[k] for k in shown), style=None if edge.is_open(seen.now_s) else "dim")
    return table


def _standing(edge: Edge, now_s: float) -> str:
    """Since when a link is open or over, and why it was lost the last time."""
    age = _ago(edge.age_s(now_s))
    why = one_line(edge.ending.reason.removeprefix(f"{edge.peer}: ")) if edge.ending is not None else ""
    if edge.is_open(now_s):
        return f"[green]open[/] for {age}" + (f" [dim]lost before: {why}[/]" if why else "")
    if edge.state == "closed":
        return f"closed {age} ago, when this role was done"
    if edge.state == "lost":
        return f"[red]lost[/] {age} ago [dim]{why}[/]"
    return f"[red]last seen[/] {age} ago: this role's process was killed"


def _show_nodes(nodes: list[NodeRow], here: Coordinates | None) -> None:
    table = Table("", "node", "region", "from here", "last mile", "memory", "GFLOP/s", "GB/s", box=None)
    for index, node in enumerate(nodes):
        table.add_row(
            _LETTERS[index] if index < len(_LETTERS) else "",
            one_line(node.name),
            one_line(node.region),
            _ms(node.rtt_us),
            _ms(node.at[2]),
            in_units(node.memory_bytes) if node.memory_bytes else "-",
            _giga(node.flops_per_s),
            _giga(node.bytes_per_s),
        )
    console.print(table)
    if any(node.flops_per_s for node in nodes):
        console.print("[dim]memory and rates (float32) are what each node says that it measured[/]")
    marks = [(float(node.at[0]), float(node.at[1]), _LETTERS[i : i + 1]) for i, node in enumerate(nodes)]
    if here is not None:
        marks.append((float(here[0]), float(here[1]), _HERE))
    axes = [x for x, _, _ in marks], [y for _, y, _ in marks]
    if max(max(axis) - min(axis) for axis in axes) < _ONE_PLACE_US:
        console.print("[dim]no plane is drawn: all of this is within a millisecond, last miles not counted[/]")
        return
    lines, across_us = plane(marks, _WIDTH, _HEIGHT)
    console.print("\n".join(lines), soft_wrap=True)
    where = f"; {_HERE} is here" if here is not None else ""
    console.print(f"[dim]{across_us / 1000:.1f} ms from left to right, last miles not counted{where}[/]")


def _draw(chart: Path, nodes: list[NodeRow], seen: _MarketView) -> None:
    if not nodes:
        notes.print(f"[yellow]{one_line(str(chart))} is not written[/]: no node's place is known", soft_wrap=True)
        return
    from nodewire.cli.doctor.net_plot import plot

    plot([(node.name, node.at) for node in nodes], None if seen.claim is None else seen.claim.at, chart)
    notes.print(f"{one_line(str(chart))}: {counted(len(nodes), 'node')} drawn", soft_wrap=True)


def _show_one(role: AnyRole, edge: Edge, seen: _MarketView, json: bool) -> None:
    from nodewire.wire.measure import link_health_store

    samples = link_health_store.samples(role.state, edge.peer, int(seen.now_s) - _DAY_S)
    if json:
        print_json({**_plain(edge, seen), "samples": [asdict(one) for one in samples]})
        return
    _show_links([edge], seen)
    if (why := seen.unpredicted(edge.peer)) is not None:
        console.print(f"[dim]no round trip is predicted: {one_line(why)}[/]", soft_wrap=True)
    measured = [one.rtt.median_us / 1000 for one in samples if one.rtt is not None]
    if measured:
        console.print("\n".join(curve(measured, _WIDTH, _CURVE_LINES)))
        last = _ago(seen.now_s - samples[-1].at_s)
        console.print(
            f"[dim]RTT, {min(measured):.1f} to {max(measured):.1f} ms, from {_ago(seen.now_s - samples[0].at_s)} to"
            f" {last} ago[/]"
        )
    _show_loss(samples)


def _show_loss(samples: list[Sample]) -> None:
    lost_ppm = [one.lost_ppm for one in samples if one.lost_ppm is not None]
    if lost_ppm:  # shared memory loses nothing, and a link says nothing before it has sent enough
        console.print(f"[dim]loss at last {lost_ppm[-1] / 1e4:.2f} %, at worst {max(lost_ppm) / 1e4:.2f} %[/]")


def _plain(edge: Edge, seen: _MarketView) -> dict[str, Any]:
    return {
        **asdict(edge),
        "name": seen.name(edge.peer),
        "open": edge.is_open(seen.now_s),
        "age_s": edge.age_s(seen.now_s),
        "predicted_us": seen.predicted_us(edge.peer),
        "unpredicted": seen.unpredicted(edge.peer),
    }


def _ms(us: int | None) -> str:
    return "-" if us is None else f"{us / 1000:.1f} ms"


def _giga(per_s: int | None) -> str:
    return "-" if per_s is None else f"{per_s / 1e9:,.1f}"


def _ago(seconds: float) -> str:
    for unit, size in (("d", _DAY_S), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
