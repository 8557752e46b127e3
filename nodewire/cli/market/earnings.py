"""`nodewire earnings`: what a provider's work has brought in, by day, model and task, and for an hour of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.common.roles import load_provider
from nodewire.cli.output import OPERATORS, Json, console, one_line, print_json, sats
from nodewire.errors import NotFound

if TYPE_CHECKING:
    from nodewire.pay.accounts.earnings import TaskIncome

_DAY_S = 86_400


def earnings(
    config: Annotated[Path, typer.Option("--config", "-c", help="The provider's TOML file.")],
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days up to today (UTC).")] = 30,
    json: Json = False,
) -> None:
    """Show what a provider earned by day, model and task, and for an hour of work, out of its ledger.

    Settled is what its own wallet has received. Unsettled is what customers owe for work. An hour of work is an hour of
    the worker's calls, in which they computed or waited for each other.
    """
    from nodewire.pay.accounts import earnings as books
    from nodewire.pay.accounts.ledger import Ledger

    role = load_provider(config)
    if not role.ledger.exists():
        raise NotFound("ledger", f"{role.ledger} is not there: this provider has not run yet")
    Ledger(role.ledger).close()  # of an earlier version it is led to this one
    now_s = time.time()
    since_s = int(now_s) // _DAY_S * _DAY_S - (days - 1) * _DAY_S
    found, takings = books.by_task(role.ledger, since_s), books.read(role.ledger, now_s)
    per_hour = books.msat_per_hour(found)
    whole = {"paid_msat": takings.paid_msat, "owed_msat": takings.owed_msat, "overdue_msat": takings.overdue_msat}
    if json:
        print_json({"earnings": [_document(one) for one in found], "msat_per_hour": per_hour, "ever": whole})
        return
    _show(found, per_hour, "GPU-hour" if role.worker.device.startswith("cuda") else "hour of work")
    console.print(
        f"[dim]ever: {sats(takings.paid_msat)} settled, {sats(takings.owed_msat)} owed in time,"
        f" {sats(takings.overdue_msat)} overdue[/]",
        soft_wrap=True,
    )


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(earnings)


def _show(found: Sequence[TaskIncome], per_hour: int | None, hour: str) -> None:
    from rich.table import Table

    if not found:
        console.print("nothing was earned in these days")
        return
    titles = ("day (UTC)", "model", "task", "settled", "unsettled", "chunks", "hours", f"an {hour}")
    table = Table(*titles, box=None, header_style="bold dim")
    for one in found:
        hours = f"{one.work_us / 3.6e9:.3f}" if one.work_us else "-"
        rate = "-" if one.msat_per_hour is None else sats(one.msat_per_hour)
        names = one_line(one.model or "-"), one_line(one.task or "-")
        table.add_row(one.day, *names, sats(one.settled_msat), sats(one.unsettled_msat), str(one.chunks), hours, rate)
    console.print(table)
    settled, unsettled = (sum(msat) for msat in zip(*((e.settled_msat, e.unsettled_msat) for e in found), strict=True))
    rate = f", {sats(per_hour)} for each {hour}" if per_hour is not None else ""
    console.print(f"[bold]{sats(settled)}[/] settled{rate}; {sats(unsettled)} unsettled", soft_wrap=True)


def _document(one: TaskIncome) -> dict[str, Any]:
    return {
        "day": one.day,
        "model": one.model,
        "task": one.task,
        "settled_msat": one.settled_msat,
        "unsettled_msat": one.unsettled_msat,
        "chunks": one.chunks,
        "work_us": one.work_us,
        "msat_per_hour": one.msat_per_hour,
    }
