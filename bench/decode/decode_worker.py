"""The worker entry of kind 8843 whose frames say how long their turn around a ring has been computed.

`meta.computed_us` of what goes out is that of what came in and this call's own time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodewire.kind import Actor, Limits, Params
from nodewire.llm import entry
from nodewire.protocol.tensors.frame import Frame

COMPUTED_US = "computed_us"


class Timed:
    """A decoder's actor."""

    def __init__(self, inner: Actor) -> None:
        self._inner = inner

    def open(self, session: str, params: Params) -> None:
        self._inner.open(session, params)

    def close(self, session: str) -> None:
        self._inner.close(session)

    def receive(self, session: str, frame: Frame[Any]) -> Iterable[Frame[Any]]:
        before = frame.meta.get(COMPUTED_US, 0)
        assert isinstance(before, int)
        began_ns = time.perf_counter_ns()
        frames = self._inner.receive(session, frame)
        us = before + (time.perf_counter_ns() - began_ns) // 1_000
        # What goes to the customer ends a turn; what goes on from the driver begins one.
        return [
            replace(one, meta={**one.meta, COMPUTED_US: us if len(frames) == 1 or k else 0})
            for k, one in enumerate(frames)
        ]


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """A driver or a stage. Raises as `nodewire.llm.entry.load`."""
    return Timed(entry.load(engine, program, weights, limits))  # type: ignore[return-value]
