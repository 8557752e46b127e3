"""Opens a role's holder of quorum-locked bonds, and a registrar, from their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, BadInput
from nodewire.nostr.keys import Keys
from nodewire.pay.bitcoin.node import BitcoinNode
from nodewire.pay.bond.quorum.book import Book
from nodewire.pay.bond.quorum.client import QuorumBondHolder
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.bond.quorum.registrar import CAP_SAT, Registrar, RegistrarRules
from nodewire.pay.bond.quorum.vault_custody import VaultCustody
from nodewire.pay.ecash.mint import Mint
from nodewire.protocol.committee.committee import Committee

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.pay.bond.bond_holder import HolderSettings
    from nodewire.pay.bond.quorum.custody import Custody
    from nodewire.pay.bond.quorum.treasury import Cashier
    from nodewire.pay.lightning.wallet import Wallet


def open_vault(wallet: Wallet, at: HolderSettings) -> QuorumBondHolder:
    """Bonds in vaults, locked out of the Bitcoin node's own wallet and paid into it. Shares pay `wallet`."""
    if at.bitcoin is None:
        raise BadConfig("holder.bitcoin", "name the file with the URL of your Bitcoin node's RPC")
    custody = VaultCustody(BitcoinNode.from_file(at.bitcoin))
    return QuorumBondHolder(at.url, custody, at.file, committee=at.committee_digest, wallet=wallet)


def open_ecash(wallet: Wallet, at: HolderSettings) -> QuorumBondHolder:
    """Bonds in ecash, locked out of `wallet` by Lightning; claims are paid into it."""
    if not at.mint:
        raise BadConfig("holder.mint", "name the mint that you trust with the bond")
    custody = EcashCustody(Mint(at.mint), wallet, at.file.with_suffix(".ecash"), cap_sat=at.cap)
    return QuorumBondHolder(at.url, custody, at.file, committee=at.committee_digest, wallet=wallet)


def open_registrar(
    key: Path,
    committee: Path,
    state: Path,
    custody: Custody,
    *,
    cap_sat: int = CAP_SAT,
    statement_s: int | None = None,
    cashier: Cashier | None = None,
) -> Registrar:
    """A registrar with its book in the folder `state`. `key` is made if missing; `committee` is a committee.json.

    With a `cashier` it is the committee's treasury, too.

    Raises:
        BadConfig: a file cannot be used, or the committee does not list this registrar.

    """
    try:
        document = Committee.parse(committee.read_bytes())
    except OSError as error:
        raise BadConfig(str(committee), f"cannot be read: {error.strerror}") from error
    state.mkdir(parents=True, exist_ok=True)
    rules = RegistrarRules(cap_sat=cap_sat if custody.custodian else 0)
    if statement_s is not None:
        rules = RegistrarRules(statement_s=statement_s, cap_sat=rules.cap_sat)
    try:
        return Registrar(Keys.from_file(key), document, custody, Book(state / "bonds.db"), rules, cashier=cashier)
    except BadInput as error:
        raise BadConfig(f"{committee}: {error.field}", error.reason) from error
