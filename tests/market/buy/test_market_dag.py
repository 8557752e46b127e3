"""Any DAG is bought like a classifier: branches, several inputs and outputs, empty edges; judged, and made again."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from nodewire.config import ProviderConfig
from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.model import manifest_event
from nodewire.store.blobs import Blobs
from tests.market.dag_model import NAME, WIDTH, call, expected, register
from tests.market.market_process import WIRE, RunningMarket, _toml

pytestmark = pytest.mark.timeout(600)
PRICE_MSAT, BOND_MSAT = 1_009, 2_000_000
ALL = ("left", "right", "join")
SELLERS = {  # by name: tasks, microseconds, bond. The first three are preferred; mia has a part in no plan.
    "ivy": (("left",), 1_000, 5_000_000),
    "joe": (("right",), 1_000, 5_000_000),
    "kai": (("join",), 1_000, 5_000_000),
    "lou": (ALL, 200_000, BOND_MSAT),
    "mia": (ALL, 600_000, BOND_MSAT),
}
CALLS = [call(3, 5, 1), call(0, 4, 2), call(6, 0, 3), call(0, 0, 4), call(64, 64, 5)]
"""Of the second, third and fourth one branch or both get no row."""


@dataclass
class Dag:
    market: RunningMarket
    address: str
    digest: str
    public: dict[str, str]

    def start(self, name: str, tasks, us: int, bond_msat: int, *, cheat: str = "", credit=(0, 0)) -> None:
        market = self.market
        asyncio.run(market._open_wallet(name, bond_msat))
        role = {
            "key": "key.nsec",
            "state": "state",
            "relays": [market.relay],
            "blossom": [market.blossom],
            "committee": market.committee,
        }
        serve = {"manifest": self.address, "tasks": tasks, "price_msat": PRICE_MSAT, "us_per_position": us}
        lines = [*_toml(role), *market._wallet(), "[bond]", *_toml({"amount_msat": bond_msat})]
        lines += ["[credit]", *_toml({"first_msat": credit[0], "most_msat": credit[1]})]
        market._write(name, [*lines, '[worker]\nmemory = "60MB"', WIRE, "[[serve]]", *_toml(serve)])
        if cheat:
            market.spawn_dishonest(name, cheat, ",".join(tasks))
        else:
            market.start_provider(name, wait=False)

    async def live(self, *names: str) -> int:
        """The first epoch of which all of them are in the snapshot."""

        def holds(snapshot) -> bool:
            held = {n.pubkey: n for n in snapshot.nodes if any(h.manifest == self.digest and h.free for h in n.held)}
            return all(
                self.public[name] in held
                and held[self.public[name]].bond_msat == (SELLERS.get(name) or (0, 0, BOND_MSAT))[2]
                for name in names
            )

        return (await self.market.until(holds)).body.epoch


async def publish_dag(market: RunningMarket, folder, name: str = NAME) -> tuple[str, str]:
    made, keys = register(folder / "blobs-of-dag", name), Keys.generate()
    async with market.pool(keys) as pool, Blobs([market.blossom], folder / "cache", keys=keys) as blobs:
        for path in made.blobs.values():
            await blobs.put(path)
        packed = await blobs.put(made.manifest.pack())
        event = manifest_event.build(
            keys, made.manifest, created_at=int(time.time()), blob_sha256=packed.sha256, servers=(market.blossom,)
        )
        await pool.publish(event, timeout_s=10.0)
    return manifest_event.address(event), made.manifest.digest()


@pytest.fixture(scope="module")
def dag(market, tmp_path_factory):
    address, digest = asyncio.run(publish_dag(market, tmp_path_factory.mktemp("dag")))
    made = Dag(market, address, digest, {})
    for name, (tasks, us, bond_msat) in SELLERS.items():
        made.start(name, list(tasks), us, bond_msat)
    for name in SELLERS:
        made.public[name] = market.ready(name)["public"]
    asyncio.run(made.live(*SELLERS))
    yield made
    for name in made.public:
        market.stop_one(name)


def check(outputs, calls) -> None:
    assert len(outputs) == len(calls)
    for got, given in zip(outputs, calls, strict=True):
        wanted = expected(given)
        assert got.keys() == wanted.keys()
        for name, array in wanted.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(got[name], array)


def by_task(dag, done) -> dict[str, str]:
    names = {public: name for name, public in dag.public.items()}
    return {one["task"]: names[one["provider"]] for one in done["tasks"]}


async def test_calls_of_a_dag_come_back_whichever_branches_they_need_and_every_provider_is_paid(dag):
    async with dag.market.customer("dora") as dora:
        await dora.session.market.epoch(timeout_s=30, after=await dag.live() - 1)
        check(await dora.run(dag.address, CALLS), CALLS)
        done = dora.last
        assert by_task(dag, done) == {"left": "ivy", "right": "joe", "join": "kai"}
        assert done["paid_msat"] == {dag.public[name]: len(CALLS) * PRICE_MSAT for name in ("ivy", "joe", "kai")}
        one = await dora.run(dag.address, CALLS[0])
        check([one], CALLS[:1])


async def test_what_the_model_does_not_take_costs_nothing_and_nobody_is_asked(dag):
    async with dag.market.customer("dora") as dora:
        for wrong in (
            {**call(2, 2), "order": np.array([0, 1, 2, 128])},
            {**call(2, 2), "left": np.zeros((2, WIDTH))},
            {name: one for name, one in call(2, 2).items() if name != "right"},
            call(65, 0),  # n is not in every output: what is joined mixes rows of both
            [],
        ):
            with pytest.raises(BadInput):
                await dora.run(dag.address, wrong)
        assert not dora.purchases


async def test_a_dag_is_judged_task_by_task_and_call_by_call(dag):
    async with dag.market.customer("dora") as dora:
        terms = dora.terms.model_copy(update={"verify": "sampled"})
        check(await dora.run(dag.address, CALLS[:3], terms=terms, wait=True), CALLS[:3])
        done = dora.last
    assert {(one["task"], one["chunk"]) for one in done["verdicts"]} == {(task, n) for task in ALL for n in range(3)}
    assert {one["outcome"] for one in done["verdicts"]} == {"pass"}
    assert (done["repaired"], done["uncertified"]) == (0, [])
    command = ("audit", done["request"], "--config", str(dag.market.config_of("dora")))
    audited = await asyncio.to_thread(dag.market.command, *command)
    assert (audited["ok"], audited["findings"]) == (True, [])
    for step in ("commitment", "certificate", "draw", "verdict", "payment", "receipt"):
        assert {line["state"] for line in audited["lines"] if line["step"] == step} == {"ok"}, step


def test_the_commands_run_a_dag_from_files_and_draw_who_computed_it(dag, tmp_path):
    market, config = dag.market, str(dag.market.config_of("dora"))
    save_file(call(2, 3, 7), tmp_path / "a.safetensors")
    np.savez(tmp_path / "b.npz", **call(0, 1, 8))
    files = ["--input", str(tmp_path / "a.safetensors"), "--input", str(tmp_path / "b.npz"), "--each"]
    report, out = str(tmp_path / "job.json"), tmp_path / "out.safetensors"
    asked = ["run", dag.address, *files, "--config", config]
    done = market.command(*asked, "--out", str(out), "--report", report)
    assert (done["verified"], len(done["requests"]) if "requests" in done else 1) == ("none", 1)
    found = load_file(out)
    assert found["0.rounded"].dtype == torch.bfloat16
    for number, given in enumerate((call(2, 3, 7), call(0, 1, 8))):
        assert found[f"{number}.joined"].tolist() == expected(given)["joined"].tolist()
        assert done["outputs"][number]["large"]["shape"] == list(expected(given)["large"].shape)
    computed = {task["provider"] for task in done["tasks"]}
    serving = {dag.public["ivy"], dag.public["lou"]}
    for how, shown in ((["--job", report], computed), (["--job", done["request"]], computed), (["--live"], serving)):
        drawn = market.command("graph", dag.address, *how, "--config", config, "-o", str(tmp_path / "drawn.svg"))
        assert shown <= set(drawn["providers"])
        assert "<svg" in (tmp_path / "drawn.svg").read_text()
    refused = market.run("run", dag.address, "--text", "a cat", "--config", config)
    assert "serves run, not embed" in json.loads(refused.stdout)["error"]["reason"]


async def test_a_cheat_in_one_branch_is_found_and_the_call_made_again_without_it(dag):
    await asyncio.to_thread(dag.start, "nat", ["right"], 100, BOND_MSAT, cheat="wrong")
    dag.public["nat"] = (await asyncio.to_thread(dag.market.ready, "nat"))["public"]
    now = await dag.live("nat")
    async with dag.market.customer("dora") as dora:
        await dora.session.market.epoch(timeout_s=30, after=now - 1)
        terms = dora.terms.model_copy(update={"verify": "sampled", "excluded": (dag.public["joe"],)})
        check(await dora.run(dag.address, CALLS[:1], terms=terms, wait=True), CALLS[:1])
        done = dora.last
    failed = [one for one in done["verdicts"] if one["outcome"] == "fail"]
    assert {(one["task"], one["culprit"]) for one in failed} == {("right", dag.public["nat"])}
    assert done["repaired"] == 1
    assert by_task(dag, done)["right"] != "nat"


async def test_who_sends_its_neighbour_what_cannot_be_computed_denies_nothing_and_ruins_nobody(dag):
    """pat is the fastest without joe, and leaves a row out: kai finds that the order points nowhere. Which of kai's
    neighbours lies it cannot say, so the call is made by those who had no part in it; the next one is kai's again."""
    market, name = dag.market, "pat"
    await asyncio.to_thread(dag.start, name, ["right"], 100, BOND_MSAT, cheat="short")
    dag.public[name] = (await asyncio.to_thread(market.ready, name))["public"]
    try:
        now = await dag.live(name)
        async with market.customer("rob") as rob:
            await rob.session.market.epoch(timeout_s=30, after=now - 1)
            excluded = (dag.public["nat"],) if "nat" in dag.public else ()
            terms = rob.terms.model_copy(update={"excluded": (*excluded, dag.public["joe"])})
            check([await rob.run(dag.address, CALLS[0], terms=terms)], CALLS[:1])
            lied, made = rob.purchases
            assert {one.task: one.provider for one in lied.plan.tasks}["right"] == dag.public[name]
            assert set(made.plan.providers()).isdisjoint(lied.plan.providers())
            # Nobody is paid for what never came, everybody for what did.
            assert (lied.spent_msat, made.spent_msat) == (0, len(ALL) * PRICE_MSAT)
            assert rob.session.payer.unpaid() == []
            honest = terms.model_copy(update={"excluded": (*excluded, dag.public[name])})
            check([await rob.run(dag.address, CALLS[0], terms=honest)], CALLS[:1])
            assert by_task(dag, rob.last) == {"left": "ivy", "right": "joe", "join": "kai"}
        ledger = Ledger(ProviderConfig.load(market.config_of(name)).ledger)
        assert ledger.earned_msat() == 0
        ledger.close()
    finally:
        market.stop_one(name)
        await market.until(lambda snapshot: snapshot.node(dag.public[name]) is None)
        del dag.public[name]


async def test_a_provider_of_a_branch_that_dies_between_calls_loses_none(dag):
    market = dag.market
    async with market.customer("dora") as dora:
        await dora.session.market.epoch(timeout_s=30, after=await dag.live("kai") - 1)
        terms = dora.terms.model_copy(update={"excluded": (dag.public["nat"],) if "nat" in dag.public else ()})
        bought = []
        for number in range(6):
            given = call(number, 3, number)
            if number == 2:
                market.processes["joe"].kill()
            before = len(dora.purchases)
            check([await dora.run(dag.address, given, terms=terms)], [given])
            bought.append(len(dora.purchases) - before)
        assert by_task(dag, dora.last)["right"] in ("lou", "mia")
        assert bought == [1, 1, 2, 1, 1, 1]  # one call finds out that joe is gone, and those after it know
