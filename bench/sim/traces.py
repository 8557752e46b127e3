"""Seeded traces: when sessions come, how long their prompts and answers are, and who leaves and joins meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Session:
    at_ms: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Change:
    """A node, by its index, goes or comes (back)."""

    at_ms: float
    node: int
    is_there: bool


def poisson(per_s: float, seconds: float, chance: Random, *, prompt: int = 256, output: int = 128) -> list[Session]:
    """Arrivals at `per_s`; prompts and outputs are lognormal about the given medians, at most eightfold."""
    sessions, now = [], 0.0
    while True:
        now += chance.expovariate(per_s)
        if now >= seconds:
            return sessions
        sessions.append(Session(now * 1_000, _length(prompt, chance), _length(output, chance)))


def _length(median: int, chance: Random) -> int:
    return max(2, min(8 * median, round(median * chance.lognormvariate(0.0, 0.5))))


def churn(nodes: int, per_hour: float, seconds: float, chance: Random, *, away_s: float = 120.0) -> list[Change]:
    """Every node leaves `per_hour` times an hour, and is back after `away_s` on average."""
    changes = []
    for node in range(nodes):
        now = chance.expovariate(per_hour / 3_600) if per_hour else seconds
        while now < seconds:
            changes.append(Change(now * 1_000, node, False))
            now += chance.expovariate(1 / away_s)
            if now < seconds:
                changes.append(Change(now * 1_000, node, True))
            now += chance.expovariate(per_hour / 3_600)
    return sorted(changes, key=lambda change: (change.at_ms, change.node))
