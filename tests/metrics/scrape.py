"""What daemons show, read with the library's own parser; and what docs/reference/metrics.md says that they show."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from nodewire.gateway import counters as gateway
from nodewire.metrics import endpoint
from nodewire.metrics.family import Family
from nodewire.oracle import metrics as oracle
from nodewire.provider import metrics as provider
from nodewire.wire import metrics as wire
from nodewire.wire.nat import splice_metrics as splice
from nodewire.worker import metrics as worker
from relay import exporting as relay

DOCS = Path(__file__).parents[2] / "docs"
BOTH = "provider, oracle"
DECLARED: dict[str, tuple[Family, ...]] = {
    "all": endpoint.FAMILIES,
    "provider": (
        *(*provider.JOB_FAMILIES, *provider.SERVING_FAMILIES, *provider.TRAINING_FAMILIES, *wire.SPOOL_FAMILIES),
    ),
    BOTH: (*worker.FAMILIES, *wire.FAMILIES),
    "oracle": oracle.FAMILIES,
    "relay": relay.FAMILIES,
    "splice": splice.FAMILIES,
    "gateway": gateway.FAMILIES,
}
OF_THE_LIBRARY = re.compile(r"(process|python_gc)_\w+")
_ROW = re.compile(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \| ([^|]*) \| ([a-z, ]+) \| ([^|]+) \|$", re.M)


@dataclass(frozen=True)
class Row:
    """One metric, as it is documented."""

    name: str
    kind: str
    labels: tuple[str, ...]
    daemons: str
    said: str


def documented() -> list[Row]:
    page = (DOCS / "reference" / "metrics.md").read_text()
    return [
        Row(name, kind, tuple(re.findall(r"`(\w+)`", labels)), daemons, said)
        for name, kind, labels, daemons, said in _ROW.findall(page)
    ]


def declared() -> list[Row]:
    return [Row(f.name, f.kind, f.labels, of, f.help) for of, families in DECLARED.items() for f in families]


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def families(text: str) -> dict[str, str]:
    """The type of each family, by its name as Prometheus' users have it."""
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name + "_total" * (family.type == "counter"): family.type for family in found}


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By a sample's name and its sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    """One sample; 0 of one that there is not yet."""
    return values(text).get((name, tuple(sorted(labels.items()))), 0.0)


def label_names(text: str) -> dict[str, set[str]]:
    """Those that samples have, by family; of a histogram without `le`."""
    return {
        family.name + "_total" * (family.type == "counter"): {
            name for sample in family.samples for name in sample.labels if name != "le"
        }
        for family in text_string_to_metric_families(text)
    }
