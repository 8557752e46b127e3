"""What the log tells an operator of the queues."""

import asyncio
import logging

from nodewire.provider.tasks import queue_report
from nodewire.worker.counters import Figures


class Worker:
    def __init__(self) -> None:
        self.figures = Figures()


async def test_a_worker_that_computed_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(queue_report, "EVERY_S", 0)
    caplog.set_level(logging.INFO)
    busy, idle = Worker(), Worker()
    for waited_us in (0, 1_000, 3_000):
        busy.figures.took(waited_us, still_waiting=2)
    reporting = asyncio.create_task(queue_report.report([idle, busy]))
    while not caplog.records:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    reporting.cancel()
    [record] = caplog.records
    assert record.getMessage() == (
        "worker 1 since its start: 3 calls, 0 of them in batches, waited 1.0 ms (95 %: 3.0 ms), at most 3 at once"
    )
