"""What the kernel knows of a TCP connection: what was sent again, and how fast it was delivered.

`struct tcp_info` of Linux, include/uapi/linux/tcp.h. It only ever grows, so fields keep their places; a kernel before
4.9 has none of these. Other systems have none, or another struct under the same number.
"""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass

_TCP_INFO = 11
_BYTES = 256
_FLAGS, _LAST_ACK, _RETRANSMITTED, _SENT, _RATE = 7, 56, 100, 156, 160
"""Offsets of tcpi_delivery_rate_app_limited (the first bit of a byte), tcpi_last_ack_recv (ms), tcpi_total_retrans,
tcpi_data_segs_out (u32) and tcpi_delivery_rate (u64)."""
_APP_LIMITED = 1 if sys.byteorder == "little" else 128


@dataclass(frozen=True, slots=True)
class TcpInfo:
    segments: int
    """That carried data and were sent, since the connection was opened; retransmissions count again. Wraps at 2^32."""
    retransmitted: int
    bytes_per_s: int
    """The newest rate at which the peer acknowledged, or a higher one before while there was little to send: what the
    path carries at least."""
    is_path_limited: bool = False
    """That rate is all that the path gave, and not what there was to send."""
    acked_ms: int = 0
    """Since the peer's kernel last acknowledged anything."""


def parse(data: bytes) -> TcpInfo | None:
    """What getsockopt gave; None if the kernel's struct is too short."""
    if len(data) < _RATE + 8:
        return None
    (acked_ms,) = struct.unpack_from("=I", data, _LAST_ACK)
    (retransmitted,) = struct.unpack_from("=I", data, _RETRANSMITTED)
    segments, bytes_per_s = struct.unpack_from("=IQ", data, _SENT)
    return TcpInfo(segments, retransmitted, bytes_per_s, not data[_FLAGS] & _APP_LIMITED, acked_ms)


def read(connection: socket.socket) -> TcpInfo | None:
    """None of a socket that is no TCP connection, is closed, or belongs to a kernel that does not say."""
    if sys.platform != "linux":
        return None
    try:
        return parse(connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES))
    except OSError:
        return None
