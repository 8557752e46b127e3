"""What `nodewire doctor` says of the network: who can reach this node, the kernel's TCP, the clock, links so far."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from nodewire.config import AnyRole, ProviderConfig
from nodewire.dialling import is_dialled
from nodewire.errors import BadConfig, BadInput, NotFound
from nodewire.store.held import is_held
from nodewire.wire.transport import CONGESTION, parse_address

Check = tuple[str, Callable[[], Awaitable[str]]]

CLOCK_S = 2.0
"""A committee's usual skew. An HTTP date is of whole seconds: one is added."""
LOSSY_PPM = 2_000
"""From here on loss costs a link more than BBR's pacing does."""
_SHARED = ipaddress.ip_network("100.64.0.0/10")
"""RFC 6598: between a carrier's NAT and its customers."""
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation's addresses: to ask for a route, nothing is sent there."""
_ALL = ("0.0.0.0", "::")
_RUNGS = {
    "address": "dialled at its address",
    "upnp": "dialled at the router's address",
    "punch": "by holes punched through routers",
    "splice": "by splices only",
}
_PROC = Path("/proc/sys/net/ipv4")
_ANSWER_S = 5.0


def checks(role: AnyRole) -> list[Check]:
    wanted = role.wire.congestion if isinstance(role, ProviderConfig) else CONGESTION
    found: list[Check] = [("TCP of this kernel", partial(_kernel, wanted))]
    if role.blossom:
        found.append(("clock", partial(_clock, role.blossom)))
    if isinstance(role, ProviderConfig) and role.serve:
        found.append((f"wire, listening at {role.wire.listen}", partial(_listening, role.wire.listen, role.state)))
        looks = not role.wire.announce and _parsed(role.wire.listen)[0] in _ALL
        is_open = any(_is_public(urlsplit(url).hostname or "") for url in role.relays)
        for address in () if looks else role.wire.announce or (role.wire.listen,):
            found.append(
                (f"wire, announced as {address}", partial(_announced, address, is_open, _parsed(role.wire.listen)[1]))
            )
        if looks:
            found.append(("ways for others to reach it", partial(_ways, role)))
    found.append(("links so far", partial(_links, role.state)))
    return found


async def _kernel(wanted: str = CONGESTION) -> str:
    """Never a fault: the wire works on any of them."""
    available = _words(_PROC / "tcp_available_congestion_control")
    if not available:
        return "its congestion control cannot be chosen here; its own is used"
    if wanted and wanted not in available:
        return f"no {wanted} here, only {', '.join(available)}: `modprobe tcp_{wanted}` loads it, if there is one"
    said = f"{wanted} is there" if wanted else "its own congestion control is used"
    if _words(_PROC / "tcp_slow_start_after_idle") == ["1"]:
        said += "; idle connections start slowly, which heartbeats prevent while a job is open"
    return said


async def _clock(stores: Sequence[str]) -> str:
    """How far this clock is from those of the blob stores: beats and requests of a wrong one are refused."""
    import aiohttp

    apart_s: list[float] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ANSWER_S)) as session:
        for store in stores:
            began_s = time.time()
            try:
                async with session.head(f"{store.rstrip('/')}/{'0' * 64}") as answer:
                    date = parsedate_to_datetime(answer.headers["Date"])
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError):
                continue  # whether a store answers is another check's matter
            apart_s.append((began_s + time.time()) / 2 - (date.timestamp() + 0.5))
    if not apart_s:
        return "no blob store says what time it is"
    if abs(apart := median(apart_s)) > CLOCK_S + 1:
        raise BadConfig(
            "clock", f"{abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}: set it by NTP (timedatectl)"
        )
    return f"within {CLOCK_S + 1:.0f} s of the blob stores'"


async def _listening(address: str, state: Path) -> str:
    host, port = _parsed(address)
    if port == 0:
        return "a free port is taken at each start: a router's forwarding needs a fixed one"
    try:
        (family, kind, _, _, where), *_ = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise BadConfig("wire.listen", f"{host} is no address: {error.strerror}") from error
    with socket.socket(family, kind) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise BadConfig("wire.listen", f"{host} is no address of this machine") from error
            if await _answers(host, port):
                if is_held(state):
                    return "somebody listens there, and this role's daemon is running"
                raise BadConfig(
                    "wire.listen", f"another program listens at port {port}, and this role's daemon is not running"
                ) from error
            raise BadConfig("wire.listen", f"cannot listen at {address}: {error.strerror}") from error
    return "free"


async def _announced(address: str, is_open: bool, inside: int = 0) -> str:
    """Whether strangers can dial it at all, as far as can be told from here.

    `is_open`: relays are public, so the market is not this network's own; `inside`: the port that is listened at.
    """
    host, port = _parsed(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port or 1, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotFound("wire.announce", f"{host} is no name that leads anywhere: {error.strerror}") from error
    addresses = [ipaddress.ip_address(str(where[0]).partition("%")[0]) for *_, where in found]
    public = [one for one in addresses if _is_public(str(one))]
    if not public:
        if not is_open:
            return "a private address, as the relays' are: for a market of this network"
        what = f"{host} is {_kind(addresses[0])}: nobody outside reaches it"
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


async def _ways(role: ProviderConfig) -> str:
    """The best rung of the ladder that holds from here, and what would be better, as its daemon would find out."""
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.address import SpliceAddress
    from nodewire.wire.reach.examining import examine

    keys, wire = Keys.from_file(role.key), role.wire
    async with Pool(role.relays, keys=keys) as pool:
        found = await examine(
            pool,
            keys,
            _parsed(wire.listen)[1],
            splices=[SpliceAddress.parse(one) for one in wire.splices],
            upnp=wire.upnp,
            allow_private=wire.private,
        )
    if found.rung == "none":
        raise NotFound("wire", found.words)
    return f"{_RUNGS[found.rung]}: {found.words}"


async def _links(state: Path) -> str:
    """What the daemon's links have been like, and BBR where loss would be worth it."""
    from nodewire.wire import health_log

    _, edges = await asyncio.to_thread(health_log.read, state)
    open_ = [edge for edge in edges if edge.is_open(time.time())]
    lossy = [edge for edge in edges if (edge.lost_ppm or 0) > LOSSY_PPM]
    said = f"{len(edges)}, {len(open_)} of them open"
    if edges and 2 * len(lossy) > len(edges):
        said += (
            f"; {len(lossy)} lose more than {LOSSY_PPM / 1e4:.1f} % of what is sent: if that is your line (wifi?),"
            ' a cable helps, or [wire] congestion = "bbr", which the kernel must have and allow (`modprobe tcp_bbr`,'
            " `sysctl net.ipv4.tcp_allowed_congestion_control`)"
        )
    return said


def from_here(host: str) -> str:
    """Where this machine reaches what listens at `host`, as a URL or `host:port` has it."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "[::1]"}.get(host, host)


def is_loopback(host: str) -> bool:
    """Whether it is reached from this machine alone. A name other than localhost counts as an address of others."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _advice(port: int) -> str:
    """What to change, by where this machine stands."""
    own = _own(socket.AF_INET)
    if own is not None and ipaddress.ip_address(own) in _SHARED:
        return (
            f"This machine is {own}, behind a carrier's NAT (100.64.0.0/10), where no router of yours can forward a"
            " port: ask for an address of your own, or announce an IPv6 one"
        )
    if (six := _own(socket.AF_INET6)) is not None and _is_public(six):
        return f"This machine has a public IPv6 address: let port {port or '(a fixed one)'} in, and announce [{six}]"
    inside = f" to {own}" if own is not None else ""
    return f"Forward a port of the router{inside}, and announce the router's public address with it"


def _is_behind(own: Sequence[str | None]) -> bool:
    return own[0] is not None and not _is_public(own[0])


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


def _is_public(host: str) -> bool:
    """Names count as public: they mostly are."""
    if not host or host == "localhost":
        return False
    return not is_dialled(host, allow_private=True) or is_dialled(host, allow_private=False)


def _parsed(address: str) -> tuple[str, int]:
    """As `parse_address`, and with port 0, which takes a free one."""
    host, _, port = address.rpartition(":")
    try:
        return parse_address(address) if port != "0" else (parse_address(f"{host}:1")[0], 0)
    except BadInput as error:
        raise BadConfig("wire", error.reason) from error


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(from_here(host), port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _words(path: Path) -> list[str]:
    """Of a file of the kernel's; nothing where there is none."""
    try:
        return path.read_text().split()
    except OSError:
        return []
