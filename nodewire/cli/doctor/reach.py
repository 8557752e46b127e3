"""What `nodewire doctor` says of who can reach this node: what it announces, the rungs of the ladder, and the proof.

The proof is a dial-back (`nodewire.wire.nat.dialback`): a splice dials this machine where it sees it, and finds this
node's key there, or not. If the daemon is not running the port is listened at for as long as that takes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from nodewire.config import ProviderConfig
from nodewire.errors import BadConfig, NodewireError, NotFound
from nodewire.net import host_port
from nodewire.net.address_policy import are_private, is_dialled
from nodewire.protocol.market.splice_ad import LEAST_PORT
from nodewire.store.state_lock import is_held
from nodewire.wire.link.link_manager import LinkPolicy

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.wire.nat.dialback import DialbackResult


class CheckResult(NamedTuple):
    """What a check found; `facts` stand in the JSON document beside the words."""

    ok: bool
    said: str
    facts: dict[str, Any]


Check = tuple[str, Callable[[], Awaitable[str | CheckResult]]]

_SHARED = ipaddress.ip_network("100.64.0.0/10")
"""RFC 6598: between a carrier's NAT and its customers."""
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation's addresses: to ask for a route, nothing is sent there."""
_ALL = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_RUNGS = {
    "address": "dialled at its address",
    "upnp": "dialled at the router's address",
    "punch": "by holes punched through routers",
    "splice": "by splices only",
}
_CLOSED = {
    "refused": "refused: nothing listens where that port leads, or a firewall turns others away",
    "silent": "nothing came back: a router or a firewall drops what comes in",
    "stranger": "somebody answers who is not this node: the port leads to another machine, or another program",
    "unreachable": "no way leads there",
}


parsed = partial(host_port.parse, field="wire", least_port=0, error=BadConfig)
"""Host and port; port 0 takes a free one. Raises BadConfig."""


def checks(role: ProviderConfig) -> list[Check]:
    listen = role.wire.listen
    inside = parsed(listen)[1]
    if not role.wire.announce and parsed(listen)[0] in _ALL:
        return [("ways for others to reach it", partial(_ways, role))]
    is_open = any(is_public(urlsplit(url).hostname or "") for url in role.relays)
    found: list[Check] = []
    for address in role.wire.announce or (listen,):
        found.append((f"wire, announced as {address}", partial(_announced, address, is_open, inside)))
        found.append((f"wire, dialled at {address} from outside", partial(_outside, role, address)))
    return found


async def _announced(address: str, is_open: bool, inside: int = 0) -> str:
    """Whether strangers can dial it at all, as far as can be told from here.

    `is_open`: relays are public, so the market is not this network's own; `inside`: the port that is listened at.
    """
    host, port = parsed(address)
    addresses = sorted(await _resolved(host, port))
    if not any(map(is_public, addresses)):
        if not is_open:
            return "a private address, as the relays' are: for a market of this network"
        what = f"{host} is {_kind(ipaddress.ip_address(addresses[0]))}: nobody outside reaches it"
        raise BadConfig("wire.announce", f"{what}. {_advice(port)}")
    if port == 0:
        raise BadConfig("wire.announce", f"{address} has no port that others could dial")
    own = [_own(family) for family in _ELSEWHERE]
    if _is_behind(own):
        to = f"port {inside} of it" if inside not in (0, port) else "it"
        return f"a public address; this machine is {own[0]} inside, so the router must forward port {port} to {to}"
    if inside not in (0, port):
        return f"a public address; port {port} must lead to port {inside}, where this role listens"
    return "a public address"


async def _outside(role: ProviderConfig, address: str) -> CheckResult:
    """Whether who dials the announced address gets this node: a splice tries it, if one can."""
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.encoding.address import SpliceAddress
    from nodewire.wire.nat import dialback, public_address

    (host, port), inside = parsed(address), parsed(role.wire.listen)[1]
    if 0 in (port, inside):
        return _untried("a free port is taken at each start")
    if port < LEAST_PORT:
        return _untried(f"splices dial no port below {LEAST_PORT}")
    allow_private = role.wire.private or await are_private(role.relays)
    addresses = await _resolved(host, port)
    if not allow_private and not any(is_dialled(one, allow_private=False) for one in addresses):
        return _untried(f"{host} is no public address")
    keys = Keys.from_file(role.key)
    splices: Sequence[SpliceAddress] = [SpliceAddress.parse(one) for one in role.wire.splices]
    if not splices:
        try:
            async with Pool(role.relays, keys=keys) as pool:
                splices = await public_address.find(pool)
        except NodewireError as error:
            return _untried(f"no splice is known ({error})")
    async with _answering(role, keys):
        dialled = await dialback.ask_some(splices, port, keys, allow_private=allow_private)
    if isinstance(dialled, dialback.DialbackResult) and (seen := parsed(dialled.at)[0]) not in addresses:
        return _untried(
            f"splices see this machine at {seen}, and dial it nowhere else; {host} is {', '.join(sorted(addresses))}."
            " If that is not another line of yours, announce the one that they see"
        )
    return _proof(dialled, inside)


async def _ways(role: ProviderConfig) -> CheckResult:
    """The best rung of the ladder that holds from here, and what would be better, as its daemon would find out."""
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.encoding.address import SpliceAddress
    from nodewire.wire.nat.diagnosis import examine

    keys, wire, (_, port) = Keys.from_file(role.key), role.wire, parsed(role.wire.listen)
    async with Pool(role.relays, keys=keys) as pool, _answering(role, keys):
        found = await examine(
            pool,
            keys,
            port,
            splices=[SpliceAddress.parse(one) for one in wire.splices],
            upnp=wire.upnp,
            allow_private=wire.private,
            is_running=is_held(role.state),
        )
    proof = _untried("a free port is taken at each start") if port == 0 else _proof(found.dialled, port)
    is_dialled_here = found.rung in ("address", "upnp")
    said = f"{_RUNGS[found.rung]}: {found.words}" if found.rung in _RUNGS else found.words
    if is_dialled_here or found.dialled is None:
        said = f"{said}; {proof.said}"
    return CheckResult(
        found.rung != "none" and (proof.ok or not is_dialled_here), said, {"rung": found.rung, **proof.facts}
    )


def _proof(dialled: DialbackResult | NodewireError | None, inside: int) -> CheckResult:
    """`inside`: the port that is listened at."""
    if dialled is None:
        return _untried("no splice is known")
    if isinstance(dialled, NodewireError):
        return _untried(str(dialled))
    facts = {"dialled": {"by": dialled.splice, "at": dialled.at, "outcome": dialled.outcome}}
    said = f"a splice at {dialled.splice} dialled you at {dialled.at}"
    if dialled.outcome == "open":
        return CheckResult(True, f"{said}: open", facts)
    return CheckResult(False, f"{said}, {_CLOSED[dialled.outcome]}. {_opening(parsed(dialled.at)[1], inside)}", facts)


def _untried(why: str) -> CheckResult:
    return CheckResult(True, f"whether it is open from outside was not tried: {why}", {"dialled": None, "why": why})


def _opening(port: int, inside: int) -> str:
    """What to change so that `port` leads to our port `inside`."""
    own = _own(socket.AF_INET)
    if own is not None and ipaddress.ip_address(own) in _SHARED:
        return _advice(port)
    firewall = f"let TCP port {inside} in through this machine's firewall"
    if own is not None and not is_public(own):
        to = f"{own}, port {inside}" if inside != port else own
        return f"In the router, forward TCP port {port} to {to}; and {firewall}"
    return f"{firewall.capitalize()}, and through that of whoever hosts it"


@asynccontextmanager
async def _answering(role: ProviderConfig, keys: Keys) -> AsyncIterator[None]:
    """Somebody listens for this role as long as this is entered: its daemon, or else we."""
    from nodewire.wire.node import Node

    node = Node(keys, policy=LinkPolicy(admit=lambda peer: False))
    try:
        with suppress(OSError):  # the daemon has it, or what does is another check's matter
            await node.listen(*parsed(role.wire.listen))
        yield
    finally:
        await node.close()


async def _resolved(host: str, port: int) -> set[str]:
    """The addresses that a name stands for. Raises NotFound."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port or 1, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotFound("wire.announce", f"{host} is no name that leads anywhere: {error.strerror}") from error
    return {str(where[0]).partition("%")[0] for *_, where in found}


def _advice(port: int) -> str:
    """What to change, by where this machine stands."""
    own = _own(socket.AF_INET)
    if own is not None and ipaddress.ip_address(own) in _SHARED:
        return (
            f"This machine is {own}, behind a carrier's NAT (100.64.0.0/10). No router of yours can forward a port"
            " there. Ask for an address of your own, or announce an IPv6 one"
        )
    if (six := _own(socket.AF_INET6)) is not None and is_public(six):
        return f"This machine has a public IPv6 address: let port {port or '(a fixed one)'} in, and announce [{six}]"
    inside = f" to {own}" if own is not None else ""
    return f"Forward a port of the router{inside}, and announce the router's public address with it"


def _is_behind(own: Sequence[str | None]) -> bool:
    return own[0] is not None and not is_public(own[0])


def _own(family: socket.AddressFamily) -> str | None:
    """The address from which this machine would speak to the internet; None without a route. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((_ELSEWHERE[family], 9))
        except OSError:
            return None
        name: str = asking.getsockname()[0]
        return name


def _kind(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.is_loopback:
        return "this machine's own (loopback)"
    if address.is_unspecified:
        return "any address of this machine, and none that can be dialled"
    if address.version == 4 and address in _SHARED:
        return "behind a carrier's NAT (100.64.0.0/10)"
    return "a private address"


def is_public(host: str) -> bool:
    """Names count as public: they mostly are."""
    if not host or host == "localhost":
        return False
    return not is_dialled(host, allow_private=True) or is_dialled(host, allow_private=False)
