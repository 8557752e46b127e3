"""Compares the tests that pytest finds before and after: `python tools/moves/collect.py OLDCOMMIT`, after apply.py.

Test ids are compared with paths and modules as the map has them, those of their parameters too. Of new packages a test
that takes every file has one more each. Exit status 1 if any other is missing or new.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rooms import ROOT, SCRIPT, SCRIPT_LIST, Map, read_map

COLLECT = ["-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", "-o", "addopts="]

FILE = re.compile(r"[\w/]+\.py")
MODULE = re.compile(r"(?:nodewire|bench)(?:\.\w+)+")


def collected(root: Path) -> list[str]:
    """Ids of all tests of a tree."""
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, *COLLECT], cwd=root, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{root}: not all tests can be collected\n{run.stdout[-4000:]}{run.stderr[-2000:]}")
    return [line for line in run.stdout.splitlines() if re.match(r"tests/\S+\.py::", line)]


def named(test: str, rooms: Map) -> str:
    """A test's id as it is after the move."""
    test = SCRIPT_LIST.sub(rooms.script_list, SCRIPT.sub(rooms.script, test))
    test = FILE.sub(lambda found: rooms.files.get(found[0], found[0]), test)
    return MODULE.sub(lambda found: rooms.dotted(found[0]), test)


def main() -> int:
    rooms = read_map()
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            ["git", "archive", "-o", f"{folder}.tar", sys.argv[1]],
            ["tar", "-xf", f"{folder}.tar", "-C", folder],
        ):
            subprocess.run(command, cwd=ROOT, check=True)
        Path(f"{folder}.tar").unlink()
        old = collected(Path(folder))
    new = collected(ROOT)
    moved = {named(one, rooms) for one in old}
    packages = {one for one in set(new) - moved if one.endswith("/__init__.py]")}
    differ = moved ^ (set(new) - packages)
    for one in sorted(differ):
        print("missing" if one in moved else "new", one)
    print(f"{len(old)} tests before, {len(new)} after: {len(packages)} of new packages, {len(differ)} of other names")
    return 1 if differ or len(old) + len(packages) != len(new) else 0


if __name__ == "__main__":
    sys.exit(main())
