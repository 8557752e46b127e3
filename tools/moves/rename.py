"""Renames classes, methods and functions by names.toml: `python tools/moves/rename.py`, on a tree without changes.

Classes and functions are found by imports and scopes (scopes.py), methods by what mypy knows of the value that they are
called on (owners.py). Where mypy knows nothing, as of what a fixture gives, receivers.toml says it, by file and the
text that stands there. Docstrings, comments and pages follow where a name stands in backticks. Journals, wire names
and other strings stay as they are. Nothing is written before everything is checked; what was not found, what is
unclear, and names that would meet others are told, and with the latter nothing is written. `--check` writes nothing.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from lines import reflowed
from owners import Owners, owners
from scopes import HERE, ROOT, Source, Span, Symbol, Tree, moved, tracked

OWN = "tools/"
PAGES = ("*.md", ":!docs/reference/measurements.md")
"""What benches said stays as it was."""
HOUSE = ("nodewire", "relay", "kinds", "simnet", "processes", "demo", "bench", "tests")
BACKTICKS = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)((?:\([^`]*\))?)`(?!`)")


@dataclass
class Names:
    """The map. New names of classes and functions by module and old name, of methods by class and old name."""

    symbols: dict[Symbol, str] = field(default_factory=dict)
    methods: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    homes: dict[tuple[str, str], str] = field(default_factory=dict)
    """By module and entry the file that the map has it of."""

    @cached_property
    def by_name(self) -> dict[str, list[Symbol]]:
        found = defaultdict(list)
        for module, name in self.symbols:
            found[name].append((module, name))
        return dict(found)

    @cached_property
    def by_method(self) -> dict[tuple[str, str], set[str]]:
        """New names by the bare name of a class, and a method."""
        found = defaultdict(set)
        for owner, names in self.methods.items():
            for old, new in names.items():
                found[owner.rpartition(".")[2], old].add(new)
        return dict(found)


@dataclass
class Report:
    """What is to be told."""

    missing: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)


def read_names(tree: Tree, report: Report) -> Names:
    names, after = Names(), moved()
    by_path = {source.path: source for source in tree.sources}
    for old_path, entries in tomllib.loads((HERE / "names.toml").read_text()).items():
        source = by_path.get(after.get(old_path, old_path)) or by_path.get(old_path)
        if source is None:
            report.missing.append(f"{old_path}: no such file")
            continue
        classes = {node.name: node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)}
        for name, new in entries.items():
            owner, _, method = name.partition(".")
            names.homes[source.module, name] = old_path
            if method:
                if owner in classes and _has(classes[owner], method):
                    names.methods[f"{source.module}.{owner}"][method] = new
                else:
                    report.missing.append(f"{old_path}: {name}")
            elif source.top.names.get(name, ("", "")) is None:
                names.symbols[source.module, name] = new
            else:
                report.missing.append(f"{old_path}: {name}")
    return names


def _has(owner: ast.ClassDef, name: str) -> bool:
    """Whether a class defines a method, or sets an attribute of itself, by that name."""
    defined = any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name for one in owner.body)
    return defined or any(
        isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one) == f"self.{name}"
        for one in ast.walk(owner)
    )


def read_receivers() -> dict[str, dict[str, str]]:
    after = moved()
    path = HERE / "receivers.toml"
    listed = tomllib.loads(path.read_text()) if path.exists() else {}
    return {after.get(old, old): entries for old, entries in listed.items()}


class Renamer:
    """One file's changes: what is to stand at which span."""

    def __init__(self, source: Source, tree: Tree, names: Names, report: Report) -> None:
        self.source = source
        self.tree = tree
        self.names = names
        self.report = report
        self.changes: dict[Span, str] = {}
        self.meant: set[Span] = set()
        self.used: set[str] = set()

    def symbols(self) -> None:
        for span, name, symbol in self.tree.references(self.source):
            self.meant.add(span)
            new = self.names.symbols.get(symbol)
            if new is not None and name == symbol[1]:
                self.changes[span] = new
                self.used.add(new)
        if self.source.module in {module for module, _ in self.names.symbols} or self.used:
            self._meet()

    def _meet(self) -> None:
        """Tell of new names that stand in the file already, for something else."""
        for node in ast.walk(self.source.tree):
            bound = {
                ast.Name: "id", ast.arg: "arg", ast.ClassDef: "name", ast.FunctionDef: "name", ast.alias: "asname"
            }.get(type(node))  # fmt: skip
            name = getattr(node, bound) if bound else None
            if isinstance(node, ast.FunctionDef) and node not in self.source.tree.body:
                continue
            if isinstance(node, ast.alias) and name is None:
                name = node.name
            if name in self.used:
                self.report.clashes.append(f"{self.source.path}:{getattr(node, 'lineno', 0)}: {name} stands there")

    def members(self, found: Owners, receivers: dict[str, str]) -> set[str]:
        """Rename methods. What of `receivers` was there."""
        words = {word for of_class in self.names.methods.values() for word in of_class}
        there = set()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Attribute) and node.attr in words:
                end_line, end = node.end_lineno or 0, node.end_col_offset or 0
                span = (end_line, end - len(node.attr.encode()), end_line, end)
                known = found.members.get((end_line, end), set())
                text = ast.unparse(node)
                if span in self.meant:
                    continue
                if text in receivers:
                    there.add(text)
                    new = receivers[text]
                    if new != node.attr:
                        self.changes[span] = new
                elif len(known) == 1:
                    (only,) = known
                    if only is not None:
                        self.changes[span] = only
                else:
                    line = self.source.text.split("\n")[end_line - 1].strip()
                    said = f" {sorted(map(str, known))}" if known else ""
                    self.report.unclear.append(f"{self.source.path}:{end_line}: {text}{said}: {line[:100]}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in words:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                new = found.definitions.get(node.lineno) or found.definitions.get(first)
                if f"def {node.name}" in receivers:
                    there.add(f"def {node.name}")
                    new = receivers[f"def {node.name}"]
                if new is not None:
                    line = self.source.text.split("\n")[node.lineno - 1].encode()
                    start = line.index(node.name.encode(), line.index(b"def ") + 3)
                    self.changes[node.lineno, start, node.lineno, start + len(node.name.encode())] = new
            elif isinstance(node, ast.Call):
                for one in node.keywords:
                    text = f"{ast.unparse(node.func)}({one.arg}=)"
                    if text in receivers:
                        there.add(text)
                        end = one.col_offset + len(str(one.arg).encode())
                        self.changes[one.lineno, one.col_offset, one.lineno, end] = receivers[text]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and repr(node.value) in receivers:
                there.add(repr(node.value))
                end = node.col_offset + 1 + len(node.value.encode())
                self.changes[node.lineno, node.col_offset + 1, node.lineno, end] = receivers[repr(node.value)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " import " in node.value:
                for line in node.value.splitlines():
                    named = re.match(r"\s*from ([\w.]+) import (.+)", line)
                    for name in re.findall(r"\w+", named[2]) if named else ():
                        if self.tree.canonical((named[1], name)) in self.names.symbols:
                            self.report.unclear.append(f"{self.source.path}:{node.lineno}: code in a string: {name}")
            elif isinstance(node, ast.Constant) and node.value in words:
                end_line, end = node.end_lineno or 0, node.end_col_offset or 0
                known = found.strings.get((end_line, end))
                if known is not None and known != {None}:
                    name = str(node.value).encode()
                    if len(known) == 1:
                        self.changes[end_line, end - 1 - len(name), end_line, end - 1] = str(next(iter(known)))
                    else:
                        self.report.unclear.append(f"{self.source.path}:{end_line}: the string {node.value!r}")
        return there

    def prose(self) -> None:
        """Docstrings and comments."""
        docs = {}
        for owner, node in _docstrings(self.source.tree):
            docs[node.lineno] = owner
        for token in tokenize.generate_tokens(io.StringIO(self.source.text).readline):
            is_doc = token.type == tokenize.STRING and token.start[0] in docs
            if not is_doc and token.type != tokenize.COMMENT:
                continue
            owner = docs.get(token.start[0]) if is_doc else None
            lines = token.string.split("\n")
            for offset, line in enumerate(lines):
                before = token.start[1] if not offset else 0
                text = self.source.text.split("\n")[token.start[0] + offset - 1]
                for one in BACKTICKS.finditer(line):
                    where = f"{self.source.path}:{token.start[0] + offset}"
                    new = self.told(one[1], owner, where)
                    if new != one[1]:
                        start = len(text[: before + one.start(1)].encode())
                        number = token.start[0] + offset
                        self.changes[number, start, number, start + len(one[1].encode())] = new

    def told(self, text: str, owner: ast.ClassDef | None, where: str) -> str:
        """What stands in backticks, as it is called now."""
        parts = text.split(".")
        if len(parts) == 1:
            if owner is not None:
                new = self.names.methods.get(f"{self.source.module}.{owner.name}", {}).get(text)
                if new is not None:
                    return new
            symbol = self.tree.resolve(self.source, ast.Name(text), [self.source.top])
            if symbol is not None:
                return self.names.symbols.get(symbol, text)
        elif len(parts) == 2:
            symbol = self.tree.resolve(self.source, ast.Name(parts[0]), [self.source.top])
            if symbol is not None and symbol[1]:
                first = self.names.symbols.get(symbol, parts[0])
                return f"{first}.{self.names.methods.get('.'.join(symbol), {}).get(parts[1], parts[1])}"
        return in_words(text, self.names, self.report, where)

    def written(self) -> str:
        lines = self.source.text.encode().split(b"\n")
        for (line, start, _, end), new in sorted(self.changes.items(), reverse=True):
            row = lines[line - 1]
            lines[line - 1] = row[:start] + new.encode() + row[end:]
        return b"\n".join(lines).decode()


def in_words(text: str, names: Names, report: Report, where: str) -> str:
    """A name in backticks, wherever it stands, as it is called now; as it was if that is not clear."""
    parts = text.split(".")
    for end in range(len(parts), 0, -1):  # a symbol, perhaps behind its module, perhaps before a member
        name, prefix, rest = parts[end - 1], ".".join(parts[: end - 1]), parts[end:]
        if len(rest) > 1 or (len(name) < 5 and not prefix):
            continue
        fits = [
            one
            for one in names.by_name.get(name, ())
            if not prefix or one[0] == prefix or one[0].endswith(f".{prefix}")
        ]
        if not fits:
            continue
        if not prefix and name[0].islower():
            continue
        new = {names.symbols[one] for one in fits}
        if len(new) > 1:
            report.pages.append(f"{where}: `{text}` could be {', '.join(sorted(new))}")
            return text
        members = [names.methods.get(".".join(one), {}).get(rest[0], rest[0]) for one in fits] if rest else []
        return ".".join([*([prefix] if prefix else []), *new, *members[:1]])
    if len(parts) > 1 and len(found := names.by_method.get((parts[-2], parts[-1]), set())) == 1:
        return ".".join([*parts[:-1], *found])
    words = {word for of_class in names.methods.values() for word in of_class}
    if parts[-1] in words and len(parts) > 1:
        report.pages.append(f"{where}: `{text}`: a method's name, and not clear whose")
    return text


def _docstrings(tree: ast.Module) -> list[tuple[ast.ClassDef | None, ast.Constant]]:
    """Strings that stand alone, each with the class around it."""
    found = []

    def walk(node: ast.AST, owner: ast.ClassDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                if isinstance(child.value.value, str):
                    found.append((owner, child.value))
            else:
                walk(child, child if isinstance(child, ast.ClassDef) else owner)

    walk(tree, None)
    return found


def page(path: str, names: Names, report: Report) -> str:
    text = (ROOT / path).read_text()

    def new(found: re.Match[str]) -> str:
        line = text.count("\n", 0, found.start()) + 1
        return f"`{in_words(found[1], names, report, f'{path}:{line}')}{found[2]}`"

    return BACKTICKS.sub(new, text)


def main() -> None:
    is_check = "--check" in sys.argv[1:]
    report = Report()
    tree = Tree([Source(path) for path in tracked("*.py") if not path.startswith(OWN)])
    names = read_names(tree, report)
    receivers = read_receivers()
    once = list({source.module: source for source in tree.sources}.values())
    found = owners(once, names.methods)
    texts = {}
    for source in tree.sources:
        renamer = Renamer(source, tree, names, report)
        renamer.symbols()
        listed = receivers.pop(source.path, {})
        there = renamer.members(found.get(source.path, Owners()), listed)
        report.missing += [f"receivers.toml, {source.path}: {one}" for one in listed if one not in there]
        renamer.prose()
        if renamer.changes:
            texts[source.path] = renamer.written()
    report.missing += [f"receivers.toml, {path}: no such file" for path in receivers]
    for path in tracked(*PAGES):
        text = page(path, names, report)
        if text != (ROOT / path).read_text():
            texts[path] = text
    for title, lines in vars(report).items():
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")
    several = [new for new, count in Counter(names.symbols.values()).items() if count > 1 and new[0].isupper()]
    print(f"{len(names.symbols)} classes and functions, {sum(map(len, names.methods.values()))} methods, "
          f"{len(texts)} files; new names of several classes: {several or 'none'}")  # fmt: skip
    if report.clashes or is_check:
        sys.exit(bool(report.clashes))
    for path, text in texts.items():
        (ROOT / path).write_text(text)
    _ruff("format", "-q", *HOUSE)
    for path in texts:
        if path.endswith(".py"):
            (ROOT / path).write_text(reflowed((ROOT / path).read_text()))
    _ruff("check", "-q", "--fix", *HOUSE)
    _ruff("format", "-q", *HOUSE)


def _ruff(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "ruff", *words], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
