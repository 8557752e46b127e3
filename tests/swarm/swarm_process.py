"""A swarm as processes of this machine, made of public commands and one file."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nodewire.nostr.keys import Keys
from tests.patience import readable

NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
ROOT = Path(__file__).parent.parent.parent
READY_S = 200.0
NAMES = ("ann", "ben", "cas")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Swarm:
    """Nodes `NAMES`, each with a third of the model in `folder`/llama; "me" may use them."""

    folder: Path
    keys: dict[str, Keys] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = {name: Keys.from_file(self.folder / f"{name}.key") for name in (*NAMES, "me", "stranger")}
        self.ports = {name: free_port() for name in NAMES}
        self.write("swarm.toml")

    def write(self, file: str, *, customers: tuple[str, ...] = ("me",), more: str = "", **layers: str) -> Path:
        """A file for all; `layers` by name, if it is to say them."""
        allowed = ", ".join(f'"{self.keys[one].npub}"' for one in customers)
        text = f'name = "home"\nmodel = "llama"\ncustomers = [{allowed}]\n{more}\n'
        for name in NAMES:
            text += f'[[nodes]]\nname = "{name}"\nnpub = "{self.keys[name].npub}"\naddress = "{self.at(name)}"\n'
            text += f'layers = "{layers[name]}"\n' if name in layers else ""
        (self.folder / file).write_text(text)
        return self.folder / file

    def at(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def who(self, name: str, file: str = "swarm.toml") -> list[str]:
        """The options of a machine."""
        own = ["--key", str(self.folder / f"{name}.key"), "--state", str(self.folder / name)]
        return ["--swarm", str(self.folder / file), *own]

    def begin(self, name: str, *options: str, file: str = "swarm.toml") -> subprocess.Popen[str]:
        log = (self.folder / f"{name}.log").open("a")
        command = [*NODEWIRE, "provider", *self.who(name, file), "--json", *options]
        self.daemons[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.env())
        return self.daemons[name]

    def ready(self, name: str) -> dict:
        """What the node says when it is."""
        out = self.daemons[name].stdout
        assert out is not None
        assert readable(out.fileno(), READY_S), (self.folder / f"{name}.log").read_text()
        line = out.readline()
        assert line, (self.folder / f"{name}.log").read_text()
        return json.loads(line)

    def stop(self, name: str, *, kill: bool = False) -> None:
        daemon = self.daemons.pop(name)
        daemon.kill() if kill else daemon.terminate()
        daemon.wait(20)

    def env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(self.folder)}

    def run(self, *command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*NODEWIRE, *command], env=self.env(), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def generate(self, prompt: str, *options: str, who: str = "me", file: str = "swarm.toml") -> dict:
        """The document, or the error's."""
        done = self.run("generate", prompt, *self.who(who, file), "--json", *options)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def alone(self, prompt: str, *options: str) -> dict:
        """As one process generates it."""
        done = self.run("generate", prompt, "--local", str(self.folder / "llama"), "--json", *options)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)
