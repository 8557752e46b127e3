"""Settings of the whole suite, and how two processes share it: one trades on the market, the other does the rest."""

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow now and then; no test's meaning is a time per example.
settings.register_profile("nodewire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nodewire")


def _group(item: pytest.Item) -> str:
    """The tests of one market stay with it, and those of a file with its fixtures."""
    return "market" if item.path.parent.name == "market" else str(item.path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.has_plugin("dsession") and not hasattr(config, "workerinput"):
        return
    items.sort(key=lambda item: _group(item) != "market")  # what takes longest begins first
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
