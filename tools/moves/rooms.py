"""The map of the move, and everything that follows from it: old module names as new ones, in imports and in text."""

from __future__ import annotations

import ast
import builtins
import posixpath
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROOTS = ("nodewire", "kinds", "simnet", "processes", "demo", "bench", "tests")
"""Folders whose files the map names, every one."""
LIMIT = 15
"""Python files that a folder may hold, without its `__init__`."""
SCRIPTS = {"demo": "", "tests/faults/nodewire_faults": "nodewire_faults"}
"""Folders whose modules are imported by another name than their path: as scripts beside each other, or as a package."""
BESIDE = {
    "demo/model": ("demo",),
    "tests": ("tests/market",),
    "tests/attacks/inside": ("tests/pay",),
    "tests/demo": ("demo",),
}
"""Folders that a folder's files have on `sys.path` besides their own."""
DOTTED = re.compile(r"(?<![\w./-])(nodewire|kinds|simnet|processes|bench|tests|nodewire_faults)((?:\.[A-Za-z_]\w*)+)")
SHORT = re.compile(r"`([a-z_]\w*(?:\.[a-z_]\w*)+)(?=[`.(])")
SCRIPT = re.compile(r"(?:\b|(?<=\\n))from ((?:nodewire|kinds|bench|tests|processes)(?:\.\w+)*) import (\w+(?:, \w+)*)")
_GAP = r"(?:\s|\\n)*"
SCRIPT_LIST = re.compile(
    r"(?:\b|(?<=\\n))(from )((?:nodewire|kinds|bench|tests|processes)(?:\.\w+)*)( import \("
    rf"{_GAP})(\w+(?:,{_GAP}\w+)*)(?=,?{_GAP}\))"
)
MEMBER = re.compile(r"(?<=`)([a-z_]\w*)\.([A-Za-z_]\w*)(?=[`(., ])(?!\.py)")
BARE = re.compile(r"(?<=[`(])([a-z]\w*\.py)(?=[`):])")
ROOM = re.compile(r"(?<=`)((?:[a-z_]+/)+[a-z_]*)(?=`)")
FILE = re.compile(r"(?<![\w.])((?:[\w-]+/)+[\w-]+\.py)\b")
FOLDER = re.compile(r"(?<![\w./-])((?:nodewire|bench|tests)(?:/[a-z_]+)+)/?(?![\w./*-])")
HOME = re.compile(r"Path\(__file__\)((?:\.parent\b)+|\.parents\[(\d+)\])")


class MapError(Exception):
    """The map does not fit the tree. The text says which file and what to do."""


def module_of(path: str) -> str:
    """The dotted name by which a file's module is imported from the repository's root."""
    for folder, name in SCRIPTS.items():
        if posixpath.dirname(path) == folder or (name and path.startswith(f"{folder}/")):
            path = posixpath.normpath(posixpath.join(name, posixpath.relpath(path, folder)))
            break
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class Near:
    """Where a text looks for the file that it calls by its bare name: old folders, the first one first."""

    folders: tuple[str, ...] = ()
    base: str | None = None
    """The new folder that a page's names are relative to; without it a bare name stays one."""
    where: str = ""
    """The page, if it is one: there a name that could be several files is an error."""


NOWHERE = Near()


@dataclass(frozen=True)
class Map:
    """Where each file goes: paths from the repository's root."""

    files: dict[str, str]
    packages: dict[str, str] = field(default_factory=dict)
    """Folders that are new, each with its docstring."""
    commit: str = "HEAD"
    """The old tree."""

    @cached_property
    def modules(self) -> dict[str, str]:
        """Old names of modules and packages, with the new ones."""
        return {module_of(old): module_of(new) for old, new in self.files.items()}

    @cached_property
    def folders(self) -> dict[str, str]:
        """Old folders with an `__init__`, and of tests those that are no more, with the new ones."""
        found = {
            posixpath.dirname(old): posixpath.dirname(new)
            for old, new in self.files.items()
            if old.endswith("/__init__.py")
        }
        under: dict[str, set[str]] = defaultdict(set)
        for old, new in self.files.items():
            if old.startswith("tests/"):
                under[posixpath.dirname(old)].add(posixpath.dirname(new))
        still = {folder for folders in under.values() for folder in folders}
        gone = {folder: posixpath.commonpath(new) for folder, new in under.items() if folder not in still}
        return found | {folder: new for folder, new in gone.items() if new != "tests"}

    @cached_property
    def beside(self) -> dict[str, str]:
        """The folder and bare name of modules that are found by `sys.path` alone, with their old path."""
        return {
            f"{posixpath.dirname(old)}:{posixpath.basename(old).removesuffix('.py')}": old
            for old in self.files
            if old.startswith(("tests/", "demo/")) and not old.startswith("tests/faults/")
        }

    def bare(self, path: str, name: str) -> str | None:
        """The old path of the module that a file beside it imports as `name` alone."""
        own = posixpath.dirname(path)
        for folder in (own, *BESIDE.get(own, ()), posixpath.dirname(own)):
            found = self.beside.get(f"{folder}:{name}")
            if found is not None and name not in sys.stdlib_module_names:
                return found
        return None

    def dotted(self, name: str) -> str:
        """A dotted name with its module's part, the longest that the map knows, as it is now."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            known = self.modules.get(".".join(parts[:end]))
            if known is not None:
                return ".".join([known, *parts[end:]])
        return name

    @cached_property
    def named(self) -> dict[str, list[str]]:
        """Old paths in the house by the bare names of their files."""
        found = defaultdict(list)
        for old in self.files:
            if old.startswith(("nodewire/", "kinds/")):
                found[posixpath.basename(old)].append(old)
        return dict(found)

    def text(self, text: str, near: Near = NOWHERE) -> str:
        """Text with module names and paths as they are now: strings, comments, pages, build files.

        Raises MapError: a page calls a file by a bare name that several have.
        """
        text = SCRIPT_LIST.sub(self.script_list, SCRIPT.sub(self.script, text))
        text = DOTTED.sub(lambda found: self.dotted(found[0]), text)
        text = FILE.sub(lambda found: self._file(found[1], near), text)
        text = FOLDER.sub(lambda found: found[0].replace(found[1], self.folders.get(found[1], found[1])), text)
        text = ROOM.sub(lambda found: self._room(found[1], near), text)
        text = BARE.sub(lambda found: self._bare(found[1], near), text)
        text = MEMBER.sub(lambda found: f"{self._home_of(found[1], found[2], near)}.{found[2]}", text)
        return SHORT.sub(lambda found: "`" + self._short(found[1]), text)

    def _home_of(self, module: str, member: str, near: Near) -> str:
        """What the module that a text calls by its last name is called now, if the member is in it."""
        among = [old for old in self.named.get(f"{module}.py", []) if member in self._members(old)]
        beside = [old for folder in near.folders for old in among if posixpath.dirname(old) == folder]
        old = beside[0] if beside else among[0] if len(among) == 1 else None
        return module if old is None else posixpath.basename(self.files[old]).removesuffix(".py")

    def _members(self, path: str) -> set[str]:
        """Names that an old file binds at its top."""
        if path not in self.read:
            command = ["git", "show", f"{self.commit}:{path}"]
            text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
            found = set()
            for node in ast.parse(text).body:
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        found.add(name)
                    case ast.AnnAssign(target=ast.Name(id=name)):
                        found.add(name)
                    case ast.Assign(targets=targets):
                        found |= {one.id for one in targets if isinstance(one, ast.Name)}
            self.read[path] = found
        return self.read[path]

    @cached_property
    def read(self) -> dict[str, set[str]]:
        """Members of the old files that were looked at."""
        return {}

    def script(self, found: re.Match[str]) -> str:
        """An import in a script that a string holds, of modules that have moved each to its own place."""
        grouped: dict[str, list[str]] = defaultdict(list)
        for name in found[2].split(", "):
            new = self.modules.get(f"{found[1]}.{name}")
            if new is None or new == f"{found[1]}.{name}":
                grouped[found[1]].append(name)
            else:
                package, _, last = new.rpartition(".")
                grouped[package].append(_as(last, name))
        if list(grouped) == [found[1]]:
            return found[0] if grouped[found[1]] == found[2].split(", ") else _from(found[1], grouped[found[1]])
        return "; ".join(_from(package, names) for package, names in grouped.items())

    def script_list(self, found: re.Match[str]) -> str:
        """The same of names in parentheses, where they stay in one package.

        Raises MapError: they do not.
        """
        package, names = found[2], found[4]
        new = {
            name: self.modules.get(f"{package}.{name}", f"{package}.{name}") for name in re.findall(r"\b\w\w+", names)
        }
        packages = {one.rpartition(".")[0] for one in new.values()}
        if len(packages) > 1:
            raise MapError(f"{found[0]}: in a script, and its names go to several packages; add an edit")
        words = re.sub(r"\b\w\w+", lambda word: _as(new[word[0]].rpartition(".")[2], word[0]), names)
        return found[1] + next(iter(packages)) + found[3] + words

    def _room(self, folder: str, near: Near) -> str:
        for base in ("nodewire", *near.folders):
            new = self.folders.get(f"{base}/{folder.rstrip('/')}")
            if new is not None and new != f"{base}/{folder.rstrip('/')}":
                inside = posixpath.relpath(new, base) if base != "nodewire" and new.startswith(base) else None
                return (inside or new.removeprefix("nodewire/")) + "/" * folder.endswith("/")
        return folder

    def _bare(self, name: str, near: Near) -> str:
        among = self.named.get(name, [])
        beside = [f"{folder}/{name}" for folder in near.folders if f"{folder}/{name}" in self.files]
        unclear = len(among) > 1 and any(not self.files[old].endswith(f"/{name}") for old in among)
        if unclear and not beside and near.where:
            raise MapError(f"{near.where}: `{name}` may be {', '.join(among)}; say its folder in edits.toml's [[near]]")
        old = beside[0] if beside else among[0] if len(among) == 1 else None
        if old is None:
            return name
        new = self.files[old]
        if near.base is not None and new.startswith("nodewire/"):
            base = near.base if new.startswith(f"{near.base}/") else "nodewire"
            return posixpath.relpath(new, base)
        at_top = near.where and posixpath.dirname(old) == "nodewire"
        return new.removeprefix("nodewire/") if at_top else posixpath.basename(new)

    def _file(self, path: str, near: Near) -> str:
        if path in self.files:
            return self.files[path]
        for base in ("nodewire", *near.folders):
            new = self.files.get(f"{base}/{path}")
            if new is not None:
                inside = new.startswith(f"{base}/") and base != "nodewire"
                return posixpath.relpath(new, base) if inside else new.removeprefix("nodewire/")
        ends = [old for old in self.files if old.startswith("nodewire/") and old.endswith(f"/{path}")]
        return self.files[ends[0]].removeprefix("nodewire/") if len(ends) == 1 else path

    def _short(self, name: str) -> str:
        if name.split(".")[0] in (*ROOTS, "relay"):
            return name
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            known = self.modules.get("nodewire." + ".".join(parts[:end]))
            if known is not None:
                return ".".join([known.removeprefix("nodewire."), *parts[end:]])
        return name


def read_map(path: Path = HERE / "map.toml", commit: str = "HEAD") -> Map:
    """The map out of its file: a table for each new folder, old paths with the new names of their files. `commit` is
    the old tree's."""
    files: dict[str, str] = {}
    packages = {}
    for folder, table in tomllib.loads(path.read_text()).items():
        for old, name in table.items():
            if old == "about":
                packages[folder] = name
            elif old in files:
                raise MapError(f"{old}: named twice; leave one of {files[old]} and {folder}/{name}")
            else:
                files[old] = f"{folder}/{name}"
    for new, times in Counter(files.values()).items():
        if times > 1:
            raise MapError(f"{new}: {times} files would go there; give them other names")
    return Map(files, packages, commit)


def tracked(commit: str | None = None) -> list[str]:
    """The Python files of the rooms that the map is about, at a commit or as they lie here."""
    command = ["git", "ls-tree", "-r", "--name-only", commit] if commit else ["git", "ls-files"]
    names = subprocess.run([*command, "--", *ROOTS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in names.splitlines() if name.endswith(".py"))


def bound(tree: ast.AST) -> Counter[str]:
    """Names that a file binds in any scope other than by an import, or declares global."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                found[name] += 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] += 1
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found[name] += 1
            case ast.MatchMapping(rest=str(name)):
                found[name] += 1
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
    return found


@dataclass(frozen=True)
class Imported:
    """One name that an import binds: `module` in full, `name` in it (none for a module), `local` what it is called."""

    module: str
    name: str | None
    local: str | None


def imported(node: ast.Import | ast.ImportFrom, path: str, rooms: Map) -> Iterator[tuple[ast.alias, Imported]]:
    """What an import of an old file binds, by the new names of modules."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            module = _new(alias.name, path, rooms)
            local = alias.asname or (None if "." in alias.name or module != alias.name else alias.name)
            yield alias, Imported(module, None, local or (alias.name if "." not in alias.name else None))
        return
    if node.level:
        raise MapError(f"{path}:{node.lineno}: a relative import; write it in full")
    assert node.module is not None
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        if inner in rooms.modules:
            yield alias, Imported(rooms.modules[inner], None, alias.asname or alias.name)
        else:
            yield alias, Imported(_new(node.module, path, rooms), alias.name, alias.asname or alias.name)


def _new(module: str, path: str, rooms: Map) -> str:
    if module in rooms.modules and not (path.startswith(("tests/", "demo/")) and "." not in module):
        return rooms.modules[module]
    first, _, rest = module.partition(".")
    beside = rooms.bare(path, first)
    if beside is not None and not rest:
        return module_of(rooms.files[beside])
    return rooms.dotted(module) if "." in module else module


def logger_name(node: ast.AST) -> ast.expr | None:
    """The expression of a logger's name, if the node is a call with one."""
    match node:
        case ast.Call(func=ast.Attribute(attr="getLogger"), args=[name]):
            return name
        case ast.Call(func=ast.Attribute(attr="at_level" | "set_level"), args=[_, name]):
            return name
    return None


def near_of(path: str) -> Near:
    """Where a Python file's comments look for files."""
    return Near((posixpath.dirname(path), posixpath.dirname(posixpath.dirname(path))))


class Rewriter:
    """One old file's text as it is to be, with every import by its new name and nothing else changed in its code."""

    def __init__(self, text: str, path: str, rooms: Map) -> None:
        self._text, self._path, self._rooms = text, path, rooms
        self._tree = ast.parse(text)
        self._lines = text.encode().splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        # Python 3.11 does not say where a name in a longer f-string stands: such a name is kept.
        data = text.encode()
        self._lost = set()
        inside = [part for node in ast.walk(self._tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)]
        for node in inside:
            if isinstance(node, ast.Name) and sys.version_info < (3, 12):
                start, name = self._at(node.lineno, node.col_offset), node.id.encode()
                if data[start : start + len(name)] != name:
                    self._lost.add(node.id)

    def _at(self, line: int, column: int) -> int:
        if line > len(self._lines):
            return 0
        return self._starts[line - 1] + column

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def rewritten(self) -> str:
        """The new text."""
        data = self._text.encode()
        spans: list[tuple[int, int, bytes]] = []
        names = self._renamed()
        for node in ast.walk(self._tree):
            logger = logger_name(node)
            if isinstance(logger, ast.Constant) or (isinstance(logger, ast.Name) and logger.id == "__name__"):
                # A logger's name is data: operators look for it in their logs.
                start, end = self._at(logger.lineno, logger.col_offset), self._end(logger)
                new = data[start:end].decode()
                if new == "__name__" and self._rooms.files.get(self._path, self._path) != self._path:
                    new = f'"{module_of(self._path)}"'
                spans.append((start, end, new.encode()))
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert node.end_lineno is not None and node.end_col_offset is not None
                new = self._import(node, names)
                if new is not None:
                    start = self._at(node.lineno, node.col_offset)
                    spans.append((start, self._at(node.end_lineno, node.end_col_offset), new.encode()))
            elif isinstance(node, ast.Name) and node.id in names:
                start = self._at(node.lineno, node.col_offset)
                spans.append((start, start + len(node.id.encode()), names[node.id].encode()))
        spans.sort()
        out, last = [], 0
        for start, end, new in spans:
            out += [self._outside(data[last:start]), new]
            last = end
        out.append(self._outside(data[last:]))
        return b"".join(out).decode()

    def _outside(self, data: bytes) -> bytes:
        text = self._rooms.text(data.decode(), near_of(self._path))
        return HOME.sub(self._home, text).encode()

    def _home(self, found: re.Match[str]) -> str:
        level = int(found[2]) if found[2] else found[1].count(".parent") - 1
        target = self._path
        for _ in range(level + 1):
            target = posixpath.dirname(target)
        at, steps = self._rooms.files.get(self._path, self._path), -1
        while at != target:
            if not at:
                raise MapError(f"{self._path}: {found[0]} is {target}, which is not above it any more; add an edit")
            at, steps = posixpath.dirname(at), steps + 1
        before = level
        if steps == before:
            return found[0]
        return "Path(__file__).parent" if steps == 0 else f"Path(__file__).parents[{steps}]"

    def _renamed(self) -> dict[str, str]:
        """Local names of modules that follow their modules' new names, where nothing else has either name."""
        taken = bound(self._tree)
        locals_: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias, one in imported(node, self._path, self._rooms):
                    if one.local:
                        full = one.module if one.name is None else f"{one.module}.{one.name}"
                        plain = one.name is None and alias.asname is None
                        locals_[one.local].add(full if plain else f"={full}")
        wanted = {
            local: next(iter(modules)).rpartition(".")[2]
            for local, modules in locals_.items()
            if len(modules) == 1 and not next(iter(modules)).startswith("=")
        }
        wanted = {local: new for local, new in wanted.items() if new != local}
        times = Counter(wanted.values())
        used = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)} | set(locals_) | set(taken)
        return {
            local: new
            for local, new in wanted.items()
            if local not in self._lost
            and not taken[local]
            and times[new] == 1
            and new not in used
            and not hasattr(builtins, new)
        }

    def _import(self, node: ast.Import | ast.ImportFrom, names: dict[str, str]) -> str | None:
        found = list(imported(node, self._path, self._rooms))
        lines = []
        grouped: dict[str, list[str]] = defaultdict(list)
        same = True
        for alias, one in found:
            if isinstance(node, ast.Import):
                same &= one.module == alias.name
                package, _, last = one.module.rpartition(".")
                if alias.asname is None and one.module != alias.name and "." not in alias.name:
                    grouped[package].append(_as(last, names.get(alias.name, alias.name)))
                else:
                    lines.append(f"import {one.module}" + (f" as {alias.asname}" if alias.asname else ""))
                continue
            if one.name is not None:
                same &= one.module == node.module
                grouped[one.module].append(_as(one.name, alias.asname or one.name))
                continue
            package, _, last = one.module.rpartition(".")
            same &= package == node.module and last == alias.name
            grouped[package].append(_as(last, names.get(alias.name, alias.name) if not alias.asname else alias.asname))
        if same:
            return None
        if isinstance(node, ast.ImportFrom) and len(grouped) == 1 and all(one.name for _, one in found):
            old = self._text.encode()[self._at(node.lineno, node.col_offset) :][: _span(self, node)].decode()
            assert node.module is not None
            return old.replace(node.module, next(iter(grouped)), 1)
        for package, words in grouped.items():
            lines += [f"import {word}" for word in words] if not package else [_from(package, words)]
        indent = " " * node.col_offset
        return f"\n{indent}".join(lines)


def _span(of: Rewriter, node: ast.ImportFrom) -> int:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return of._at(node.end_lineno, node.end_col_offset) - of._at(node.lineno, node.col_offset)


def _as(name: str, local: str) -> str:
    return name if name == local else f"{name} as {local}"


def _from(package: str, words: list[str]) -> str:
    line = f"from {package} import {', '.join(words)}"
    return line if len(line) < 100 else f"from {package} import ({', '.join(words)})"


def edges(text: str, path: str, rooms: Map) -> Iterator[str]:
    """The new names of the modules that an old file imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for _, one in imported(node, path, rooms):
                yield one.module


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other, by Tarjan."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in list(graph):
        if node not in number:
            visit(node)
    return found


def siblings(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, set[str]]]:
    """By package, which of its children imports which other."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one, other in pairs:
        a, b = one.split("."), other.split(".")
        common = 0
        while common < min(len(a), len(b)) and a[common] == b[common]:
            common += 1
        if 0 < common < min(len(a), len(b)):
            found[".".join(a[:common])][a[common]].add(b[common])
    return found
