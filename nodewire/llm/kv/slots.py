"""Which session holds which slot of a task."""

from __future__ import annotations

from nodewire.errors import Busy, NotAllowed, NotFound, TooLarge

MAX_SESSION_NAME = 200


class Slots:
    """The count that `Busy` is about."""

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
