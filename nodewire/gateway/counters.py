"""What the gateway counts, and how Prometheus sees it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from nodewire.metrics.durations import Durations
from nodewire.metrics.family import CODES, Labels, capped, counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from nodewire.errors import NodewireError

REQUESTS = counter(
    "nodewire_gateway_requests_total", "Requests answered, by endpoint and HTTP status.", "endpoint", "status"
)
TIME = histogram("nodewire_gateway_request_seconds", "From a request to the end of its answer.", "endpoint")
FIRST = histogram("nodewire_gateway_first_output_seconds", "From a request to the first token of its answer.", "model")
IN_FLIGHT = gauge("nodewire_gateway_requests_in_flight", "Requests that are bought for now.")
WAITING = gauge("nodewire_gateway_requests_waiting", "Requests that wait for one of these to end.")
TOKENS = counter(
    "nodewire_gateway_tokens_total",
    "Tokens of prompts (prompt) and answers (completion), as clients are told.",
    "model",
    "of",
)
COST = counter("nodewire_gateway_cost_msat_total", "The cost of answers, fees and verification included.", "model")
FAILED = counter(
    "nodewire_gateway_orders_failed_total", "Purchases that did not come to their end, by the error's code.", "code"
)
MOVES = counter(
    "nodewire_gateway_moves_total",
    "Moves of answers to other rings, by outcome.",
    "model",
    "outcome",
)
FAMILIES = (REQUESTS, TIME, FIRST, IN_FLIGHT, WAITING, TOKENS, COST, FAILED, MOVES)


class Figures:
    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self.took: defaultdict[Labels, Durations] = defaultdict(Durations)
        self.first: defaultdict[Labels, Durations] = defaultdict(Durations)
        self.tokens: Counter[Labels] = Counter()
        self.cost_msat: Counter[Labels] = Counter()
        self.failed: Counter[Labels] = Counter()
        self.moves: Counter[Labels] = Counter()

    def answered(self, endpoint: str, status: int, us: int) -> None:
        self.requests[endpoint, str(status)] += 1
        self.took[(endpoint,)].add(us)

    def began(self, model: str, us: int) -> None:
        self.first[(model,)].add(us)

    def count_tokens(self, model: str, prompt: int, completion: int) -> None:
        self.tokens[model, "prompt"] += prompt
        self.tokens[model, "completion"] += completion

    def moved(self, model: str, outcomes: Iterable[str]) -> None:
        self.moves.update((model, outcome) for outcome in outcomes)

    def settled(self, model: str, cost_msat: int, failure: NodewireError | None) -> None:
        self.cost_msat[(model,)] += cost_msat
        if failure is not None:
            self.failed[(capped(failure.code, CODES),)] += 1


class GatewayCollector:
    """To be collected on the event loop."""

    def __init__(self, figures: Figures, in_flight: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._figures, self._in_flight, self._waiting = figures, in_flight, waiting

    def collect(self) -> Iterator[Metric]:
        counts = self._figures
        yield REQUESTS.by(counts.requests)
        yield TIME.spread(counts.took)
        yield FIRST.spread(counts.first)
        yield IN_FLIGHT.to_metric(self._in_flight())
        yield WAITING.to_metric(self._waiting())
        yield TOKENS.by(counts.tokens)
        yield COST.by(counts.cost_msat)
        yield FAILED.by(counts.failed)
        yield MOVES.by(counts.moves)
