"""A job as people see it: a customer that can be watched, the plan before the output, the bill after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from rich.table import Table
from rich.text import Text

from nodewire.cli.buy.ring_map import show_ring
from nodewire.cli.common.model_choice import resolved
from nodewire.cli.output import counted, notes, one_line, per_million, plain, price_of_work, sats
from nodewire.config import CustomerConfig
from nodewire.customer.api import Customer
from nodewire.customer.job.estimate import Estimate
from nodewire.customer.job.session import PlannedJob
from nodewire.customer.job.summary import spent
from nodewire.customer.models.names import ModelAt
from nodewire.pay.bond.settlement import FLAT_UNITS, share_msat
from nodewire.protocol.job.plan import LOCAL, Plan
from nodewire.protocol.model.manifest import Manifest
from nodewire.swarm.member import SwarmCustomer

_NAME_CHARS = 24


class ObservableCustomer(Customer):
    """A customer whose purchases can be looked at while they run.

    `names` are the ads' of whom they went to. With `asks` a user at a terminal says which model a name means, once.
    """

    def __init__(
        self, config: CustomerConfig | SwarmCustomer, *, show: bool, asks: bool, is_buyer: bool = True
    ) -> None:
        super().__init__(config, is_buyer=is_buyer)
        self.names: dict[str, str] = {}
        self._show, self._asks = show, asks
        self._found: dict[str, ModelAt] = {}
        self._shown = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.session.announce = self._planned
        return self

    async def find_model(self, model: str) -> ModelAt:
        if model not in self._found:
            self._found[model] = await resolved(model, super().find_model(model), asks=self._asks)
        return self._found[model]

    async def _planned(self, bought: PlannedJob) -> None:
        """Learn who the job's providers would be, and say so before it is requested."""
        if self._shown and self._show:
            why = "was refused or broke off, or its work failed"
            why = "is slower than it need be; it goes on until this one has caught up" if bought.is_second else why
            notes.print(f"\nanother plan, for the one before {why}:", soft_wrap=True)
        self._shown = True
        plan = bought.plan
        self.names |= {public: ad.name for public, ad in (await self.session.public_record.ads(plan)).items()}
        if self._show and plan.algorithm == "file/1":
            show_ring(bought, self.names, self.session.node)
        elif self._show:
            show_plan(bought, self.names)
            notes.print(f"request {bought.request.id}", soft_wrap=True)

    async def so_far(self) -> dict[str, Any]:
        """What was requested and paid until now: all that has left the wallet since it was opened."""
        await self.session.settler.finish()
        begun = [bought for bought in self.purchases if bought.is_underway]
        costs = [spent(bought.plan, bought.booked, bought.lenders) for bought in begun]
        return {
            "request": begun[-1].request.id if begun else None,
            "paid_msat": sum(sum(cost.paid_msat.values()) for cost in costs),
            "share_msat": sum(cost.share_msat for cost in costs),
            "fees_msat": sum(cost.fees_msat for cost in costs),
            "spent_msat": sum(cost.total_msat for cost in costs),
            "earlier": self.session.settler.take_old(),
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


class JobWithPlan(Protocol):
    """A plan that nothing was requested by yet, of a purchase or of a quote."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def holders(self) -> Mapping[str, int]: ...
    @property
    def estimate(self) -> Estimate: ...


def show_plan(planned: JobWithPlan, names: Mapping[str, str]) -> None:
    """The plan, with each task's provider and price. The whole's price is given about, and at most."""
    plan, manifest, estimate = planned.plan, planned.manifest, planned.estimate
    makes_text = manifest.mode == "generate"
    table = Table("task", "provider", "price", "live holders", box=None, header_style="bold dim")
    for a in plan.tasks:
        price = per_million(a.price_msat, manifest.chunk) if makes_text else sats(a.price_msat)
        table.add_row(a.task, named(a.provider, names), price, str(planned.holders.get(a.task, "-")))
    notes.print(table)
    unit = f", {sats(plan.chunk_msat)} a chunk of {manifest.chunk}, of prompt or answer" if makes_text else ""
    notes.print(f"[bold]{price_of_work(plan.chunk_msat, manifest.mode, manifest.chunk)}[/]{unit}", soft_wrap=True)
    if share := share_msat(plan):
        verified = plan.verification
        each = price_of_work(share, manifest.mode, manifest.chunk)
        grows = f"; more beyond {FLAT_UNITS} chunks of context" if makes_text else ""
        notes.print(
            f"[bold]+ {each}[/] verification share ({verified.share_ppm / 10_000:g} %{grows}):"
            f" {verified.rate_ppm / 10_000:g} % of the chunks are drawn, and computed again by others",
            soft_wrap=True,
        )
    notes.print(
        f"about [bold]{sats(estimate.about_msat)}[/] for the whole, at most [bold]{sats(estimate.most_msat)}[/]; with"
        f" all repairs and moves the budget bounds it, {sats(estimate.budget_msat)}. Routing fees come on top, at most"
        f" {sats(estimate.most_fees_msat)}",
        soft_wrap=True,
    )
    if plan.terms.codecs:
        narrowed = ", ".join(f"{edge} {codec}" for edge, codec in sorted(plan.terms.codecs.items()))
        notes.print(f"lossy, as you asked: {one_line(narrowed)}", soft_wrap=True)
    notes.print(
        f"[dim]drawn by the beacon {plan.beacon[:12]} of epoch {plan.epoch} among the live holders, then by least"
        " latency[/]",
        soft_wrap=True,
    )


def show_bill(done: Mapping[str, Any], config: Path, *, streamed: bool, sampled: bool) -> None:
    """The outcome of it.

    `streamed`: output came piece by piece, at a rate that means something. `sampled`: it is verified, whether that was
    waited for or not.
    """
    where = f"--config {one_line(str(config))}"
    for one in done.get("verdicts", ()):
        what = f"{one['task']} of chunk {one['chunk']} by {one['provider'][:8]}"
        notes.print(f"verdict on {what}: [bold]{one['outcome'] or 'none yet'}[/]", soft_wrap=True)
        if one["certificate"] and (one["outcome"] in ("fail", "withheld") or one["culprit"]):
            notes.print(f"  certificate {one['certificate']}", soft_wrap=True)
    for one in done.get("uncertified", ()):
        what = f"chunk {one['chunk']} by {one['provider'][:8]}, {sats(one['paid_msat'])}"
        notes.print(
            f"[bold red]paid, but never certified[/]: {what}; a complaint is published, and its refund comes by itself"
            f" with a later purchase, or by `nodewire bond claim {where}`",
            soft_wrap=True,
        )
    if done.get("repaired"):
        notes.print("[bold]made again, from what did not fail on:[/]")
        if "text" in done:
            notes.print(Text(plain(done["text"])), soft_wrap=True)
    if anew := done.get("begun_anew"):
        notes.print(f"a provider failed {counted(anew, 'time')}: others went on from the text so far")
    for move in done.get("moves", ()):
        notes.print(told_of(move), soft_wrap=True)
    rate = f" · {done['tokens_per_s']:.1f} tokens/s" if streamed else ""
    if found := done.get("cached_tokens"):
        rate += f" · {counted(found, 'token')} of the prompt from before"
    notes.print(
        f"[bold]{sats(done['spent_msat'])}[/] spent: {_parts(done)} · {counted(done['zaps'], 'zap')} to"
        f" {counted(len(done['providers']), 'provider')} · first output {done['first_token_ms']:.0f} ms{rate}",
        soft_wrap=True,
    )
    if done["refunded_msat"]:
        notes.print(f"[bold]{sats(done['refunded_msat'])}[/] came back from bonds", soft_wrap=True)
    _show_earlier(done["earlier"])
    if sampled and not done.get("verdicts"):
        notes.print(
            "[dim]verdicts come in some epochs, if anything was drawn: `nodewire audit` tells them,"
            f" `nodewire bond claim {where}` lists what bonds owe you[/]",
            soft_wrap=True,
        )
    notes.print(f"[dim]`nodewire audit {done['request']} {where}` re-derives the plan[/]", soft_wrap=True)


def told_of(move: Mapping[str, Any]) -> str:
    """A move to another ring, for people."""
    if move["outcome"] == "moved":
        return f"from token {move['overtook_at']} on another ring went on, which was expected to be quicker"
    if move["outcome"] == "ended":
        return "another ring was begun, and not needed any more"
    why = {"slower": "was no quicker", "differs": "said something else", "failed": "failed"}
    return f"another ring was tried after {counted(move['at'], 'token')}: it {why.get(move['outcome'], 'was left')}"


def show_so_far(ended: str, paid: Mapping[str, Any]) -> None:
    """What a purchase that did not come to its end has cost. `ended`: what became of it."""
    if paid["request"] is None:
        notes.print(f"{ended}; nothing was requested, nothing was paid for it")
    else:
        cost = f"{sats(paid['spent_msat'])} paid" + (f" ({_parts(paid)})" if paid["spent_msat"] else "")
        notes.print(f"{ended}; {cost}, request {paid['request']}", soft_wrap=True)
    _show_earlier(paid["earlier"])


def _parts(paid: Mapping[str, Any]) -> str:
    work = paid["paid_msat"]
    work_msat = work if isinstance(work, int) else sum(work.values())
    share = f", verification share {sats(paid['share_msat'])}" if paid["share_msat"] else ""
    return f"work {sats(work_msat)}{share}, fees {sats(paid['fees_msat'])}"


def _show_earlier(earlier: Mapping[str, int]) -> None:
    """What went out and came in meanwhile that was not for this job."""
    if earlier["paid_msat"]:
        cost = f"{sats(earlier['paid_msat'] + earlier['fees_msat'])} (fees {sats(earlier['fees_msat'])})"
        notes.print(f"besides, {cost} paid debts of earlier jobs", soft_wrap=True)
    if earlier.get("refunded_msat"):
        notes.print(f"besides, {sats(earlier['refunded_msat'])} came back for earlier jobs", soft_wrap=True)


def named(public: str, names: Mapping[str, str]) -> str:
    """A provider for people: its ad's name, which anybody may take, and the beginning of its key, which nobody can."""
    if public == LOCAL:
        return "this machine"
    name, key = names.get(public, ""), public[:8]
    if name == f"nodewire-{key}":  # what a provider without a name is called
        return one_line(name)
    return one_line(f"{name[:_NAME_CHARS]} {key}".lstrip())
