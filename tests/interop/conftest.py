"""The market of tests/market, for independent implementations to meet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "market"))


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from running_market import RunningMarket

    running = RunningMarket(tmp_path_factory.mktemp("market"))
    try:
        running.start()
        yield running
    finally:
        running.stop()
