"""`nodewire train`: buy the training of a model from the market."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from nodewire.cli.output import CUSTOMERS, Json, console, notes, one_line, print_json, sats
from nodewire.cli.roles import load_customer, naming
from nodewire.config import parse_msat
from nodewire.errors import BadConfig, BadInput

if TYPE_CHECKING:
    from nodewire.customer.training.machine import Event, State
    from nodewire.customer.training.training import Trained
    from nodewire.protocol.delivery import Progress


class OuterBy(StrEnum):
    SELF = "self"
    MARKET = "market"


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.")],
    data: Annotated[Path, typer.Option(help="The folder with what is trained on; it leaves this machine encrypted.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The customer's TOML file.")],
    budget: Annotated[str, typer.Option(help="Most that the training may cost, such as 50000sat.")],
    out: Annotated[Path, typer.Option(help="Where the weights are written: a safetensors file.")],
    shards: Annotated[int, typer.Option(help="Parts of the data that are trained on at the same time.", min=1)] = 2,
    start: Annotated[
        Path | None,
        typer.Option(help="What the recipe starts from: a folder with weights (safetensors) and tokenizer.json."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A folder for the trained model as Hugging Face lays it out, adapters merged.")
    ] = None,
    outer: Annotated[
        OuterBy, typer.Option(help="Who makes a round's outer step: this machine, or a provider that is paid for it.")
    ] = OuterBy.SELF,
    json: Json = False,
) -> None:
    """Train a model on strangers' machines, round by round. What was broken off goes on where it stood."""
    from nodewire.protocol.recipe import Recipe

    customer, budget_msat = load_customer(config), parse_msat(budget)
    if not out.resolve().parent.is_dir():
        raise BadInput("--out", f"the folder {out.parent} does not exist")
    try:
        read = Recipe.from_toml(recipe.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(str(recipe), "cannot be read as text") from error

    async def run() -> Trained:
        from nodewire.customer.training.training import train as buy

        with naming(customer.relays):
            return await buy(
                customer,
                read,
                data.resolve(),
                shards=shards,
                budget_msat=budget_msat,
                buys_steps=outer is OuterBy.MARKET,
                on_change=None if json else _show,
                start=start.resolve() if start else None,
                model=model.resolve() if model else None,
            )

    done = uvloop.run(run())
    out.write_bytes(done.weights)
    said = _summary(done, out)
    if json:
        print_json(said)
        return
    console.print(
        f"[bold green]trained[/]  {said['rounds']} rounds, held-out loss {said['losses'][-1]:.4f}, "
        f"{sats(said['paid_msat'])} and {sats(said['fees_msat'])} in fees; weights in {one_line(str(out))}"
    )


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(train)


def _summary(done: Trained, out: Path) -> dict[str, Any]:
    state = done.state
    return {
        "job": done.job,
        "rounds": state.rounds,
        "losses": [loss / 1_000_000 for loss in state.losses],
        "requests": list(state.requests),
        "providers": sorted({provider for _, provider in state.debts}),
        "failures": [{"provider": provider, "reason": reason} for provider, reason in state.failures],
        "paid_msat": done.paid_msat,
        "fees_msat": done.fees_msat,
        "weights": str(out),
    }


def _show(state: State, event: Event | Progress, provider: str) -> None:
    """One line for what happened."""
    from nodewire.customer.training import machine
    from nodewire.protocol.delivery import Progress

    who = provider[:8]
    match event:
        case machine.Published(round_, _, _, rows):
            names = ", ".join(row.provider[:8] for row in rows)
            notes.print(f"[dim]round {round_ + 1} of {state.rounds}: asked {names}[/]")
        case machine.Judged(_, _, accepted, reason, _):
            notes.print(f"{who} [green]accepted[/]" if accepted else f"{who} [red]rejected[/] {one_line(reason)}")
        case machine.Audited(_, _, False, reason):
            notes.print(f"{who} [red]failed its audit[/] {one_line(reason)}; it is not paid")
        case machine.Lost(_, _, reason):
            notes.print(f"{who} [yellow]lost[/] {one_line(reason)}")
        case machine.StepPublished(round_, _, _, row, _, _):
            notes.print(f"[dim]round {round_ + 1}: {row.provider[:8]} is asked for the outer step[/]")
        case machine.StepHere(round_, reason):
            notes.print(f"[dim]round {round_ + 1}: the outer step is made here: {one_line(reason)}[/]")
        case machine.Stepped(round_, loss, _):
            notes.print(f"[bold]round {round_ + 1}[/] held-out loss {loss / 1_000_000:.4f}")
        case Progress():
            notes.print(f"[dim]{who} step {event.step}, loss {event.loss / 1_000_000:.4f}[/]")
