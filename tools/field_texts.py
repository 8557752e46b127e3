"""What the source says of a class's fields: the string below a field, or the comment behind it."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any


def text_of(section: type, field: str) -> str:
    """One line on the field; empty where the source says nothing."""
    for owner in section.__mro__:
        if field in inspect.get_annotations(owner) and (text := _texts(owner).get(field)):
            return text
    return ""


@cache
def _texts(owner: Any) -> dict[str, str]:
    path = Path(inspect.getfile(owner))
    lines = path.read_text().splitlines()
    classes = [one for one in ast.walk(_parsed(path)) if isinstance(one, ast.ClassDef) and one.name == owner.__name__]
    body = [one for tree in classes for one in tree.body]
    texts: dict[str, str] = {}
    for one, following in zip(body, [*body[1:], None], strict=False):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        said = following.value if isinstance(following, ast.Expr) else None
        if isinstance(said, ast.Constant) and isinstance(said.value, str):
            texts[one.target.id] = " ".join(said.value.split())
        elif one.end_lineno and (comment := re.search(r"  # (.*)$", lines[one.end_lineno - 1])):
            texts[one.target.id] = comment[1].strip().rstrip(".") + "."
    return texts


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
