"""Where a node is reached: `host:port` is dialled; `splice:<public key>@host:port` is a splice to be met at.

A splice (nips/24-reach.md) joins two connections for nodes that cannot be dialled. Who has such an address wants
an offer by its relays first.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator

from nodewire.errors import BadInput
from nodewire.net import host_port
from nodewire.protocol.encoding.validation_errors import shaped

_HOST = r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9.-]{1,253})"
_SPLICE = "splice:"
SPLICE_WORDS = "splice:<public key in hex>@host:port"


def ip_port(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """Address and port of `v4:port` or `[v6]:port`. Raises ValueError."""
    try:
        host, port = host_port.parse(text)
        ip = ipaddress.ip_address(host)
    except (BadInput, ValueError) as error:
        raise ValueError(f"{text[:60]!r} is not an IP address with a port") from error
    if text.startswith("[") != (ip.version == 6) or "%" in host:
        raise ValueError(f"{text[:60]!r} is not an IP address with a port")
    return ip, port


def _is_ip_port(text: str) -> str:
    ip_port(text)
    return text


def _has_port(text: str) -> str:
    try:
        host_port.parse(text.rpartition("@")[2])
    except BadInput as error:
        raise ValueError(error.reason) from error
    return text


HostPort = Annotated[str, shaped(rf"^{_HOST}:[0-9]{{1,5}}$", "host:port"), AfterValidator(_has_port)]
"""`host:port` or `[v6]:port`."""
IpPort = Annotated[str, AfterValidator(_is_ip_port)]
"""`v4:port` or `[v6]:port`: no name, so no resolver is asked for it."""
SpliceText = Annotated[str, shaped(rf"^{_SPLICE}[0-9a-f]{{64}}@{_HOST}:[0-9]{{1,5}}$", SPLICE_WORDS)]
WireAddress = Annotated[
    str,
    shaped(rf"^({_SPLICE}[0-9a-f]{{64}}@)?{_HOST}:[0-9]{{1,5}}$", f"host:port or {SPLICE_WORDS}", max_length=340),
    AfterValidator(_has_port),
]


@dataclass(frozen=True, slots=True)
class SpliceAddress:
    """A splice's key, and where it is dialled (`host:port`)."""

    public: str
    at: str

    def __str__(self) -> str:
        return f"{_SPLICE}{self.public}@{self.at}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BadInput."""
        public, _, at = text.removeprefix(_SPLICE).partition("@")
        is_key = len(public) == 64 and all(digit in "0123456789abcdef" for digit in public)
        if not is_splice(text) or not is_key or not at:
            raise BadInput("address", f"{text[:80]!r} is not splice:<public key>@host:port")
        return cls(public, at)


def is_splice(text: str) -> bool:
    return text.startswith(_SPLICE)
