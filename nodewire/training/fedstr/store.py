"""Requests in FEDSTR's layout that are under way, on disk: who dies begins them again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodewire.nostr import event as events

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.nostr.event import Event


class KeptRequests:
    """In a folder, by id. No more than there are workers."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder

    def begun(self, event: Event) -> None:
        """On disk when this returns."""
        partial = self._folder / f"{event.id}.partial"
        with partial.open("w") as file:
            file.write(event.to_json())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._folder / f"{event.id}.json")

    def remove(self, request: str) -> None:
        (self._folder / f"{request}.json").unlink(missing_ok=True)

    def all(self) -> list[Event]:
        """Oldest first."""
        found = [events.parse(path.read_text()) for path in self._folder.glob("*.json")]
        return sorted(found, key=lambda event: event.created_at)
