"""`nodewire wallet tabs`: what stands between a role and those that it pays, or that pay it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nodewire.cli.output import Json, console, counted, print_json, sats
from nodewire.config import OracleConfig, load_role
from nodewire.errors import BadConfig


def tabs(
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")],
    json: Json = False,
) -> None:
    """Show what a customer owes to each provider, and what each customer owes to a provider.

    What was paid ahead settles what is bought next. `nodewire wallet settle` pays what is owed.
    """
    from nodewire.pay.accounts.ledger import Ledger

    role = load_role(config)
    if isinstance(role, OracleConfig):
        raise BadConfig(str(config), "an oracle's: it buys and sells nothing. Name a customer's or a provider's file")
    role.state.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(role.ledger)
    try:
        owed = [{**asdict(one), "credit_msat": _credit_msat(ledger, one.payee, one.paid_msat)} for one in ledger.tabs()]
        due = [asdict(one) for one in ledger.accounts()]
    finally:
        ledger.close()
    if json:
        print_json({"payees": owed, "customers": due})
        return
    console.print(f"{counted(len(owed), 'payee')}, {counted(len(due), 'customer')}")
    for one in owed:
        console.print(f"to   {one['payee'][:16]}  {_line(one)}; may owe {sats(one['credit_msat'])}", soft_wrap=True)
    for one in due:
        console.print(f"from {one['customer'][:16]}  {_line(one)}", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command()(tabs)


def _credit_msat(ledger: Any, payee: str, paid_msat: int) -> int:
    return int(ledger.credit(payee).allowed_msat(paid_msat))


def _line(one: dict[str, Any]) -> str:
    return f"owed {sats(one['owed_msat'])}, paid ahead {sats(one['ahead_msat'])}, paid in all {sats(one['paid_msat'])}"
