"""A port that the home's router opens for us: UPnP's Internet Gateway Device, by miniupnpc.

https://openconnectivity.org/developer/specifications/upnp-resources/upnp/internet-gateway-device-igd-v-2-0/
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from nodewire.errors import NodewireError, NotFound
from nodewire.net import address_policy, host_port

LEASE_S = 3_600
RENEW_S = 1_500
ROUTER_S = 15.0
"""For all that a router is asked; one that goes on talking is given up."""
_DISCOVER_MS = 1_000
_ANY_FAULT = Exception
"""miniupnpc raises plain Exception with the router's words."""
_NO_FAULT = ("", "Success")
"""What it raises where nobody has answered."""
_SILENT = "no router answers; most have a switch for it, under UPnP or NAT"

_log = logging.getLogger("nodewire.wire")


class PortMapping:
    """A port of the router that leads to ours. `address` is what others dial."""

    def __init__(self, router: Any, port: int, address: str) -> None:
        self._router = router
        self._port = port
        self.address = address

    @classmethod
    async def open(cls, port: int) -> PortMapping:
        """Have the router lead its port of the same number to ours. Takes a second or two.

        Raises:
            NotFound: no router that does so, or it stands behind another one itself.

        """
        try:
            async with asyncio.timeout(ROUTER_S):
                return await asyncio.to_thread(cls._open, port)
        except TimeoutError:
            raise NotFound("UPnP", "the router does not come to an end") from None

    @classmethod
    def _open(cls, port: int) -> PortMapping:
        import miniupnpc  # only where a router is asked: a compiled library

        router = miniupnpc.UPnP()
        router.discoverdelay = _DISCOVER_MS
        try:
            if not router.discover():
                raise NotFound("UPnP", _SILENT)
            router.selectigd()
            outside = str(router.externalipaddress())
            _map(router, port)
        except NodewireError:
            raise
        except _ANY_FAULT as error:
            said = str(error)[:200]
            raise NotFound("UPnP", _SILENT if said in _NO_FAULT else f"the router says: {said}") from error
        if not address_policy.is_dialled(outside, allow_private=False):
            _unmap(router, port)
            raise NotFound("UPnP", f"the router's own address is {outside}: it stands behind another one")
        return cls(router, port, host_port.written(outside, port))

    async def keep(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await asyncio.to_thread(_map, self._router, self._port)
            except _ANY_FAULT as error:
                _log.warning("UPnP: the router does not renew %s: %s", self.address, error)

    async def close(self) -> None:
        await asyncio.to_thread(_unmap, self._router, self._port)


def _map(router: Any, port: int) -> None:
    wanted = (port, "TCP", router.lanaddr, port, "nodewire", "")
    try:
        router.addportmapping(*wanted, str(LEASE_S))
    except _ANY_FAULT:  # some routers know no leases (OnlyPermanentLeasesSupported)
        router.addportmapping(*wanted)


def _unmap(router: Any, port: int) -> None:
    with suppress(_ANY_FAULT):  # the router is gone, or has forgotten it: so much the better
        router.deleteportmapping(port, "TCP")
