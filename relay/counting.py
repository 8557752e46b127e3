"""What a relay has done since it was started: plain counts, written where things happen and read at a scrape."""

from __future__ import annotations

from collections import Counter

from nodewire.metrics.durations import Durations

REASONS = frozenset(
    {"", "duplicate", "pow", "blocked", "rate-limited", "invalid", "restricted", "mute", "error"}
    | {"auth-required", "unsupported"}
)
"""NIP-01's prefixes of a message; none where there is nothing to say."""


class Counts:
    """`answers`: to EVENTs, by whether the event was accepted and the reason's prefix.

    `refusals`: of messages that were not taken at all, by the prefix. `delivered`: live events, to each subscription.
    """

    def __init__(self) -> None:
        self.answers: Counter[tuple[bool, str]] = Counter()
        self.refusals: Counter[str] = Counter()
        self.turned_away = self.cut = 0
        """Connections: of too many, and of readers that fell behind."""
        self.subscriptions = 0
        """That are open."""
        self.delivered = 0
        self.waited_s = 0.0
        """For which messages of addresses in debt were left unread, all together."""
        self.ingest = Durations()
        """From reading an EVENT to its OK: the commit is in it."""
        self.fanout = Durations()
        """From a stored or ephemeral event to its place in every outbox."""

    def answered(self, accepted: bool, message: str, us: int) -> None:
        self.answers[accepted, prefix(message) if message else ""] += 1
        self.ingest.add(us)


def prefix(message: str) -> str:
    """Of an OK's or CLOSED's message; an operator's policies may have words of their own."""
    found = message.partition(":")[0]
    return found if found in REASONS else "other"
