"""Which branches of four rooms their tests take, measured.

`python -m tests.branches [ROOM ...]` runs the tests of these rooms, and all attacks, under coverage.py with the
processes that they start. It prints one JSON object: by room the percentage of lines and of branches, and the files
that miss most branches. Bonds and ecash run where `make bonds` has set up a node and a mint.
Its exit status is 1 if a test fails. The figures are printed then, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROOMS = ("protocol", "plan", "pay", "oracle")
REAL = {"NODEWIRE_BITCOIND": "build/bonds/bitcoind", "NODEWIRE_NUTSHELL": "build/bonds/mint"}
"""By variable, a program that `make bonds` leaves."""
SHOWN = 8


def measured(rooms: Iterable[str], folder: Path) -> tuple[bool, dict[str, Any]]:
    """Whether all tests passed, and by file what coverage.py reports of it."""
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={folder / 'data'}"
    sources = ",".join(f"nodewire.{room}" for room in rooms)
    tests = ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *(f"tests/{room}" for room in rooms), "tests/attacks"]
    real = {name: str(ROOT / path) for name, path in REAL.items() if (ROOT / path).exists()}
    ran = subprocess.run(
        [*coverage, "run", data, f"--source={sources}", *tests], cwd=ROOT, stdout=sys.stderr, env=real | os.environ
    )
    subprocess.run([*coverage, "combine", "-q", data], cwd=ROOT, check=True)
    report = folder / "report.json"
    subprocess.run([*coverage, "json", "-q", data, "-o", str(report)], cwd=ROOT, check=True)
    return ran.returncode == 0, json.loads(report.read_text())["files"]


def figures(room: str, files: dict[str, Any]) -> dict[str, Any]:
    """The percentages of nodewire/ROOM, and its files that miss most."""
    own = {path: file for path, file in files.items() if path.startswith(f"nodewire/{room}/")}
    missed = {path: len(file["missing_branches"]) for path, file in own.items()}
    most = sorted((path for path in missed if missed[path]), key=lambda path: -missed[path])[:SHOWN]
    summaries = [file["summary"] for file in own.values()]
    return {
        "lines": _percent(summaries, "covered_lines", "num_statements"),
        "branches": _percent(summaries, "covered_branches", "num_branches"),
        "missed_branches": {path: missed[path] for path in most},
    }


def _percent(summaries: list[dict[str, int]], covered: str, of: str) -> float:
    whole = sum(one[of] for one in summaries)
    return round(100 * sum(one[covered] for one in summaries) / whole, 1) if whole else 100.0


def main(rooms: list[str]) -> int:
    if unknown := set(rooms) - set(ROOMS):
        print(f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        passed, files = measured(rooms or ROOMS, Path(folder))
    print(json.dumps({"passed": passed, **{room: figures(room, files) for room in rooms or ROOMS}}, indent=2))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
