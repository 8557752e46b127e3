"""Lines of docstrings and comments that have become longer than the limit, broken again."""

from __future__ import annotations

import ast
import re

WIDTH = 120
_ITEM = re.compile(r"^(\s*)(- |\d+\. |`[^`]+`: )?")


def reflowed(text: str) -> str:
    """A file's text whose docstrings and comments keep to the limit, as far as they have spaces to be broken at."""
    if all(len(line) <= WIDTH for line in text.splitlines()):
        return text
    prose = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = [(line, number in prose) for number, line in enumerate(text.splitlines(), 1)]
    at = 0
    while at < len(lines):
        line, said = lines[at]
        mark = "# " if line.lstrip().startswith("# ") else ""
        if len(line) > WIDTH and (said or mark):
            cut = line.rfind(" ", 0, WIDTH + 1)
            indent, rest = _after(line, mark), line[cut + 1 :]
            if cut > len(indent) and line[:cut].strip() not in ("", "#", "-"):
                lines[at] = (line[:cut].rstrip(), said)
                following = lines[at + 1] if at + 1 < len(lines) else ("", False)
                if _joins(line, following, said, indent):
                    lines[at + 1] = (indent + rest + " " + following[0].strip().removeprefix("# "), said)
                else:
                    lines.insert(at + 1, (indent + rest, said))
        at += 1
    return "\n".join(line for line, _ in lines) + "\n"


def _after(line: str, mark: str) -> str:
    """What a line begins with that goes on after `line`."""
    found = _ITEM.match(line)
    assert found is not None
    return found[1] + mark + (" " * 2 if found[2] == "- " else "")


def _joins(line: str, following: tuple[str, bool], said: bool, indent: str) -> bool:
    """Whether the line after `line` goes on with its sentence."""
    text, also = following
    words = text.strip()
    if also != said or not words or words.startswith(("- ", '"""', "|")) or "   " in line.strip() or "|" in line[:40]:
        return False
    body = words.removeprefix("# ") if indent.endswith("# ") else words
    return text == indent + body and not line.rstrip().endswith('"""')
