"""What an operator is told of the queues before the workers: a line in the log, while there is something to tell."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.worker.persistent_worker import LastingWorker

log = logging.getLogger("nodewire.provider")
EVERY_S = 60.0


async def report(workers: Sequence[LastingWorker]) -> None:
    """Log every worker's figures once a minute in which it computed."""
    said: dict[int, int] = {}
    while True:
        await asyncio.sleep(EVERY_S)
        for number, worker in enumerate(workers):
            figures = worker.figures
            if figures is not None and figures.calls != said.get(number, 0):
                said[number] = figures.calls
                log.info("worker %d since its start: %s", number, figures)
