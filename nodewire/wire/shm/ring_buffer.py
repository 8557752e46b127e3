"""One direction of a shared-memory link: a ring of bytes, and how much of it is whose. No I/O, no waiting.

Both counts are of bytes since the link began. They never lie in the shared memory: each end says its own over the
link's socket, so the kernel orders them after the bytes that they speak of, and a peer that writes into the memory
when it should not spoils its own bytes and nothing else. Each end checks what it is told against what it knows.
"""

from __future__ import annotations

from nodewire.errors import BadFrame

Buffer = bytes | bytearray | memoryview


class Outflow:
    """The end that writes."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._size = len(memory)
        self.written = 0
        self._taken = 0

    @property
    def free(self) -> int:
        """How many bytes fit now."""
        return self._size - (self.written - self._taken)

    def write(self, data: memoryview) -> int:
        """Copy in as much of `data` (of bytes) as fits; how much that was."""
        count = min(len(data), self.free)
        start = self.written % self._size
        first = min(count, self._size - start)
        self._memory[start : start + first] = data[:first]
        if first < count:
            self._memory[: count - first] = data[first:count]
        self.written += count
        return count

    def taken(self, count: int) -> None:
        """The reader says that it has taken `count` bytes in all. Raises BadFrame: that cannot be."""
        if not self._taken <= count <= self.written:
            raise BadFrame("taken", f"{count} bytes, of {self.written} written and {self._taken} taken before")
        self._taken = count

    def release(self) -> None:
        self._memory.release()


class Inflow:
    """The end that reads."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._size = len(memory)
        self.taken = 0
        self._written = 0

    @property
    def waiting(self) -> int:
        """How many bytes may be read now."""
        return self._written - self.taken

    def written(self, count: int) -> None:
        """The writer says that it has written `count` bytes in all. Raises BadFrame: that cannot be."""
        if not self._written <= count <= self.taken + self._size:
            raise BadFrame("written", f"{count} bytes, of {self._written} before and {self.taken} taken")
        self._written = count

    def read_into(self, buffer: memoryview) -> int:
        """Copy out as much as there is and `buffer` (of bytes) takes; how much that was."""
        count = min(len(buffer), self.waiting)
        start = self.taken % self._size
        first = min(count, self._size - start)
        buffer[:first] = self._memory[start : start + first]
        if first < count:
            buffer[first:count] = self._memory[: count - first]
        self.taken += count
        return count

    def release(self) -> None:
        self._memory.release()
