"""What torch's CPU allocator gives out while something runs: its own events, as torch.profiler hands them on."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from torch.autograd.profiler import profile


class Allocated:
    """Within its block: `peak_bytes`, the most that was allocated at once above what was at the beginning."""

    def __init__(self) -> None:
        self._profile = profile(profile_memory=True, use_kineto=True)
        self.peak_bytes = self.left_bytes = 0

    def __enter__(self) -> Self:
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, where)
        results = self._profile.kineto_results
        assert results is not None
        events = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]  # type: ignore[attr-defined]
        for _, nbytes in sorted(events, key=lambda event: event[0]):  # stable: events of one moment keep their order
            self.left_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.left_bytes)
