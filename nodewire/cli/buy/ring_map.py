"""A swarm's job as people see it: the ring before the text, the speed after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from nodewire.cli.output import notes, one_line

if TYPE_CHECKING:
    from nodewire.customer.job.session import PlannedJob
    from nodewire.wire.node import Node


def show_ring(bought: PlannedJob, names: Mapping[str, str], node: Node) -> None:
    """Who computes which layers, and how far each is from here."""
    table = Table("task", "node", "from here", "holds", box=None, header_style="bold dim")
    for one in bought.plan.tasks:
        link = node.open_link(one.provider)
        trip = f"{link.rtt_us / 1000:.2f} ms {link.transport}" if link is not None and link.rtt_us is not None else "-"
        holds = bought.manifest.task(one.task).limit.partition(":")[0]
        table.add_row(one.task, one_line(names.get(one.provider, one.provider[:8])), trip, one_line(holds))
    notes.print(table)


def show_speed(done: Mapping[str, Any]) -> None:
    notes.print(
        f"[dim]{len(done['ids'])} tokens · {done['tokens_per_s']:.1f} tokens/s · first after"
        f" {done['first_token_ms']:.0f} ms · a step {done['step_ms_p50']:.1f} ms[/]",
        soft_wrap=True,
    )
