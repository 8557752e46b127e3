"""What the commands say to a person who errs, and what the running daemons hold in memory."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from running_market import NODEWIRE, STALLS

from nodewire import cli
from nodewire.nostr.keys import Keys

ADDRESS = "38840:" + "ab" * 32 + ":nothing"


@pytest.fixture(scope="module")
def config(market):
    path = asyncio.run(market.customer_config("clumsy"))
    Keys.from_file(path.parent / "key.nsec")
    return path


@pytest.fixture(scope="module", autouse=True)
def lost(market, config, tmp_path_factory):
    """A customer that looks for its relay where none listens, while the other tests run: that takes ten seconds."""
    path = changed(config, tmp_path_factory.mktemp("lost"), relays=f'["ws://127.0.0.1:{refused_port()}"]')
    command = [*NODEWIRE, "embed", "cat", "--config", str(path), "--model", market.encoder["address"]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def say(monkeypatch, capfd):
    """`nodewire ARGUMENTS` in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nodewire", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


def changed(config: Path, folder: Path, **changes: str) -> Path:
    """A copy of the customer's configuration with these lines instead."""
    lines = config.read_text().splitlines()
    for name, value in changes.items():
        lines = [f"{name} = {value}" if line.startswith(f"{name} =") else line for line in lines]
    for name in ("key.nsec", "wallet.token"):
        (folder / name).write_text((config.parent / name).read_text())
        (folder / name).chmod(0o600)
    (folder / "role.toml").write_text("\n".join(lines))
    return folder / "role.toml"


def refused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


MISTAKES = {
    "an unknown model": (["--model", ADDRESS], "not-found"),
    "an address of another kind": (["--model", "1:" + "ab" * 32 + ":x"], "bad-config"),
    "no model": ([], "bad-input"),
    "a model of the other mode": (["--model", "{encoder}"], "bad-input"),
    "a budget below a chunk": (["--model", "{decoder}", "--budget", "1sat"], "over-budget"),
    "a budget that is no amount": (["--model", "{decoder}", "--budget", "much"], "bad-input"),
    "no tokens": (["--model", "{decoder}", "--max-tokens", "0"], "bad-input"),
    "a negative temperature": (["--model", "{decoder}", "--temperature", "-1"], "bad-input"),
    "an empty stop": (["--model", "{decoder}", "--stop", ""], "bad-input"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_typed_line_and_exit_code_1(market, config, say, mistake):
    arguments, code = MISTAKES[mistake]
    addresses = {"{decoder}": market.decoder["address"], "{encoder}": market.encoder["address"]}
    command = ["generate", "the cat", "--config", str(config), *(addresses.get(a, a) for a in arguments)]
    check_refusal(say, command, code)


def check_refusal(say, command, code):
    exit_code, out, err = say(*command)
    text = out + err
    assert exit_code == 1
    assert "Traceback" not in text
    assert [line for line in text.splitlines() if line.startswith(code)], text
    assert len(text.splitlines()) <= 2  # the error, and perhaps a line of advice
    exit_code, out, err = say(*command, "--json")
    assert exit_code == 1
    assert json.loads(out)["error"]["code"] == code
    assert "Traceback" not in err


def test_a_prompt_over_the_context_is_refused(market, config, say):
    command = ["generate", "the cat sat on the mat " * 200, "--config", str(config)]
    check_refusal(say, [*command, "--model", market.decoder["address"]], "too-large")


@pytest.mark.parametrize(
    ("content", "code"),
    [("key =", "bad-config"), ("colour = 1", "bad-config"), ("\xff", "bad-config"), (None, "bad-config")],
)
@pytest.mark.parametrize("command", ["generate", "audit", "balance", "provider", "models", "doctor"])
def test_a_wrong_configuration_file_is_refused(tmp_path, say, content, code, command):
    path = tmp_path / "of [" / "red] a role.toml"  # what a terminal's markup would stumble over
    path.parent.mkdir()
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    commands = {
        "generate": ["generate", "x", "--model", ADDRESS],
        "audit": ["audit", "ab" * 32],
        "balance": ["wallet", "balance"],
        "provider": ["provider"],
        "models": ["models"],
        "doctor": ["doctor"],
    }
    check_refusal(say, [*commands[command], "--config", str(path)], code)


def test_no_store_no_wallet_no_committee_are_typed_errors(market, config, say, tmp_path):
    nowhere = f"127.0.0.1:{refused_port()}"
    for name, value, codes in (
        ("blossom", f'["http://{nowhere}"]', "link-lost"),
        ("token_file", '"nothing.token"', "bad-config"),
        ("committee", f'"38841:{"ab" * 32}:main"', "not-found"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        path = changed(config, folder, **{name: value})
        check_refusal(say, ["embed", "cat", "--config", str(path), "--model", market.encoder["address"]], codes)


def test_no_relay_is_a_typed_error_of_a_real_process_without_a_traceback(lost):
    out, err = lost.communicate(timeout=30)
    assert (lost.returncode, out) == (1, b"")
    assert err.startswith(b"timed-out")
    assert len(err.splitlines()) == 1


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_only_workers_hold_torch(market):
    for name, process in market.processes.items():
        assert "libtorch" not in maps(process.pid), name
    for name in STALLS:
        (worker,) = (
            Path(f"/proc/{market.processes[name].pid}/task/{market.processes[name].pid}/children").read_text().split()
        )
        assert "libtorch" in maps(int(worker))


@pytest.mark.parametrize("command", [[], ["generate"], ["provider"], ["relay"], ["oracle"], ["register"]])
def test_help_is_shown_without_torch(command):
    script = (
        "import sys\nfrom nodewire import cli\ntry:\n    cli.main()\n"
        "except SystemExit as e:\n    assert e.code == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script, *command, "--help"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
