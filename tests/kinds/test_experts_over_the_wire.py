"""A mixture of experts as a job: fan-out, fan-in and empty edges over real sockets, judged like any other work."""

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest

from kinds.k8843 import KIND
from nodewire.kind import Job
from nodewire.nostr.keys import Keys
from nodewire.protocol.job.chunk import chunk_of, leaf_of, opening
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.comparison import compare
from nodewire.wire import JobChannelSpec, Node, Route
from tests.kinds.experts import EXPERTS, MOST, WIDTH, loaded
from tests.kinds.inprocess import Direct

REQUEST = "cd" * 32
CHOSEN = ([0, 1, 1, 0], [1, 1], [0, 0, 0], [])
"""By call, the expert of each row: the second and the third leave one without any, the last both."""


def manifest() -> Manifest:
    blob = BlobRef(sha256="ab" * 32, bytes=10)
    names = [*(f"expert.{k}" for k in range(EXPERTS)), "join"]
    tasks = tuple(
        Task(name=n, engine="graph", program=blob, weights=(), memory_bytes=10**6, slots=1, flops=1) for n in names
    )

    def edge(name: str, source: str, target: str, dtype: str = "float32", *shape: int) -> Edge:
        tensor = Tensor(name="x", dtype=dtype, shape=("n", *shape))
        return Edge(name=name, source=source, target=target, tensors=(tensor,), dims={"n": MOST}, bytes_per_position=16)

    edges = [edge(f"rows.{k}", CUSTOMER, f"expert.{k}", "float32", WIDTH) for k in range(EXPERTS)]
    edges += [edge(f"made.{k}", f"expert.{k}", "join", "float32", WIDTH) for k in range(EXPERTS)]
    edges += [edge("order", CUSTOMER, "join", "int64"), edge("joined", "join", CUSTOMER, "float32", WIDTH)]
    return Manifest(name="experts", mode="run", tasks=tasks, edges=tuple(edges))


class Desk:
    """Takes the leaves of what was put out; nothing is to be paid."""

    def __init__(self, digest: str) -> None:
        self.leaves, self.digest = {}, digest

    async def admit(self, chunk, units=1):
        return

    def produced(self, task, chunk, frame):
        self.leaves.setdefault((task, chunk), []).append(leaf_of(self.digest, frame))

    async def completed(self, chunk, units, end):
        return


def calls() -> list[Frame[Array]]:
    """What the customer sends: rows of ones to the experts that were chosen, and in which order they were."""
    frames = []
    for seq, chosen in enumerate(CHOSEN):
        meta = {"chunk": seq, "end": seq == len(CHOSEN) - 1}
        counts = [chosen.count(k) for k in range(EXPERTS)]
        for k, count in enumerate(counts):
            frames.append(Frame(f"rows.{k}", seq, (floats(np.ones((count, WIDTH), np.float32)),), meta))
        order = np.argsort(np.argsort(chosen, kind="stable"), kind="stable").astype(np.int64)
        frames.append(Frame("order", seq, (Array("int64", order.shape, order.tobytes()),), meta))
    return frames


def floats(rows: np.ndarray) -> Array:
    return Array("float32", rows.shape, rows.tobytes())


async def bought(made: Manifest, folder) -> tuple[list[np.ndarray], dict[str, Desk]]:
    """All calls over a node for each task and one for the customer; what came, and every task's desk."""
    async with AsyncExitStack() as stack:
        nodes = {}
        for name in (CUSTOMER, *(task.name for task in made.tasks)):
            nodes[name] = Node(Keys.generate())
            stack.push_async_callback(nodes[name].close)
        addresses = {name: await node.listen("127.0.0.1") for name, node in nodes.items()}
        routes = {e.name: Route(nodes[e.source].public, nodes[e.target].public) for e in made.edges}
        for edge in made.edges:
            await nodes[edge.source].link(nodes[edge.target].public, [addresses[edge.target]])
        boxes = {name: node.open_job(JobChannelSpec(REQUEST, routes)) for name, node in nodes.items()}
        desks, serving = {}, []
        for task, one in loaded(folder).items():
            desks[task] = Desk(made.digest())
            job = Job(REQUEST, made, (task,), {})
            serving.append(asyncio.create_task(KIND.serve(job, boxes[task], Direct({task: one}), desks[task])))
        for frame in calls():
            await boxes[CUSTOMER].put(frame)
        async with asyncio.timeout(60):
            came = [await boxes[CUSTOMER].get() for _ in CHOSEN]
            await asyncio.gather(*serving)
        return [np.frombuffer(f.tensors[0].data, np.float32).reshape(f.tensors[0].shape) for f in came], desks


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    made = manifest()
    rows, desks = asyncio.run(bought(made, tmp_path_factory.mktemp("experts")))
    return made, rows, desks


def test_every_call_comes_back_whichever_experts_it_needed(done):
    _, rows, _ = done
    assert [r.tolist() for r in rows] == [[[WIDTH * (k + 1.0)] * WIDTH for k in chosen] for chosen in CHOSEN]


def test_an_expert_that_was_not_selected_commits_to_an_empty_frame_and_passes(done):
    made, _, desks = done
    keys = Keys.generate()
    for task, desk in desks.items():
        assert [chunk for _, chunk in sorted(desk.leaves)] == list(range(len(CHOSEN)))
        for (_, chunk), leaves in desk.leaves.items():
            of = {"request": REQUEST, "task": task, "chunk": chunk, "attempt": 0}
            mine, theirs = (opening(keys, made, leaves, **of) for _ in range(2))
            assert compare(made, task, mine, theirs).outcome == "pass"
            assert all(chunk_of(made, leaf.seq) == chunk for leaf in leaves)
    [empty] = desks["expert.0"].leaves["expert.0", 1]
    [full] = desks["expert.0"].leaves["expert.0", 2]
    assert (empty.tensors[0].shape, empty.tensors[0].sketch) == ((0, WIDTH), b"")
    assert full.tensors[0].shape == (3, WIDTH)


def test_who_keeps_rows_from_an_expert_is_found_out(done):
    """An empty frame where there were rows is other work, not less of it."""
    made, _, desks = done
    keys = Keys.generate()
    [full], [empty] = (desks["expert.0"].leaves["expert.0", chunk] for chunk in (2, 1))
    lying = empty.model_copy(update={"seq": full.seq})
    of = {"request": REQUEST, "task": "expert.0", "chunk": 2, "attempt": 0}
    mine, theirs = (opening(keys, made, [leaf], **of) for leaf in (full, lying))
    assert compare(made, "expert.0", mine, theirs).outcome == "fail"
