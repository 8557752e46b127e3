"""What the commands say to a person who errs, and what the running daemons hold in memory."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodewire import cli
from nodewire.nostr.keys import Keys
from processes.slowdown import children
from tests.market.market_process import DECODER_MSAT, ENCODER_MSAT, NODEWIRE, STALLS

PER_MILLION = 1_000_000 // 64
ADDRESS = "38840:" + "ab" * 32 + ":nothing"


@pytest.fixture(scope="module")
def config(market):
    path = asyncio.run(market.customer_config("clumsy"))
    Keys.from_file(path.parent / "key.nsec")
    return path


@pytest.fixture(scope="module", autouse=True)
def lost(market, config, tmp_path_factory):
    """Customers that look for their relay where none listens, while the other tests run: that takes ten seconds."""
    relay = f"ws://127.0.0.1:{refused_port()}"
    path = changed(config, tmp_path_factory.mktemp("lost"), relays=f'["{relay}"]')
    commands = (["embed", "cat", "--model", market.encoder["address"]], ["models"])
    processes = [
        subprocess.Popen([*NODEWIRE, *c, "--config", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for c in commands
    ]
    yield relay, processes
    for process in processes:
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
    "a name that no model has": (["--model", "pycoder"], "not-found"),
    "a name with another alphabet's letters": (["--model", "pycоder"], "bad-input"),
    "an address of another kind": (["--model", "1:" + "ab" * 32 + ":x"], "bad-input"),
    "no model": ([], "bad-input"),
    "a model of the other mode": (["--model", "{encoder}"], "bad-input"),
    "a budget below a chunk": (["--model", "{decoder}", "--budget", "1sat"], "over-budget"),
    "a budget that is no amount": (["--model", "{decoder}", "--budget", "much"], "bad-input"),
    "a codec that nobody knows": (["--model", "{decoder}", "--edge-codec", "int4"], "bad-input"),
    "a codec for the customer's own edge": (["--model", "{decoder}", "--edge-codec", "tokens=int8"], "bad-plan"),
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
    said = re.split(r"^request [0-9a-f]{64}$", text, flags=re.MULTILINE)[-1].strip()
    assert len(said.splitlines()) <= 2  # the error, and perhaps a line of advice
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


def test_no_relay_is_a_typed_error_of_a_real_process_that_names_it_without_a_traceback(lost):
    relay, processes = lost
    for process in processes:
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (1, b"")
        error, advice = err.decode().splitlines()
        assert error.startswith(f"timed-out  relay {relay}")
        assert "nodewire doctor" in advice


def test_a_provider_knows_its_links_and_how_far_everybody_is(market):
    deadline_s = time.monotonic() + 60
    while True:
        told = market.command("net", "--config", str(market.config_of("bea")))
        links = [link for link in told["links"] if link["open"] and link["rtt"] is not None]
        if len(links) >= len(STALLS) - 1:
            break
        assert time.monotonic() < deadline_s, told
    assert {link["rung"] for link in links} <= {"address", "shm"}
    assert {node["public"] for node in told["nodes"]} >= set(market.public.values())
    far = [node["rtt_us"] for node in told["nodes"] if node["public"] != market.public["bea"]]
    assert max(far) < 50_000  # all of them are on this machine, mostly less than the millisecond that beats tell
    shown = subprocess.run(
        [*NODEWIRE, "net", "--config", str(market.config_of("bea"))], capture_output=True, timeout=60
    )
    assert shown.returncode == 0
    name = f"nodewire-{market.public['ada'][:8]}"
    assert name in shown.stdout.decode()
    one = market.command("net", "--config", str(market.config_of("bea")), "--peer", name)
    assert (one["peer"], one["unpredicted"]) == (market.public["ada"], None)
    assert one["predicted_us"] is not None


def test_a_market_is_told_which_of_its_nodes_should_hold_what(market, config):
    command = ["place", market.decoder["address"], "--config", str(config), "--objective", "latency"]
    told = market.command(*command)
    ours = told["placements"][0]
    assert ours["planner"] == "nodewire"
    assert told["digest"] == market.decoder["digest"]
    held = {task for tasks in ours["nodes"].values() for task in tasks}
    assert held == {task for tasks in told["held_now"].values() for task in tasks}
    assert "driver" in held


def test_plan_price_and_names_are_said_before_the_output(market, config):
    command = ["generate", "the cat", "--config", str(config), "--model", "llama"]
    done = subprocess.run(
        [*NODEWIRE, *command, "--max-tokens", "3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
    )
    assert done.returncode == 0
    plan, text, bill = done.stdout.decode().partition("the cat")
    assert text
    assert "live holders" in plan
    assert f"driver   nodewire-{market.public['ada'][:8]}  {DECODER_MSAT * PER_MILLION / 1000:,.3f} sat" in plan
    assert f"{4 * DECODER_MSAT * PER_MILLION / 1000:,.3f} sat a million tokens" in plan
    assert f"{4 * DECODER_MSAT / 1000:.3f} sat a chunk" in plan
    assert f"about {8 * DECODER_MSAT / 1000:.3f} sat for the whole" in " ".join(plan.split())
    request = re.search(r"^request ([0-9a-f]{64})$", plan, re.MULTILINE)
    assert "tokens/s" in bill
    assert f"nodewire audit {request[1]} --config {config}" in bill
    served = f"job {request[1][:8]} served: driver, 2 chunks, {2 * DECODER_MSAT / 1000:.3f} sat earned"
    until(lambda: served in market.log("ada"))


def test_a_quote_says_what_a_generation_comes_to_and_buys_nothing(market, config, say):
    asked = ["generate", "the cat", "--config", str(config), "--model", market.decoder["address"], "--max-tokens", "66"]
    before = market.command("wallet", "balance", "--config", str(config))
    told = json.loads(say(*asked, "--quote", "--json")[1])
    assert (told["chunk_msat"], told["msat_per_million"]) == (4 * DECODER_MSAT, 4 * DECODER_MSAT * PER_MILLION)
    assert (told["units"], told["about_msat"]) == (3, 3 * 4 * DECODER_MSAT)
    assert told["about_msat"] <= told["most_msat"] <= told["budget_msat"] == 10_000_000
    assert {one["task"] for one in told["tasks"]} == {"driver", "stage.0", "stage.1", "stage.2"}
    _, out, err = say(*asked, "--quote")
    assert "live holders" in err and "request" not in err and not out
    assert market.command("wallet", "balance", "--config", str(config)) == before
    done = json.loads(say(*asked, "--json")[1])
    assert sum(done["paid_msat"].values()) == told["about_msat"]  # all 66 tokens came, the first with the prompt
    assert done["fees_msat"] <= told["most_fees_msat"]


def test_a_provider_tells_what_its_work_has_earned(market, config, say):
    asked = ["generate", "the cat", "--config", str(config), "--model", market.decoder["address"], "--max-tokens", "3"]
    done = json.loads(say(*asked, "--json")[1])
    until(lambda: f"job {done['request'][:8]} served" in market.log("bea"))

    def told():
        return json.loads(say("earnings", "--config", str(market.config_of("bea")), "--json")[1])

    ledger = market.ledger("bea")
    until(lambda: sum(one["settled_msat"] for one in told()["earnings"]) == ledger.earned_msat())
    ledger.close()
    rows = {one["task"]: one for one in told()["earnings"] if one["model"] == "llama"}
    assert rows.keys() >= {"stage.0", "stage.1"}
    for one in rows.values():
        assert one["settled_msat"] >= DECODER_MSAT and one["work_us"] > 0 and one["msat_per_hour"] > 0


def test_an_embedding_has_a_plan_and_a_price_but_no_rate(market, config, say):
    exit_code, out, err = say("embed", "the cat", "--config", str(config), "--model", "bert")
    assert exit_code == 0
    assert f"bert is {market.encoder['address']} (a stranger's" in err
    assert "live holders" in err
    assert f"{3 * ENCODER_MSAT / 1000:.3f} sat a call" in err
    assert re.search(r"^request [0-9a-f]{64}$", err, re.MULTILINE)
    assert "/s" not in err
    assert out.startswith("the cat")


def test_who_interrupts_a_generation_is_told_what_was_paid(market, config):
    command = ["generate", "the cat", "--config", str(config), "--model", market.decoder["address"]]
    process = subprocess.Popen(
        [*NODEWIRE, *command, "--max-tokens", "380"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert re.search(
        r"^stopped; [\d,]+\.\d{3} sat paid( \(work .+, fees .+\))?, request [0-9a-f]{64}$", err.decode(), re.MULTILINE
    )


def test_what_commands_are_asked_for_is_on_standard_output(market, config, say):
    _, out, err = say("models", "--config", str(config))
    assert market.decoder["address"] in out.splitlines() and "providers" in out
    assert err == ""
    _, out, err = say("wallet", "balance", "--config", str(config))
    assert "balance" in out and err == ""
    _, out, err = say("keys", "show", str(config.parent / "key.nsec"))
    assert market.keys("clumsy").npub in out and err == ""


def until(holds, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_only_workers_hold_torch(market):
    for name, process in market.processes.items():
        assert process.poll() is not None or "libtorch" not in maps(process.pid), name
    for name in STALLS:
        (worker,) = children(market.processes[name].pid)
        assert "libtorch" in maps(worker)


@pytest.mark.parametrize("command", [[], ["generate"], ["provider"], ["relay"], ["oracle"], ["register"]])
def test_help_is_shown_without_torch(command):
    script = (
        "import sys\nfrom nodewire import cli\ntry:\n    cli.main()\n"
        "except SystemExit as e:\n    assert e.code == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script, *command, "--help"], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
