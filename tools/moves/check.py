"""Replays the map over today's imports: `python tools/moves/check.py`. Exit status 1 if the map does not fit the tree.

It says which files the map does not know, which it names though they are gone, which folders hold too many files, and
which children of a package would import each other in a circle.
"""

from __future__ import annotations

import ast
import posixpath
import sys
from collections import Counter

from rooms import LIMIT, ROOT, Map, MapError, circles, edges, module_of, read_map, siblings, tracked

PROTOCOL = "nodewire.training.protocol"
"""It lies under the rooms that know training's documents; the layers in pyproject.toml hold it there."""
ALREADY = {"bench.hostile": [["flood", "flood_http", "flood_relay", "flood_wire", "hostile"]]}
"""Circles that the old tree has between the same files, each closed by an import inside a function."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OVER = {"tests/faults/nodewire_faults/workers"}
"""Folders that stay larger: each file is named like the cheat that a command line chooses."""


def complaints(rooms: Map, files: list[str]) -> list[str]:
    """What does not fit, a sentence each."""
    found = [
        f"{path}: the map does not know it; add it to tools/moves/map.toml" for path in files if path not in rooms.files
    ]
    sizes = Counter(posixpath.dirname(rooms.files.get(p, p)) for p in files if not p.endswith("/__init__.py"))
    for folder, size in sorted(sizes.items()):
        if size > LIMIT and folder not in OVER:
            found.append(f"{folder}: {size} files, {LIMIT} at most; give some of them another folder")
    targets = {rooms.files.get(path, path) for path in files}
    folders = sorted({posixpath.dirname(target) for target in targets})
    found += [f"{one}.py: a folder has that name, too; give one another" for one in folders if f"{one}.py" in targets]
    found += out_of_reach(rooms, files)
    pairs = []
    for path in files:
        new = module_of(rooms.files.get(path, path))
        if not path.startswith(("tests/", "demo/")):
            pairs += [(new, other) for other in edges((ROOT / path).read_text(), path, rooms)]
    outer = [pair for pair in pairs if not pair[1].startswith(PROTOCOL) or pair[0].startswith("nodewire.training")]
    for package, graph in sorted(siblings(outer).items()):
        for circle in circles(graph):
            if circle not in ALREADY.get(package, []):
                found.append(
                    f"{package}: {', '.join(circle)} would import each other in a circle; move one of their files"
                )
    return found


def out_of_reach(rooms: Map, files: list[str]) -> list[str]:
    """Tests that would no longer be below the conftest.py whose fixtures they ask for."""
    found = []
    for conftest in (path for path in files if path.endswith("/conftest.py") and path != "tests/conftest.py"):
        before, after = posixpath.dirname(conftest), posixpath.dirname(rooms.files.get(conftest, conftest))
        body = ast.walk(ast.parse((ROOT / conftest).read_text()))
        fixtures = {
            node.name
            for node in body
            if isinstance(node, FUNCTIONS) and any("fixture" in ast.unparse(one) for one in node.decorator_list)
        }
        for path in files:
            if not path.startswith(f"{before}/") or rooms.files.get(path, path).startswith(f"{after}/"):
                continue
            nodes = ast.walk(ast.parse((ROOT / path).read_text()))
            asked = {one.arg for node in nodes if isinstance(node, FUNCTIONS) for one in node.args.args} & fixtures
            if asked:
                found.append(f"{path}: leaves {after}, whose conftest.py has {', '.join(sorted(asked))}; keep it below")
    return found


def main() -> int:
    try:
        rooms, files = read_map(), tracked()
        for path in sorted(set(rooms.files) - set(files)):
            print(f"{path}: gone from the tree; leave it out of the map", file=sys.stderr)
        found = complaints(rooms, files)
    except MapError as error:
        print(error, file=sys.stderr)
        return 1
    print(*found, sep="\n" if found else "")
    print(f"{len(files)} files, {sum(a != b for a, b in rooms.files.items())} of them move, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
