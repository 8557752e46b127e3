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
"""Of all frames that wait for others; a quarter of it of one task's session."""


class Joining:
    """Frames by task, session and seq."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._edges: dict[tuple[str, str], frozenset[str]] = {}
        self._frames: dict[tuple[str, str], dict[int, dict[str, Frame[Any]]]] = {}
        self._own: Counter[tuple[str, str]] = Counter()
        """Bytes, by task and session."""

    def open(self, task: str, session: str, together: frozenset[str]) -> None:
        """From now on frames of this task and session make a call when there is one on each edge of `together`."""
        self.close(task, session)
        if len(together) > 1:
            self._edges[task, session] = together

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
        if self._own[task, session] + _size(frame) > self.max_bytes // 4 or self.nbytes + _size(frame) > self.max_bytes:
            raise TooLarge(
                "pending", f"over {self.max_bytes // 4} bytes wait for frames of other edges, or all that may"
            )
        self._add(task, session, _size(frame))
        calls.setdefault(frame.seq, {})[frame.edge] = frame
        return ()

    def close(self, task: str, session: str) -> None:
        """Forget what waits; a session that is not known is none."""
        self._edges.pop((task, session), None)
        self._frames.pop((task, session), None)
        self.nbytes -= self._own.pop((task, session), 0)

    def _add(self, task: str, session: str, nbytes: int) -> None:
        self._own[task, session] += nbytes
        self.nbytes += nbytes


def _nbytes(have: Mapping[str, Frame[Any]]) -> int:
    return sum(map(_size, have.values()))


def _size(frame: Frame[Any]) -> int:
    nbytes: int = sum(array.nbytes for array in frame.tensors)
    return nbytes + 1_024  # an empty one takes room, too
