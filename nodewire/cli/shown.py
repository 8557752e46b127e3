"""A job as people see it: a customer that can be watched, the plan before the output, the bill after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from nodewire.cli.output import notes, one_line, plain, sats
from nodewire.config import CustomerConfig
from nodewire.customer.customer import Customer
from nodewire.customer.purchase import Purchase
from nodewire.protocol.plan import LOCAL

_NAME_CHARS = 24


class Watched(Customer):
    """A customer whose purchases can be looked at while they run. `names` are the ads' of whom they went to."""

    def __init__(self, config: CustomerConfig) -> None:
        super().__init__(config)
        self.names: dict[str, str] = {}
        self._shown: Purchase | None = None

    async def planned(self, *, show: bool) -> None:
        """Learn who the running job's providers are, and say so once. Call it when output has come."""
        bought = self.purchases[-1]
        if bought is self._shown:
            return
        if self._shown is not None and show:
            notes.print()  # a job that began anew does so in the midst of its output
        self._shown = bought
        plan = bought.plan
        members = {*plan.providers(), *(a.standby for a in plan.tasks if a.standby)}
        snapshot = await self.session.market.snapshot(plan.snapshot)
        self.names |= {public: ad.name for public, ad in snapshot.ads(members).items()}
        if show:
            _show_plan(bought, self.names)

    def stopped(self) -> dict[str, Any]:
        """What was requested and paid until now."""
        begun = [bought for bought in self.purchases if bought.is_underway]
        paid = [one for bought in begun for one in bought.payments.paid.values()]
        return {
            "stopped": True,
            "request": begun[-1].request.id if begun else None,
            "paid_msat": sum(one.due.amount_msat for one in paid),
            "fees_msat": sum(one.debt.fee_msat for one in paid),
        }


class GrowingText:
    """A text that is shown as it grows: the prompt on stderr once something follows it, what follows on stdout."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._began = False

    def add(self, text: str) -> None:
        if not self._began:
            notes.print(Text(plain(self._prompt), style="dim"), end="", soft_wrap=True)
        self._began = True
        print(plain(text) if sys.stdout.isatty() else text, end="", flush=True)

    def end(self) -> None:
        if self._began:
            print(flush=True)
            if not sys.stdout.isatty():
                notes.print()  # ends the prompt's line where the text went elsewhere
        self._began = False


def _show_plan(bought: Purchase, names: Mapping[str, str]) -> None:
    """Who does what, for how much, and out of how many."""
    plan, manifest = bought.plan, bought.manifest
    table = Table("task", "provider", "standby", "price", "live holders", box=None, header_style="bold dim")
    for a in plan.tasks:
        standby = named(a.standby, names) if a.standby else "-"
        table.add_row(
            a.task, named(a.provider, names), standby, sats(a.price_msat), str(bought.holders.get(a.task, "-"))
        )
    notes.print(table)
    unit = f"a chunk: {manifest.chunk} tokens, or positions of the prompt" if manifest.mode == "generate" else "a call"
    notes.print(f"[bold]{sats(plan.chunk_msat)}[/] {unit}", soft_wrap=True)
    notes.print(
        f"[dim]drawn by the beacon {plan.beacon[:12]} of epoch {plan.epoch} among the live holders, then by least"
        " latency[/]",
        soft_wrap=True,
    )
    notes.print(f"request {bought.request.id}", soft_wrap=True)


def show_bill(done: Mapping[str, Any], config: Path, *, streamed: bool) -> None:
    """What it came to. `streamed`: output came piece by piece, at a rate that means something."""
    total = sum(done["paid_msat"].values()) + done["fees_msat"] + done["share_msat"]
    for one in done.get("verdicts", ()):
        what = f"{one['task']} of chunk {one['chunk']} by {one['provider'][:8]}"
        notes.print(f"verdict on {what}: [bold]{one['outcome'] or 'none yet'}[/]", soft_wrap=True)
    for one in done.get("uncertified", ()):
        what = f"chunk {one['chunk']} by {one['provider'][:8]}, {sats(one['paid_msat'])}"
        notes.print(f"[bold red]paid, but never certified[/]: {what}", soft_wrap=True)
    if done.get("repaired"):
        notes.print("[bold]made again, from what did not fail on:[/]")
        notes.print(Text(plain(done["text"])), soft_wrap=True)
    rate = f" · {done['tokens_per_s']:.1f} tokens/s" if streamed else ""
    notes.print(
        f"[bold]{sats(total)}[/] in {done['zaps']} zaps to {len(done['providers'])} providers"
        f" (fees {sats(done['fees_msat'])}) · first output {done['first_token_ms']:.0f} ms{rate}\n"
        f"[dim]`nodewire audit {done['request']} --config {one_line(str(config))}` re-derives the plan[/]",
        soft_wrap=True,
    )


def show_stopped(stopped: Mapping[str, Any]) -> None:
    if stopped["request"] is None:
        notes.print("stopped; nothing was requested, nothing was paid")
        return
    paid = sats(stopped["paid_msat"] + stopped["fees_msat"])
    notes.print(f"stopped; {paid} paid, request {stopped['request']}", soft_wrap=True)


def named(public: str, names: Mapping[str, str]) -> str:
    """A provider for people: its ad's name, which anybody may take, and the beginning of its key, which nobody can."""
    if public == LOCAL:
        return "this machine"
    name, key = names.get(public, ""), public[:8]
    if name == f"nodewire-{key}":  # what a provider without a name is called
        return one_line(name)
    return one_line(f"{name[:_NAME_CHARS]} {key}".lstrip())
