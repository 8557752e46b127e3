"""Ctrl-C at any moment is one line and the exit code 130, and no traceback.

The moments are imports, which Python tells as they end (-X importtime): no clock decides.
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


def interrupted(folder, name, module, times=1):
    """The exit code and what it printed, of a command that got SIGINT when it had imported `module`."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "nodewire.cli", *COMMANDS[name]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder / name, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stderr and process.stdout
    said, was_sent = [], False
    for line in process.stderr:
        if not line.startswith("import time:"):
            said.append(line)
        elif not was_sent and line.rpartition("|")[2].strip() == module:
            was_sent = True
            for _ in range(times):
                process.send_signal(signal.SIGINT)
    out = process.stdout.read()
    code = process.wait()
    return 130 if code == -signal.SIGINT else code, out, said, was_sent  # a shell says the same of both


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["models", "provider"])
@pytest.mark.parametrize("module", ["typer.core", "pydantic", "nodewire.config", "nodewire.cli.commands"])
def test_an_interrupt_while_it_imports_is_one_line(folder, name, module):
    code, out, said, was_sent = interrupted(folder, name, module)
    assert was_sent
    assert (code, out, said) == (130, "", ["stopped\n"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("models", "nodewire.nostr.pool"),
        ("generate", "nodewire.customer.customer"),
        ("balance", "nodewire.pay.sim_wallet"),
        ("provider", "nodewire.provider.starting"),
        ("up", "relay"),
        ("oracle", "nodewire.oracle.starting"),
        ("gateway", "nodewire.gateway.starting"),
    ],
)
def test_an_interrupt_while_it_starts_is_one_line(folder, name, module):
    code, out, said, was_sent = interrupted(folder, name, module)
    if not was_sent:  # it is imported with the commands, or the command has ended before
        pytest.skip(f"{name} does not import {module}: {said}")
    assert "Traceback" not in "".join(said)
    assert code and out == "" and len(said) <= 1, (code, said)  # it may have ended by an error of its own just before


def test_an_interrupt_is_heard_before_anything_else_is_imported(tmp_path):
    """What comes before is Python's own start, and `signal` with what it needs."""
    heard = (
        "import sys; before = set(sys.modules); import signal; needed = set(sys.modules) - before; "
        "import nodewire.cli; print(*sorted(set(sys.modules) - before - needed))"
    )
    done = subprocess.run([sys.executable, "-c", heard], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["__future__", "nodewire", "nodewire.cli"]


def test_many_interrupts_are_no_traceback_either(folder):
    code, _, said, _ = interrupted(folder, "models", "nodewire.cli.commands", times=5)
    assert code == 130 and "Traceback" not in "".join(said)
