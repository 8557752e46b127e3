"""A provider that is found out late: `python -m bench.training.late_cheat provider --config FILE`, as `nodewire`
otherwise.

In every training's first round its update is a little too long and its states are none, so the audit fails. What is
asked for of that round it shows only when the third round is asked of it: by then two outer steps are made of its work
and of what came after it, which is to be undone. All else is honest work.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import numpy as np

from nodewire.kind import TaskSession, Worker
from nodewire.nostr.event import Event
from nodewire.training.protocol.audit import AuditRequest
from nodewire.training.protocol.outer_step import OuterRequest, OuterTicket
from nodewire.training.protocol.round import RoundRequest, RoundTicket
from nodewire.training.protocol.round_close import CloseEvent
from nodewire.training.provider import service
from nodewire.training.provider.admission import AdmittedShard
from nodewire.training.provider.shard_job import ShardRun

CHEATS, SHOWS = 0, 2
"""Rounds: that of the cheat, and the one whose request has it show its work."""
LONGER = np.float32(1.02)
"""Nobody sees it beside honest updates."""

_shows: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""By job, whether it may show its work."""


class LateCheat(ShardRun):
    async def _steps(self, session: TaskSession) -> tuple[list[int], list[str], int, list[bytes]]:
        losses, states, samples, update = await super()._steps(session)
        if self.job.request.round.round != CHEATS:
            return losses, states, samples, update
        return losses, ["ab" * 32] * len(states), samples, [longer(b"".join(update))]

    async def reveal(self, asked: AuditRequest, closed: CloseEvent, worker: Worker) -> None:
        if self.job.request.round.round == CHEATS:
            await _shows[self.job.request.round.job].wait()
        await super().reveal(asked, closed, worker)


class Following(service.TrainingService):
    async def _serve(
        self, event: Event, request: RoundRequest | OuterRequest, ticket: RoundTicket | OuterTicket
    ) -> None:
        if isinstance(request, RoundRequest) and request.round.round >= SHOWS:
            _shows[request.round.job].set()
        await super()._serve(event, request, ticket)

    async def _until_paid_before(self, job: AdmittedShard) -> None:
        """It is in no hurry to be paid: what it was not paid for in earlier trainings is no reason not to be asked."""


def longer(packed: bytes) -> bytes:
    """An int8 or int4 update whose every number is larger by the same factor: a safetensors file with other scales."""
    head = 8 + int.from_bytes(packed[:8], "little")
    said: dict[str, Any] = json.loads(packed[8:head])
    start, end = (head + at for at in said["scales"]["data_offsets"])
    scales = np.frombuffer(packed[start:end], dtype="<f4") * LONGER
    return packed[:start] + scales.tobytes() + packed[end:]


def main() -> None:
    from nodewire.cli import main as nodewire
    from nodewire.training import provider_bootstrap

    service.ShardRun = LateCheat  # type: ignore[attr-defined]
    provider_bootstrap.TrainingService = Following  # type: ignore[attr-defined]
    nodewire()


if __name__ == "__main__":
    main()
