"""A model is trained on the market, registered by the same command, served by who trained it, and bought again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nodewire.training.engine import state
from nodewire.training.engine.families import build
from nodewire.training.protocol.recipe import Recipe
from tests.kinds.digits import TOML, dataset
from tests.market.market_process import SIMNET, RunningMarket, _toml

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(600)


class Bare(RunningMarket):
    """A relay, a Lightning network and a committee: no models and no providers yet."""

    def start(self) -> None:
        self.spawn("relay", "relay", "--port", "0", "--db", self._path("relay.db"), "--blobs", self._path("blobs"))
        self.spawn("simnet", "--port", "0", "--db", self._path("simnet.db"), "--faucet", program=SIMNET)
        ready = self.ready("relay")
        self.relay, self.blossom, self.simnet = ready["url"], ready["blossom"], self.ready("simnet")["url"]
        founding = ["--oracles", "4", "--epoch-ms", "2000", "--skew-ms", "200", "--beat-ms", "1000"]
        founding += ["--relay", self.relay, "--blossom", self.blossom]
        self.committee = self.command("committee", "create", self._path("committee"), *founding)["address"]
        for i in range(1, 5):
            self.spawn(f"oracle-{i}", "oracle", "--config", self._path("committee", f"oracle-{i}", "oracle.toml"))
        for i in range(1, 5):
            self.ready(f"oracle-{i}")


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    running = Bare(tmp_path_factory.mktemp("trained"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def write_tom(market: RunningMarket, *serve: str) -> None:
    role = {
        "key": "key.nsec",
        "state": "state",
        "relays": [market.relay],
        "blossom": [market.blossom],
        "committee": market.committee,
        "name": "tom",
    }
    train = ["[train]", *_toml({"msat_per_pflop": 1, "least_msat": 1_000, "families": ["mlp"]})]
    market._write("tom", [*_toml(role), *market._wallet(), '[worker]\nmemory = "300MB"', *train, *serve])


def train_command(folder: Path, config: Path) -> list[str]:
    """What trains the digits on the market, with its recipe and its data written into `folder`."""
    data, recipe = folder / "data", folder / "digits.toml"
    data.mkdir()
    (data / "digits.safetensors").write_bytes(state.pack(dataset()))
    recipe.write_text(TOML)
    command = ["train", str(recipe), "--data", str(data), "--config", str(config), "--budget", "100sat"]
    return [*command, "--shards", "1", "--out", str(folder / "digits")]


def check_registered_once(
    market: RunningMarket, registered: dict[str, Any], command: list[str], out: Path, config: Path
) -> None:
    """The same training asked for again, and a registration after it, name what stands already."""
    kept = market.command(*command)
    assert kept["registered"] == registered == summary_of(out)["registered"]
    (out / "summary.json").write_text(json.dumps({**kept, "registered": None}))
    again = market.command("register", str(out), "--config", str(config), "--target-vram", "4MB")
    assert again == registered | {"event": again["event"]} == summary_of(out)["registered"]


def serve(market: RunningMarket, registered: dict[str, Any], listed: list[str]) -> None:
    """The operator's part: three lines in its file, and a restart."""
    market.stop_one("tom")
    deadline_s = time.monotonic() + 60
    while market.command(*listed)["trainers"]:
        assert time.monotonic() < deadline_s
    write_tom(
        market, "[[serve]]", *_toml({"manifest": registered["address"], "tasks": ["graph.0"], "price_msat": 1_009})
    )
    market.start_provider("tom")

    def serves(snapshot):
        return any(held.manifest == registered["digest"] for node in snapshot.nodes for held in node.held)

    asyncio.run(market.until(serves))


def check_profile(market: RunningMarket, registered: dict[str, Any]) -> None:
    """Its file names no speed: what is claimed was measured, and is measured better by the operator's own command."""
    assert "graph.0 of" in market.log("tom") and "us a position" in market.log("tom")
    profile = ["profile", "--config", str(market.config_of("tom")), "--caps", "1KB,100MB"]
    assert "stop it first" in json.loads(market.run(*profile).stdout)["error"]["reason"]
    market.stop_one("tom")
    profiled = market.command(*profile)
    assert profiled["speeds"][registered["digest"]]["graph.0"] >= 1
    assert [cap["ran"] for cap in profiled["tasks"][0]["caps"]] == [False, True]


def test_a_trained_model_is_registered_served_and_bought_with_the_scores_of_training(market, tmp_path):
    asyncio.run(market._open_wallet("tom", 0))
    write_tom(market)
    tom = market.start_provider("tom")["public"]
    config = asyncio.run(market.customer_config("uma"))
    config.write_text(config.read_text().replace('"60MB"', '"300MB"'))
    command, out = train_command(tmp_path, config), tmp_path / "digits"
    done = market.command(*command, "--register", "--target-vram", "4MB")
    assert sorted(path.name for path in out.iterdir()) == [
        "curve.svg",
        "model",
        "summary.json",
        "transcript.json",
        "weights.safetensors",
    ]
    assert done["providers"] == [tom]
    registered = done["registered"]
    check_registered_once(market, registered, command, out, config)

    # Started again by mistake it leaves the first as it is.
    twice = market.run("provider", "--config", str(market.config_of("tom")))
    assert "already running" in json.loads(twice.stdout)["error"]["reason"]
    listed = ["trainers", "--config", str(config)]
    assert [one["public"] for one in market.command(*listed)["trainers"]] == [tom]

    serve(market, registered, listed)
    rows = dataset()["x"][:7]
    (tmp_path / "rows.safetensors").write_bytes(state.pack({"x": rows}))
    asked = ["run", registered["address"], "--input", str(tmp_path / "rows.safetensors"), "--config", str(config)]
    bought = market.command(*asked)
    theta = state.unpack((out / "weights.safetensors").read_bytes(), state.types(Recipe.from_toml(TOML).shapes()))
    wanted = build(Recipe.from_toml(TOML), theta).outputs((rows,)).detach().numpy()
    np.testing.assert_array_equal(np.array(bought["outputs"]["scores"]["values"], np.float32), wanted)
    assert bought["verified"] == "none"
    assert bought["paid_msat"][tom] + bought["on_tab_msat"][tom] == 1_009
    check_profile(market, registered)
    refused = market.run(
        "run", registered["address"], "--input", str(out / "weights.safetensors"), "--config", str(config)
    )
    assert "no input of the model, which takes x" in json.loads(refused.stdout)["error"]["reason"]
