"""Prints the layers that each room's folders form, as contracts: `python tools/moves/layers.py`."""

from __future__ import annotations

from functools import cache

from rooms import ROOT, edges, module_of, read_map, siblings, tracked

WHOLE = ("nodewire", "bench", "simnet", "kinds", "processes")


def levels(graph: dict[str, set[str]], children: set[str]) -> list[list[str]]:
    """The sub-packages by level, the highest first: one knows only those below it."""

    @cache
    def depth(child: str) -> int:
        return 1 + max((depth(other) for other in graph.get(child, ())), default=0)

    names = set(graph) | {other for others in graph.values() for other in others}
    by_depth: dict[int, list[str]] = {}
    for child in sorted(children):
        by_depth.setdefault(depth(child) if child in names else 1, []).append(child)
    return [by_depth[level] for level in sorted(by_depth, reverse=True)]


def main() -> None:
    rooms = read_map()
    packages = {module_of(f"{folder}/__init__.py") for folder in rooms.packages}
    packages |= {module_of(new) for new in rooms.files.values() if new.endswith("/__init__.py")}
    pairs = []
    for path in tracked():
        if path.startswith("nodewire/"):
            new = module_of(rooms.files[path])
            pairs += [(new, other) for other in edges((ROOT / path).read_text(), path, rooms)]
    for package, graph in sorted(siblings(pairs).items()):
        children = {name.rpartition(".")[2] for name in packages if name.rpartition(".")[0] == package}
        if package in WHOLE or len(children) < 2:
            continue
        print("[[tool.importlinter.contracts]]")
        print(f'name = "{package}: its folders from the roof down"\ntype = "layers"')
        print(f'containers = ["{package}"]\nlayers = [')
        for level in levels(graph, children):
            print(f'    "{" | ".join(level)}",')
        print("]\n")


if __name__ == "__main__":
    main()
