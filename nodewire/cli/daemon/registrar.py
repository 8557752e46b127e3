"""`nodewire registrar`: keep the book of bonds whose coins a committee's oracles can spend, and nobody holds."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodewire.cli.daemon.daemons import Host, Port, run_until_stopped
from nodewire.cli.output import DEVELOPERS, Json
from nodewire.config import parse_msat
from nodewire.errors import BadInput
from nodewire.net.listen_address import named_by

if TYPE_CHECKING:
    from nodewire.pay.bond.quorum.custody import Custody


def registrar(
    key: Annotated[Path, typer.Option(help="The registrar's nsec, made if missing; the committee lists its npub.")],
    committee: Annotated[Path, typer.Option(help="The committee.json of the committee that it keeps bonds for.")],
    state: Annotated[Path, typer.Option(help="The folder of its book.")] = Path("registrar"),
    bitcoin: Annotated[
        Path | None, typer.Option(help="Bonds in vaults: a file with the URL of a Bitcoin node's RPC.")
    ] = None,
    mint: Annotated[str, typer.Option(help="Small bonds in ecash: the URL of the mint, which is a custodian.")] = "",
    cap: Annotated[str, typer.Option(help="All bonds at the mint together.")] = "1000000sat",
    confirmations: Annotated[int, typer.Option(help="Blocks that a vault must have before it counts.", min=1)] = 6,
    host: Host = "127.0.0.1",
    port: Port = 7779,
    url: Annotated[str, typer.Option(help="What others reach it by, if not by host and port.")] = "",
    json: Json = False,
) -> None:
    """Run a registrar: it states which bonds are locked, and has oracles sign what closes them. It holds no coins.

    One registrar keeps bonds of one kind: --bitcoin or --mint says which.
    """
    if (bitcoin is None) == (not mint):
        raise BadInput("--bitcoin", "name a Bitcoin node, or with --mint a mint, and not both")
    cap_sat = parse_msat(cap) // 1_000

    async def start(stack: AsyncExitStack) -> dict[str, Any]:
        from nodewire.pay.bitcoin.node import BitcoinNode
        from nodewire.pay.bond.quorum import http
        from nodewire.pay.bond.quorum.bootstrap import open_registrar
        from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
        from nodewire.pay.bond.quorum.vault_custody import VaultCustody
        from nodewire.pay.ecash.mint import Mint

        custody: Custody
        if bitcoin is not None:
            custody = VaultCustody(BitcoinNode.from_file(bitcoin), confirmations)
        else:
            custody = EcashCustody(Mint(mint))
        stack.push_async_callback(custody.close)
        opened = open_registrar(key, committee, state, custody, cap_sat=cap_sat)
        stack.callback(opened.close)
        with named_by("--port", f"{host}:{port}"):
            runner, own_url = await http.start(opened, host, port, url)
        stack.push_async_callback(runner.cleanup)
        sweeping = asyncio.create_task(opened.run())
        stack.callback(sweeping.cancel)
        return {"ready": "registrar", "url": own_url, "holder": opened.public, "kind": custody.kind, "wait": sweeping}

    run_until_stopped(start, json)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(registrar)
