"""A task that is sent later calls on one edge before the first on another still gets on: nobody waits in a circle."""

from __future__ import annotations

import asyncio

from kinds.k8843 import KIND
from nodewire.kind import Job
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task
from nodewire.protocol.tensors.frame import Array, Frame
from tests.kinds.inprocess import Fed

CALLS, AHEAD = 6, 2


def manifest() -> Manifest:
    blob = BlobRef(sha256="ab" * 32, bytes=1)
    tasks = tuple(
        Task(name=name, engine="graph", program=blob, weights=(), memory_bytes=1, slots=1, flops=1)
        for name in ("first", "second")
    )
    ends = [(CUSTOMER, "first"), (CUSTOMER, "second"), ("first", "second"), ("second", CUSTOMER)]
    edges = [Edge(name=f"{s}.to.{t}", source=s, target=t, tensors=(), bytes_per_position=1) for s, t in ends]
    return Manifest(name="two", mode="run", tasks=tasks, edges=tuple(edges))


class Paid:
    """Work on call n + 2 begins when call n is whole here, and so paid."""

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.moved = asyncio.Condition()

    async def admit(self, chunk, units=1):
        async with self.moved:
            await self.moved.wait_for(lambda: all(n in self.whole for n in range(chunk - AHEAD + 1)))

    async def completed(self, chunk, units, end):
        async with self.moved:
            self.whole.add(chunk)
            self.moved.notify_all()

    def produced(self, task, chunk, frame):
        return


class Joining:
    """A worker whose task answers when both edges have delivered a call."""

    def __init__(self) -> None:
        self.came: dict[int, int] = {}

    async def open(self, *_):
        return self

    async def close(self):
        return

    async def receive(self, frame):
        self.came[frame.seq] = self.came.get(frame.seq, 0) + 1
        return [Frame("second.to.customer", frame.seq, (), frame.meta)] if self.came[frame.seq] == 2 else []


def frame(edge: str, seq: int) -> Frame[Array]:
    return Frame(edge, seq, (), {"chunk": seq, "end": seq == CALLS - 1})


async def test_later_calls_that_came_first_do_not_keep_the_first_from_being_computed():
    arriving: asyncio.Queue[Frame[Array]] = asyncio.Queue()
    out: list[int] = []

    async def put(made):
        out.append(made.seq)

    for seq in range(CALLS):  # everything of the customer's, before anything of the slower neighbour's
        arriving.put_nowait(frame("customer.to.second", seq))
    serving = asyncio.create_task(
        KIND.serve(Job("ab" * 32, manifest(), ("second",), {}), Fed(arriving.get, put), Joining(), Paid())
    )
    await asyncio.sleep(0)
    for seq in range(CALLS):
        arriving.put_nowait(frame("first.to.second", seq))
    async with asyncio.timeout(30):
        await serving
    assert out == list(range(CALLS))
