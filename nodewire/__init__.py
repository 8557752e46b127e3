"""Nodewire: a Nostr-native, peer-to-peer marketplace where strangers run pieces of AI models for sats.

    async with nodewire.Customer.open("customer.toml") as customer:
        async for piece in customer.generate(model, "def main():"):
            print(piece.text, end="")

What stands in `__all__` is the Python API; a daemon is started by the command `nodewire`. Names are imported when they
are first used, so that a part of the package costs no more than it is.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""As `typing` has it, which takes longer to import than all else before a command hears Ctrl-C."""
if TYPE_CHECKING:
    from typing import Any

    from nodewire.customer.api import CallListener as CallListener
    from nodewire.customer.api import Customer as Customer
    from nodewire.customer.tokens.token_chunk import Piece as Piece
    from nodewire.errors import NodewireError as NodewireError
    from nodewire.graph.registration.register import register as register
    from nodewire.protocol.job.plan import Terms as Terms

__version__ = "0.1.0"

_HOMES = {
    "CallListener": "nodewire.customer.api",
    "Customer": "nodewire.customer.api",
    "NodewireError": "nodewire.errors",
    "Piece": "nodewire.customer.tokens.token_chunk",
    "Terms": "nodewire.protocol.job.plan",
    "register": "nodewire.graph.registration.register",
}
__all__ = ["CallListener", "Customer", "NodewireError", "Piece", "Terms", "__version__", "register"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
