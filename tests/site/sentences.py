"""The sentences of a page in Markdown, and their words: without code blocks, tables and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CODE = re.compile(r"^ *(```|~~~).*?^ *\1 *$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_NO_PROSE = re.compile(r" *(\||#|<|!\[|---$|===)")
_ITEM = re.compile(r" *(?:[-*+]|\d+\.) |> ")
_LINK = re.compile(r"!?\[((?:[^][]|\[[^]]*\])*)\]\([^)]*\)")
_SPAN = re.compile(r"(`+).+?\1")
_END = re.compile(r"([.!?][)\"*”’]*) (?=[\"“(*_`\[]*[A-Z0-9`]|…)")
_NO_END = re.compile(r"\b(?:e\.g|i\.e|vs|etc|cf|No|St|approx)\.$|(?<![\w.])[A-Z]\.$")


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """The line that a sentence's paragraph begins at, and the sentence on one line."""
    for line, paragraph in _paragraphs(page):
        waiting = ""
        whole = _SPAN.sub(lambda found: found[0].replace(" ", "\0"), " ".join(paragraph.split()))
        for part in _END.sub(r"\1\n", whole).split("\n"):
            waiting = f"{waiting} {part}".strip()
            if not _NO_END.search(waiting):
                yield line, waiting.replace("\0", " ")
                waiting = ""
        if waiting:
            yield line, waiting.replace("\0", " ")


def words(sentence: str) -> int:
    """What a reader reads as one: a span of code, a number with its unit's sign, a link by its text."""
    plain = _SPAN.sub("code", _LINK.sub(r"\1", sentence))
    return sum(bool(re.search(r"\w", word)) for word in plain.split())


def _paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Each paragraph and each item of a list, with the number of its first line."""
    blank = _CODE.sub(lambda found: "\n" * found[0].count("\n"), page)
    first, said = 0, list[str]()
    inside_item = False
    for number, line in enumerate([*blank.splitlines(), ""], start=1):
        is_block = line.startswith("    ") and not inside_item and not said
        item = None if is_block else _ITEM.match(line)
        inside_item = bool(item) or (inside_item and (not line or line.startswith(" ")))
        is_prose = bool(line.strip()) and not _NO_PROSE.match(line) and not is_block
        if said and (not is_prose or item):
            yield first, "\n".join(said)
            said = []
        if is_prose:
            first = first if said else number
            said.append(line[item.end() :] if item else line)
