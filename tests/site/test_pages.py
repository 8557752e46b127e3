"""Pages that lead through the code: the files and classes that they name are there, and each claim of a file is its."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/explanation/death.md", "docs/reference/glossary.md")
FILE = re.compile(r"`((?:nodewire|kinds)/[\w/]+\.py)`")
NAME = re.compile(r"`([A-Za-z_]+)(?:\.(\w+))?`")


def names(path: str) -> set[str]:
    """Of a file: its classes, functions, methods, attributes and constants."""
    tree = ast.parse((ROOT / path).read_text())
    found = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    return found | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def rows(page: str) -> list[tuple[str, str]]:
    """(file, class) as the tables name them: a file, then its classes up to the next file."""
    found = []
    for line in (ROOT / page).read_text().splitlines():
        if not line.startswith("|"):
            continue
        cells = line.split("|")[1:4] if page.endswith("glossary.md") else line.split("|")[1:3]
        parts = FILE.split(" ".join(cells))
        for path, after in zip(parts[1::2], parts[2::2], strict=True):
            found += [(path, name) for name, _ in NAME.findall(after)] or [(path, "")]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_files_and_classes_of_the_tables_are_there(page):
    found = rows(page)
    assert len(found) > 20
    assert [(path, name) for path, name in found if not (ROOT / path).exists()] == []
    assert [(path, name) for path, name in found if name and name not in names(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page):
    assert [path for path in FILE.findall((ROOT / page).read_text()) if not (ROOT / path).exists()] == []
