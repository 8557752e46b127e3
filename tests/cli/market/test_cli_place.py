"""`nodewire place` over files: machines and a manifest in, who holds what out; files that make no sense are named."""

import json
import re
from itertools import product

import pytest
from typer.testing import CliRunner

from nodewire.cli import app
from nodewire.cli.market import place_nodes
from nodewire.cli.output import console
from nodewire.errors import BadConfig, BadInput, BadManifest, OverMemory
from nodewire.plan.place.model import MOST_BYTES, MOST_RATE
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import ad_profile
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.ad_profile import PublishedFit, PublishedProfile, PublishedRate, PublishedTask
from nodewire.protocol.market.snapshot import HeldTasks, Node, Snapshot, derive
from tests.plan.markets import diamond, ring
from tests.protocol.committee.actors import Provider, committee

MACHINES = {
    "nodes": [
        {"name": "small", "memory": "250MB", "gflops": 50, "up_mbit": 20, "at": [0, 0, 1]},
        {"name": "large", "memory": "1GB", "gflops": 200, "at": [5, 0, 1], "ms": {"stage.0": [[1, 0.001], [8, 0.002]]}},
        {"name": "far", "memory": 900_000_000, "gflops": 100, "layouts": [["400MB", "400MB"]], "at": [90, 0, 1]},
    ],
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "nodes.json").write_text(json.dumps(MACHINES))
    (tmp_path / "ring.json").write_text(ring(6).to_json())
    (tmp_path / "graph.bin").write_bytes(diamond().pack())
    return tmp_path


def told(files, manifest, *options):
    command = ["place", str(files / manifest), "--nodes", str(files / "nodes.json"), "--json", *options]
    run = CliRunner().invoke(app, command, catch_exceptions=False)
    assert run.exit_code == 0
    return json.loads(run.stdout)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("manifest", ["ring.json", "graph.bin"])
def test_who_should_hold_what_is_told_beside_the_baselines(files, manifest, objective):
    said = told(files, manifest, "--objective", objective)
    ours, *others = said["placements"]
    assert ours["planner"] == "nodewire"
    assert {one["planner"] for one in others} >= {"petals", "parallax", "random"}
    every = ring(6) if manifest == "ring.json" else diamond()
    assert {task for tasks in ours["nodes"].values() for task in tasks} == {task.name for task in every.tasks}
    assert said["digest"] == every.digest()


def test_people_see_nodes_tasks_and_figures(files):
    command = ["place", str(files / "ring.json"), "--nodes", str(files / "nodes.json"), "--objective", "latency"]
    console.width = 120
    shown = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert "ring6: 7 tasks on 3 nodes, placed for latency; all figures are predicted" in shown
    assert re.search(r"large +700 MB of 1 GB +driver, stage\.0 to stage\.5", shown)
    assert re.search(r"small +- of 250 MB +-", shown)
    assert "proved: nothing is quicker" in shown
    assert "parallax" in shown


def test_a_model_that_is_no_file_needs_a_market(files):
    for command in (
        ["place", "nofile", "--nodes", str(files / "nodes.json")],
        ["place", "nofile"],
        ["graph", "nofile"],
    ):
        with pytest.raises(BadInput, match="'nofile' is no such file; a name or an address needs --config"):
            CliRunner().invoke(app, command, catch_exceptions=False)
        with pytest.raises(BadInput, match=r"neither a name nor an address.*nor is there such a file"):
            CliRunner().invoke(app, [command[0], "no:file", *command[2:]], catch_exceptions=False)


def test_a_file_of_machines_is_read_as_it_says(files):
    pool, tables, holding = place_nodes.from_file(files / "nodes.json")
    assert holding == {}
    assert [node.memory_bytes for node in pool.nodes] == [250 * 10**6, 10**9, 900 * 10**6]
    assert pool.nodes[0].up == 2_500
    assert pool.nodes[2].layouts == ((400 * 10**6,) * 2,)
    assert tables == {"stage.0": {"large": ((1, 0.001), (8, 0.002))}}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[]", ""),
        ('{"nodes": []}', "nodes"),
        ('{"nodes": [{"name": "a"}]}', "nodes.0.memory"),
        ('{"nodes": [{"name": "a", "memory": "many"}]}', "nodes.json"),
        ('{"nodes": [{"name": "a", "memory": 1, "gflops": 0}]}', "nodes.0.gflops"),
        ('{"nodes": [{"name": "a", "memory": 1, "gflops": 1e-300}]}', "nodes.0.gflops"),
        ('{"nodes": [{"name": "a", "memory": 2000000000000000000}]}', "nodes.json"),
        ('{"nodes": [{"name": "a", "memory": 1, "at": [0, 0, -1]}]}', "nodes.0.at"),
        ('{"nodes": [{"name": "a", "memory": 1, "speed": 2}]}', "nodes.0.speed"),
        ('{"nodes": [{"name": "a", "memory": 1}, {"name": "a", "memory": 1}]}', "nodes.json"),
        ('{"nodes": [{"name": "a", "memory": 1}], "rtt_ms": [[1.0]]}', "nodes.json"),
        ('{"nodes": [{"name": "a", "memory": 1, "ms": {"stage.0": [[2, 1.0], [1, 1.0]]}}]}', None),
    ],
)
def test_a_file_that_makes_no_sense_is_named_by_its_field(files, text, field):
    (files / "nodes.json").write_text(text)
    if field is None:
        with pytest.raises(BadInput):
            told(files, "ring.json")
        return
    with pytest.raises(BadConfig) as refused:
        place_nodes.from_file(files / "nodes.json")
    assert field in refused.value.field


def test_machines_that_hold_something_are_told_what_to_load_instead_and_only_if_it_is_worth_it(files):
    at = {"near": [0, 0, 1], "beside": [3, 0, 1], "far": [90, 0, 1]}

    def changed(**holds):
        machines = [{"name": n, "memory": "450MB", "at": where, "holds": holds.get(n, [])} for n, where in at.items()]
        (files / "nodes.json").write_text(json.dumps({"nodes": machines}))
        return told(files, "ring.json", "--objective", "latency")["load_now"]

    stages = [f"stage.{i}" for i in range(6)]
    first = ["driver", *stages[:3]]
    assert changed(near=first, beside=stages[3:]) == {}
    assert changed(near=first) == {"beside": stages[3:]}
    assert changed(near=first, far=stages[3:]).keys() == {"beside"}
    assert changed(near=["driver", "stage.0", "stage.2"]) is None
    with pytest.raises(BadInput, match="no task of this model"):
        changed(near=["stage.9"])


def test_a_manifest_that_is_none_is_refused(files):
    (files / "ring.json").write_text('{"v": 1}')
    with pytest.raises(BadManifest):
        told(files, "ring.json")


def test_files_that_are_not_there_are_named(files):
    with pytest.raises(BadConfig, match="cannot be read"):
        place_nodes.from_file(files / "none.json")
    (files / "nodes.json").unlink()
    with pytest.raises(BadConfig, match="cannot be read"):
        told(files, "ring.json")


@pytest.mark.parametrize("manifest", ["ring.json", "graph.bin"])
def test_a_lack_of_room_is_said_to_be_the_machines(files, manifest):
    for memory, objective in product(("90MB", "150MB"), ("latency", "throughput")):
        machines = [{"name": name, "memory": memory} for name in ("a", "b")]
        (files / "nodes.json").write_text(json.dumps({"nodes": machines}))
        with pytest.raises(OverMemory, match="Add machines or memory"):
            told(files, manifest, "--objective", objective)


def test_without_a_market_machines_are_needed(files):
    for options in ([], ["--objective", "fame"], ["--driver", "nobody"]):
        with pytest.raises(BadInput):
            CliRunner().invoke(app, ["place", str(files / "ring.json"), *options], catch_exceptions=False)


def test_a_snapshot_tells_memory_speed_and_place_of_those_who_hold_something():
    manifest = ring(3)

    def node(number: int, tasks: tuple[str, ...], us: int) -> Node:
        offers = tuple(TaskOffer(task=task, price_msat=1, us_per_position=us) for task in tasks)
        held = (HeldTasks(manifest=manifest.digest(), free=1, tasks=offers),) if tasks else ()
        fields = {"bond_msat": 0, "region": "", "load_ppm": 0, "epochs": 1, "beat": "0" * 64, "ad": "0" * 64}
        return Node(pubkey=f"{number}" * 64, held=held, coordinates=(number * 1_000, 0, 500), **fields)

    nodes = (node(1, ("driver", "stage.0"), 500), node(2, ("stage.1", "stage.2"), 2_000), node(3, (), 1))
    snapshot = Snapshot(committee="0" * 64, epoch=1, nodes=nodes, events=())
    pool, tables, holding = place_nodes.of_snapshot(snapshot, manifest, (4_000, 0, 500))
    assert [one.memory_bytes for one in pool.nodes] == [2 * 10**8] * 2
    assert [one.speed for one in pool.nodes] == [2.0, 0.5]
    assert pool.link_ms(0, 1) == 1.0
    assert pool.link_ms(-1, 0) == 2.0
    assert tables["stage.1"] == {"22222222": ((1, 2.0),)}
    assert holding == {"11111111": ("driver", "stage.0"), "22222222": ("stage.1", "stage.2")}
    with pytest.raises(BadInput):
        place_nodes.of_snapshot(snapshot, diamond(), None)


def test_who_holds_nothing_of_a_model_counts_by_what_it_published_and_not_for_much_more_than_others():
    manifest = ring(2)
    world = committee(1)[0]
    other = "cd" * 32

    def profile(gflops: int, **tasks: PublishedTask) -> PublishedProfile:
        rates = {"float32": PublishedRate(2 * gflops * 10**9, 10**9)}
        told = {(manifest.digest(), name): one for name, one in tasks.items()}
        return PublishedProfile(1, rates, PublishedFit(10, 2.0, 1.1), told)

    def joined(name: str, held: dict, made: PublishedProfile):
        one = Provider(name, world, held)
        document = ads.parse(one.ad).model_copy(update={"memory_bytes": 10**9})
        one.ad = ads.build(one.keys, document, created_at=one.ad.created_at, profile=ad_profile.build(made, document))
        return one

    flops = manifest.task("stage.0").flops
    us = 1_000
    many = {"stage.0": PublishedTask(1, us, 64, 8 * us)}
    holds = {manifest.digest(): ([("stage.0", 1, us)], 1)}
    nothing = {other: ([("stage.0", 1, us)], 1)}
    nodes = [
        joined("holder", holds, profile(5, **many)),
        joined("able", nothing, profile(1)),
        joined("liar", nothing, profile(10**8)),
        joined("silent", nothing, ad_profile.UNPROFILED),
    ]
    beats = [node.beat(5) for node in nodes]
    snapshot = derive(world, 5, beats, [node.ad for node in nodes])
    pool, tables, holding = place_nodes.of_snapshot(snapshot, manifest, None)
    speeds = {node.name.split()[0]: node.speed for node in pool.nodes}
    certified = flops / us / 1_000
    assert speeds == {"holder": certified, "able": min(1.0, 4 * certified), "liar": 4 * certified}
    (holder,) = holding
    assert holding == {holder: ("stage.0",)}
    assert tables == {"stage.0": {holder: ((1, 1.0), (64, 8.0))}}


def test_what_a_stranger_claims_keeps_nobody_from_placing():
    plain = ring(200)
    most = {"memory_bytes": 2**53 - 1, "flops": 2**53 - 1}
    manifest = plain.model_copy(update={"tasks": tuple(task.model_copy(update=most) for task in plain.tasks)})
    offers = tuple(TaskOffer(task=task.name, price_msat=1, us_per_position=1) for task in manifest.tasks)
    fields = {"bond_msat": 0, "region": "", "load_ppm": 0, "epochs": 1, "beat": "0" * 64, "ad": "0" * 64}
    held = (HeldTasks(manifest=manifest.digest(), free=1, tasks=offers),)
    node = Node(pubkey="1" * 64, held=held, coordinates=(-10_000_000, 10_000_000, 10_000_000), **fields)
    pool, _, _ = place_nodes.of_snapshot(
        Snapshot(committee="0" * 64, epoch=1, nodes=(node,), events=()), manifest, None
    )
    assert (pool.nodes[0].memory_bytes, pool.nodes[0].speed) == (MOST_BYTES, MOST_RATE)


def test_nodes_of_one_name_whose_keys_begin_alike_are_told_apart():
    """Two such keys are made in seconds: whoever has them must not keep others from placing anything."""
    manifest = ring(1)
    offers = (TaskOffer(task="driver", price_msat=1, us_per_position=500),)
    fields = {"bond_msat": 0, "region": "", "load_ppm": 0, "epochs": 1, "beat": "0" * 64, "ad": "0" * 64}
    held = (HeldTasks(manifest=manifest.digest(), free=1, tasks=offers),)
    nodes = tuple(
        Node(pubkey="12345678" + end * 56, held=held, coordinates=(0, 0, 500), **fields) for end in ("a", "b", "c")
    )
    snapshot = Snapshot(committee="0" * 64, epoch=1, nodes=nodes, events=())
    pool, tables, holding = place_nodes.of_snapshot(snapshot, manifest, None)
    assert len({node.name for node in pool.nodes}) == len(holding) == len(tables["driver"]) == 3
