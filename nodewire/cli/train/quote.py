"""A quote as people see it: what a training takes, who would do it for how much, what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from nodewire.cli.output import one_line, sats

if TYPE_CHECKING:
    from nodewire.training.customer.quote import Quote

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def size(count: int) -> str:
    """Bytes for people: "1.2 MB"."""
    return next((f"{count / unit:,.1f} {name}" for name, unit in _UNITS if count >= unit), f"{count} B")


def duration(seconds: float) -> str:
    """Seconds for people: "2 h 5 min", "12 s"."""
    whole = round(seconds)
    if whole >= 3_600:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole} s" if seconds >= 1 else "under a second"


def show_quote(quote: Quote, console: Console, *, budget_msat: int | None, buys_steps: bool = False) -> None:
    """Print all of it; `budget_msat` None: there is none to compare with."""
    flops = quote.flops_per_round
    operations = f"{flops / 1e15:,.3f} Pflop" if flops >= 10**14 else f"{flops / 1e9:,.3f} Gflop"
    console.print(
        f"[bold]{one_line(quote.recipe)}[/]  {quote.family}, {quote.parameters:,} parameters"
        + (f", {quote.trained:,} of them trained" if quote.trained != quote.parameters else "")
        + f"; {quote.rounds} rounds on {quote.shards} shards of {size(quote.data_bytes)}",
        soft_wrap=True,
    )
    console.print(
        f"each shard's round: {operations}, {size(quote.memory_bytes)} of memory", soft_wrap=True, style="dim"
    )
    console.print(
        f"bytes up: {size(quote.up_first_bytes)} of shards once, {size(quote.up_round_bytes)} of weights a round,"
        f" {size(quote.up_bytes)} in all; down: {size(quote.down_round_bytes)} a round"
        + (f" (audits' {size(quote.audit_round_bytes)} of it)" if quote.audit_round_bytes else "")
        + f", {size(quote.down_bytes)} in all",
        soft_wrap=True,
        style="dim",
    )
    table = Table("trainer", "shards", "a round", "deposit", "takes about", "", box=None, header_style="bold dim")
    for offer in quote.offers:
        said = one_line(offer.refusal) or ("" if offer.shards else "[dim]not needed[/]")
        table.add_row(
            f"{one_line(offer.name)} [dim]{offer.public[:8]}[/]",
            str(offer.shards) if offer.shards else "-",
            sats(offer.price_msat),
            sats(offer.deposit_msat) if offer.deposit_msat else "-",
            duration(offer.seconds),
            f"[yellow]{said}[/]" if offer.refusal else said,
        )
    if quote.offers:
        console.print(table)
    if not quote.audit_round_bytes:
        console.print(
            "[bold red]nothing is audited[/] (audit.fraction is 0): results are paid on their looks,"
            " and looks let skipped work pass",
            soft_wrap=True,
        )
    if not quote.round_msat and not quote.paid_msat:
        return
    console.print(
        f"[bold]{sats(quote.total_msat)}[/] for all rounds: {sats(quote.round_msat)} a round"
        + (f", {sats(quote.step_msat)} its outer step" if quote.step_msat else "")
        + (f", {sats(quote.deposit_msat)} of the first before it begins" if quote.deposit_msat else "")
        + (f"; {sats(quote.paid_msat)} of it were paid or promised before" if quote.paid_msat else ""),
        soft_wrap=True,
    )
    if buys_steps:
        console.print(
            "outer steps are bought as far as the budget has room for them besides all rounds"
            if quote.step_msat
            else "nobody sells outer steps that would do: this machine makes them",
            soft_wrap=True,
        )
    about = f"about {duration(quote.seconds)} at the speeds that they claim"
    within = "" if budget_msat is None else f"; budget {sats(budget_msat)}"
    console.print(f"routing fees come on top, at most {sats(quote.fees_msat)}{within}; {about}", soft_wrap=True)
