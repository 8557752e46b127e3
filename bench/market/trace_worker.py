"""The worker entry of kind 8843 with a line on standard error, and so in the daemon's log, for every call of a graph.

traced {"program": SHA-256 of the task's program, "began_ns", "ended_ns"}      by the machine's monotonic clock
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nodewire.graph import entry
from nodewire.graph.program.interpreter import Interpreter
from nodewire.kind import Actor, Limits

MARK = "traced "


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    programs: dict[int, str] = {}

    @functools.wraps(call)
    def timed(self: Interpreter, *args: Any, **kwargs: Any) -> Any:
        began_ns = time.monotonic_ns()
        found = call(self, *args, **kwargs)
        ended_ns = time.monotonic_ns()
        if id(self) not in programs:
            programs[id(self)] = hashlib.sha256(self.program.encode()).hexdigest()
        said = {"program": programs[id(self)], "began_ns": began_ns, "ended_ns": ended_ns}
        print(MARK + json.dumps(said), file=sys.stderr, flush=True)
        return found

    return timed


Interpreter.__call__ = _timed(Interpreter.__call__)  # type: ignore[method-assign]


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """A loaded graph task, or an encoder's driver. Raises as `nodewire.graph.entry.load`."""
    return entry.load(engine, program, weights, limits)
