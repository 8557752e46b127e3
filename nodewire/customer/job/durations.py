"""When a job was asked for, planned and answered: the moments from which its speed is told."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class JobTimes:
    """Monotonic moments of a job, seconds."""

    asked: float = field(default_factory=time.monotonic)
    planned: float = 0.0
    """When the plan stood (of the last one, if the first were refused)."""
    outputs: list[float] = field(default_factory=list)

    def output(self) -> None:
        """An output has come."""
        self.outputs.append(time.monotonic())

    def first_output_ms(self) -> float:
        """From the plan to the first output: request, checks at the providers, tickets, prefill, first token."""
        return (self.outputs[0] - self.planned) * 1000 if self.outputs else 0.0

    def planning_ms(self) -> float:
        """From the call to the plan, the wait for a certified epoch included."""
        return (self.planned - self.asked) * 1000

    def step_ms(self) -> float:
        """Median time between outputs."""
        gaps = [b - a for a, b in zip(self.outputs, self.outputs[1:], strict=False)]
        return statistics.median(gaps) * 1000 if gaps else 0.0

    def rate(self) -> float:
        """Outputs per second after the first."""
        span = self.outputs[-1] - self.outputs[0] if len(self.outputs) > 1 else 0.0
        return (len(self.outputs) - 1) / span if span > 0 else 0.0
