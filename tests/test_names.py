"""Names are of the field: no class and no module is a gerund or a participle, no method a word such as `of`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOUNS = {
    *("closing", "embedding", "encoding", "finding", "framing", "lightning", "mapping", "opening", "ping", "planning"),
    *("ring", "sampling", "scaling", "string", "token", "training", "warning"),
}
"""Nouns of the field that end as a gerund or a participle does."""
PARTICIPLES = re.compile(
    "begun|bought|built|come|dealt|done|drawn|found|gone|had|heard|held|kept|known|laid|led|left|lent|lost|made|met|paid|"
    "put|said|sent|shown|sold|sought|spent|told|torn|undone|unpaid|unsaid|won"
)
"""Those that no ending shows."""
WORDS = {"came", "gone", "heard", "left", "of", "one", "over", "said", "take", "told"}
"""Methods by these names say nothing of what they do."""
ENDING = re.compile(r".+(ing|[^e]ed|en)")


def is_form(word: str) -> bool:
    """Whether a word is a gerund or a participle."""
    return PARTICIPLES.fullmatch(word) is not None or (word not in NOUNS and ENDING.fullmatch(word) is not None)


def last_word(name: str) -> str:
    """Of a class in CamelCase, or of a module in snake_case, in small letters."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return words[-1].lower() if words else ""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for room in ("nodewire", "kinds", "simnet"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def errors() -> set[str]:
    """Names of all exceptions: they say what happened."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for _, t in trees()
        for node in classes(t)
    }
    found = {"Exception", "ValueError", "RuntimeError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


@pytest.mark.parametrize("name", ["Running", "DepositAsked", "_Seen", "Taken", "Said", "LinkRelaying", "k8843_waiting"])
def test_gerunds_and_participles_are_found(name):
    assert is_form(last_word(name))


@pytest.mark.parametrize("name", ["JobAttempt", "RingMapping", "Need", "Feed", "Token", "SendQueue", "Seed", "Keys"])
def test_nouns_are_none(name):
    assert not is_form(last_word(name))


def test_no_class_is_called_by_a_gerund_or_a_participle():
    known = errors()
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in trees()
        for node in classes(tree)
        if node.name not in known and is_form(last_word(node.name))
    ]
    assert found == []


def test_no_module_is_called_by_a_gerund_or_a_participle():
    names = ((path, path.removesuffix("/__init__.py").rpartition("/")[2].removesuffix(".py")) for path, _ in trees())
    assert [path for path, name in names if is_form(last_word(name))] == []


def test_no_function_of_a_module_is_called_by_a_gerund():
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in trees()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if re.fullmatch("[a-z0-9]+ing", node.name) and node.name not in NOUNS
    ]
    assert found == []


def test_no_method_is_called_by_a_word_that_says_nothing():
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WORDS
    ]
    assert found == []
