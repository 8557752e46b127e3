"""What a cheat altered, said in its provider's log: a bench counts it, and fails where it is nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from nodewire.protocol.tensors.frame import Frame

STRUCK = "the cheat altered"
"""A line of the log has this for each frame, token or weight that is not the honest one."""
FRAME = re.compile(STRUCK + r" ([0-9a-f]{64}) (\S+)/(\d+)$", re.MULTILINE)
"""Such a line of a frame: the job's request, the edge, and the frame's number there."""
_chosen: list[str] = []
"""Tokens that are not the choice, of the frames that are being made."""


def say_struck(what: str) -> None:
    print(f"{STRUCK} {what}", file=sys.stderr, flush=True)


def say_frame(session: str, frame: Frame[Any]) -> None:
    """A frame of a job, whose sessions are named by its request, is not the honest one."""
    say_struck(f"{session} {frame.edge}/{frame.seq}")


def note_choice(what: str) -> None:
    """A token was chosen that is not the choice: what comes out next is not honest."""
    _chosen.append(what)


def say_choices(session: str, outs: Sequence[Frame[Any]]) -> None:
    """Say of the token's frame, the last of a driver's, that it holds such a token. One before it is the next's."""
    for frame in outs[-1:] if _chosen else ():
        say_frame(session, frame)
    _chosen.clear()
