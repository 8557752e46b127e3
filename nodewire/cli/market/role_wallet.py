"""A role's wallet, opened for one command, and what the probe says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from nodewire.cli.output import console, one_line, sats
from nodewire.config import WalletConfig

if TYPE_CHECKING:
    from nodewire.pay.lightning.probe import Finding
    from nodewire.pay.lightning.wallet import Wallet, WalletInfo


@asynccontextmanager
async def opened(account: WalletConfig) -> AsyncIterator[tuple[Wallet, WalletInfo]]:
    """The wallet, and what it is.

    Raises:
        BadConfig: it is of another network than the file means.
        LinkLost, TimedOut, NotAllowed: it cannot be reached, or does not know its token.

    """
    from nodewire.pay import registry

    wallet = registry.wallet_class(account.kind).from_file(account.url, account.token_file)
    try:
        await registry.check_network(wallet, account.kind, account.network)
        yield wallet, await wallet.info()
    finally:
        await wallet.close()


def document(info: WalletInfo, found: Sequence[Finding]) -> dict[str, Any]:
    """A probe's findings, as plain data."""
    whole = {name: getattr(info, name) for name in ("id", "network", "unit_msat", "least_msat", "most_msat")}
    return {**whole, "abilities": [{**asdict(one), "means": one.means} for one in found]}


def show(info: WalletInfo, found: Sequence[Finding]) -> None:
    """A probe's findings, for people."""
    from nodewire.pay.lightning.probe import PURPOSE

    console.print(f"{escape(info.id)}, of {info.network}; from {sats(info.least_msat)} to {sats(info.most_msat)}")
    for one in found:
        text = one.means or PURPOSE[one.ability]
        said = f" ({one_line(one.said)})" if one.said else ""
        console.print(f"{one.ability:>10}  {one.state:<7}  {escape(text)}{said}", soft_wrap=True)
