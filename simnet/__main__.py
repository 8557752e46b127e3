"""`python -m simnet`: run the simulated Lightning network until it is told to stop."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from nodewire.cli.commands import run_command
from nodewire.cli.daemon.daemons import Host, Port, run_until_stopped
from nodewire.cli.output import Json
from nodewire.errors import BadInput
from nodewire.net.listen_address import named_by
from simnet import http
from simnet.bootstrap import open_treasurer
from simnet.conditions import Conditions
from simnet.service import Fees, Simnet
from simnet.treasurer import STATEMENT_S

_FAUCET_MSAT = 100_000_000_000


def simnet(
    host: Host = "127.0.0.1",
    port: Port = 7778,
    db: Annotated[Path, typer.Option(help="SQLite file of the network's journal.")] = Path("simnet.db"),
    faucet: Annotated[bool, typer.Option(help="Let anyone open an account with play money in it.")] = False,
    base_fee_msat: Annotated[int, typer.Option(help="Routing fee of every payment.", min=0)] = 10,
    fee_ppm: Annotated[int, typer.Option(help="Routing fee per million.", min=0, max=1_000_000)] = 1_000,
    payment_s: Annotated[float, typer.Option(help="How long a payment takes, in seconds.", min=0)] = 0.0,
    most_payment_s: Annotated[
        float, typer.Option(help="If more than --payment-s, each payment takes a time between the two.", min=0)
    ] = 0.0,
    failing_ppm: Annotated[
        int, typer.Option(help="Of a million payments so many find no route.", min=0, max=1_000_000)
    ] = 0,
    stuck_ppm: Annotated[
        int, typer.Option(help="Of a million so many more are stuck on their way.", min=0, max=1_000_000)
    ] = 0,
    stuck_s: Annotated[float, typer.Option(help="How long these are held; half of them go back then.", min=0)] = 60.0,
    unit_msat: Annotated[int, typer.Option(help="Amounts are whole multiples of it; 1000: satoshis.", min=1)] = 1,
    url: Annotated[str, typer.Option(help="The public URL (default: host and port).")] = "",
    key: Annotated[Path | None, typer.Option(help="Hold bonds: the holder's nsec, made if missing.")] = None,
    committee: Annotated[Path | None, typer.Option(help="Hold bonds for the committee of this committee.json.")] = None,
    statement_s: Annotated[int, typer.Option(help="How long a bond statement is good.", min=1)] = STATEMENT_S,
    unbonding_s: Annotated[
        int | None, typer.Option(help="From a bond's release to its coins; the committee's 16 epochs if not given.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the simulated Lightning network: real bolt11 invoices, no real money. For development.

    With --key and --committee it is that committee's bond holder and treasurer, too.
    """
    if (key is None) != (committee is None):
        raise BadInput("--key" if key is None else "--committee", "--key and --committee go together")

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        network = Simnet(
            db,
            Fees(base_fee_msat, fee_ppm),
            _FAUCET_MSAT if faucet else 0,
            conditions=Conditions(payment_s, most_payment_s, failing_ppm, stuck_ppm, stuck_s),
            unit_msat=unit_msat,
        )
        treasurer = None
        if key is not None and committee is not None:
            treasurer = open_treasurer(network, key, committee, statement_s=statement_s, unbonding_s=unbonding_s)
        with named_by("--port", f"{host}:{port}"):
            runner, own_url = await http.start(network, host, port, treasurer, url)
        stack.push_async_callback(runner.cleanup)
        held = {"holder": treasurer.public} if treasurer is not None else {}
        return {"ready": "simnet", "url": own_url, **held}

    run_until_stopped(start, json)


app = typer.Typer(name="simnet", pretty_exceptions_enable=False, add_completion=False)
app.command()(simnet)

if __name__ == "__main__":
    run_command(app)
