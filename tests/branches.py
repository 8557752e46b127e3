"""Which branches of a room its own tests take, measured.

`python -m tests.branches [ROOM ...]` runs tests/ROOM under coverage.py, with the processes that these tests start, and
prints one JSON object: by room the percentage of lines and of branches, and the files that miss most branches.
Its exit status is 1 if a test fails. The figures are printed then, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROOMS = ("protocol", "plan", "pay", "oracle")
SHOWN = 5


def measured(room: str, folder: Path) -> dict[str, Any]:
    """The figures of nodewire/ROOM under tests/ROOM."""
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={folder / 'data'}"
    tests = ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", f"tests/{room}"]
    ran = subprocess.run([*coverage, "run", data, f"--source=nodewire.{room}", *tests], cwd=ROOT, stdout=sys.stderr)
    subprocess.run([*coverage, "combine", "-q", data], cwd=ROOT, check=True)
    report = folder / "report.json"
    subprocess.run([*coverage, "json", "-q", data, "-o", str(report)], cwd=ROOT, check=True)
    found = json.loads(report.read_text())
    missed = {path: len(file["missing_branches"]) for path, file in found["files"].items()}
    most = sorted((path for path in missed if missed[path]), key=lambda path: -missed[path])[:SHOWN]
    return {
        "passed": ran.returncode == 0,
        "lines": _percent(found["totals"], "covered_lines", "num_statements"),
        "branches": _percent(found["totals"], "covered_branches", "num_branches"),
        "missed_branches": {path: missed[path] for path in most},
    }


def _percent(totals: dict[str, int], covered: str, of: str) -> float:
    return round(100 * totals[covered] / totals[of], 1) if totals[of] else 100.0


def main(rooms: list[str]) -> int:
    if unknown := set(rooms) - set(ROOMS):
        print(f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}", file=sys.stderr)
        return 2
    figures = {}
    for room in rooms or ROOMS:
        with tempfile.TemporaryDirectory() as folder:
            figures[room] = measured(room, Path(folder))
    print(json.dumps(figures, indent=2))
    return 0 if all(room["passed"] for room in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
