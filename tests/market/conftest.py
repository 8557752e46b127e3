"""One market for all of the tests here: a relay, a Lightning network, four oracles, five providers, two models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from running_market import RunningMarket

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMarket]:
    running = RunningMarket(tmp_path_factory.mktemp("market"))
    try:
        running.start()
        yield running
    finally:
        running.stop()
