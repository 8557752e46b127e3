"""Finds the wallets and bond holders that installed packages bring, by the kind that a role's file names.

A package registers a class in an entry-point group: `nodewire.wallets` or `nodewire.bond_holders`. The entry's name is
the kind. A class is imported when its kind is configured, and no peer can name one.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import BadConfig
from nodewire.pay.bond.bond_holder import BondHolder
from nodewire.pay.bond.no_bond_holder import NoBondHolder

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.pay.bond.bond_holder import BondHolder, HolderSettings
    from nodewire.pay.lightning.wallet import Wallet

WALLETS = "nodewire.wallets"
BOND_HOLDERS = "nodewire.bond_holders"


class WalletClass(Protocol):
    """A class of wallets, as a package registers it."""

    @property
    def networks(self) -> tuple[str, ...]:
        """The Lightning networks that its wallets may be of, as bolt11 writes them after "ln" (`invoices.NETWORKS`).

        The first is meant where a role's file names none.
        """

    def from_file(self, url: str, token_file: Path | None) -> Wallet:
        """The wallet of the account whose secret is in `token_file`. Nothing is asked over the network yet.

        Without a file it has no account: its bond holder can be asked, and nothing can be paid.

        Raises:
            BadConfig: the file cannot be read, or this kind needs one.

        """

    async def open_account(self, url: str, name: str, opening_msat: int = 0) -> tuple[Wallet, str]:
        """A wallet on a new account, and the account's secret for `token_file`.

        Raises:
            NotAllowed: this kind opens no accounts, or none with so much in it.

        """


class BondHolderClass(Protocol):
    """A class of bond holders, as a package registers it beside the wallets of the same kind."""

    def __call__(self, wallet: Any, /) -> BondHolder:
        """The holder that the service of `wallet`, a wallet of the same kind, is. Claims are paid into the wallet."""


class ApartHolderClass(Protocol):
    """A class of bond holders that are apart from a wallet's service."""

    def __call__(self, wallet: Wallet, at: HolderSettings, /) -> BondHolder:
        """The holder; claims are paid into the wallet, of whatever kind. Raises BadConfig: a setting is missing."""


def wallet_class(kind: str, field: str = "wallet.kind") -> WalletClass:
    """The wallets of `kind`. `field` is the setting that names the kind.

    Raises:
        BadConfig: no installed package has wallets of this kind, several have, or they cannot be imported.

    """
    found: WalletClass | None = _load(WALLETS, kind, field)
    if found is None:
        kinds = ", ".join(f'"{name}"' for name in sorted(entry_points(group=WALLETS).names))
        there = f"that there is: {kinds}" if kinds else "that there is: no installed package has one"
        raise BadConfig(field, f"{kind!r} is not a kind of wallet {there}")
    return found


def network_of(kind: str, network: str = "") -> str:
    """The Lightning network that a role with a wallet of `kind` deals on: `network`, or the kind's own if it is empty.

    Raises:
        BadConfig: the kind has no wallets there, or is none.

    """
    networks = wallet_class(kind).networks
    if network and network not in networks:
        there = ", ".join(f'"{name}"' for name in networks)
        raise BadConfig("wallet.network", f'wallets of kind {kind!r} are of {there}, and refused on "{network}"')
    return network or networks[0]


async def check_network(wallet: Wallet, kind: str, network: str = "") -> None:
    """Check that `wallet`, of `kind`, is of the network that the role's file means.

    Raises:
        BadConfig: it is of another one.
        LinkLost, TimedOut, NotAllowed: it cannot be reached, or does not know its token.

    """
    meant, found = network_of(kind, network), (await wallet.info()).network
    if found != meant:
        raise BadConfig("wallet.network", f'the wallet is of "{found}", and "{meant}" is meant: set it to "{found}"')


def bond_holder(kind: str, wallet: Wallet, at: HolderSettings | None = None) -> BondHolder:
    """The bond holder `at` its own place, or that `wallet`, of `kind`, reaches.

    One that refuses everything if the kind has none.

    Raises:
        BadConfig: no package or several have holders of this kind, they cannot be imported, or a setting is missing.


    """
    if at is not None:
        apart: ApartHolderClass | None = _load(BOND_HOLDERS, at.kind, "holder.kind")
        if apart is None:
            raise BadConfig("holder.kind", f"{at.kind!r} is not a kind of bond holder that there is: vault, ecash")
        return apart(wallet, at)
    found: BondHolderClass | None = _load(BOND_HOLDERS, kind, "wallet.kind")
    return found(wallet) if found is not None else NoBondHolder(kind)


def _load(group: str, name: str, field: str) -> Any:
    """What is registered by this name; None if nothing is."""
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not found:
        return None
    if len(found) > 1:
        raise BadConfig(field, f"{name!r} is registered more than once: {', '.join(sorted(found))}")
    (entry,) = found.values()
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise BadConfig(field, f"{name!r} cannot be loaded: {error}") from error
