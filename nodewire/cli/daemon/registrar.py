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
from nodewire.core.stop import stop
from nodewire.errors import BadInput
from nodewire.net.listen_address import named_by

if TYPE_CHECKING:
    from nodewire.pay.bond.quorum.custody import Custody
    from nodewire.pay.bond.quorum.registrar import Registrar
    from nodewire.pay.treasurer.cashier import WalletCashier


def registrar(
    key: Annotated[Path, typer.Option(help="The registrar's nsec, made if missing; the committee lists its npub.")],
    committee: Annotated[Path, typer.Option(help="The committee.json of the committee that it keeps bonds for.")],
    state: Annotated[Path, typer.Option(help="The folder of its book.")] = Path("registrar"),
    bitcoin: Annotated[
        Path | None, typer.Option(help="Bonds in vaults: a file with the URL of a Bitcoin node's RPC.")
    ] = None,
    mint: Annotated[str, typer.Option(help="Small bonds in ecash: the URL of the mint, which is a custodian.")] = "",
    cap: Annotated[str, typer.Option(help="The most that all bonds at the mint may hold.")] = "1000000sat",
    confirmations: Annotated[int, typer.Option(help="Blocks that a vault must have before it counts.", min=1)] = 6,
    treasury: Annotated[
        Path | None, typer.Option(help="Keep the treasury, too: a TOML file with `relays` and a table `wallet`.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 7779,
    url: Annotated[str, typer.Option(help="The public URL (default: host and port).")] = "",
    json: Json = False,
) -> None:
    """Run a registrar: it states which bonds are locked, and has oracles sign what closes them. It holds no coins.

    One registrar keeps bonds of one kind: --bitcoin or --mint says which. With --treasury customers pay it for
    verification, and it pays verifiers and oracles out of its wallet.
    """
    if (bitcoin is None) == (not mint):
        raise BadInput("--bitcoin", "name a Bitcoin node, or with --mint a mint, and not both")
    cap_sat = parse_msat(cap) // 1_000
    state.mkdir(parents=True, exist_ok=True)

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
        cashier = None if treasury is None else await _open_cashier(stack, key, treasury, state)
        opened = open_registrar(key, committee, state, custody, cap_sat=cap_sat, cashier=cashier)
        stack.callback(opened.close)
        with named_by("--port", f"{host}:{port}"):
            runner, own_url = await http.start(opened, host, port, url)
        stack.push_async_callback(runner.cleanup)
        running = asyncio.create_task(_run(opened, cashier))
        stack.push_async_callback(stop, running)
        paid = {"lnurl": cashier.lnurl} if cashier is not None else {}
        said = {"ready": "registrar", "url": own_url, "holder": opened.public, "kind": custody.kind, **paid}
        return {**said, "wait": running}

    run_until_stopped(start, json)


async def _open_cashier(stack: AsyncExitStack, key: Path, treasury: Path, state: Path) -> WalletCashier:
    """The wallet that a treasury's file names, and its ledger in the folder `state`."""
    from nodewire.config import TreasuryConfig
    from nodewire.net.address_policy import are_private
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay import registry
    from nodewire.pay.treasurer.cashier import WalletCashier
    from nodewire.startup.receipts import ReceiptRelays

    config = TreasuryConfig.load(treasury)
    keys, account = Keys.from_file(key), config.wallet
    wallet = registry.wallet_class(account.kind).from_file(account.url, account.token_file)
    stack.push_async_callback(wallet.close)
    await registry.check_network(wallet, account.kind, account.network)
    pool = await stack.enter_async_context(Pool(config.relays, keys=keys))
    private = config.private or await are_private(config.relays)
    receipts = ReceiptRelays(pool, config.relays, keys, allow_private=private)
    cashier = await WalletCashier.open(keys, wallet, state / "ledger.db", receipts.publish, own_relays=receipts.own)
    stack.callback(cashier.close)
    return cashier


async def _run(opened: Registrar, cashier: WalletCashier | None) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(opened.run())
        if cashier is not None:
            group.create_task(cashier.run())


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(registrar)
