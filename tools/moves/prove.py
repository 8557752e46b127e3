"""Proves that only names of modules have changed: `python tools/moves/prove.py OLDCOMMIT NEWCOMMIT`.

Each old file's tree is compared with that of the file where the map has put it, after this and no more is made alike:
names of modules in imports, the order of the imports of one block, what a module is called in the file, module names
and paths in strings, how docstrings are broken into lines, `Path(__file__)` with its parents, and the edits of
edits.toml. Files that differ beyond it are printed, and new ones that come from no old one. Exit status 1 if there are.
"""

from __future__ import annotations

import ast
import posixpath
import sys
from collections import defaultdict

from apply import edited, git, read_edits
from rooms import NOWHERE, Imported, Map, Near, imported, logger_name, module_of, near_of, read_map


class Still(Map):
    """The map of the tree after the move: every file stays, and no text changes."""

    def text(self, text: str, near: Near = NOWHERE) -> str:
        return text


class Plain(ast.NodeTransformer):
    """A tree in the form in which an old file and its new one are alike."""

    def __init__(self, tree: ast.Module, path: str, rooms: Map) -> None:
        self._path, self._rooms, self._near = path, rooms, near_of(path)
        self._locals: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for _, one in imported(node, path, rooms):
                    if one.name is None and one.local:
                        self._locals[one.local] = f"module {one.module}"

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self._locals:
            return ast.Name(self._locals[node.id], node.ctx)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A logger's name is the same before and after: its module's old name where it was `__name__`."""
        logger = logger_name(node)
        if isinstance(logger, ast.Name) and logger.id == "__name__":
            logger = ast.Constant(module_of(self._path))
        args = [self.visit(one) for one in node.args]
        if isinstance(logger, ast.Constant):
            args[-1] = logger
        return ast.Call(self.visit(node.func), args, [self.visit(one) for one in node.keywords])

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            return ast.Constant(self._rooms.text(node.value, self._near))
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return ast.Expr(ast.Constant(" ".join(self._rooms.text(node.value.value, self._near).split())))
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        home = self._home(node)
        return home if home is not None else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        home = self._home(node)
        return home if home is not None else self.generic_visit(node)

    def _home(self, node: ast.AST) -> ast.AST | None:
        """What `Path(__file__)` and its parents name, if that is what the node says."""
        steps = 0
        match node:
            case ast.Subscript(value=ast.Attribute(attr="parents", value=inner), slice=ast.Constant(value=int(level))):
                steps, node = level + 1, inner
            case _:
                while isinstance(node, ast.Attribute) and node.attr == "parent":
                    steps, node = steps + 1, node.value
        if not steps or ast.unparse(node) != "Path(__file__)":
            return None
        folder = self._path
        for _ in range(steps):
            folder = posixpath.dirname(folder)
        return ast.Constant(f"folder {folder}")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, self._sorted(block))
        return node

    def _sorted(self, block: list[ast.stmt]) -> list[ast.AST]:
        found: list[Imported] = []
        rest: list[ast.AST] = []
        for node in block:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for _, one in imported(node, self._path, self._rooms):
                    local = self._locals.get(one.local or "", one.local)
                    found.append(Imported(one.module, one.name, local))
            else:
                rest.append(node)
        keys = sorted(f"{one.module} {one.name} {one.local}" for one in found)
        return [ast.Expr(ast.Constant("; ".join(keys))), *rest] if keys else rest


def plain(text: str, path: str, rooms: Map) -> str:
    """A file's tree as text, in the form in which the move changes nothing."""
    tree = ast.parse(text)
    return ast.dump(Plain(tree, path, rooms).visit(tree), indent=1)


def main() -> int:
    old, new = sys.argv[1:3]
    rooms, edits = read_map(commit=old), read_edits()
    still = Still({path: path for path in set(rooms.files.values())})
    before = [path for path in git("ls-tree", "-r", "--name-only", old).splitlines() if path.endswith(".py")]
    after = {path for path in git("ls-tree", "-r", "--name-only", new).splitlines() if path.endswith(".py")}
    differ: dict[str, list[str]] = defaultdict(list)
    seen = 0
    for path in before:
        target = rooms.files.get(path, path)
        if path.startswith("tools/moves/"):
            after.discard(path)
            continue
        if target not in after:
            differ[path].append(f"is not at {target}")
            continue
        after.discard(target)
        seen += 1
        was = plain(edited(git("show", f"{old}:{path}"), path, edits), path, rooms)
        now = plain(git("show", f"{new}:{target}"), target, still)
        if was != now:
            lines = [(a, b) for a, b in zip(was.splitlines(), now.splitlines(), strict=False) if a != b]
            differ[path].append(f"-> {target}: {lines[0] if lines else 'longer or shorter'}")
    for path in sorted(after):
        text = git("show", f"{new}:{path}")
        if not path.endswith("/__init__.py") or len(ast.parse(text).body) > 1:
            differ[path].append("comes from no old file")
    for path, said in sorted(differ.items()):
        print(path, *said)
    hand = sum(len(of) for of in edits.values())
    print(f"{seen} files compared, {len(differ)} differ; {hand} edits by hand in {len(edits)} files are in edits.toml")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
