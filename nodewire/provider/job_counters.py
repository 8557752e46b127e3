"""What became of a provider's jobs since it was started: plain counts, read when somebody scrapes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodewire.errors import Busy, NodewireError
from nodewire.metrics.durations import Durations
from nodewire.metrics.family import FAULT
from nodewire.protocol import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = frozenset({*kinds.TRAINING, kinds.INFERENCE, kinds.FEDSTR})


class Figures:
    """Of one half. Kinds are of requests (8843, ...)."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[int, str, str]] = Counter()
        """By kind (0: none of ours), outcome ("served", "failed", "refused") and the code of why not."""
        self.took: defaultdict[int, Durations] = defaultdict(Durations)
        """By kind: those served."""
        self.chunks = 0
        self.waits_s = 0.0
        """How long chunks waited for money, together."""
        self.steps = 0
        self.untold = 0
        """Refusals that there was no room for."""

    def waited(self, took_s: float) -> None:
        """A chunk waited so long until one before it was paid, or within its customer's credit."""
        self.waits_s += took_s

    def refused(self, kind: int, error: NodewireError) -> None:
        """`kind` is the event's, and so whatever a relay sends."""
        self.ended[kind if kind in KINDS else 0, "refused", error.code] += 1

    @contextmanager
    def job(self, kind: int) -> Iterator[None]:
        """An admitted job, to its end.

        One that finds no room is refused. A cancelled one is none: the daemon stops.
        """
        began_ns = time.monotonic_ns()
        try:
            yield
        except NodewireError as error:
            self.ended[kind, "refused" if isinstance(error, Busy) else "failed", error.code] += 1
            raise
        except Exception:
            self.ended[kind, "failed", FAULT] += 1
            raise
        self.ended[kind, "served", ""] += 1
        self.took[kind].add((time.monotonic_ns() - began_ns) // 1_000)
