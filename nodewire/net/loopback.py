"""What only this machine reaches: addresses of its own, and requests that call it by one of them.

A page in a browser can have its own host's name stand for 127.0.0.1 (DNS rebinding): to the browser it then asks its
own origin, and reads what comes. The name that it asks for is still the page's.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether it is reached from this machine alone. A name other than localhost counts as an address of others."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(address: str) -> str:
    """Of `host`, `host:port`, `[v6]` or `[v6]:port`, as a `Host` header or a configuration has it."""
    if address.startswith("["):
        return address.partition("]")[0] + "]"
    return address.partition(":")[0]


def is_called_so(asked: str | None) -> bool:
    """Whether who sent this `Host` header meant this machine and nothing else. Browsers always send one."""
    return asked is None or is_loopback(host_of(asked).lower())
