"""Settings of the whole suite, and how two processes share it: one trades on the market, the other does the rest."""

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine is slow now and then; no test's meaning is a time per example.
settings.register_profile("nodewire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nodewire")

MARKET = "tests/market/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(MARKET))  # what takes longest begins first


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return _Sharing(config, log)


class _Sharing(LoadScopeScheduling):
    """The tests of one market stay with it, and those of a file with its fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return MARKET if nodeid.startswith(MARKET) else nodeid.split("::", 1)[0]
