"""Frames of one `seq` on several edges, kept until they make a call: what is not complete does not stand in a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.frame import Frame

MAX_CALLS = 1_024
"""Of one task's session that wait for frames."""
MAX_BYTES = 512 * 2**20
"""Of all frames that wait for others; a quarter of it of one task's session, and of one customer's at most as much as
all together leave free: customers who fill it up leave room for the next."""


class Joining:
    """Frames by task, session and seq."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._edges: dict[tuple[str, str], frozenset[str]] = {}
        self._frames: dict[tuple[str, str], dict[int, dict[str, Frame[Any]]]] = {}
        self._own: Counter[tuple[str, str]] = Counter()
        """Bytes, by task and session."""
        self._customers: dict[tuple[str, str], str] = {}
        self._of: Counter[str] = Counter()
        """Bytes, by customer."""

    @property
    def free_bytes(self) -> int:
        return self.max_bytes - self.nbytes

    def open(self, task: str, session: str, together: frozenset[str], customer: str = "") -> None:
        """From now on frames of this task and session make a call when there is one on each edge of `together`."""
        self.close(task, session)
        if len(together) > 1:
            self._edges[task, session] = together
            self._customers[task, session] = customer

    def add(self, task: str, session: str, frame: Frame[Any]) -> tuple[Frame[Any], ...]:
        """The frames that are a call now, in the order in which they came; none while others are missing.

        Raises:
            BadFrame: the edge has had that seq, or is none of them.
            TooLarge: too many calls or bytes wait.
        """
        together = self._edges.get((task, session))
        if together is None:
            return (frame,)
        if frame.edge not in together:
            raise BadFrame("edge", f"{frame.edge[:64]!r} does not lead here")
        calls = self._frames.setdefault((task, session), {})
        have = calls.get(frame.seq, {})
        if frame.edge in have:
            raise BadFrame(frame.edge, f"seq {frame.seq} came twice")
        if len(have) + 1 == len(together):
            calls.pop(frame.seq, None)
            self._add(task, session, -_nbytes(have))
            return (*have.values(), frame)
        if not have and len(calls) >= MAX_CALLS:
            raise TooLarge("pending", f"{MAX_CALLS} calls already wait for frames of other edges")
        size, customer = _size(frame), self._customers[task, session]
        if self._own[task, session] + size > self.max_bytes // 4 or self._of[customer] + size > self.free_bytes:
            raise TooLarge("pending", f"over {self._of[customer]} bytes wait for frames of other edges")
        self._add(task, session, size)
        calls.setdefault(frame.seq, {})[frame.edge] = frame
        return ()

    def close(self, task: str, session: str) -> None:
        """Forget what waits; a session that is not known is none."""
        self._edges.pop((task, session), None)
        self._frames.pop((task, session), None)
        self._add(task, session, -self._own[task, session])
        del self._own[task, session]
        self._customers.pop((task, session), None)

    def _add(self, task: str, session: str, nbytes: int) -> None:
        if not nbytes:
            return
        customer = self._customers[task, session]
        self._own[task, session] += nbytes
        self._of[customer] += nbytes
        if not self._of[customer]:
            del self._of[customer]
        self.nbytes += nbytes


def _nbytes(have: Mapping[str, Frame[Any]]) -> int:
    return sum(map(_size, have.values()))


def _size(frame: Frame[Any]) -> int:
    nbytes: int = sum(array.nbytes for array in frame.tensors)
    return nbytes + 1_024  # an empty one takes room, too
