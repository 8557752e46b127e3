"""What names in Python files mean: which class or function of which module, by imports and scopes."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOTTED = re.compile(r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)+")
TYPED = re.compile(r"[\w.\[\], |]+")

Symbol = tuple[str, str]
"""A module, and what it defines; of a module alone the second is empty."""
Span = tuple[int, int, int, int]
"""First line, its byte, last line, its byte; lines from 1, the end excluded."""


def tracked(*patterns: str) -> list[str]:
    words = ["git", "ls-files", *patterns]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def module_of(path: str) -> str:
    """The name by which a file is imported: folders with an `__init__` are packages."""
    parts, folder = [Path(path).stem], Path(path).parent
    while (ROOT / folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def moved() -> dict[str, str]:
    """Paths before the rooms' move with those after it, of files that were moved."""
    if not (HERE / "map.toml").exists():
        return {}
    found = {}
    for folder, files in tomllib.loads((HERE / "map.toml").read_text()).items():
        for old, name in files.items():
            if old != "about" and (ROOT / folder / name).exists():
                found[old] = f"{folder}/{name}"
    return found


@dataclass
class Scope:
    """What a module, class or function binds: an import to its target, all else to None."""

    node: ast.AST
    names: dict[str, Symbol | None] = field(default_factory=dict)


@dataclass
class Source:
    """One Python file."""

    path: str

    @cached_property
    def module(self) -> str:
        return module_of(self.path)

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def top(self) -> Scope:
        scope = Scope(self.tree)
        _bind(self, self.tree, scope)
        return scope


def _imported(source: Source, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Symbol]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, (alias.name, "")
            else:
                yield alias.name.split(".")[0], (alias.name.split(".")[0], "")
        return
    for alias in node.names:
        yield alias.asname or alias.name, (origin(source, node), alias.name)


def origin(source: Source, node: ast.ImportFrom) -> str:
    """The module that an import is from."""
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    parts = parts[: len(parts) - node.level + source.path.endswith("__init__.py")]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _bind(source: Source, node: ast.AST, scope: Scope) -> None:
    """Bind what stands below `node`, as far as it belongs to this scope."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            scope.names.update(_imported(source, child))
        elif isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            scope.names[child.name] = None
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store | ast.Del):
            scope.names[child.id] = None
        elif isinstance(child, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and child.name:
            scope.names[child.name] = None
            _bind(source, child, scope)
        elif not isinstance(child, (ast.Lambda, *COMPREHENSIONS)):
            _bind(source, child, scope)


def _inner(source: Source, node: ast.AST) -> Scope:
    scope = Scope(node)
    if isinstance(node, FUNCTIONS):
        spec = node.args
        for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]:
            if arg is not None:
                scope.names[arg.arg] = None
    if isinstance(node, COMPREHENSIONS):
        for generator in node.generators:
            _bind(source, ast.Module([generator.target], []), scope)  # type: ignore[list-item]
    elif not isinstance(node, ast.Lambda):
        for statement in node.body:  # type: ignore[attr-defined]
            _bind(source, ast.Module([statement], []), scope)
        for child in ast.walk(node):
            if isinstance(child, ast.Global | ast.Nonlocal):
                for name in child.names:
                    scope.names.pop(name, None)
    return scope


@dataclass
class Tree:
    """All Python files, and what their names mean."""

    sources: list[Source]

    @cached_property
    def modules(self) -> dict[str, Source]:
        return {source.module: source for source in self.sources}

    def canonical(self, symbol: Symbol, depth: int = 0) -> Symbol:
        """Where a symbol is defined, through what imports it again."""
        module, name = symbol
        if not name or depth > 20:
            return symbol
        if f"{module}.{name}" in self.modules:
            return f"{module}.{name}", ""
        source = self.modules.get(module)
        target = source.top.names.get(name) if source is not None else None
        return self.canonical(target, depth + 1) if target is not None else symbol

    def resolve(self, source: Source, node: ast.expr, scopes: list[Scope]) -> Symbol | None:
        """What a name or a dotted name means; None: something of another sort."""
        if isinstance(node, ast.Name):
            for depth, scope in enumerate(reversed(scopes)):
                if node.id not in scope.names or (depth and isinstance(scope.node, ast.ClassDef)):
                    continue
                target = scope.names[node.id]
                if target is not None:
                    return self.canonical(target)
                return (source.module, node.id) if isinstance(scope.node, ast.Module) else None
            return None
        if isinstance(node, ast.Attribute):
            base = self.resolve(source, node.value, scopes)
            return self.canonical((base[0], node.attr)) if base is not None and not base[1] else None
        return None

    def dotted(self, text: str) -> Symbol | None:
        """What a dotted name in a string means: `package.module.name` or `package.module:name`."""
        module, _, name = text.replace(":", ".").rpartition(".")
        return self.canonical((module, name)) if module in self.modules else None

    def references(self, source: Source) -> Iterator[tuple[Span, str, Symbol]]:
        """Where the file names what a module defines: the span of the last name there, that name, what it means."""
        yield from self._walk(source, source.tree, [source.top], False)

    def _walk(
        self, source: Source, node: ast.AST, scopes: list[Scope], is_type: bool
    ) -> Iterator[tuple[Span, str, Symbol]]:
        yield from self._here(source, node, scopes, is_type)
        opens = isinstance(node, (ast.ClassDef, *FUNCTIONS, *COMPREHENSIONS))
        inner = [*scopes, _inner(source, node)] if opens else scopes
        for name, value in ast.iter_fields(node):
            typed = name in ("annotation", "returns") or (is_type and name != "body")
            outside = opens and name in ("decorator_list", "returns", "args", "bases", "keywords")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("cast", "TypeVar"):
                typed = True
            if isinstance(node, ast.Subscript):
                typed = name == "slice" and ast.unparse(node.value) != "Literal"
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._walk(source, child, scopes if outside else inner, typed)

    def _here(
        self, source: Source, node: ast.AST, scopes: list[Scope], is_type: bool
    ) -> Iterator[tuple[Span, str, Symbol]]:
        if isinstance(node, ast.Name | ast.Attribute):
            found = self.resolve(source, node, scopes)
            if found is not None:
                name = node.id if isinstance(node, ast.Name) else node.attr
                end_line, end = node.end_lineno or 0, node.end_col_offset or 0
                yield (end_line, end - len(name.encode()), end_line, end), name, found
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                line, start = alias.lineno, alias.col_offset
                found = self.canonical((origin(source, node), alias.name))
                yield (line, start, line, start + len(alias.name.encode())), alias.name, found
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(scopes[-1].node, ast.Module):
                line = source.text.split("\n")[node.lineno - 1].encode()
                start = line.index(node.name.encode(), node.col_offset + 3)
                span = (node.lineno, start, node.lineno, start + len(node.name.encode()))
                yield span, node.name, (source.module, node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self._string(source, node, scopes, is_type)
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            yield from self._paired(node)
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            yield from self._patched(source, node, scopes)
        elif isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            yield from self._exported(source, node, scopes)

    def _exported(self, source: Source, node: ast.Assign, scopes: list[Scope]) -> Iterator[tuple[Span, str, Symbol]]:
        """`__all__`."""
        for one in ast.walk(node.value):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                found = self.resolve(source, ast.Name(one.value, ast.Load()), scopes)
                if found is not None:
                    yield _within(one, 0, one.value), one.value, found

    def _string(
        self, source: Source, node: ast.Constant, scopes: list[Scope], is_type: bool
    ) -> Iterator[tuple[Span, str, Symbol]]:
        text = str(node.value)
        if DOTTED.fullmatch(text) and (found := self.dotted(text)) is not None:
            name = re.split("[.:]", text)[-1]
            yield _within(node, len(text) - len(name), name), name, found
        elif is_type and TYPED.fullmatch(text):
            try:
                parsed = ast.parse(text, mode="eval")
            except SyntaxError:
                return
            for (_, start, _, end), name, found in self._walk(source, parsed, scopes, False):
                yield _within(node, start, text[start:end]), name, found

    def _paired(self, node: ast.Tuple) -> Iterator[tuple[Span, str, Symbol]]:
        """A file, from the root or from nodewire/, with a class of it: `("wire/pulse.py", "Pulse")`."""
        path, name = (one.value if isinstance(one, ast.Constant) else None for one in node.elts)
        if isinstance(path, str) and isinstance(name, str) and path.endswith(".py"):
            for source in self.sources:
                if source.path in (path, f"nodewire/{path}"):
                    yield _within(node.elts[1], 0, name), name, (source.module, name)  # type: ignore[arg-type]

    def _patched(self, source: Source, node: ast.Call, scopes: list[Scope]) -> Iterator[tuple[Span, str, Symbol]]:
        """`monkeypatch.setattr(module, "name", ...)` and its like."""
        base, name = node.args[0], node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and isinstance(base, ast.expr):
            owner = self.resolve(source, base, scopes)
            if owner is not None and not owner[1]:
                yield _within(name, 0, name.value), name.value, self.canonical((owner[0], name.value))


def _within(node: ast.Constant, start: int, name: str) -> Span:
    """The span of a part of a plain string on one line."""
    first = node.col_offset + 1 + start
    return node.lineno, first, node.lineno, first + len(name.encode())
