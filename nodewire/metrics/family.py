"""A family of metrics, declared once and filled when somebody scrapes.

Names follow https://prometheus.io/docs/practices/naming/ (base units, `_total`); docs/reference/metrics.md lists them.
A label's values come from a table of this software's, an operator's file, or `tallied`: never from what a peer says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from nodewire.errors import TABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nodewire.metrics.durations import Durations

Labels = tuple[str, ...]
"""A sample's values, in the order of the family's labels."""
OTHER = "other"
"""What a value becomes that is not on its list."""
FAULT = "fault"
"""In the place of an error's code: it was this software's own."""
CODES = frozenset({*TABLE, FAULT})
"""What an error can be counted as; an installed kind may have others of its own."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is exported under one name. `labels` are names."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: Labels = ()

    def to_metric(self, value: float) -> Metric:
        """The family as a single number; it has no labels."""
        return self.by({(): value})

    def by(self, values: Mapping[Labels, float]) -> Metric:
        """The family with a sample for each of `values`."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        made = make(self.name, self.help, labels=self.labels)
        for labels, value in values.items():
            made.add_metric(labels, value)
        return made

    def spread(self, durations: Mapping[Labels, Durations]) -> Metric:
        """The histogram of each of `durations`."""
        made = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, one in durations.items():
            made.add_metric(labels, list(one.buckets()), one.total_us / 1e6)
        return made


def counter(name: str, said: str, *labels: str) -> Family:
    return Family("counter", name, said, labels)


def gauge(name: str, said: str, *labels: str) -> Family:
    return Family("gauge", name, said, labels)


def histogram(name: str, said: str, *labels: str) -> Family:
    return Family("histogram", name, said, labels)


def tallied(counts: Mapping[str, int], known: Collection[str], *, zeros: bool = False) -> dict[Labels, float]:
    """Counts by the value of one label; those of values that are not `known` are one, OTHER.

    `zeros`: all known values are shown, counted or not.
    """
    found: Counter[Labels] = Counter({(value,): 0 for value in known} if zeros else {})
    for value, count in counts.items():
        found[(capped(value, known),)] += count
    return dict(found)


def capped(value: str, known: Collection[str]) -> str:
    return value if value in known else OTHER
