"""A provider's daemon that commits to nothing, changed from outside. What is not committed to is not drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.provider.evidence.committer import Committer


def commit_to_nothing() -> None:
    """From now on this process drops what it is to commit to."""

    async def dropped(self: Any, roots: Sequence[ChunkRoot], deadline: int) -> None:
        pass

    Committer.commit = dropped  # type: ignore[method-assign]
