"""Outputs on their way into commitments: hashed after they have been sent, that no consumer waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from nodewire.protocol.job.chunk import Leaf, leaf_of
from nodewire.protocol.verification.statement import HashedFrame, tensors_of

if TYPE_CHECKING:
    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.provider.inference.job_context import JobContext
    from nodewire.provider.inference.statement_sender import StatementSender

NOTED, NOTED_BYTES = 16, 65_536
"""How many outputs of at most so many bytes wait to be hashed, if nobody is to sign for them."""


class OutputHasher:
    def __init__(self, context: JobContext, stating: StatementSender | None, task_group: JobTaskGroup) -> None:
        self._context = context
        self._stating = stating
        self._task_group = task_group
        self._noted: deque[tuple[str, int, Frame[Array]]] = deque()
        """Task, chunk and frame of outputs that are not hashed."""
        self._is_due = False
        self._leaves: dict[tuple[int, str], list[Leaf]] = {}

    def note(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        """Take note of an output for its chunk's commitment, and its statement.

        It is hashed when it has been sent, and in a generation that nobody judges with others of its positions: what is
        done in a row takes a fraction. One that may have to be shown is given to the spool before it counts.
        """
        if self._stating is not None:
            self._stating.statements.write(self._context.request.id, frame.edge, 0, frame)
        self._noted.append((task, chunk, frame))
        is_small = sum([array.nbytes for array in frame.tensors]) <= NOTED_BYTES
        waits = is_small and self._context.generates and self._stating is None
        if not waits or len(self._noted) >= NOTED:
            self._hash_soon()

    async def all(self) -> None:
        """Hash what is noted now."""
        for _ in range(len(self._noted)):
            if self._noted:
                self._hash(*self._noted.popleft())
            await asyncio.sleep(0)

    def pop(self, chunk: int) -> dict[str, list[Leaf]]:
        """By task of this node the leaves of a chunk, of which nothing is kept."""
        tasks = {task: self._leaves.pop((chunk, task), None) for task in self._context.tasks}
        return {task: leaves for task, leaves in tasks.items() if leaves is not None}

    def _hash_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._hash_oldest)

    def _hash_oldest(self) -> None:
        """Hash the oldest output that is noted, and the next one when others have had their turn."""
        self._is_due = False
        if not self._noted:
            return
        try:
            self._hash(*self._noted.popleft())
        except Exception as error:  # noqa: BLE001 - what it is ends the job
            self._task_group.fail(error)
        if self._noted:
            self._hash_soon()

    def _hash(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        context, stating = self._context, self._stating
        leaf = leaf_of(context.request.plan.manifest, frame)
        self._leaves.setdefault((chunk, task), []).append(leaf)
        if stating is not None:
            stating.statements.produced(chunk, frame.edge, HashedFrame(leaf.seq, tensors_of(leaf), frame.meta))
            if not context.generates:  # a call is whole; who waits for it may be whom this node's close waits for
                stating.chunk(chunk)
