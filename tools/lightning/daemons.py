"""Processes that outlive the command that starts them: each has a file with its id and the moment it began."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.lightning.packages import SetupError

START_S = 90.0
STOP_S = 30.0
PORTS = range(10_000, 20_000)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process named `name`; its id is in `folder`/NAME.pid and what it says in `folder`/NAME.log."""

    name: str
    folder: Path
    command: list[str]
    environment: dict[str, str]

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def pid(self) -> int | None:
        """Its process id; None if it does not run. Another process that has the id since is none."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            noted = json.loads(self._file.read_text())
            if _began(noted["pid"]) == noted["began"]:
                return int(noted["pid"])
        return None

    def start(self) -> None:
        if self.pid() is not None:
            return
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self._file.write_text(json.dumps({"pid": process.pid, "began": _began(process.pid)}))

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if (pid := self.pid()) is None:
            return
        os.kill(pid, signal.SIGTERM)
        if not _until(lambda: self.pid() is None, STOP_S):
            self.kill()

    def kill(self) -> None:
        """As a crash ends it: it can write nothing any more."""
        if (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGKILL)
            _until(lambda: self.pid() is None, STOP_S)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until it is ready. Raises SetupError: it ended, or is not ready in time."""
        if not _until(lambda: self.pid() is None or ready(), START_S) or self.pid() is None:
            said = self.log.read_text(errors="replace")[-1_500:] if self.log.exists() else ""
            raise SetupError(f"{self.name} {what}; {self.log} has why. It ends with:\n{said}")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at now, below those that the system hands out to whoever dials: they are
    written down, and must be free again when the network comes back."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
        if len(found) == count:
            break
    return found


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def wait_for(ready: Callable[[], bool], what: str, within_s: float = START_S) -> None:
    if not _until(ready, within_s):
        raise SetupError(f"after {within_s:.0f} s {what}")


def _until(ready: Callable[[], bool], within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not ready():
        if time.monotonic() >= until:
            return False
        time.sleep(0.2)
    return True


def _began(pid: int) -> str:
    """The moment a process began, in clock ticks since boot. Raises OSError: there is none, or it has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError(pid)
    return fields[19]
