"""The documents of nips/ as tests read them, and their examples, which come from the committed vectors.

`python -m tests.nips_pages` writes each example anew below its mark, `<!-- example: FILE PATH -->`. FILE is one of
tests/vectors, and PATH leads into it. Content of events is shown decoded, hex is cut after 8 digits, and of long lists
the first entry stands for all.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "NIPS.md"
PAGES = sorted((ROOT / "nips").glob("*.md"))
VECTORS = ROOT / "tests" / "vectors"
WIDTH = 116
MARK = re.compile(r"<!-- example: (\S+) (\S+) -->\n(?:\n```json\n.*?\n```\n)?", re.DOTALL)
_EVENT = dict.fromkeys(("id", "pubkey", "created_at", "kind", "tags", "content", "sig"))
_LONG_CHARS = 300
"""A list of documents that are longer than that is shown by its first."""


def with_examples(page: str) -> str:
    """The page, each example as the vectors have it."""
    return MARK.sub(_block, page)


def anchors(page: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#{1,6} (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(page: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    """By heading of the second degree, what stands below it."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def header(page: str, name: str) -> str:
    """The line of that name above all headings of the second degree."""
    (line,) = re.findall(rf"^- {name}: ((?:.|\n  )*)$", page.split("\n## ")[0], re.MULTILINE)
    return line


def kinds_in(text: str) -> list[int]:
    return [int(kind) for kind in re.findall(r"\b\d{4,5}\b", text)]


def _block(mark: re.Match[str]) -> str:
    shown = _text(_cut(_at(mark[1], mark[2])), 0)
    return f"<!-- example: {mark[1]} {mark[2]} -->\n\n```json\n{shown}\n```\n"


def _at(file: str, path: str) -> Any:
    found = _vectors(file)
    for name in path.split("/"):
        if isinstance(found, list):
            named = {str(at): one for at, one in enumerate(found)} | _named(found)
            found = named[name]
        else:
            found = found[name]
    return found


def _named(found: list[Any]) -> dict[str, Any]:
    return {one["name"]: one["document"] for one in found if isinstance(one, dict) and "name" in one}


@cache
def _vectors(file: str) -> Any:
    return json.loads((VECTORS / file).read_text())


def _cut(told: Any) -> Any:
    if isinstance(told, dict):
        if told.keys() >= _EVENT.keys():
            told = {name: told[name] for name in _EVENT}
        content = told.get("content")
        read = json.loads(content) if isinstance(content, str) and content.startswith("{") else content
        return {_cut(name): _cut(read if name == "content" else value) for name, value in told.items()}
    if isinstance(told, list):
        shown = [_cut(one) for one in told]
        if len(shown) > 1 and isinstance(shown[0], dict) and len(json.dumps(shown[0])) > _LONG_CHARS:
            return [shown[0], f"… {len(shown) - 1} more"]
        return shown
    if isinstance(told, str):
        cut = re.sub(r"([0-9a-f]{8})[0-9a-f]{56,}", r"\1…", told)
        return f"{cut[:32]}…" if re.fullmatch(r"[A-Za-z0-9+/=]{80,}", cut) else cut
    return told


def _text(told: Any, indent: int) -> str:
    """JSON, on one line where it fits, else with an entry to a line."""
    line = json.dumps(told, ensure_ascii=False)
    if indent + len(line) <= WIDTH - 16 or not isinstance(told, dict | list) or not told:
        return line
    inner = " " * (indent + 1)
    if isinstance(told, dict):
        entries = [f"{json.dumps(name)}: {_text(value, indent + 1)}" for name, value in told.items()]
        opened, closed = "{", "}"
    else:
        entries = [_text(value, indent + 1) for value in told]
        opened, closed = "[", "]"
    return opened + f",\n{inner}".join(entries) + closed


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_examples(path.read_text()))
