"""Frames of one `seq` on several edges, kept until they make a call: what is not complete does not stand in a queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadFrame, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.protocol.tensors.frame import Frame

MAX_CALLS = 1_024
"""Of one session that wait for frames."""
MAX_BYTES = 512 * 2**20
"""Of all frames that wait for others; a quarter of it of one session, and of one customer's at most as much as all
together leave free: customers who fill it up leave room for the next."""


class JoinedBytes:
    """What waits in all sessions of a worker."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.by_customer: Counter[str] = Counter()
        """Bytes; customers of whom something waits."""

    @property
    def free_bytes(self) -> int:
        return self.max_bytes - self.nbytes

    def change(self, customer: str, nbytes: int) -> None:
        self.nbytes += nbytes
        self.by_customer[customer] += nbytes
        if not self.by_customer[customer]:
            del self.by_customer[customer]


class JoinedFrames:
    """A session's frames, by seq: they make a call when there is one on each edge of `together`."""

    def __init__(self, everywhere: JoinedBytes, together: frozenset[str], customer: str = "") -> None:
        self._everywhere = everywhere
        self._together = together
        self._customer = customer
        self._calls: dict[int, dict[str, Frame[Any]]] = {}
        self._bytes = 0

    def add(self, frame: Frame[Any]) -> tuple[Frame[Any], ...]:
        """The frames that are a call now, in the order in which they came; none while others are missing.

        Raises:
            BadFrame: the edge has had that seq, or is none of them.
            TooLarge: too many calls or bytes wait.

        """
        if frame.edge not in self._together:
            raise BadFrame("edge", f"{frame.edge[:64]!r} does not lead here")
        have = self._calls.get(frame.seq, {})
        if frame.edge in have:
            raise BadFrame(frame.edge, f"seq {frame.seq} came twice")
        if len(have) + 1 == len(self._together):
            self._calls.pop(frame.seq, None)
            self._add(-_nbytes(have.values()))
            return (*have.values(), frame)
        if not have and len(self._calls) >= MAX_CALLS:
            raise TooLarge("pending", f"{MAX_CALLS} calls already wait for frames of other edges")
        size, everywhere = _nbytes((frame,)), self._everywhere
        customer_bytes = everywhere.by_customer[self._customer]
        if self._bytes + size > everywhere.max_bytes // 4 or customer_bytes + size > everywhere.free_bytes:
            raise TooLarge("pending", f"over {customer_bytes} bytes wait for frames of other edges")
        self._add(size)
        self._calls.setdefault(frame.seq, {})[frame.edge] = frame
        return ()

    def forget(self) -> None:
        """The session is over: nothing of it waits."""
        self._calls.clear()
        self._add(-self._bytes)

    def _add(self, nbytes: int) -> None:
        if nbytes:
            self._bytes += nbytes
            self._everywhere.change(self._customer, nbytes)


def _nbytes(frames: Iterable[Frame[Any]]) -> int:
    # an empty one takes room, too
    return sum(1_024 + sum(array.nbytes for array in frame.tensors) for frame in frames)
