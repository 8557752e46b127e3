"""A model trained by strangers over a relay: byte for byte what the bare loop makes, and paid for exactly."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodewire.cli.model.family import toml_lines
from nodewire.nostr.nips.nip01 import Filter
from nodewire.provider import metrics
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.models import directory
from nodewire.training.engine.models import initial_weights as start
from nodewire.training.protocol.recipe import Recipe
from tests.kinds.digits import RECIPE, TOML, dataset
from tests.market.market_process import METRICS, NODEWIRE, SIMNET, RunningMarket, _toml
from tests.metrics.scrape import documented, families, fetched, value
from tests.training import models

LEAST_MSAT, DEPOSIT_PPM = 7_001, 250_000
SATS = 5_000


class TrainingMarket(RunningMarket):
    """A relay, a Lightning network, a committee that nobody runs, and providers that only train."""

    unit_msat, least_msat = 1, LEAST_MSAT

    def start(self) -> None:
        self.spawn("relay", "relay", "--port", "0", "--db", self._path("relay.db"), "--blobs", self._path("blobs"))
        network = ["--db", self._path("simnet.db"), "--faucet", "--unit-msat", str(self.unit_msat)]
        self.spawn("simnet", "--port", "0", *network, program=SIMNET)
        ready = self.ready("relay")
        self.relay, self.blossom, self.simnet = ready["url"], ready["blossom"], self.ready("simnet")["url"]
        where = ["--relay", self.relay, "--blossom", self.blossom]
        self.committee = self.command("committee", "create", self._path("committee"), "--oracles", "4", *where)[
            "address"
        ]
        for name in ("ada", "bea"):
            self.start_trainer(name, wait=False)
        for name in ("ada", "bea"):
            self.public[name] = self.ready(name)["public"]

    def start_trainer(self, name: str, *, wait: bool = True, **changes: object) -> None:
        if not self.config_of(name).exists():
            asyncio.run(self._open_wallet(name, 0))
            self._write_trainer(name, **changes)
        self.spawn(name, "provider", "--config", str(self.config_of(name)))
        if wait:
            self.public[name] = self.ready(name)["public"]

    def _write_trainer(self, name: str, **changes: object) -> None:
        role = {
            "key": "key.nsec",
            "state": "state",
            "relays": [self.relay],
            "blossom": [self.blossom],
            "committee": self.committee,
            "patience_s": 20,
            "pow_bits": 4,
        }
        train = {
            "msat_per_pflop": 1,
            "least_msat": self.least_msat,
            "deposit_ppm": DEPOSIT_PPM,
            "gflops": 10,
            **changes,
        }
        worker = '[worker]\nmemory = "300MB"'
        self._write(name, [*_toml(role), *self._wallet(), worker, METRICS, "[train]", *_toml(train)])

    def data(self) -> Path:
        folder = self.folder / "data"
        folder.mkdir(exist_ok=True)
        (folder / "digits.safetensors").write_bytes(state.pack(dataset()))
        return folder

    def train(self, name: str, recipe: str = TOML, **more: str) -> dict[str, object]:
        """`nodewire train`, to its end, by a customer of that name: what it prints."""
        return self.command(*self.train_command(name, recipe, **more))

    def train_command(self, name: str, recipe: str, shards: int = 2, **more: str) -> list[str]:
        if not self.config_of(name).exists():
            asyncio.run(self.customer_config(name, sats=SATS))
        text = self.config_of(name).read_text().replace('memory = "60MB"', 'memory = "300MB"')
        self.config_of(name).write_text(text)
        (self.folder / f"{name}.toml").write_text(recipe)
        options = {"data": str(self.data()), "budget": "1000sat", "shards": str(shards), **more}
        command = ["train", self._path(f"{name}.toml"), "--config", str(self.config_of(name))]
        command += ["--out", self._path(f"{name}.safetensors")]
        command += [part for key, value in options.items() for part in (f"--{key}", value)]
        return command

    def weights(self, name: str) -> bytes:
        return (self.folder / f"{name}.safetensors").read_bytes()

    def training(self, name: str, recipe: str, **more: str) -> subprocess.Popen[str]:
        """`nodewire train`, under way: what happens comes line by line on its stderr."""
        command = [*NODEWIRE, *self.train_command(name, recipe, **more)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMarket]:
    running = TrainingMarket(tmp_path_factory.mktemp("training"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def balances_msat(market: TrainingMarket, *names: str) -> dict[str, int]:
    return asyncio.run(market.balances_msat(*names))


def test_two_strangers_train_what_the_bare_loop_trains_and_are_paid_exactly(trainers):
    before = balances_msat(trainers, "ada", "bea")
    done = trainers.train("dora")
    expected, curve = bare_loop.run(RECIPE, dataset(), 2)
    assert trainers.weights("dora") == state.pack(expected)
    assert done["losses"] == [round(point.held_out, 6) for point in curve]
    assert done["failures"] == []
    earned = {name: msat - before[name] for name, msat in balances_msat(trainers, "ada", "bea").items()}
    assert earned == {"ada": 3 * LEAST_MSAT, "bea": 3 * LEAST_MSAT}
    for name in earned:
        trainer_shows_what_it_did(trainers, name)
    left = balances_msat(trainers, "dora")["dora"]
    assert done["paid_msat"] == sum(earned.values())
    assert left == SATS * 1_000 - done["paid_msat"] - done["fees_msat"]
    whose = ["--config", str(trainers.config_of("dora")), "--data", str(trainers.data()), "--segments", "all"]
    audited = trainers.command("audit", str(done["transcript"]), *whose)
    assert (audited["ok"], audited["recomputed"], audited["computed"], audited["faults"]) == (True, True, 6, [])


def trainer_shows_what_it_did(trainers, name):
    end_s = time.monotonic() + 20
    served = {"kind": "8840", "outcome": "served", "code": ""}
    while value(text := fetched(trainers.metrics[name]), "nodewire_provider_jobs_total", **served) < 3:
        assert time.monotonic() < end_s, text
        time.sleep(0.2)
    assert value(text, "nodewire_provider_training_steps_total") == 3 * RECIPE.steps
    assert value(text, "nodewire_provider_paid_msat_total") == 3 * LEAST_MSAT
    assert value(text, "nodewire_provider_job_seconds_count", kind="8840") == 3
    assert value(text, "nodewire_provider_training_workers_free") == 1
    assert value(text, "nodewire_worker_calls_total", worker="train-0") > 0
    asked = {row.name for row in documented() if row.daemons == "all" or row.name.startswith("nodewire_worker_")}
    jobs = {family.name for family in (*metrics.JOB_FAMILIES, *metrics.TRAINING_FAMILIES)}
    assert families(text).keys() == asked | jobs | {"nodewire_provider_outage"}  # no wire, no slots and no bond


def test_what_went_over_the_relay_says_nothing_of_what_was_trained(trainers):
    """Before anything is registered here: a manifest is public, and has names of layers."""
    trainers.train("emil")
    events = asyncio.run(trainers.events(Filter()))
    assert {8840, 6840, 7000, 9735, 31990} <= {event.kind for event in events}
    dumps = [event.to_json().encode() for event in events]
    dumps += [path.read_bytes() for path in trainers.folder.glob("relay.db*")]
    dumps += [path.read_bytes() for path in (trainers.folder / "blobs").rglob("*") if path.is_file()]
    x = dataset()["x"]
    secrets = [b"cross_entropy", b"layers.0", b"digits", b"momentum", RECIPE.digest().encode(), b'"losses"']
    secrets += [x[i].numpy().tobytes()[:64] for i in range(20)]
    weights = trainers.weights("emil")
    secrets += [weights[at : at + 32] for at in range(1_000, 8_000, 1_000)]
    for secret in secrets:
        assert not [secret for dump in dumps if secret in dump]
    assert any(b"payment-required" in dump for dump in dumps)  # it would have been found


def test_an_adapter_is_trained_on_texts_and_what_comes_of_it_is_registered(trainers, tmp_path):
    given = models.given("bpe-decoder-lora", tmp_path, compression={"method": "int8"})
    recipe, out = "\n".join(toml_lines(given.recipe.document())), tmp_path / "trained"
    more = {"data": str(given.data), "start": str(given.start), "model": str(out)}
    done = trainers.train("ines", recipe, **more)
    expected, _ = bare_loop.run(given.recipe, given.dataset, 2, start=given.tensors)
    assert trainers.weights("ines") == state.pack(expected)
    assert done["failures"] == []
    where = ["--relay", trainers.relay, "--blossom", trainers.blossom, "--key", str(tmp_path / "author.nsec")]
    made = trainers.command("register", str(out), "--target-vram", "50MB", *where)
    assert made["name"] == "trained"
    document = trainers.command("family", str(out))["family"]
    whole = directory.merged(given.recipe, expected, given.tensors)
    assert document["start"] == start.cited(whole).document()


pytestmark = pytest.mark.timeout(600)
LONG = TOML.replace("steps = 20", "steps = 600").replace("rounds = 3", "rounds = 4")


def until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """The lines that a process has written when one matches."""
    lines = []
    assert process.stderr
    for line in process.stderr:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"ended without {pattern!r}: {lines}")


def test_a_customer_that_died_goes_on_and_pays_nothing_twice(trainers):
    expected, _ = bare_loop.run(Recipe.from_toml(LONG), dataset(), 2)
    before = balances_msat(trainers, "ada", "bea")
    process = trainers.training("gina", LONG)
    until(process, "round 3 of 4: asked")
    process.kill()
    process.wait()
    done = trainers.train("gina", LONG)
    assert trainers.weights("gina") == state.pack(expected)
    earned = {name: msat - before[name] for name, msat in balances_msat(trainers, "ada", "bea").items()}
    assert earned == {"ada": 4 * LEAST_MSAT, "bea": 4 * LEAST_MSAT}
    assert done["paid_msat"] == 8 * LEAST_MSAT
    assert len(done["requests"]) == 4


def test_a_provider_that_died_goes_on_with_its_shard(trainers):
    expected, _ = bare_loop.run(Recipe.from_toml(LONG), dataset(), 2)
    before = balances_msat(trainers, "ada", "bea")
    process = trainers.training("hugo", LONG)
    until(process, "round 2 of 4: asked")
    trainers.processes["ada"].kill()
    trainers.processes["ada"].wait()
    trainers.start_trainer("ada")
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, said + errors
    assert trainers.weights("hugo") == state.pack(expected)
    earned = {name: msat - before[name] for name, msat in balances_msat(trainers, "ada", "bea").items()}
    # Ada is back in time; or bea is asked in its place, and it gets its deposit, or all if its result comes late.
    assert sum(earned.values()) - 8 * LEAST_MSAT in (0, LEAST_MSAT // 4 + 1, LEAST_MSAT)


def on_a_terminal(command: list[str], stop_at: str | None = None) -> tuple[int, str]:
    """The exit code of a command on a real terminal, and all that it drew; interrupted where `stop_at` is seen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        drawn += piece
        if stop_at is not None and re.search(stop_at.encode(), drawn):
            process.send_signal(signal.SIGINT)
            stop_at = None
    os.close(ours)
    return process.wait(60), drawn.decode(errors="replace")


def test_on_a_terminal_it_is_drawn_live_and_ctrl_c_says_how_to_go_on(trainers):
    command = [*NODEWIRE, *trainers.train_command("iris", LONG.replace("seed = 7", "seed = 8"))]
    code, drawn = on_a_terminal(command, stop_at="splitting and encrypting|round [123] of 4")
    assert code == 130, drawn[-2_000:]
    assert "stopped" in drawn
    assert "the same command goes on from there" in drawn
    assert "Traceback" not in drawn
    code, drawn = on_a_terminal(command)
    assert code == 0, drawn[-2_000:]
    assert re.search("[\u2801-\u28ff]", drawn)
    assert all(trainers.public[name][:8] in drawn for name in ("ada", "bea"))
    assert "audited ok" in drawn
    expected, _ = bare_loop.run(Recipe.from_toml(LONG.replace("seed = 7", "seed = 8")), dataset(), 2)
    assert trainers.weights("iris") == state.pack(expected)


def test_a_quote_costs_nothing_and_a_budget_below_it_begins_nothing(trainers):
    before = balances_msat(trainers, "ada", "bea")
    command = trainers.train_command("jon", TOML)
    said = trainers.command(*command, "--quote")
    assert said["total_msat"] == 6 * LEAST_MSAT
    assert sum(offer["shards"] for offer in said["offers"]) == 2
    refused = trainers.run(*trainers.train_command("jon", TOML, budget="20sat"))
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "over-budget"
    assert "it would do for 1 rounds" in error["reason"]
    assert balances_msat(trainers, "ada", "bea") == before
    listed = trainers.command("trainers", "--config", str(trainers.config_of("jon")))["trainers"]
    assert {one["public"] for one in listed} == {trainers.public[name] for name in ("ada", "bea")}
