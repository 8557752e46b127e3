"""`nodewire wallet`: open an account on the simulated Lightning network, and look into a role's wallet."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from nodewire.cli.output import Json, console, print_json, sats
from nodewire.config import CustomerConfig, ProviderConfig
from nodewire.errors import BadConfig, BadInput

app = typer.Typer(help="Lightning wallets.", no_args_is_help=True)


def parse_msat(text: str) -> int:
    """Millisats from "100000sat", "5 msat" or "0.5sat".

    Raises:
        BadInput: it is none of these.
    """
    number, unit = text.strip().lower().replace(" ", ""), 1000
    if number.endswith("msat"):
        number, unit = number[:-4], 1
    elif number.endswith("sat"):
        number = number[:-3]
    try:
        value = float(number) * unit
    except ValueError as error:
        raise BadInput("amount", f"{text!r} is not an amount such as 500sat or 1200msat") from error
    if not 0 <= value <= 2.1e18 or value != int(value):
        raise BadInput("amount", f"{text!r} is not a whole number of millisats in range")
    return int(value)


def role_of(path: Path) -> CustomerConfig | ProviderConfig:
    """The customer's or provider's configuration in `path`, whichever it is."""
    try:
        return CustomerConfig.load(path)
    except BadConfig as error:
        try:
            return ProviderConfig.load(path)
        except BadConfig:
            raise error from None


@app.command("open")
def open_(
    url: Annotated[str, typer.Argument(help="URL of the simulated network (`nodewire simnet`).")],
    out: Annotated[Path, typer.Option(help="Where the account's token is written (mode 0600).")],
    balance: Annotated[str, typer.Option(help="Ask the faucet for this much, such as 100000sat.")] = "0sat",
    json: Json = False,
) -> None:
    """Open an account on the simulated Lightning network."""
    from nodewire.pay.sim_wallet import SimWallet

    if out.exists():
        raise BadConfig(str(out), "exists; a token is never overwritten")

    async def opened() -> str:
        wallet, token = await SimWallet.open_account(url, out.stem, parse_msat(balance))
        await wallet.close()
        return token

    token = asyncio.run(opened())
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    if json:
        print_json({"token_file": str(out), "url": url})
    else:
        console.print(f"the account's token is in {escape(str(out))}; who has it has the money")


@app.command()
def balance(
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file.")],
    json: Json = False,
) -> None:
    """What a role's wallet holds, and what its ledger spent or earned."""
    from nodewire.pay.ledger import Ledger
    from nodewire.pay.sim_wallet import SimWallet

    role = role_of(config)

    async def held() -> int:
        wallet = SimWallet.from_file(role.wallet.url, role.wallet.token_file)
        try:
            return await wallet.balance_msat()
        finally:
            await wallet.close()

    role.state.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(role.ledger)
    spent = ledger.spent()
    found = {
        "balance_msat": asyncio.run(held()),
        "spent_msat": spent.paid_msat + spent.fees_msat,
        "fees_msat": spent.fees_msat,
        "received_msat": ledger.earned_msat(),
    }
    ledger.close()
    if json:
        print_json(found)
    else:
        for name, msat in found.items():
            console.print(f"{name.removesuffix('_msat'):>9}  {sats(msat)}")
