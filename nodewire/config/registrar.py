"""The file of a registrar's treasury."""

from __future__ import annotations

from pydantic import Field

from nodewire.config.file import File
from nodewire.config.role import WalletConfig


class TreasuryConfig(File):
    """`nodewire registrar --treasury` takes shares by it, and pays verifiers and oracles."""

    relays: tuple[str, ...] = Field(min_length=1, max_length=8)
    """Websocket URLs. Zap receipts go there, too."""
    wallet: WalletConfig
    """The wallet that lumps come into, and that payouts go out of."""
    private: bool = False
    """Publish receipts to relays at private addresses, too, if zap requests name them. On if all relays are private."""
