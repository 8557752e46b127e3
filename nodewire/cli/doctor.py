"""`nodewire doctor`: what works from here and what to change where it does not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from nodewire.cli.output import OPERATORS, Json, console, one_line, print_json, sats
from nodewire.config import CustomerConfig, ProviderConfig, Role, load_role
from nodewire.errors import BadConfig, NodewireError

Check = Callable[[], Awaitable[str]]


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Also check this role's relays, stores and wallet.")
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine and, with a configuration, everything that it names."""
    rows = asyncio.run(_examine(config))
    if json:
        print_json(
            {"ok": all(ok for _, ok, _ in rows), "checks": [{"what": w, "ok": ok, "said": s} for w, ok, s in rows]}
        )
    else:
        for what, ok, said in rows:
            console.print(f"{'[green]✓' if ok else '[red]✗'}[/] {what}  [dim]{one_line(said)}[/]")
    if not all(ok for _, ok, _ in rows):
        sys.exit(1)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(doctor)


async def _examine(config: Path | None) -> list[tuple[str, bool, str]]:
    checks: list[tuple[str, Check]] = [("Python", _python), ("packages", _packages), ("worker sandbox", _sandbox)]
    if config is not None:
        role = load_role(config)
        checks += [
            ("relays", lambda: _relays(role)),
            ("committee and epochs", lambda: _committee(role)),
            ("wallet", lambda: _wallet(role)),
        ]
    rows = []
    for what, check in checks:
        try:
            rows.append((what, True, await check()))
        except NodewireError as error:
            rows.append((what, False, str(error)))
    return rows


async def _python() -> str:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        raise BadConfig("python", f"{platform.python_version()} runs; 3.11 or 3.12 is needed (bolt11, lnurl)")
    return platform.python_version()


async def _packages() -> str:
    if int(importlib.metadata.version("bitstring").split(".")[0]) >= 5:
        raise BadConfig("bitstring", "5 breaks bolt11; install with -c constraints.txt")
    return f"torch {importlib.metadata.version('torch')}"


async def _sandbox() -> str:
    from nodewire.kind import Limits
    from nodewire.worker.client import WorkerProcess

    worker = await WorkerProcess.start("kinds.k8843_worker", Limits(memory_bytes=50_000_000))
    said = worker.hello.sandbox
    await worker.stop()
    if said == "rlimits only":
        raise BadConfig(
            "sandbox", "only resource limits hold here; a kernel with seccomp and landlock locks workers in"
        )
    return said


async def _relays(role: Role) -> str:
    from nodewire.nostr.nip01 import Filter
    from nodewire.nostr.pool import Pool

    answered = []
    for url in role.relays:
        async with Pool([url]) as pool:
            await pool.fetch([Filter(limit=1)], timeout_s=5.0)
            answered.append(url)
    return ", ".join(answered)


async def _committee(role: Role) -> str:
    from nodewire.market import open_market

    async with AsyncExitStack() as stack:
        _, _, market = await open_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=15.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        return f"{market.committee.name}: epoch {epoch.body.epoch} certified, {len(snapshot.nodes)} nodes live"


async def _wallet(role: CustomerConfig | ProviderConfig) -> str:
    from nodewire.pay.sim_wallet import SimWallet

    wallet = SimWallet.from_file(role.wallet.url, role.wallet.token_file)
    try:
        return sats(await wallet.balance_msat())
    finally:
        await wallet.close()
