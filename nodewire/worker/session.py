"""A session of one task in a worker's process, as the daemon calls it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NotFound, WorkerFailed
from nodewire.protocol.tensors.position_split import cut, joined
from nodewire.worker.calls import Calls, check_frame, likeness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.kind import Params, Turn
    from nodewire.protocol.model.edge_codec import Codings
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.worker.joined_frames import JoinedFrames


@dataclass(frozen=True, slots=True)
class CallRules:
    """How a session's calls are computed."""

    limit_s: float
    """What a call may take."""
    batches: int
    """In how many of their first dimensions calls that are computed together may differ; 0 where none are."""
    block: int
    """How many positions are computed at once, longer frames are cut; 0 where none are."""
    joined_frames: JoinedFrames | None
    """Of a task whose calls are made of the frames of several edges.
        """


class ProcessSession:
    """Implements nodewire.kind.TaskSession. Its calls are computed in the order in which they were made."""

    def __init__(
        self,
        calls: Calls,
        task: str,
        session: str,
        turn: Turn,
        codings: Codings,
        rules: CallRules,
    ) -> None:
        self._calls = calls
        self._turn, self._codings = turn, codings
        self._limit_s = rules.limit_s
        self._batches, self._block = rules.batches, rules.block
        self._joined_frames = rules.joined_frames
        self._place = {"task": task, "session": session}
        self._parts: asyncio.Lock | None = None
        """Held while a frame is computed in parts: what comes after it is computed after it."""
        self._closing: asyncio.Future[None] | None = None

    async def open(self, params: Params) -> None:
        """Have the process open it. Cancelled, it is closed again."""
        fields = {"op": "open", **self._place, "params": dict(params), "codings": dict(self._codings)}
        try:
            await self._calls.ask(fields, self._limit_s, self._turn)
        except asyncio.CancelledError:  # the process may be at it
            await self.close()
            raise

    async def receive(self, frame: Frame[Array]) -> list[Frame[Array]]:
        """One frame in, the frames that it makes possible out: none while its call lacks frames of other edges.

        Raises:
            TooLarge: more bytes than an arena has, or than may wait for other edges.
            Busy: too many calls of the session wait.
            NotFound: it has been closed.
            WorkerFailed: the process has died.
            NodewireError: as the task raises.

        """
        if self._closing is not None:
            raise NotFound("session", "closed")
        check_frame(frame, self._calls.arena_bytes)
        if self._joined_frames is not None:
            frames = self._joined_frames.add(frame)
            return await self._compute(frames) if frames else []
        parts = cut(frame, self._block) if self._block else []
        if len(parts) < 2 and self._parts is None:
            return await self._compute((frame,))
        self._parts = self._parts or asyncio.Lock()
        async with self._parts:
            if len(parts) < 2:
                return await self._compute((frame,))
            made = [await self._compute((part,)) for part in parts]
            return [joined(parts, [one for (one,) in made])]

    async def _compute(self, frames: Sequence[Frame[Array]]) -> list[Frame[Array]]:
        like = likeness(frames, self._codings, self._batches) if self._batches else None
        fields = {"op": "receive", **self._place}
        _, made = await self._calls.ask(fields, self._limit_s, self._turn, frames, like, self._block)
        return made

    async def close(self) -> None:
        """As the port; its calls that wait raise NotFound. Once begun it goes on, whoever gives up waiting."""
        if self._closing is None:
            if self._joined_frames is not None:
                self._joined_frames.forget()
            self._calls.drop(**self._place)
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with suppress(NotFound, WorkerFailed):  # it went with its task, or with the process
            await self._calls.ask({"op": "close", **self._place}, self._limit_s, self._turn)
