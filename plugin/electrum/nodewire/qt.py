"""The plugin in Electrum's window: the same commands, while its JSON-RPC is on."""

from .cmdline import Plugin

__all__ = ["Plugin"]
