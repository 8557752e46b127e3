"""A job's nodes in one process: real actors, queues for wires."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import torch

from nodewire.errors import NodewireError
from nodewire.kind import Actor
from nodewire.protocol.tensors.frame import Array, Frame
from tests.sessions import SessionOf

DTYPES = {"float32": torch.float32, "int64": torch.int64, "uint8": torch.uint8}


def to_torch(frame):
    return Frame(frame.edge, frame.seq, tuple(map(_tensor, frame.tensors)), frame.meta)


def _tensor(array):
    if not array.nbytes:
        return torch.empty(array.shape, dtype=DTYPES[array.dtype])
    return torch.frombuffer(bytearray(array.data), dtype=DTYPES[array.dtype]).reshape(array.shape)


def to_arrays(frame):
    names = {v: k for k, v in DTYPES.items()}
    arrays = tuple(Array(names[t.dtype], tuple(t.shape), t.numpy().tobytes()) for t in frame.tensors)
    return Frame(frame.edge, frame.seq, arrays, frame.meta)


class Fed:
    """A mailbox whose `get` is somebody's queue."""

    def __init__(self, get, put=None) -> None:
        self.get, self.put = get, put

    def deliver_to(self, inbox):
        self.feeding = asyncio.create_task(self._feed(inbox))

    async def _feed(self, inbox):
        try:
            while inbox.put(await self.get()):
                pass
        except NodewireError as error:
            inbox.fail(error)


class Hub:
    """Delivers every frame to the queue of its edge's consumer; `ends` as `nodewire.protocol.job.plan.ends` gives
    them."""

    def __init__(self, ends: Mapping[str, tuple[str, str]]) -> None:
        self.ends = ends
        self.queues: dict[str, asyncio.Queue] = {}
        self.controls: list[tuple[str, str, dict]] = []
        self.on_control = None

    def box(self, public: str) -> Box:
        self.queues.setdefault(public, asyncio.Queue())
        return Box(self, public)


class Box(Fed):
    def __init__(self, hub: Hub, public: str) -> None:
        self.hub, self.public, self.closed = hub, public, False
        self.failure, self.over = None, asyncio.Event()

    async def put(self, frame):
        producer, consumer = self.hub.ends[frame.edge]
        assert producer == self.public, (frame.edge, producer, self.public)
        await self.hub.queues[consumer].put(frame)

    async def get(self):
        queue = self.hub.queues[self.public]
        frame = await queue.get()
        if isinstance(frame, Exception):  # the job has ended, as a wire's mailbox says to all that wait
            queue.put_nowait(frame)
            raise frame
        return frame

    async def control(self, peer, document):
        self.hub.controls.append((self.public, peer, document))
        if self.hub.on_control is not None:
            await self.hub.on_control(self.public, peer, document)

    def cancel(self, error=None):
        self.cancelled = self.failure = error
        self.over.set()
        if error is not None:
            self.hub.queues[self.public].put_nowait(error)

    async def failed(self):
        await self.over.wait()
        return self.failure

    def close(self):
        self.closed = True


class Direct:
    """A worker without a process: calls the actors where it stands."""

    def __init__(self, actors: Mapping[str, Actor]) -> None:
        self.actors = actors
        self.open_sessions: set[tuple[str, str]] = set()

    async def load(self, task, engine, program, weights, slots=0):
        raise AssertionError("already loaded")

    async def open(self, task, session, params, codings=None, turn=None):
        self.actors[task].open(session, params)
        self.open_sessions.add((task, session))
        return SessionOf(self, task, session)

    async def receive(self, task, session, frame):
        return [to_arrays(f) for f in self.actors[task].receive(session, to_torch(frame))]

    async def close(self, task, session):
        self.actors[task].close(session)
        self.open_sessions.discard((task, session))
