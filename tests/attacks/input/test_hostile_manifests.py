"""Manifests of strangers, as the commands and daemons read them that only look: to measure, to place, to draw."""

from itertools import pairwise
from random import Random

import pytest

from nodewire.cli.picture.graph_svg import draw
from nodewire.errors import BadInput, BadManifest, NodewireError, WorkerFailed
from nodewire.plan.place.advice import advise, model
from nodewire.plan.place.model import Node, Pool, Workload
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from nodewire.protocol.model.signature import Signature
from nodewire.provider.profile import probe
from nodewire.provider.tasks import loader

BLOB = BlobRef(sha256="ab" * 32, bytes=2**53 - 1)
MOST = 2**53 - 1


def task(name: str, engine: str = "graph", **changes) -> Task:
    fields = {"name": name, "engine": engine, "program": BLOB, "weights": (BLOB,), "memory_bytes": 10**9}
    return Task(**{**fields, "slots": 4, "flops": 10**9, **changes})


def edge(source: str, target: str, name: str = "", *, shape=("n", 4), dims=None, count=1, **changes) -> Edge:
    tensors = tuple(Tensor(name=f"x{k}", dtype="float32", shape=shape) for k in range(count))
    fields = {"tensors": tensors, "dims": {"n": 8} if dims is None else dims, "bytes_per_position": 1_000}
    return Edge(name=name or f"{source}.to.{target}", source=source, target=target, **{**fields, **changes})


def manifest(*tasks: Task, edges: list[Edge], mode: str = "run") -> Manifest:
    return Manifest(name="m", mode=mode, tasks=tasks, edges=tuple(edges))


def one(*edges: Edge, engine: str = "graph") -> Manifest:
    return manifest(task("a", engine), edges=[*edges, edge("a", CUSTOMER)])


UNMEASURED = {
    "a size of no dim": one(edge(CUSTOMER, "a", dims={})),
    "a dim that is 0 at most": one(edge(CUSTOMER, "a", dims={"n": 0})),
    "no edge": one(edge("a", CUSTOMER, "out")),
    "a driver without a way back": one(edge(CUSTOMER, "a"), engine="decoder.driver"),
    "a driver without a prompt": one(edge("a", "a", "ring", back=True), engine="decoder.driver"),
    "a stage without an edge": one(edge("a", CUSTOMER, "out"), engine="decoder.stage"),
    "a stage without a tensor": one(edge(CUSTOMER, "a", count=0), engine="decoder.stage"),
    "an encoder's driver without an edge": one(edge("a", CUSTOMER, "out"), engine="encoder.driver"),
    "more than a probe sends": one(edge(CUSTOMER, "a", shape=(2**24, "n"))),
    "more than memory has, in tensors that are small enough": one(
        *(edge(CUSTOMER, "a", f"in{k}", shape=(2**20, "n"), count=64) for k in range(64))
    ),
    "sizes without end": one(edge(CUSTOMER, "a", shape=(MOST,) * 8)),
}


@pytest.mark.parametrize("said", UNMEASURED.values(), ids=UNMEASURED)
async def test_a_task_that_cannot_be_measured_says_so_before_it_is_called(said):
    with pytest.raises(BadInput):
        for positions in probe.sizes(said, "a"):
            await probe.measure(said, "a", None, "a", positions)


class Dying:
    """A worker that dies of calls of more than so many positions."""

    def __init__(self, most: int):
        self.most, self.calls = most, 0

    async def open(self, *_):
        return self

    async def receive(self, frame):
        self.calls += 1
        if frame.tensors[0].shape[0] > self.most:
            raise WorkerFailed("worker", "a call took longer than 120 s")
        return []

    async def close(self, *_):
        return None


async def test_a_task_that_kills_its_worker_however_small_the_call_is_not_offered():
    said = one(edge(CUSTOMER, "a", dims={"n": 4_096}))
    deadly = Dying(0)
    with pytest.raises(WorkerFailed):
        await loader.speed(said, "a", deadly)
    assert deadly.calls < 8
    assert 0 < await loader.speed(said, "a", Dying(4)) < 1_000_000


def test_sizes_are_none_below_0():
    said = edge(CUSTOMER, "a").document() | {"tensors": [{"name": "x", "dtype": "bool", "shape": [-1]}]}
    with pytest.raises(BadManifest, match="shape"):
        Manifest.from_document(one(edge(CUSTOMER, "a")).document() | {"edges": [said]})


def chain(count: int, mode: str, **changes) -> Manifest:
    names = [f"t{k}" for k in range(count)]
    edges = [edge(CUSTOMER, names[0]), *(edge(a, b) for a, b in pairwise(names))]
    edges.append(edge(names[-1], CUSTOMER))
    if mode == "generate":
        edges += [edge(names[-1], names[0], "return", back=True), edge(names[0], CUSTOMER, "tokens")]
    return manifest(*(task(name, **changes) for name in names), edges=edges, mode=mode)


POOLS = {
    "ordinary nodes": {},
    "all in one place": {"at": (0.0, 0.0, 0.0)},
    "on other planets": {"at": (2.0**60, 0.0, 2.0**60)},
    "of absurd speed": {"speed": 1e300},
    "of hardly any speed": {"speed": 1e-9},
    "of more memory than there is": {"memory_bytes": MOST},
    "without memory": {"memory_bytes": 0},
}
TASKS = {
    "ordinary tasks": {},
    "of no bytes": {"memory_bytes": 0},
    "of no work": {"flops": 0},
    "of nothing": {"memory_bytes": 0, "flops": 0},
    "of all that numbers say": {"memory_bytes": MOST, "flops": MOST},
}


@pytest.mark.parametrize("mode", ["run", "generate"])
@pytest.mark.parametrize("tasks", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("nodes", POOLS.values(), ids=POOLS)
def test_absurd_nodes_and_tasks_are_placed_or_refused(nodes, tasks, mode):
    for objective in ("latency", "throughput"):
        try:
            pool = Pool(
                tuple(Node(f"n{k}", **{"memory_bytes": 4 * 10**9, "at": (k, 0.0, 1.0), **nodes}) for k in range(5))
            )
            found = advise(pool, model(chain(6, mode, **tasks)), Workload(), objective, Random(1))
        except NodewireError:
            continue
        assert {k for held in found[0].held for k in held} == set(range(6))


def test_what_only_passes_through_is_drawn():
    through = manifest(
        task("a"),
        edges=[
            edge(CUSTOMER, CUSTOMER, "through"),
            edge(CUSTOMER, "a", back=True),
            edge("a", CUSTOMER, "out", back=True),
        ],
    )
    assert draw(through).count("<rect") >= 4
    assert Signature.from_manifest(manifest(task("a"), edges=[edge(CUSTOMER, CUSTOMER)])).outputs
