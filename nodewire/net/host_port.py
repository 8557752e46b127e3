"""`host:port` and `[v6]:port`: an address as options, configurations, ads and splices have it."""

from __future__ import annotations

from nodewire.errors import BadInput, NodewireError


def parse(
    text: str, field: str = "address", *, least_port: int = 1, error: type[NodewireError] = BadInput
) -> tuple[str, int]:
    """Host, without the brackets of an IPv6 address, and port. Raises `error`, which names the field."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5 and least_port <= int(port) < 65_536):
        raise error(field, f"{text[:80]!r} is not host:port or [v6]:port, with a port from {least_port} to 65535")
    return host, int(port)


def written(host: str, port: int) -> str:
    """`host:port`, or `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
