"""A WAN in a box: machines with addresses of their own, as far from each other as is said, some of them behind NATs.

    python -m bench.tools.wan                                      # how far the machines of a ring are from each other
    python -m bench.tools.wan hosts.json -- COMMAND {host} {ip}    # a command on each of them

    with Wan({"a": Host(), "b": Host(nat="cone", up_mbit=20)}, {("a", "b"): 40.0}) as wan:
        wan.popen("a", ["nodewire", "relay", "--host", wan.ip["a"]])

The machines are network namespaces (`bench.tools.namespaces`), what lies between them is `bench.tools.internet`. It
takes Linux, iproute2, /dev/net/tun, and root or a kernel that lets users have namespaces; NATs take nftables, UPnP
miniupnpd.

hosts.json: {"hosts": {name: {"nat", "up_mbit", "down_mbit", "upnp"}}, "rtt_ms": {"a|b": 40.0}, "loss", "jitter_ms" ...}
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

from bench.tools.namespaces import Namespace, become_root, lacking

_PREFIX = "11.0.0."  # one that programs do not take for private, or for documentation's
_READY_S = 15.0
_STOP_S = 5.0
_UPNP_S = 0.5
_DISTANCE, _TRIES, _CLOSED_PORT = "--distance", 20, 9

SHARD_MS = {
    ("WA", "NV"): 35.1, ("NV", "TX"): 44.9, ("TX", "WA2"): 74.8, ("WA2", "MN"): 57.9, ("MN", "MO"): 22.0,
    ("MO", "UT"): 32.0, ("UT", "WA"): 24.8,
}  # fmt: skip
"""Round trips between seven machines of the United States, as Shard's receipts have them: a ring."""

# A port of its own for every destination, or one for all; nothing comes in that was not asked for.
_NAT = """
table ip nat {{
  chain post {{
    type nat hook postrouting priority 100; policy accept;
    oifname "wan0" masquerade {ports}
  }}
}}
table ip firewall {{
  chain input {{
    type filter hook input priority 0; policy accept;
    iifname "wan0" ct state established,related accept
    iifname "wan0" icmp type echo-request accept
    iifname "wan0" drop
  }}
  chain forward {{
    type filter hook forward priority 0; policy accept;
    iifname "wan0" ct state established,related accept
    iifname "wan0" ct status dnat accept
    iifname "wan0" drop
  }}
}}
"""
_UPNP_TABLE = """
table inet upnp {
  chain forward { type filter hook forward priority 10; policy accept; jump miniupnpd; }
  chain prerouting { type nat hook prerouting priority -100; policy accept; jump prerouting_miniupnpd; }
  chain postrouting { type nat hook postrouting priority 110; policy accept; jump postrouting_miniupnpd; }
  chain miniupnpd { }
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
}
"""
_UPNP = """
ext_ifname=wan0
listening_ip=lan0
ext_ip={ip}
enable_natpmp=yes
enable_upnp=yes
secure_mode=no
http_port=0
uuid=00000000-0000-0000-0000-0000000000{number:02x}
upnp_table_name=upnp
upnp_nat_table_name=upnp
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 1024-65535 0.0.0.0/0 1024-65535
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine; with a NAT it stands in a home's network, behind a router."""

    nat: Literal["cone", "symmetric"] | None = None
    """cone: a port is the same for all whom it speaks to; symmetric: for each another."""
    upnp: bool = False
    """The router opens ports to who asks."""
    up_mbit: float = 0.0
    """Megabits per second; 0 is as many as come."""
    down_mbit: float = 0.0


class Wan:
    """Up while it is entered. `ip` is what others see of a machine, `lan_ip` what it sees of itself.

    Raises OSError on entry: this machine can have none (see `unavailable`).
    """

    def __init__(
        self,
        hosts: Mapping[str, Host],
        rtt_ms: Mapping[tuple[str, str], float] | None = None,
        *,
        default_rtt_ms: float = 40.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        queue_ms: float = 100.0,
        mtu: int = 1500,
        seed: int = 1,
    ) -> None:
        """`loss`: a packet's probability, each way. `queue_ms`: that packets wait at a line of limited rate."""
        self.hosts = dict(hosts)
        self._number = {name: i for i, name in enumerate(self.hosts)}
        self.ip = {name: f"{_PREFIX}{i + 1}" for name, i in self._number.items()}
        self.lan_ip = {
            name: f"192.168.{i + 1}.2" if self.hosts[name].nat else self.ip[name] for name, i in self._number.items()
        }
        count = len(self.hosts)
        delay_s = [[default_rtt_ms / 2_000] * count for _ in range(count)]
        for (a, b), ms in (rtt_ms or {}).items():
            i, j = self._number[a], self._number[b]
            delay_s[i][j] = delay_s[j][i] = ms / 2_000
        self._plan: dict[str, Any] = {
            "delay_s": delay_s,
            "loss": [[loss] * count for _ in range(count)],
            "jitter_s": jitter_ms / 1_000,
            "queue_s": queue_ms / 1_000,
            "mtu": mtu,
            "seed": seed,
        }
        self._stack = ExitStack()
        self._machines: dict[str, Namespace] = {}
        self._internet: subprocess.Popen[str]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            routers = {name: self._namespace(stack) for name in self.hosts}
            described = [
                {
                    "ip": self.ip[name],
                    "fd": routers[name].fd,
                    "up": host.up_mbit * 1e6 / 8,
                    "down": host.down_mbit * 1e6 / 8,
                }
                for name, host in self.hosts.items()
            ]
            self._internet = subprocess.Popen(
                [sys.executable, "-m", "bench.tools.internet"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[router.fd for router in routers.values()],
                text=True,
                start_new_session=True,
            )
            stack.callback(_stopped, self._internet)
            self._tell({**self._plan, "hosts": described})
            assert self._internet.stdout is not None
            if self._internet.stdout.readline().strip() != "ready":
                raise OSError("the packets' carrier did not start")
            for name, host in self.hosts.items():
                self._machines[name] = self._home(stack, name, routers[name]) if host.nat else routers[name]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._machines.clear()

    def machine(self, name: str) -> Namespace:
        return self._machines[name]

    def popen(self, name: str, command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
        """A command on a machine, stopped with all of this at the latest."""
        started = self._machines[name].popen(command, start_new_session=True, **how)
        self._stack.callback(_stopped, started)
        return started

    def cut(self, a: str, b: str, is_cut: bool = True) -> None:
        """Nothing comes through between two machines any more, and nobody is told so; or everything again."""
        for one, other in ((a, b), (b, a)):
            self._tell({"cut": [self._number[one], self._number[other], is_cut]})

    def _tell(self, document: Mapping[str, Any]) -> None:
        assert self._internet.stdin is not None
        self._internet.stdin.write(json.dumps(document) + "\n")
        self._internet.stdin.flush()

    def _namespace(self, stack: ExitStack) -> Namespace:
        made = Namespace()
        stack.callback(made.close)
        return made

    def _home(self, stack: ExitStack, name: str, router: Namespace) -> Namespace:
        """A machine behind `router`."""
        host, number = self.hosts[name], self._number[name] + 1
        machine = self._namespace(stack)
        router.join(machine, "lan0", "eth0")
        router.sh(
            f"ip addr add 192.168.{number}.1/24 dev lan0; ip link set lan0 up; echo 1 > /proc/sys/net/ipv4/ip_forward"
        )
        machine.sh(
            f"ip addr add {self.lan_ip[name]}/24 dev eth0; ip link set eth0 up;"
            f" ip route add default via 192.168.{number}.1"
        )
        _tables(router, _NAT.format(ports="random,fully-random" if host.nat == "symmetric" else ""))
        if host.upnp:
            self._upnp(stack, name, router)
        return machine

    def _upnp(self, stack: ExitStack, name: str, router: Namespace) -> None:
        _tables(router, _UPNP_TABLE)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodewire-wan-")))
        config = folder / "miniupnpd.conf"
        config.write_text(_UPNP.format(ip=self.ip[name], number=self._number[name]))
        log = stack.enter_context((folder / "log").open("w"))
        command = ["miniupnpd", "-d", "-f", str(config), "-P", str(folder / "pid")]
        daemon = router.popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        stack.callback(_stopped, daemon)
        time.sleep(_UPNP_S)
        if daemon.poll() is not None:
            raise OSError(f"miniupnpd: {(folder / 'log').read_text()[-500:]}")


def unavailable(*, nat: bool = False, upnp: bool = False) -> str | None:
    """What this machine lacks for a WAN of that kind; None if nothing."""
    for program, needed in (("nft", nat), ("miniupnpd", upnp)):
        if needed and shutil.which(program) is None:
            return f"{program}, which is not installed"
    return lacking()


def _tables(router: Namespace, tables: str) -> None:
    router.sh(f"nft -f - <<'END'\n{tables}END")


def _stopped(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait(_STOP_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def distance_ms(ip: str) -> float:
    """The round trip to a machine: the median of 20 connections that its kernel refuses."""
    took_ms = []
    for _ in range(_TRIES):
        with socket.socket() as connecting:
            began_s = time.perf_counter()
            with suppress(ConnectionRefusedError):
                connecting.connect((ip, _CLOSED_PORT))
            took_ms.append((time.perf_counter() - began_s) * 1_000)
    return round(median(took_ms), 2)


def ring() -> dict[str, float]:
    """The round trips on Shard's ring, in ms, by "from-to"."""
    found = {}
    with Wan({name: Host() for name, _ in SHARD_MS}, SHARD_MS, default_rtt_ms=50.0) as wan:
        runs = {
            (a, b): wan.popen(
                a, [sys.executable, "-m", "bench.tools.wan", _DISTANCE, wan.ip[b]], stdout=subprocess.PIPE, text=True
            )
            for a, b in SHARD_MS
        }
        for (a, b), run in runs.items():
            said, _ = run.communicate(timeout=_READY_S)
            found[f"{a}-{b}"] = float(said)
    return found


def main() -> None:
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        return print(__doc__)
    if arguments[:1] == [_DISTANCE]:
        return print(distance_ms(arguments[1]))
    become_root()
    if (why := unavailable()) is not None:
        sys.exit(f"no WAN here: needs {why}")
    if "--" not in arguments:
        return print(json.dumps(ring(), indent=1))
    at = arguments.index("--")
    described = json.loads(Path(arguments[0]).read_text())
    hosts = {name: Host(**host) for name, host in described.pop("hosts").items()}
    rtt_ms = {tuple(pair.split("|")): ms for pair, ms in described.pop("rtt_ms", {}).items()}
    with Wan(hosts, rtt_ms, **described) as wan:
        started = [
            wan.popen(
                name, [word.replace("{host}", name).replace("{ip}", wan.ip[name]) for word in arguments[at + 1 :]]
            )
            for name in hosts
        ]
        sys.exit(max(one.wait() for one in started))


if __name__ == "__main__":
    main()
