"""What a task looks at before it takes anything for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import NotAllowed, TooLarge

if TYPE_CHECKING:
    from collections.abc import Container

MAX_SESSION_NAME = 200


def check(session: str, opened: Container[str]) -> None:
    """See whether a session may join those that are `opened`.

    Raises:
        TooLarge: its name is longer than MAX_SESSION_NAME.
        NotAllowed: it is open already.

    """
    if len(session) > MAX_SESSION_NAME:
        raise TooLarge("session", f"a name of {len(session)} characters, at most {MAX_SESSION_NAME}")
    if session in opened:
        raise NotAllowed("session", "open already")
