"""Which class has a method that is called, by mypy: the tree is checked once, and each attribute's owner looked up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options
from scopes import ROOT, Source

Place = tuple[int, int]
"""The line and byte where a node ends."""


@dataclass
class Owners:
    """Of one file: the new names of methods, by the place where they stand."""

    members: dict[Place, set[str | None]] = field(default_factory=dict)
    """Ends of attributes; None among the names: not renamed, by a class that is known."""
    strings: dict[Place, set[str | None]] = field(default_factory=dict)
    """Ends of strings that name a method, of `setattr` and its like."""
    definitions: dict[int, str] = field(default_factory=dict)
    """First lines of methods (`def` or the first decorator's), each with its new name."""


def _infos(type_: types.Type | None) -> Iterator[nodes.TypeInfo | None]:
    """The classes that a value may be of; None: anything."""
    proper = types.get_proper_type(type_)
    match proper:
        case types.Instance():
            yield proper.type
        case types.UnionType():
            for item in proper.items:
                yield from _infos(item)
        case types.TypeVarType():
            yield from _infos(proper.upper_bound)
        case types.TupleType():
            yield proper.partial_fallback.type
        case types.TypedDictType() | types.LiteralType():
            yield proper.fallback.type
        case types.TypeType():
            yield from _infos(proper.item)
        case types.FunctionLike():
            yield proper.type_object() if proper.is_type_obj() else proper.fallback.type
        case types.NoneType():
            return
        case _:
            yield None


def new_name(info: nodes.TypeInfo, name: str, methods: dict[str, dict[str, str]]) -> str | None:
    """What a class's method is called from now on; None: as before."""
    for base in info.mro:
        new = methods.get(base.fullname, {}).get(name)
        if new is not None:
            return new
    return None


_ELSEWHERE = frozenset(
    [
        "node",
        "info",
        "type",
        "unanalyzed_type",
        "analyzed_type",
        "metaclass_type",
        "original_def",
        "original_first_arg",
        "analyzed",
        "expanded",
        "names",
        "type_vars_ast",
        "alias_deps",
        "special_alias",
        "unanalyzed_items",
    ]
)
"""Attributes of mypy's nodes that lead out of what stands below them."""


_SETTERS = frozenset(("setattr", "delattr", "getattr", "hasattr", "object", "attrgetter"))


def _below(node: nodes.Node, fields: dict[type, list[str]]) -> Iterator[nodes.Node]:
    """A node and all below it. Compiled visitors cannot be subclassed, so the attributes are read."""
    waiting: list[object] = [node]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | tuple):
            waiting.extend(one)
        elif isinstance(one, nodes.Node) and not isinstance(one, nodes.TypeInfo | nodes.SymbolTable):
            if id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            kind = type(one)
            if kind not in fields:
                fields[kind] = [name for name in dir(one) if not name.startswith("__") and name not in _ELSEWHERE]
            for name in fields[kind]:
                try:
                    value = getattr(one, name, None)
                except AssertionError:  # of a property whose value is not there
                    continue
                if isinstance(value, list | tuple | nodes.Node):
                    waiting.append(value)


class _Finder:
    def __init__(self, known: dict[nodes.Expression, types.Type], methods: dict[str, dict[str, str]]) -> None:
        self.known = known
        self.methods = methods
        self.words = {word for of_class in methods.values() for word in of_class}
        self.fields: dict[type, list[str]] = {}

    def _of(self, value: nodes.Expression, name: str) -> set[str | None]:
        type_ = self.known.get(value)
        if type_ is None and isinstance(value, nodes.RefExpr) and isinstance(value.node, nodes.TypeInfo):
            return {new_name(value.node, name, self.methods)}
        if type_ is None:
            return set()
        infos = list(_infos(type_))
        return set() if None in infos else {new_name(info, name, self.methods) for info in infos if info is not None}

    def find(self, tree: nodes.MypyFile) -> Owners:
        found = Owners()
        for node in _below(tree, self.fields):
            end = (getattr(node, "end_line", None) or 0, getattr(node, "end_column", None) or 0)
            if isinstance(node, nodes.MemberExpr) and node.name in self.words:
                found.members.setdefault(end, set()).update(self._of(node.expr, node.name))
            elif isinstance(node, nodes.SuperExpr) and node.name in self.words and node.info is not None:
                found.members.setdefault(end, set()).add(new_name(node.info, node.name, self.methods))
            elif isinstance(node, nodes.CallExpr) and len(node.args) > 1:
                string, callee = node.args[1], node.callee
                called = callee.name if isinstance(callee, nodes.RefExpr | nodes.MemberExpr) else ""
                if isinstance(string, nodes.StrExpr) and string.value in self.words and called in _SETTERS:
                    place = (string.end_line or 0, string.end_column or 0)
                    found.strings.setdefault(place, set()).update(self._of(node.args[0], string.value))
            elif isinstance(node, nodes.ClassDef):
                self._define(node, found)
        return found

    def _define(self, node: nodes.ClassDef, found: Owners) -> None:
        for statement in node.defs.body:
            for part in statement.items if isinstance(statement, nodes.OverloadedFuncDef) else [statement]:
                function = part.func if isinstance(part, nodes.Decorator) else part
                if isinstance(function, nodes.FuncDef) and function.name in self.words:
                    new = new_name(node.info, function.name, self.methods)
                    if new is not None:
                        found.definitions[function.line] = new


def owners(sources: list[Source], methods: dict[str, dict[str, str]]) -> dict[str, Owners]:
    """By path what is renamed there: `methods` has new names by old ones, by the full name of a class."""
    options = Options()
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.incremental = False
    options.python_version = (3, 11)
    options.ignore_missing_imports = True
    options.follow_imports = "skip"
    options.allow_redefinition = True
    options.show_traceback = True
    options.local_partial_types = True
    files = [BuildSource(str(ROOT / one.path), one.module) for one in sources]
    made = build.build(files, options, alt_lib_path=None)
    finder = _Finder(made.types, methods)
    return {one.path: finder.find(made.files[one.module]) for one in sources if one.module in made.files}
