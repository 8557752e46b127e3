"""A training as its customer watches it: live on a terminal, line by line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nodewire.cli.common.braille import curve
from nodewire.cli.output import one_line, plain, sats
from nodewire.cli.train.quote import duration, size
from nodewire.training.customer.machine import events as happened
from nodewire.training.customer.machine.state import State, Work
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.policy.payment_retry import PaymentWait
from nodewire.training.customer.round_history import History
from nodewire.training.protocol.result import Progress

if TYPE_CHECKING:
    from nodewire.training.customer.market.context import Course
    from nodewire.training.protocol.recipe import Recipe

_CURVE_LINES = 6
_MOST_ROWS = 32
"""Shards that are shown; a terminal has not many more lines."""
_STATE_STYLES = {
    "accepted": "green",
    "received": "cyan",
    "delivered": "cyan",
    "working": "yellow",
    "asked": "dim",
    "missed": "red",
}


@dataclass(frozen=True, slots=True)
class _Verdict:
    text: str
    style: str


class TrainingView:
    """Follows one training by its events; `update` is what `train` calls with each.

    Args:
        names: the trainers' names in their ads, by public key.
        seconds: what all rounds take by the trainers' claims, until one has been measured.

    """

    def __init__(
        self,
        recipe: Recipe,
        budget_msat: int,
        console: Console,
        *,
        names: Mapping[str, str] | None = None,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = History()
        self.state = State()
        self._recipe = recipe
        self._budget_msat = budget_msat
        self._console = console
        self._names = names or {}
        self._seconds = seconds
        self._clock = clock
        self._verdicts: dict[int, _Verdict] = {}
        self._progress: dict[str, Progress] = {}
        self._stepped_s: list[float] = []
        """When each round of this run ended; before them, when the first was asked for."""
        self._step_requests: set[str] = set()
        """Requests of outer steps that are bought."""
        self._step = _Verdict("", "")
        self._live: Live | None = None
        self._says = True

    def begin(self, course: Course) -> None:
        """Learn what earlier runs did."""
        self.history.keys = course.session.keys
        for event in course.journal.events():
            self.state = apply(event, self.state)
            self.history.apply(event)
            self._note(event)
        self._stepped_s.clear()  # that was at another time

    @contextmanager
    def shown(self, wanted: bool) -> Iterator[None]:
        """While it runs: live on a terminal, in lines elsewhere, or not at all."""
        self._says = wanted
        if not wanted or not self._console.is_terminal:
            yield
            return
        with Live(self, console=self._console, refresh_per_second=4, redirect_stdout=False) as self._live:
            yield
            self._live.refresh()

    def update(self, state: State, event: happened.Event | Progress | PaymentWait, provider: str) -> None:
        self.state = state
        if isinstance(event, Progress):
            self._progress[provider] = event
        elif not isinstance(event, PaymentWait):
            self.history.apply(event)
            self._note(event)
        if self._says:
            self._say(event, provider)

    def so_far(self) -> dict[str, int]:
        """Where it stands, as plain data."""
        done, history = len(self.history.points), self.history
        return {"rounds_done": done, "paid_msat": history.paid_msat, "fees_msat": history.fees_msat}

    def stopped(self, why: str) -> str:
        """Where it stands, and how to go on."""
        done, spent_msat = len(self.history.points), self.history.paid_msat + self.history.fees_msat
        return (
            f"[yellow]{why}[/]  {done} of {self._recipe.rounds} rounds are done, {sats(spent_msat)} spent;"
            " the same command goes on from there"
        )

    def _name(self, public: str) -> str:
        return one_line(self._names.get(public, "")[:24]) or public[:8]

    def _note(self, event: happened.Event) -> None:
        """Remember what the table shows."""
        match event:
            case happened.RequestPublication():
                self._stepped_s = self._stepped_s or [self._clock()]
                for row in event.rows:
                    self._progress.pop(row.provider, None)
            case happened.StepPublication():
                self._step_requests.add(event.request)
            case happened.StepCompletion():
                self._stepped_s.append(self._clock())
                self._progress.clear()
            case happened.StepRollback():
                self._progress.clear()
            case happened.ResultJudgement(request, provider, True, _, audit):
                self._rule(request, provider, "accepted, to be audited" if audit else "accepted", "green")
            case happened.ResultJudgement(request, provider, False, reason, _):
                self._rule(request, provider, f"rejected: {reason}", "red")
            case happened.AuditOutcome(request, provider, passed, reason):
                self._rule(
                    request,
                    provider,
                    "audited ok" if passed else f"failed its audit: {reason}",
                    "green" if passed else "red",
                )
            case happened.ShardLoss(request, provider, reason):
                self._rule(request, provider, f"lost: {reason}", "yellow")
            case happened.ResultTimeout(request, provider, reason):
                self._rule(request, provider, f"not waited for: {reason}", "yellow")

    def _rule(self, request: str, provider: str, text: str, style: str) -> None:
        debt = self.state.debts[request, provider]
        if request in self._step_requests:
            self._step = _Verdict(f"{self._name(provider)} {text}", style)
            return
        words = f"{self._name(provider)} {text}" if style != "green" else f"{text} (round {debt.round + 1})"
        self._verdicts[debt.row.index] = _Verdict(words, style)

    def _say(self, event: happened.Event | Progress | PaymentWait, provider: str) -> None:
        """A line for what happened; above the live view only what went wrong."""
        line = self._trouble(event, provider)
        if line is None and self._live is None:
            line = self._news(event, provider)
        if line is not None:
            self._print(line)

    def _trouble(self, event: happened.Event | Progress | PaymentWait, provider: str) -> str | None:
        """What went wrong, in a line; None if nothing did."""
        who = self._name(provider)
        match event:
            case happened.ResultJudgement(request, _, False, reason, _):
                return f"{self._place(request, provider)}: {who} [red]rejected[/]: {one_line(reason)}"
            case happened.AuditOutcome(request, _, False, reason):
                place = self._place(request, provider)
                return f"{place}: {who} [red]failed its audit[/]: {one_line(reason)}; it is not paid"
            case happened.ShardLoss(request, _, reason):
                return f"{self._place(request, provider)}: {who} [yellow]lost[/]: {one_line(reason)}"
            case happened.StepRollback(round_, failed):
                whose = " and ".join(dict.fromkeys(self._name(provider) for _, provider in failed))
                return f"[yellow]round {round_ + 1} is made again[/]: the work of {whose} failed its audit"
            case happened.ResultTimeout(request, _, reason):
                return f"{self._place(request, provider)}: {who} [yellow]not waited for[/]: {one_line(reason)}"
            case PaymentWait(owed, most_s):
                whom = ", ".join(f"{self._name(public)} to take {sats(owed_msat)}" for public, owed_msat in owed)
                return f"[yellow]waiting[/] up to {most_s:.0f} s for {whom} that it is owed; then it stays owed"
        return None

    def _news(self, event: happened.Event | Progress | PaymentWait, provider: str) -> str | None:
        """How far it is, in a line; None if that is the same."""
        who = self._name(provider)
        match event:
            case happened.RequestPublication(round_, _, _, rows):
                asked = ", ".join(f"{self._name(row.provider)} for shard {row.index}" for row in rows)
                return f"[dim]round {round_ + 1} of {self.state.rounds}: asked {asked}[/]"
            case happened.StepPublication():
                return f"[dim]round {event.round + 1}: asked {who} for the outer step[/]"
            case happened.LocalStepChoice(round_, reason):
                return f"[dim]round {round_ + 1}: the outer step is made here, {one_line(reason)}[/]"
            case happened.ResultJudgement(request, _, True, _, _):
                return f"{self._place(request, provider)}: {who} [green]accepted[/]"
            case happened.AuditOutcome(request, _, True, _):
                return f"[dim]{self._place(request, provider)}: {who} audited ok[/]"
            case happened.StepCompletion(round_, loss, _):
                spent = sats(self.history.paid_msat + self.history.fees_msat)
                return f"[bold]round {round_ + 1}[/] held-out loss {loss / 1_000_000:.4f}, {spent} spent"
            case Progress():
                on = [str(work.index) for work in self.state.works if work.provider == provider]
                place = f"round {self.state.round + 1}" + (f", shard {' and '.join(on)}" if on else "")
                return f"[dim]{place}: {who} step {event.step}, loss {event.loss / 1_000_000:.4f}[/]"
        return None

    def _place(self, request: str, provider: str) -> str:
        """Which work it is: "round 3, shard 0"."""
        debt = self.state.debts[request, provider]
        what = "outer step" if request in self._step_requests else f"shard {debt.row.index}"
        return f"round {debt.round + 1}, {what}"

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    # The live view.

    def __rich__(self) -> RenderableType:
        state = self.state
        parts = [self._heading()]
        if state.losses:
            parts.append(self._curve())
        if state.works:
            parts.append(self._shards())
        return Group(*parts)

    def _heading(self) -> RenderableType:
        state, history, rounds = self.state, self.history, self._recipe.rounds
        spent_msat = history.paid_msat + history.fees_msat
        if not state.rounds:
            return Text("splitting and encrypting the data", style="dim")
        line = Table.grid(padding=(0, 2))
        line.add_row(
            Text(f"round {min(state.round + 1, rounds)} of {rounds}", style="bold"),
            ProgressBar(total=rounds, completed=min(rounds, state.round + self._share_of_round()), width=24),
            f"up {size(history.up_bytes)}",
            f"down {size(history.down_bytes)}",
            f"spent {spent_msat / 1000:,.0f} of {self._budget_msat / 1000:,.0f} sat",
            Text(self._remaining(), style="dim"),
        )
        return line

    def _remaining(self) -> str:
        if self.state.is_over:
            return "done"
        if self.state.is_trained:
            return "last audits and payments"
        left, now_s = self._recipe.rounds - self.state.round, self._clock()
        if len(self._stepped_s) > 1:
            a_round_s = (self._stepped_s[-1] - self._stepped_s[0]) / (len(self._stepped_s) - 1)
        else:
            a_round_s = self._seconds / max(1, left)
        passed_s = now_s - self._stepped_s[-1] if self._stepped_s else 0.0
        return f"about {duration(max(0.0, left * a_round_s - min(passed_s, a_round_s)))} left"

    def _share_of_round(self) -> float:
        """How much of the present round is done, by what trainers say."""
        works = self.state.works
        return sum(map(self._share, works)) / len(works) if works else 0.0

    def _share(self, work: Work) -> float:
        if work.status in ("delivered", "received", "accepted"):
            return 1.0
        said = self._progress.get(work.provider)
        return min(1.0, said.step / self._steps(work)) if work.status == "working" and said else 0.0

    def _steps(self, work: Work) -> int:
        """That its trainer was asked for."""
        debt = self.state.debts.get((work.request, work.provider))
        return debt.row.steps if debt else self._recipe.steps

    def _curve(self) -> RenderableType:
        losses = [loss / 1_000_000 for loss in self.state.losses]
        width = max(10, min(72, self._console.width - 14))
        lines = curve(losses, width, _CURVE_LINES)
        high, low = max(losses), min(losses)
        marks = {0: f"{high:.4f}", len(lines) - 1: f"{low:.4f}" if low < high else ""}
        table = Table.grid(padding=(0, 1))
        for number, line in enumerate(lines):
            table.add_row(Text(marks.get(number, ""), style="dim"), Text(line, style="cyan"))
        table.add_row("", Text(f"held-out loss {losses[-1]:.4f} after round {len(losses)}", style="bold"))
        return table

    def _shards(self) -> RenderableType:
        table = Table(
            "shard", "trainer", "state", "steps", "its loss", "last verdict", box=None, header_style="bold dim"
        )
        state, works = self.state, self.state.works
        for work in works[:_MOST_ROWS]:
            said = self._progress.get(work.provider) if work.status == "working" else None
            verdict = self._verdicts.get(work.index, _Verdict("", ""))
            table.add_row(
                str(work.index),
                self._name(work.provider) if work.provider else "-",
                Text("done" if state.is_trained else work.status, style=_STATE_STYLES.get(work.status, "dim")),
                f"{said.step}/{self._steps(work)}" if said else "",
                f"{said.loss / 1_000_000:.4f}" if said else "",
                Text(plain(verdict.text.replace("\n", " ")), style=verdict.style),
            )
        outer = state.outer
        if self._step_requests:
            status = "" if outer.status == "idle" else outer.status
            who = self._name(outer.provider) if outer.provider else "-"
            table.add_row("step", who, Text(status, style=_STATE_STYLES.get(status, "dim")), "", "", self._step.text)
        if len(works) > _MOST_ROWS:
            table.add_row("", f"and {len(works) - _MOST_ROWS} more")
        return table
