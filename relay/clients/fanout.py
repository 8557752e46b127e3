"""Who is to be told of a new event: live filters, indexed by the field that narrows each most.

Each filter stands under the values of one of its fields (ids, a tag, authors, kinds, or "any"), so that an event is
tested only against filters that share a value with it, not against every filter of every connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from relay.events.indexing import letters

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.nips.nip01 import Filter

Key = tuple[str, str | int]
_ANY: Key = ("any", 0)
_FILTER = 8


L = TypeVar("L")


@dataclass(eq=False, slots=True)
class Subscription(Generic[L]):
    """One REQ of `listener`. Live events (`seq`, JSON) wait until the stored ones are sent; `waiting` is None then.

    `seen` is the last `seq` that the query for stored events could see: what it left out is not sent as live either.
    """

    listener: L
    name: str
    filters: Sequence[Filter]
    keys: list[Key] = field(default_factory=list)
    seen: int = 0
    waiting: list[tuple[int | None, str]] | None = field(default_factory=list)
    weight: int = 0
    """As `weight` counts it."""


class Fanout(Generic[L]):
    """The live subscriptions of all connections."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Subscription[L], list[Filter]]] = {}

    def add(self, subscription: Subscription[L]) -> None:
        for filter_ in subscription.filters:
            for key in _keys_of_filter(filter_):
                self._by_key.setdefault(key, {}).setdefault(subscription, []).append(filter_)
                subscription.keys.append(key)

    def remove(self, subscription: Subscription[L]) -> None:
        for key in subscription.keys:
            under = self._by_key.get(key)
            if under is not None:
                under.pop(subscription, None)
                if not under:
                    del self._by_key[key]
        subscription.keys.clear()

    def matching(self, event: Event, tested: Counter[L] | None = None) -> list[Subscription[L]]:
        """The subscriptions with a filter that matches, each once. `tested`: by listener, the filters looked at."""
        found: dict[Subscription[L], None] = {}
        for key in _keys_of_event(event):
            for subscription, filters in self._by_key.get(key, {}).items():
                if subscription in found:
                    continue
                if tested is not None:
                    tested[subscription.listener] += len(filters)
                if any(f.matches(event) for f in filters):
                    found[subscription] = None
        return list(found)


def weight(filters: Sequence[Filter]) -> int:
    """What filters take of memory, in values: those in them, and themselves."""
    return sum(
        _FILTER + len(f.ids or ()) + len(f.authors or ()) + len(f.kinds or ()) + sum(map(len, f.tags.values()))
        for f in filters
    )


def _keys_of_filter(filter_: Filter) -> Iterator[Key]:
    if filter_.ids is not None:
        return (("id", value) for value in filter_.ids)
    if filter_.tags:
        letter = min(filter_.tags, key=lambda name: len(filter_.tags[name]))
        return (("tag", letter + value) for value in filter_.tags[letter])
    if filter_.authors is not None:
        return (("author", value) for value in filter_.authors)
    if filter_.kinds is not None:
        return (("kind", value) for value in filter_.kinds)
    return iter([_ANY])


def _keys_of_event(event: Event) -> Iterator[Key]:
    yield _ANY
    yield "id", event.id
    yield "author", event.pubkey
    yield "kind", event.kind
    for tag in letters(event.tags):
        yield "tag", tag
