"""Workers as Prometheus sees them: their queues, what they compute, what they take of the machine.

A worker whose process is replaced begins its counts anew, as Prometheus expects of what restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.process_collector import ProcessCollector

from nodewire.metrics.family import Labels, counter, gauge, histogram
from nodewire.worker.counters import Figures
from nodewire.worker.persistent_worker import LastingWorker, SingleProcess
from nodewire.worker.sandbox.rights import private_bytes

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_WORKER = "worker"

CALLS = counter("nodewire_worker_calls_total", "Calls that have left the queue.", _WORKER)
BATCHED = counter("nodewire_worker_batched_calls_total", "Of these, those computed together with others.", _WORKER)
WAITING = gauge("nodewire_worker_waiting_calls", "Calls in the queue now.", _WORKER)
WAITING_BYTES = gauge("nodewire_worker_waiting_bytes", "Bytes that these calls hold.", _WORKER)
WAIT = histogram("nodewire_worker_wait_seconds", "From a call's entry into the queue to its turn.", _WORKER)
CALL = histogram(
    "nodewire_worker_call_seconds", "Seconds of calls on frames, the way to the process included.", _WORKER
)
STARTS = counter("nodewire_worker_starts_total", "Processes started: more than one, and others have died.", _WORKER)
UP = gauge("nodewire_worker_up", "1 if its process lives.", _WORKER)
MEMORY = gauge("nodewire_worker_memory_bytes", "Private memory above an empty worker: what its cap counts.", _WORKER)
CAP = gauge("nodewire_worker_memory_cap_bytes", "The cap of [worker] memory.", _WORKER)
RESIDENT = gauge("nodewire_worker_resident_memory_bytes", "All that it has in memory, shared or not.", _WORKER)
CPU = counter("nodewire_worker_cpu_seconds_total", "CPU time of all its threads.", _WORKER)
FAMILIES = (CALLS, BATCHED, WAITING, WAITING_BYTES, WAIT, CALL, STARTS, UP, MEMORY, CAP, RESIDENT, CPU)

Named = Callable[[], Iterable[tuple[str, LastingWorker]]]
"""The workers that there are now, by the names that they are shown under."""


class Workers:
    """Their counts. To be collected on the event loop."""

    def __init__(self, named: Named) -> None:
        self._named = named

    def collect(self) -> Iterator[Metric]:
        workers = list(self._named())
        figures: list[tuple[Labels, Figures]] = [((name,), one.figures or Figures()) for name, one in workers]
        alive = [((name,), one.process) for name, one in workers if one.process is not None and one.process.alive]
        yield CALLS.by({labels: one.calls for labels, one in figures})
        yield BATCHED.by({labels: one.batched for labels, one in figures})
        yield WAITING.by({labels: process.waiting[0] for labels, process in alive})
        yield WAITING_BYTES.by({labels: process.waiting[1] for labels, process in alive})
        yield WAIT.spread({labels: one.waits for labels, one in figures})
        yield CALL.spread({labels: one.computing for labels, one in figures})
        yield STARTS.by({(name,): one.starts for name, one in workers})
        yield UP.by({(name,): float((name,) in dict(alive)) for name, one in workers})


class Machines:
    """What their processes take. To be collected apart: the system is asked."""

    def __init__(self, named: Named, cap_bytes: int) -> None:
        self._named = named
        self._cap_bytes = cap_bytes

    def collect(self) -> Iterator[Metric]:
        alive: dict[Labels, SingleProcess] = {
            (name,): one.process for name, one in self._named() if one.process is not None and one.process.alive
        }
        asked = {labels: _asked(one.hello.pid) for labels, one in alive.items()}
        yield MEMORY.by(
            {labels: max(0, private_bytes(one.hello.pid) - one.hello.baseline_bytes) for labels, one in alive.items()}
        )
        yield CAP.by(dict.fromkeys(alive, self._cap_bytes))
        yield RESIDENT.by({labels: one["process_resident_memory_bytes"] for labels, one in asked.items() if one})
        yield CPU.by({labels: one["process_cpu_seconds"] for labels, one in asked.items() if one})


def _asked(pid: int) -> dict[str, float]:
    """What the system says of a process, by the library's names; nothing once it has ended."""
    found = ProcessCollector(pid=lambda: pid, registry=None).collect()
    return {metric.name: metric.samples[0].value for metric in found}
