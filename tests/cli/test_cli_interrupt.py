"""Ctrl-C at any moment is one line and the exit code 130, and no traceback.

The moments are imports: no clock decides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

CONFIG = ["--config", "role.toml"]
COMMANDS = {
    "models": ["models", *CONFIG],
    "generate": ["generate", "x", *CONFIG, "--model", f"38840:{'ab' * 32}:m"],
    "balance": ["wallet", "balance", *CONFIG],
    "provider": ["provider", *CONFIG],
    "up": ["up", *CONFIG, "--port", "0"],
    "oracle": ["oracle", *CONFIG],
    "gateway": ["gateway", *CONFIG],
    "relay": ["relay", "--port", "0"],
}
ROLE = """
key = "key.nsec"
state = "state"
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
committee = "38841:{author}:c"
{more}
[wallet]
url = "http://127.0.0.1:1"
token_file = "wallet.token"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("role")
    for name in COMMANDS:
        here = made / name
        here.mkdir()
        sells = name in ("provider", "up")
        more = 'specialize = "auto"' if sells else ""
        (here / "role.toml").write_text(ROLE.format(author="ab" * 32, more=more))
        (here / "wallet.token").write_text("token")
        (here / "wallet.token").chmod(0o600)
    return made


AT_AN_IMPORT = """
import importlib.machinery, os, signal, sys

module, times = sys.argv[1], int(sys.argv[2])
sys.argv[1:3] = []


class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        loads = spec.loader.exec_module

        def exec_module(made):
            loads(made)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Interrupting())
from nodewire.cli import main

main()
"""


def interrupted(folder, name, module, times=1):
    """The exit code and what it printed, of a command that gets SIGINT in the moment in which it has imported `module`.

    It sends that to itself, so that no clock decides where it is by then.
    """
    done = subprocess.run(
        [sys.executable, "-c", AT_AN_IMPORT, module, str(times), *COMMANDS[name]],
        capture_output=True, cwd=folder / name, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    code = 130 if done.returncode == -signal.SIGINT else done.returncode  # a shell says the same of both
    return code, done.stdout, done.stderr.splitlines()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["models", "provider"])
@pytest.mark.parametrize("module", ["typer.core", "pydantic", "nodewire.config", "nodewire.cli.commands"])
def test_an_interrupt_while_it_imports_is_one_line(folder, name, module):
    assert interrupted(folder, name, module) == (130, "", ["stopped"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("models", "nodewire.nostr.pool"),
        ("generate", "nodewire.customer.api"),
        ("balance", "simnet.wallet"),
        ("provider", "nodewire.startup.provider"),
        ("up", "relay"),
        ("oracle", "nodewire.startup.oracle"),
        ("gateway", "nodewire.startup.gateway"),
    ],
)
def test_an_interrupt_while_it_starts_is_one_line(folder, name, module):
    assert interrupted(folder, name, module) == (130, "", ["stopped"])


def test_an_interrupt_is_heard_before_anything_else_is_imported(tmp_path):
    """What comes before is Python's own start, and `signal` with what it needs."""
    heard = (
        "import sys; before = set(sys.modules); import signal; needed = set(sys.modules) - before; "
        "import nodewire.cli; print(*sorted(set(sys.modules) - before - needed))"
    )
    done = subprocess.run([sys.executable, "-c", heard], stdout=subprocess.PIPE, text=True, check=True)
    assert {"nodewire", "nodewire.cli"} <= set(done.stdout.split()) <= {"__future__", "nodewire", "nodewire.cli"}


def test_many_interrupts_are_no_traceback_either(folder):
    assert interrupted(folder, "models", "nodewire.cli.commands", times=5) == (130, "", ["stopped"])


@pytest.mark.timeout(300)
def test_an_interrupt_after_an_error_was_told_adds_no_line(folder):
    """The oracle's file lacks what an oracle needs. Before, "stopped" came after that now and then, and 130 for 1."""
    told = "import sys, nodewire.cli; import nodewire.cli.output as output; fail = output.fail\n" + TOLD
    done = subprocess.run(
        [sys.executable, "-c", told, *COMMANDS["oracle"]], capture_output=True, cwd=folder / "oracle", text=True,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "stopped" not in done.stderr and "Traceback" not in done.stderr
    assert "bad-config" in done.stderr


TOLD = """
import os, signal

def told(*what, **how):
    try:
        fail(*what, **how)
    finally:
        os.kill(os.getpid(), signal.SIGINT)

output.fail = told
nodewire.cli.main()
"""
