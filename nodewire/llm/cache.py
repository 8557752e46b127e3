"""KV lanes: one preallocated cache per slot, handed to sessions, never grown.

All memory is taken when the task is loaded; opening a session only picks a free lane. A lane's `length` positions are
valid; what lies beyond is never read, so a rewind is a smaller length and a released lane needs no clearing.
"""

from __future__ import annotations

import torch

from nodewire.errors import Busy, NotAllowed, NotFound, TooLarge
from nodewire.llm.config import DecoderConfig

MAX_SESSION_NAME = 200


class Lanes:
    """`keys` and `values`: per layer [slots, kv_heads, positions, head_dim]."""

    def __init__(
        self, config: DecoderConfig, layers: int, slots: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (slots, config.num_key_value_heads, positions, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.positions = positions


class Slots:
    """Which session holds which slot; the count that `Busy` is about."""

    def __init__(self, count: int) -> None:
        self._free = list(reversed(range(count)))
        self._taken: dict[str, int] = {}

    def open(self, session: str) -> int:
        """A free slot for the session.

        Raises:
            Busy: none is free.
            NotAllowed: the session is open already.
        """
        if len(session) > MAX_SESSION_NAME:
            raise TooLarge("session", f"a name of {len(session)} characters, at most {MAX_SESSION_NAME}")
        if session in self._taken:
            raise NotAllowed("session", "open already")
        if not self._free:
            raise Busy("slots", f"all {len(self._taken)} are taken")
        self._taken[session] = self._free.pop()
        return self._taken[session]

    def slot(self, session: str) -> int:
        """Raises NotFound for a session that is not open."""
        try:
            return self._taken[session]
        except KeyError:
            raise NotFound("session", "not open") from None

    def close(self, session: str) -> None:
        slot = self._taken.pop(session, None)
        if slot is not None:
            self._free.append(slot)
