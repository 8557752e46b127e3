"""Frames that have come to a node of a job and wait for the tasks that they are for. Part of kind 8843."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, TooLarge
from nodewire.protocol.job.frame_refusal import refusal
from nodewire.protocol.speculation.frame_meta import Fences

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame

MAX_WAITING_BYTES = 2**30
"""Of frames at one node that wait for their turn, in all its jobs; one job's are at most as many as all together leave
free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998), so that jobs which fill up leave room for the next.
It is not waited for room: that could be in a circle."""


@dataclass(slots=True)
class InboxBacklog:
    """What waits in all jobs of this node."""

    nbytes: int = 0


class Inboxes:
    """Implements nodewire.kind.Inbox: frames by the task that they wait for, bounded together.

    A generation's are taken as they came, calls by their number.
    """

    def __init__(self, everywhere: InboxBacklog, manifest: Manifest, ended: asyncio.Event) -> None:
        """`ended` is set when the job is over; here that is an error, which `check` raises."""
        self._everywhere = everywhere
        self._manifest = manifest
        self._ended = ended
        self._error: NodewireError | None = None
        self._targets = {edge.name: edge.target for edge in manifest.edges}
        self._by_call = manifest.mode != "generate"
        self._frames: defaultdict[str, list[tuple[int, int, int, Frame[Array]]]] = defaultdict(list)
        self._arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._fences: defaultdict[str, Fences] = defaultdict(Fences)
        """By edge."""
        self._count = 0
        self._bytes = 0

    def put(self, frame: Frame[Array]) -> bool:
        """As the port.

        One frame too many ends the job: its neighbours send faster than this node is paid, or computes.
        """
        if self._ended.is_set():
            return False
        cost = _cost(frame)
        if self._bytes + cost > MAX_WAITING_BYTES - self._everywhere.nbytes:
            error = TooLarge("frames", f"over {self._bytes} bytes wait to be computed")
            self.fail(refusal(error, self._manifest, {frame.edge}))
            return False
        if not self._by_call:
            self._fences[frame.edge].note(frame)
        self._keep(self._targets[frame.edge], frame, cost)
        return True

    def fail(self, error: NodewireError) -> None:
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    def check(self) -> None:
        """Raises what ended the job."""
        if self._error is not None:
            raise self._error

    def put_back(self, task: str, frame: Frame[Array]) -> None:
        """Have a frame wait on."""
        self._keep(task, frame, _cost(frame))

    def _keep(self, task: str, frame: Frame[Array], cost: int) -> None:
        self._add(cost)
        self._count += 1
        heappush(self._frames[task], (frame.seq if self._by_call else 0, self._count, cost, frame))
        self._arrived[task].set()

    async def get(self, task: str) -> Frame[Array]:
        waiting = self._frames[task]
        while not waiting:
            await self._news(task)
        _, _, cost, frame = heappop(waiting)
        self._add(-cost)
        return frame

    def clear(self) -> None:
        """The job is over: nothing of it waits, or will."""
        self._ended.set()
        self._frames.clear()
        self._add(-self._bytes)

    def _add(self, nbytes: int) -> None:
        self._bytes += nbytes
        self._everywhere.nbytes += nbytes

    async def earlier(self, task: str, seq: int) -> None:
        """Return when a frame of a call before number `seq` is there."""
        await self._until(task, lambda waiting: bool(waiting) and waiting[0][0] < seq)

    def void(self, frame: Frame[Array]) -> bool:
        """Whether a guess that was taken out is void by what waits behind it."""
        return self._fences[frame.edge].void(frame)

    async def voided(self, task: str, frame: Frame[Array]) -> None:
        """Return when it is."""
        await self._until(task, lambda _: self.void(frame))

    async def _until(self, task: str, holds: Callable[[list[tuple[int, int, int, Frame[Array]]]], bool]) -> None:
        while not holds(self._frames[task]):
            await self._news(task)

    async def _news(self, task: str) -> None:
        self._arrived[task].clear()
        await self._arrived[task].wait()


def _cost(frame: Frame[Array]) -> int:
    return sum([array.nbytes for array in frame.tensors]) + 1_024  # an empty one takes room, too
