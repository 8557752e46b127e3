"""Network namespaces: machines of their own, as far as a network is concerned. Linux, util-linux and iproute2.

They are anonymous, held by a descriptor of this process: nothing stands in /run/netns, and nothing is left when this
process ends, however it does. What is started in one dies with the thread that started it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TUN = Path("/dev/net/tun")
PROGRAMS = ("unshare", "nsenter", "setpriv", "ip")
_SHORT_S = 30.0


class Namespace:
    """One machine. Raises OSError: this process may not make any."""

    def __init__(self) -> None:
        # The shell waits until its namespace is held here.
        made = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; read _"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert made.stdout is not None and made.stderr is not None
            if not made.stdout.readline():
                raise PermissionError(made.stderr.read().decode().strip() or "no namespace could be made")
            self.fd = os.open(f"/proc/{made.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            made.communicate()
        self.sh("ip link set lo up; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || true")

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs a command in here; it needs `pass_fds=[self.fd]`."""
        return ["nsenter", f"--net=/proc/self/fd/{self.fd}", "setpriv", "--pdeathsig", "KILL", *command]

    def popen(self, command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(command), pass_fds=[self.fd, *how.pop("pass_fds", ())], **how)

    async def start(self, command: Sequence[str], **how: Any) -> asyncio.subprocess.Process:
        """As `popen`; from the event loop's thread."""
        return await asyncio.create_subprocess_exec(
            *self.command(command), pass_fds=[self.fd, *how.pop("pass_fds", ())], **how
        )

    def sh(self, script: str) -> str:
        """What a short shell script says. Raises OSError: it failed."""
        done = self.popen(["sh", "-ec", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, _ = done.communicate(timeout=_SHORT_S)
        if done.returncode:
            raise OSError(f"in a namespace: {script}: {said.strip()}")
        return str(said)

    def join(self, other: Namespace, here: str, there: str) -> None:
        """A cable from the device `here` of this machine to `there` of another."""
        # A process stands in its namespace once it has spoken from there.
        held = other.popen(["sh", "-c", "echo; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert held.stdout is not None
            held.stdout.readline()
            self.sh(f"ip link add {here} type veth peer name {there} netns {held.pid}")
        finally:
            held.communicate()

    def close(self) -> None:
        os.close(self.fd)


def lacking() -> str | None:
    """What this process lacks for machines; None if nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)}: not installed"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return f"{TUN}, which this user may not use"
    try:
        Namespace().close()
    except OSError as error:
        return f"network namespaces, which this user may not make ({error})"
    return None


def become_root() -> None:
    """Who is not root begins again as the root of a user namespace of its own."""
    if os.geteuid():
        os.execvp(
            "unshare", ["unshare", "--user", "--map-root-user", "--net", "--", sys.executable, *sys.orig_argv[1:]]
        )
