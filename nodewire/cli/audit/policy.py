"""`nodewire policy`: whether a verification policy makes honesty pay."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nodewire.cli.output import DEVELOPERS, Json, console, print_json
from nodewire.errors import BadInput
from nodewire.plan.policy import SHIPPED, Policy

app = typer.Typer(help="Verification policies.", no_args_is_help=True)


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="policy", rich_help_panel=DEVELOPERS)


@app.command()
def check(
    rate: Annotated[
        str, typer.Option(help="The share of the chunks that are sampled, such as 5%.")
    ] = f"{SHIPPED.rate:.0%}",
    stake: Annotated[
        float, typer.Option(help="The loss of a convicted provider, in costs of a chunk.")
    ] = SHIPPED.stake,
    reward: Annotated[float, typer.Option(help="The earnings of a chunk, in costs of a chunk.")] = SHIPPED.reward,
    collusion: Annotated[
        str, typer.Option(help="The share of samples in which a verifier colludes or is fooled.")
    ] = f"{SHIPPED.collusion:.0%}",
    power: Annotated[str, typer.Option(help="The share of sampled cheats that show.")] = "100%",
    json: Json = False,
) -> None:
    """Check that cheating pays less than honesty under a policy; exit with 1 if it does not.

    Shares are written as 5% or 0.05.
    """
    policy = Policy(_share("rate", rate), stake, reward, _share("collusion", collusion), _share("power", power))
    found = {
        "p": policy.rate,
        "p_min": policy.rate_min(),
        "S": policy.stake,
        "S_min": policy.stake_min() if policy.caught else None,
        "honest": policy.honest(),
        "cheat": policy.cheat(),
        "cheat_half": policy.cheat(0.5),
        "secure": policy.is_secure(),
        "ruinous": policy.is_ruinous(),
    }
    if json:
        print_json(found)
    else:
        console.print(f"p      {policy.rate:.2%}, p_min {policy.rate_min():.2%}")
        console.print(f"S      {policy.stake:g}, S_min {policy.stake_min():.2f}")
        console.print(f"honest {policy.honest():+.3f} a chunk, cheat {policy.cheat():+.3f}, in units of its cost")
        verdict = "cheating loses money" if policy.is_ruinous() else "cheating pays less than honesty"
        console.print(f"[green]{verdict}[/]" if policy.is_secure() else "[bold red]cheating pays[/]")
        if not policy.is_secure():
            more = f"a rate above {policy.rate_min():.2%}" if policy.rate_min() < 1 else "more at stake"
            or_else = f", or a stake above {policy.stake_min():.2f}" if policy.caught else ""
            console.print(f"[dim]it takes {more}{or_else}, the rest as it is[/]")
    if not policy.is_secure():
        sys.exit(1)


def _share(name: str, text: str) -> float:
    """A probability: "5%", or "0.05"."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise BadInput(f"--{name}", f"{text!r} is not a share such as 5%, or 0.05") from error
    if value > 1 and not text.endswith("%"):
        meant = f"{text}% or {value / 100:g}" if value <= 100 else "5% or 0.05"
        raise BadInput(f"--{name}", f"{text} would be {value:.0%}; write {meant}")
    if not 0 <= value <= 1:
        raise BadInput(f"--{name}", f"{text} is not from 0% to 100%")
    return value
