"""`pytest --fast`: the unit tests that are quick, by what they took when they last ran here.

Every run writes into pytest's cache which unit tests took more than QUICK_S of CPU; the clock on the wall says little
on a busy machine. `--fast` leaves these out, and imports no file that loads an engine. The first run on a machine knows
of none and takes longer. A test that has become quick comes back with the next whole run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.selection import TESTS, folder_of, loads_an_engine

QUICK_S = 0.2
"""Of CPU, with fixtures that are made for the test alone."""
SLOW = "nodewire/slow"
"""The cache's entry: seconds of CPU by test."""
_CPU_S = pytest.StashKey[float]()


@contextmanager
def _taken(item: pytest.Item | None) -> Iterator[None]:
    """Adds what the block takes to what `item` has taken."""
    began_s = time.process_time()
    try:
        yield
    finally:
        if item is not None:
            item.stash[_CPU_S] = item.stash.get(_CPU_S, 0.0) + time.process_time() - began_s


class Times:
    """Notes what unit tests take, in the process that collects the reports of all."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache = getattr(config, "cache", None)
        self.slow: dict[str, float] = self._cache.get(SLOW, {}) if self._cache else {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        with _taken(request.node if fixturedef.scope == "function" else None):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with _taken(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.when == "call" and item.get_closest_marker("unit"):
            report.cpu_s = item.stash.get(_CPU_S, 0.0)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken_s = getattr(report, "cpu_s", 0.0)
        if taken_s > QUICK_S:
            self.slow[report.nodeid] = round(taken_s, 2)
        elif report.when == "call":
            self.slow.pop(report.nodeid, None)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._cache and not hasattr(session.config, "workerinput"):
            self._cache.set(SLOW, self.slow)


class Fast:
    """Leaves out what is not quick, and fails a test that starts a process though its marker says `unit`."""

    def __init__(self, slow: dict[str, float]) -> None:
        self._slow = frozenset(slow)
        self._started: list[str] = []
        sys.addaudithook(self._hear)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py" or not collection_path.is_relative_to(TESTS):
            return None
        return True if folder_of(collection_path) in ("interop", "market") or loads_an_engine(collection_path) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.get_closest_marker("unit") and item.nodeid not in self._slow]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self._started.clear()
        result = yield
        if self._started:
            pytest.fail(f"it started {self._started[0]}: write `pytestmark = pytest.mark.process` into its file")
        return result

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self._started.append(f"{event} {arguments[0] if arguments else ''}")
