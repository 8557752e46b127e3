"""Each test has one marker, by what it uses; `--fast` knows which files load an engine, and what was slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests import fast, selection

TESTS = Path(__file__).parent
MARKERS = {"unit", "process", "market", "interop"}


def test_every_test_has_one_marker(request):
    for item in request.session.items:
        assert len(MARKERS & {mark.name for mark in item.iter_markers()}) == 1, item.nodeid


class Starter:
    def start(self):
        return subprocess.run([sys.executable, "-c", ""], check=True)


def _by_a_function_of_its_own():
    def inner():
        return Starter().start()

    return inner()


@given(some.integers())
def _with_examples(number):
    Starter()


def _without():
    return [Path(str(number)) for number in range(3)]


def item(function, folder="pay", fixtures=(), given_=()):
    found = {name: [SimpleNamespace(func=one)] for name, one in fixtures}
    return SimpleNamespace(
        path=TESTS / folder / "test_x.py",
        function=function,
        fixturenames=given_,
        _fixtureinfo=SimpleNamespace(name2fixturedefs=found),
        get_closest_marker=lambda name: None,
    )


@pytest.mark.parametrize(
    ("expected", "asked"),
    [
        ("unit", item(_without)),
        ("process", item(_by_a_function_of_its_own)),
        ("process", item(_with_examples)),
        ("process", item(_without, fixtures=[("running", _by_a_function_of_its_own)])),
        ("market", item(_without, given_=["market"])),
        ("market", item(_without, folder="market")),
        ("interop", item(_without, folder="interop")),
    ],
)
def test_a_marker_follows_from_what_a_test_reaches(expected, asked):
    assert selection.marker_of(asked) == expected


@pytest.mark.parametrize(
    ("loads", "text"),
    [
        (True, "import torch\n"),
        (True, "from bench.tasks.tiny_decoders import make_family\n"),
        (True, "from nodewire.llm.kv import (\n    static_buffers as grid,\n)\n"),
        (False, "from nodewire.pay.accounts import ledger\n"),
        (False, "from nodewire.plan import assign  # torch\n"),
        (False, "def later():\n    import torch\n"),
    ],
)
def test_an_engine_is_found_through_our_own_files(tmp_path, loads, text):
    path = tmp_path / "test_x.py"
    path.write_text(text)
    assert selection.loads_an_engine(path) == loads


def test_what_was_slow_is_left_out_until_it_is_quick_again():
    stored = {fast.SLOW: {"a": 3.0, "b": 1.0}}
    times = fast.Times(SimpleNamespace(cache=SimpleNamespace(get=stored.get, set=stored.__setitem__)))
    for nodeid, cpu_s in (("b", 0.01), ("c", 0.5), ("d", 0.1)):
        times.pytest_runtest_logreport(SimpleNamespace(when="call", nodeid=nodeid, cpu_s=cpu_s))
    times.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))
    assert stored[fast.SLOW] == {"a": 3.0, "c": 0.5}
