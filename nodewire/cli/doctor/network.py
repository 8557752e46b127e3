"""What `nodewire doctor` says of the network: who can reach this node, the kernel's TCP, the clock, links so far."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nodewire.cli.doctor import reach
from nodewire.cli.doctor.reach import Check, parsed
from nodewire.config import AnyRole, OracleConfig, ProviderConfig
from nodewire.errors import BadConfig, NotFound
from nodewire.store.state_lock import is_held
from nodewire.wire.transport import congestion
from nodewire.wire.transport.tcp import CONGESTION

CLOCK_S = 2.0
"""A committee's usual skew."""
LOSSY_PPM = 2_000
"""From here on loss costs a link more than BBR's pacing does."""
_ANSWER_S = 5.0


def checks(role: AnyRole) -> list[Check]:
    wanted = CONGESTION if isinstance(role, OracleConfig) else role.wire.congestion
    found: list[Check] = [("TCP of this kernel", partial(_kernel, wanted))]
    found.append(("clock", partial(_clock, (*role.relays, *role.blossom))))
    if isinstance(role, ProviderConfig) and (role.serve or role.specialize):
        found.append((f"wire, listening at {role.wire.listen}", partial(_listening, role.wire.listen, role.state)))
        found += reach.checks(role)
    found.append(("links so far", partial(_links, role.state)))
    return found


async def _kernel(wanted: str = CONGESTION) -> str:
    """A fault only where somebody has chosen what is not there: the wire works on any of them."""
    congestion.check(wanted)
    available = congestion.offered()
    if not available:
        return "its congestion control cannot be chosen here; its own is used"
    if wanted and wanted not in available:
        return f"no {wanted} here, only {', '.join(available)}: its own is used"
    said = f"{wanted} is there" if wanted else "its own congestion control is used"
    if congestion.slows_when_idle():
        said += "; idle connections start slowly, which heartbeats prevent while a job is open"
    return said


async def _clock(servers: Sequence[str]) -> str:
    """How far this clock is from others': beats, requests and votes of a wrong one are refused."""
    from nodewire.store import clock_offset

    most_s = CLOCK_S + clock_offset.HTTP_DATE_S
    try:
        apart_s = await clock_offset.measured_s(servers)
    except NotFound as error:
        return error.reason
    if abs(apart_s) > most_s:
        raise BadConfig("clock", clock_offset.describe(apart_s))
    return f"within {most_s:.0f} s of the relays' and blob stores'"


async def _listening(address: str, state: Path) -> str:
    host, port = parsed(address)
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


async def _links(state: Path) -> str:
    """What the daemon's links have been like, and BBR where loss would be worth it."""
    from nodewire.wire.measure import link_health_store

    _, edges = await asyncio.to_thread(link_health_store.read, state)
    open_ = [edge for edge in edges if edge.is_open(time.time())]
    lossy = [edge for edge in edges if (edge.lost_ppm or 0) > LOSSY_PPM]
    said = f"{len(edges)}, {len(open_)} of them open"
    if edges and 2 * len(lossy) > len(edges):
        said += (
            f"; {len(lossy)} lose more than {LOSSY_PPM / 1e4:.1f} % of the sent packets. If that is your line (wifi?),"
            ' a cable helps, or [wire] congestion = "bbr". The kernel must have and allow it (`modprobe tcp_bbr`,'
            " `sysctl net.ipv4.tcp_allowed_congestion_control`)"
        )
    return said


def from_here(host: str) -> str:
    """Where this machine reaches what listens at `host`, without brackets."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(from_here(host), port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
