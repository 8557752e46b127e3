"""Settings of the whole suite, and how processes share it: two trade, each on a market, the others do the rest."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.fast import Fast, Times
from tests.selection import marker_of

if TYPE_CHECKING:
    from tests.market.market_process import RunningMarket

# A busy machine is slow now and then; no test's meaning is a time per example.
settings.register_profile("nodewire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nodewire")

# A shell's background jobs ignore Ctrl-C, and so do all that they start: those that tests interrupt among them.
signal.signal(signal.SIGINT, signal.default_int_handler)

MARKETS = (
    ("tests/market/buy/", "tests/market/record/"),
    ("tests/market/failure/", "tests/market/training/", "tests/interop/", "tests/test_readme.py"),
)
"""Tests that ask for the running market; those of a group share one, for about as long."""
TRADING = tuple(place for group in MARKETS for place in group)
STARTING_S = 900
"""In which a test of a market must be over, its start included, which whoever comes first waits for."""
_running: list[RunningMarket] = []


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMarket]:
    """One market for all that trade on it: a relay, a Lightning network, four oracles, five providers, two models."""
    import torch

    from tests.market.market_process import RunningMarket

    torch.set_num_threads(1)
    running = RunningMarket(tmp_path_factory.mktemp("market"))
    _running.append(running)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """A market ends with the last test that trades: idle, it takes an eighth of two cores from all others."""
    yield
    if nextitem is None or not nextitem.nodeid.startswith(TRADING):
        while _running:
            _running.pop().stop()


@pytest.fixture(autouse=True)
def closed_spools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spools keep descriptors of what they wrote last until they are closed: those that a test makes are, after it."""
    from nodewire.wire.evidence.spool import Spool

    made: list[Spool] = []
    opening = Spool.__init__

    def noted(spool: Spool, *args: Any, **options: Any) -> None:
        opening(spool, *args, **options)
        made.append(spool)

    monkeypatch.setattr(Spool, "__init__", noted)
    yield
    for spool in made:
        spool.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only unit tests that are quick and load no engine")


def pytest_configure(config: pytest.Config) -> None:
    times = Times(config)
    config.pluginmanager.register(times)
    if config.option.fast:
        config.pluginmanager.register(Fast(times.slow))


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function):
        item.add_marker(marker_of(item))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(TRADING))  # what takes longest begins first
    for item in items:
        if item.nodeid.startswith(TRADING) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(STARTING_S))


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return _Sharing(config, log)


class _Sharing(LoadScopeScheduling):
    """The tests of one market stay with it, and those of a file with its fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group[0] for group in MARKETS if nodeid.startswith(group)), nodeid.split("::", 1)[0])
