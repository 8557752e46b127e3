"""A provider's daemon that commits to nothing: its announcer, changed from outside. What is not drawn is not judged."""

from __future__ import annotations

from typing import Any

from nodewire.protocol.commitment import ChunkRoot
from nodewire.provider.announcing import Announcer


def commit_to_nothing() -> None:
    """From now on every announcer of this process drops what it is to commit to."""

    def dropped(self: Any, root: ChunkRoot) -> None:
        pass

    Announcer.commit = dropped  # type: ignore[method-assign]
