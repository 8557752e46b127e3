"""A task of a generation: what is computed of a frame, and what it is called. Part of kind 8843.

Whatever is guessed, all rows of all generations go this way. Frames that are void are answered with ones without
rows, uncomputed. A driver compares what comes back with what it has sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame
from nodewire.protocol.job.frame_refusal import driven
from nodewire.protocol.speculation.frame_meta import Step, is_computed, step_of, without_rows
from nodewire.protocol.tensors.position_split import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinds.k8843_inboxes import Inboxes
    from nodewire.kind import Desk, Job
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame


class DecoderTask:
    """Of one task. Its frames come in through `given`; what the task makes goes out through `outs`."""

    def __init__(self, task: str, job: Job, inboxes: Inboxes, desk: Desk) -> None:
        self._task = task
        self._job = job
        self._inboxes = inboxes
        self._desk = desk
        self._inner = {edge.name for edge in job.manifest.inner_edges}
        self._rows: dict[str, tuple[str, int]] = {}
        """By edge to another task, the dtype and width of the rows that a prompt has become, and so of all."""
        self._drives = task == job.manifest.driver.name
        self._admitted = -1
        """The newest chunk that is."""
        self._sent: dict[int, Step] = {}
        """By number, the driver's frames that have not come back."""
        self._epoch = 0
        """The newest that the driver has sent."""

    def is_inner(self, frame: Frame[Array]) -> bool:
        """Whether the frame came on an edge between tasks, where guesses may travel."""
        return frame.edge in self._inner

    def begun(self, frame: Frame[Array]) -> None:
        """A prompt comes."""
        self._desk.received(self._task, frame)

    async def admit_prompt(self, outs: Sequence[Frame[Array]]) -> None:
        """The driver has made rows of a prompt, and knows only now how many units they are. Raises as Desk.admit."""
        for out in outs:
            if self._drives and out.seq == 0 and out.edge in self._inner:
                await self._desk.admit(0, units_of(out, self._job.manifest))
                self._admitted = 0

    async def given(self, frame: Frame[Array]) -> tuple[Sequence[Frame[Array]], Sequence[Frame[Array]]]:
        """What the task is to compute of a frame, and what goes out without that.

        Raises:
            BadFrame: the frame cannot follow those before it, or is no answer to what was sent.
            PaymentRequired, OverBudget, BadFrame: as Desk.admit; the last names an edge of the driver's.

        """
        if self._drives:
            return await self._returned(frame), []
        self._desk.received(self._task, frame)
        if not is_computed(frame) or not await self._is_admitted(frame):
            return [], [without_rows(edge, frame, *rows) for edge, rows in self._rows.items()]
        return [frame], []

    def outs(self, frame: Frame[Array], outs: Sequence[Frame[Array]]) -> Sequence[Frame[Array]]:
        """The frames made of `frame`, as they go out. A stage's carry the epoch of that frame."""
        inner = [out for out in outs if out.edge in self._inner]
        if self._drives:
            for out in inner:
                self._epoch = epoch_of(out)
                self._sent[out.seq] = step_of(out, self._job.lookahead)
            return outs
        if frame.seq == 0:
            for out in inner:
                step_of(out, self._job.lookahead)
                self._rows[out.edge] = (out.tensors[0].dtype, out.tensors[0].shape[2])
        epoch = epoch_of(frame)
        return [replace(out, meta={**out.meta, "epoch": epoch}) for out in outs] if epoch else outs

    async def _returned(self, frame: Frame[Array]) -> list[Frame[Array]]:
        """What the driver is given of a return. Raises as `given`."""
        try:
            step = step_of(frame, self._job.lookahead)
        except BadFrame as error:
            raise BadFrame(frame.edge, str(error)) from error
        sent = self._sent.pop(frame.seq, None)
        if sent is None or not step.answers(sent):
            raise BadFrame(frame.edge, f"frame {frame.seq} is not the one that was sent")
        if not is_computed(frame) and step.epoch == self._epoch:
            raise BadFrame(frame.edge, f"frame {frame.seq} was not computed, and nothing makes it void")
        self._desk.received(self._task, frame)
        if not is_computed(frame) or not await self._is_admitted(frame):
            (tensor,) = frame.tensors
            frame = without_rows(frame.edge, frame, tensor.dtype, tensor.shape[2])
        return [frame]

    async def _is_admitted(self, frame: Frame[Array]) -> bool:
        """Wait until the frame may be computed; False if it is void before that. Its chunk may never come to be."""
        if self._inboxes.void(frame):
            return False
        chunk = chunk_said(frame)
        if chunk <= self._admitted:
            return True
        units = units_of(frame, self._job.manifest)
        admitting = asyncio.ensure_future(self._desk.admit(chunk, units))
        voided = asyncio.ensure_future(self._inboxes.voided(self._task, frame))
        try:
            await asyncio.wait((admitting, voided), return_when=asyncio.FIRST_COMPLETED)
            if not admitting.done():
                return False
            admitting.result()
        except BadFrame as error:
            raise BadFrame(driven(self._job.manifest), str(error)) from error
        finally:
            admitting.cancel()
            voided.cancel()
        self._admitted = chunk
        return True


def chunk_said(frame: Frame[Array]) -> int:
    """The chunk that a frame says it is of. Raises BadFrame."""
    chunk = frame.meta.get("chunk", 0)
    if type(chunk) is not int or not 0 <= chunk < 2**31:
        raise BadFrame("chunk", "not a chunk number")
    return chunk


def units_of(frame: Frame[Array], manifest: Manifest) -> int:
    """The units of a frame of hidden states: as many as a prompt's rows fill, one for all others."""
    return max(1, -(-count(frame) // manifest.chunk)) if frame.seq == 0 else 1


def epoch_of(frame: Frame[Array]) -> int:
    epoch = frame.meta.get("epoch", 0)
    return epoch if type(epoch) is int else 0
