"""What a customer pays with, whatever it pays for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.pay.accounts.payer import Payer


@dataclass(frozen=True, slots=True)
class Purse:
    """A payer, the relays that zap receipts go to, and what LNURL endpoints may be."""

    payer: Payer
    relays: tuple[str, ...]
    network: str
    """The wallet's network as bolt11 writes it after "ln": an invoice of another is refused."""
    private_endpoints: bool
    """Whether endpoints on loopback and private networks, over plain http, may be asked."""
