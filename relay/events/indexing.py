"""By what an event can be found: its single-letter tags, and the identifier of its replaceable kinds (NIP-01)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.nostr.nips import nip01

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event


def letters(tags: Sequence[Sequence[str]]) -> set[str]:
    """Each distinct single-letter tag as the letter and its first value run together: "e5f3a..."."""
    return {
        tag[0] + tag[1] for tag in tags if len(tag) > 1 and len(tag[0]) == 1 and tag[0].isascii() and tag[0].isalpha()
    }


def identifier(event: Event) -> str | None:
    """The d tag of an addressable event, "" for a replaceable one, None for one that nothing replaces."""
    if nip01.is_addressable(event.kind):
        return event.tag("d") or ""
    return "" if nip01.is_replaceable(event.kind) else None
