"""Whether this kernel has the congestion control that a configuration names.

https://docs.kernel.org/networking/ip-sysctl.html, tcp_available_congestion_control
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from nodewire.errors import BadConfig
from nodewire.wire.transport.tcp import CONGESTION

_OFFERED = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_AFTER_IDLE = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")


def offered() -> list[str]:
    """Those that the kernel has loaded; none where it does not say."""
    return _words(_OFFERED)


def slows_when_idle() -> bool:
    """Whether its congestion windows collapse on connections that are idle."""
    return _words(_AFTER_IDLE) == ["1"]


def check(name: str) -> None:
    """See that a congestion control which somebody has chosen can be had. The default and the kernel's own always can.

    Raises:
        BadConfig: it is not there, or not allowed to this user; with those that are.

    """
    if name in ("", CONGESTION) or not hasattr(socket, "TCP_CONGESTION"):
        return
    with socket.socket() as trying:
        try:
            trying.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            raise BadConfig("wire.congestion", f'"{name}": {_why(error, name)}') from error


def _why(error: OSError, name: str) -> str:
    if error.errno == errno.EPERM:
        allowed = ", ".join(_words(_ALLOWED)) or "none"
        return f"this kernel has it, and allows this user {allowed} (`sysctl net.ipv4.tcp_allowed_congestion_control`)"
    others = ", ".join(offered()) or "none by name"
    return (
        f'this kernel offers {others} (`modprobe tcp_{name}` loads one that it has as a module); "" is its own choice'
    )


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
