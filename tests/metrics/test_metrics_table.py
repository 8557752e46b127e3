"""docs/reference/metrics.md lists what daemons show, and nothing else."""

import json
import re

import pytest
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from tests.metrics.scrape import DOCS, OF_THE_LIBRARY, declared, documented


def test_the_table_says_what_the_code_declares():
    ours = [row for row in documented() if not OF_THE_LIBRARY.fullmatch(row.name)]
    assert sorted(ours, key=lambda row: row.name) == sorted(declared(), key=lambda row: row.name)


def test_the_table_has_what_the_library_adds():
    collectors = ProcessCollector(registry=None), GCCollector(CollectorRegistry())
    shown = {m.name + "_total" * (m.type == "counter"): m.type for one in collectors for m in one.collect()}
    assert {row.name: row.kind for row in documented() if OF_THE_LIBRARY.fullmatch(row.name)} == shown


def test_no_metric_is_declared_or_documented_twice():
    for rows in (declared(), documented()):
        assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize("row", declared(), ids=lambda row: row.name)
def test_names_follow_the_rules_of_prometheus(row):
    """https://prometheus.io/docs/practices/naming/: a prefix, base units, `_total` of what only grows."""
    assert re.fullmatch(r"nodewire(_[a-z]+)+", row.name)
    assert (row.kind == "counter") == row.name.endswith("_total")
    if row.kind == "histogram":
        assert row.name.endswith("_seconds")
    assert not re.search(r"_(ms|us|milliseconds|kb|mb|percent|ppm)(_|$)", row.name)
    assert not {"le", "job", "instance"} & set(row.labels)  # Prometheus' own
    assert row.said.endswith(".")


def test_the_dashboard_asks_for_metrics_that_exist():
    path = DOCS.parent / "deploy" / "grafana-dashboard.json"
    panels = json.loads(path.read_text())["panels"]
    asked = asked_for("\n".join(target["expr"] for panel in panels for target in panel["targets"]))
    assert asked and asked <= series()


def test_the_alerts_of_the_documentation_ask_for_metrics_that_exist():
    (alerts,) = re.findall(r"```promql\n(.*?)```", (DOCS / "how-to" / "metrics.md").read_text(), re.S)
    asked = asked_for(alerts)
    assert asked and asked <= series()


def asked_for(queries: str) -> set[str]:
    return set(re.findall(r"\b(?:nodewire|process|python)_\w+", queries))


def series() -> set[str]:
    """What Prometheus has of the documented metrics."""
    plain = {row.name for row in documented() if row.kind != "histogram"}
    spread = {row.name for row in documented() if row.kind == "histogram"}
    return plain | {f"{name}_{part}" for name in spread for part in ("bucket", "count", "sum")}
