"""What lies between the machines of `bench.tools.wan`: one process that holds every packet for as long as its way is.

    python -m bench.tools.internet < {"hosts": [{"ip", "fd", "up", "down"}], "delay_s": [[...]], "loss": [[...]], ...}

Each machine has a TUN device; this reads the IP packets that come out of them, drops some, and writes the others into
the device of whom they are for, not before they have arrived. The kernels at both ends are real, and so are TCP's
windows, NATs and hole punching. `tc netem` would do as well where a kernel has it; many small machines' do not.

It says "ready" and reads lines: {"cut": [i, j, whether]} is a way on which nothing comes through.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import io
import json
import os
import random
import selectors
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_BURST = 32  # packets of one machine before the others get a turn
_PACKET_BYTES = 65_536
_DESTINATION = slice(16, 20)
_IPV4 = 4


@dataclass(frozen=True, slots=True)
class Host:
    ip: str
    fd: int
    """Of its namespace."""
    up: float
    """Bytes per second that leave it; 0 is any number. Likewise:"""
    down: float


@dataclass(frozen=True, slots=True)
class Plan:
    hosts: list[Host]
    delay_s: list[list[float]]
    """One way, from host i to host j."""
    loss: list[list[float]]
    """Probabilities."""
    jitter_s: float
    queue_s: float
    """What waits longer for its turn on a line is dropped."""
    mtu: int
    seed: int


@dataclass(slots=True)
class Line:
    """A line of limited rate, and when it is free again."""

    rate: float
    queue_s: float
    free_s: float = 0.0

    def through(self, at_s: float, nbytes: int) -> float | None:
        """When a packet that comes at `at_s` is through; None if the line's queue is full."""
        if not self.rate:
            return at_s
        begins_s = max(self.free_s, at_s)
        if begins_s - at_s > self.queue_s:
            return None
        self.free_s = begins_s + nbytes / self.rate
        return self.free_s


@dataclass(slots=True)
class Ways:
    """When packets arrive: pure, but for chance. Packets from one machine to another never overtake each other."""

    plan: Plan
    chance: random.Random = field(init=False)
    up: list[Line] = field(init=False)
    down: list[Line] = field(init=False)
    last_s: dict[tuple[int, int], float] = field(default_factory=dict)
    cut: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.plan.seed)
        self.up = [Line(host.up, self.plan.queue_s) for host in self.plan.hosts]
        self.down = [Line(host.down, self.plan.queue_s) for host in self.plan.hosts]

    def arrives(self, i: int, j: int, nbytes: int, now_s: float) -> float | None:
        """When a packet from i is at j; None: never."""
        plan = self.plan
        if (i, j) in self.cut or self.chance.random() < plan.loss[i][j]:
            return None
        at_s = self.up[i].through(now_s, nbytes)
        if at_s is None:
            return None
        at_s += plan.delay_s[i][j]
        if plan.jitter_s:
            at_s += self.chance.uniform(-plan.jitter_s, plan.jitter_s)
        at_s = self.down[j].through(at_s, nbytes)
        if at_s is None:
            return None
        self.last_s[i, j] = at_s = max(at_s, self.last_s.get((i, j), 0.0))
        return at_s


def _device(host: Host, mtu: int) -> int:
    """The packets of a machine; this process stands in its namespace afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(host.fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"wan0", _IFF_TUN | _IFF_NO_PI))
    os.system(
        f"ip addr add {host.ip}/32 dev wan0 && ip link set wan0 mtu {mtu} txqueuelen 10000 up"
        " && ip route add default dev wan0"
    )
    return device


def carry(plan: Plan) -> None:
    """Carry packets until standard input ends."""
    devices = [_device(host, plan.mtu) for host in plan.hosts]
    of_ip = {socket.inet_aton(host.ip): i for i, host in enumerate(plan.hosts)}
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))  # or others' work would be in every delay
    ways, waiting, number = Ways(plan), [], 0
    selector = selectors.DefaultSelector()
    for i, device in enumerate(devices):
        selector.register(device, selectors.EVENT_READ, i)
    # Not buffered: a line that was read together with the one before would wake nobody.
    told = io.FileIO(0, closefd=False)
    selector.register(told, selectors.EVENT_READ, None)
    print("ready", flush=True)
    while True:
        now_s = time.monotonic()
        for key, _ in selector.select(max(0.0, waiting[0][0] - now_s) if waiting else None):
            if key.data is None:
                line = told.readline()
                if not line:
                    return
                i, j, is_cut = json.loads(line)["cut"]
                (ways.cut.add if is_cut else ways.cut.discard)((i, j))
                continue
            for _ in range(_BURST):
                try:
                    packet = os.read(devices[key.data], _PACKET_BYTES)
                except BlockingIOError:
                    break
                j = of_ip.get(packet[_DESTINATION])
                if j is None or packet[0] >> 4 != _IPV4:
                    continue
                at_s = ways.arrives(key.data, j, len(packet), time.monotonic())
                if at_s is not None:
                    number += 1
                    heapq.heappush(waiting, (at_s, number, devices[j], packet))
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            _, _, device, packet = heapq.heappop(waiting)
            with suppress(OSError):  # it is down
                os.write(device, packet)


if __name__ == "__main__":
    read = json.loads(sys.stdin.readline())
    carry(Plan(**{**read, "hosts": [Host(**host) for host in read["hosts"]]}))
