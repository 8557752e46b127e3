"""Which addresses may be dialled for a URL that somebody else has written: public ones, or private ones by leave."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from yarl import URL

from nodewire.errors import BadInput, NotAllowed, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_URL_CHARS = 1_024
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def parse(text: str) -> URL:
    """The http(s) URL in `text`. Raises TooLarge, BadInput."""
    if len(text) > MAX_URL_CHARS:
        raise TooLarge("url", f"{len(text)} characters, at most {MAX_URL_CHARS}")
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise BadInput("url", "not a URL") from error
    if url.scheme not in ("https", "http") or not url.host or port is None or url.user or url.fragment:
        raise BadInput("url", "not an http(s) URL with a host and without user or fragment")
    return url


def connector(url: URL, *, allow_private: bool, force_close: bool = False) -> aiohttp.TCPConnector:
    """What dials for `url`, and for it alone: a redirect's target needs its own.

    With `allow_private`, addresses that are not public (loopback, private networks) may be dialled, and these alone
    over plain http; without, only public addresses and only https. The addresses that are checked are those dialled.

    Raises:
        NotAllowed: the URL's scheme, or the address that it is, is not allowed.

    """
    assert url.host is not None
    if url.scheme == "http" and not allow_private:
        raise NotAllowed("url", "https only")
    policy = _Policy(public=url.scheme == "https", private=allow_private)
    with contextlib.suppress(ValueError):  # a name: the resolver checks what it stands for
        policy.check(ipaddress.ip_address(url.host))  # an address: no resolver is asked
    return aiohttp.TCPConnector(resolver=_PolicyResolver(policy), force_close=force_close)


def is_dialled(address: str, *, allow_private: bool) -> bool:
    """Whether a connection may be opened to the IP address that somebody else has written."""
    try:
        _Policy(public=True, private=allow_private).check(ipaddress.ip_address(address.partition("%")[0]))
    except (ValueError, NotAllowed):
        return False
    return True


async def are_private(urls: Iterable[str]) -> bool:
    """Whether all of these hosts are in networks of one's own: no part of the internet, and none that is unknown."""
    loop = asyncio.get_running_loop()
    for url in urls:
        try:
            found = await loop.getaddrinfo(URL(url).host or "", None, type=socket.SOCK_STREAM)
        except (OSError, ValueError):
            return False
        if not found or any(is_dialled(str(where[0]), allow_private=False) for *_, where in found):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Policy:
    """Which addresses may be dialled."""

    public: bool
    private: bool

    def check(self, address: _Address) -> None:
        """Raises NotAllowed."""
        address = _meant(address)
        is_public = address.is_global and not address.is_multicast
        if not (self.public if is_public else self.private):
            way = "plain http to a public address, on whose way others read along: use https"
            raise NotAllowed("url", way if is_public else "not a public address")


def _meant(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 one carries packets to, where it is made of one."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class _PolicyResolver(AbstractResolver):
    """Resolves names under a policy, so that the addresses that are checked are those that are dialled."""

    def __init__(self, policy: _Policy) -> None:
        self._resolver = DefaultResolver()
        self._policy = policy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for result in found:
            self._policy.check(ipaddress.ip_address(result["host"].partition("%")[0]))
        return found

    async def close(self) -> None:
        await self._resolver.close()
