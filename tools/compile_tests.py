"""`python -m tools.compile_tests`: compile the tests that are not compiled yet, once.

Pytest rewrites the asserts of each file that it imports, which takes more than a minute for all of them. Each of the
processes that share a run would do it for itself, at the same time, before it keeps the outcome.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"


def is_compiled(path: Path) -> bool:
    """Whether pytest has kept what it made of this file, and the file has not changed since."""
    changed_s = path.stat().st_mtime
    kept = path.parent.joinpath("__pycache__").glob(f"{path.stem}.{sys.implementation.cache_tag}-pytest-*.pyc")
    return any(one.stat().st_mtime >= changed_s for one in kept)


def uncompiled(folder: Path = TESTS) -> list[Path]:
    """The test files that are not, in order."""
    return sorted(path for path in folder.rglob("test_*.py") if not is_compiled(path))


def collect(paths: Sequence[Path], processes: int) -> None:
    """Have pytest import these files, a share in each process. What cannot be imported is told by the run itself."""
    shares = [paths[first::processes] for first in range(min(processes, len(paths)))]
    command = (sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-qq")
    running = [subprocess.Popen([*command, *map(str, share)], stdout=subprocess.DEVNULL) for share in shares]
    for one in running:
        one.wait()


def main() -> None:
    paths = uncompiled()
    if len(paths) > 1:
        collect(paths, os.cpu_count() or 1)


if __name__ == "__main__":
    main()
