"""A sentence has one idea, and few words: in pages, in `--help`, in what is said of fields, in errors."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from nodewire.cli.commands import app
from tests.site.sentences import sentences, words
from tools import reference_configuration

ROOT = Path(__file__).parents[2]
MAX_WORDS = 22
PAGES = sorted(
    path
    for pattern in ("*.md", "nips/*.md", "docs/**/*.md", "plugin/core/README.md", "tests/faults/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "measurement-history.md"
)


def long(text: str) -> list[str]:
    return [f"{line}: {words(said)} words: {said}" for line, said in sentences(text) if words(said) > MAX_WORDS]


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Each command and option below a command, with its help."""
    yield name, command.help or ""
    for one in command.params:
        yield f"{name} {one.name}", getattr(one, "help", None) or ""
    for below, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {below}")


def errors(path: Path) -> Iterator[tuple[str, str]]:
    """Each text that an error of a module is raised with, and its line. What is filled in counts as a word."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if text := _literal(argument):
                    yield f"{path.relative_to(ROOT)}:{argument.lineno}", text


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(one) or "filled" for one in node.values)
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + _literal(node.right)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_long_sentence(page):
    found = long(page.read_text())
    assert found == []


def test_help_has_no_long_sentence():
    said = list(helps(typer.main.get_command(app), "nodewire"))
    assert len(said) > 300
    assert {name: found for name, text in said if (found := long(text))} == {}


def test_fields_of_files_are_described_without_a_long_sentence():
    said = [(f"{model.__name__}.{name}", model, name) for model, name in reference_configuration.fields()]
    texts = {where: reference_configuration.said_of(model, name) for where, model, name in said}
    assert {where: found for where, text in texts.items() if (found := long(text))} == {}


def test_an_error_has_no_long_sentence():
    said = [
        one
        for room in ("nodewire", "relay", "kinds", "simnet")
        for path in sorted((ROOT / room).rglob("*.py"))
        for one in errors(path)
    ]
    assert len(said) > 1_000
    assert {where: found for where, text in said if (found := long(text))} == {}


TEXT = """# Heading of a page

One sentence is here. A second (see [that page](x.md)) ends with `a span. Of code`. **Third.**
It goes on, e.g. so.

    code. Not prose.

- an item
  of two lines
- 1.5 is a number, and A. Turing a person

| a table. | Is none. |

```sh
nodewire up
```
Last one
"""


def test_sentences_of_a_page_are_told_apart():
    assert [said for _, said in sentences(TEXT)] == [
        "One sentence is here.",
        "A second (see [that page](x.md)) ends with `a span. Of code`.",
        "**Third.**",
        "It goes on, e.g. so.",
        "an item of two lines",
        "1.5 is a number, and A. Turing a person",
        "Last one",
    ]
    assert words("A second (see [that page](x.md)) ends with `a span. Of code` of 3 GB - not more.") == 13
    assert long("word " * 23) and not long("word " * 22)
