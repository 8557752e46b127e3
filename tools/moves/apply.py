"""Moves the files and rewrites what names them: `python tools/moves/apply.py`, once, on a clean tree.

Nothing is written before everything is checked: files that the map does not know, edits whose text is not found, a
section of pyproject.toml that was changed since its new form was written. Then files are moved (`git mv`), imports,
strings, comments, pages and build files are rewritten, packages get their `__init__`, and ruff sorts and formats.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import check
from lines import reflowed
from rooms import HERE, ROOT, Map, MapError, Near, Rewriter, read_map, tracked

PAGES = (
    ".ci/run",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".service",
    ".json",
    "Makefile",
    "Dockerfile",
    ".cfg",
    ".sh",
    ".txt",
)
OWN = ("tools/moves/", "docs/adr/")
DATA = ("tests/vectors/", "constraints", "demo/constraints", "bench/configs/")
"""Not rewritten: what vectors, locks and configurations say is data."""
HEADING = re.compile(r"^(?=## )", re.MULTILINE)
WRITTEN = {
    "pyproject.toml": (
        re.compile(r"^\[tool\.importlinter\]\n.*?(?=^\[+tool\.(?!importlinter)|\Z)", re.MULTILINE | re.DOTALL),
        "importlinter.toml",
    ),
    "docs/reference/rooms.md": (re.compile(r"\A# Rooms\n.*?(?=^## )", re.MULTILINE | re.DOTALL), "rooms.md"),
}
"""Sections that are written anew by hand, by the files here that hold them. The first line of each says by a hash what
old text it was made from."""


def git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def read_edits() -> dict[str, list[tuple[str, str]]]:
    """Edits by hand: by old path, each text and what stands in its place."""
    found = defaultdict(list)
    told = tomllib.loads((HERE / "edits.toml").read_text())
    for path, words in told["words"].items():
        found[path] += [(f"`{old}`", f"`{new}`") for old, new in words.items()]
    for edit in told["edit"]:
        found[edit["file"]].append((edit["old"], edit["new"]))
    return dict(found)


def edited(text: str, path: str, edits: dict[str, list[tuple[str, str]]]) -> str:
    """An old file's text with the edits that are made by hand.

    Raises MapError: an edit's text is not there, or, where it is more than one word, not there exactly once.
    """
    for old, new in edits.get(path, ()):
        if text.count(old) != 1 and not (old in text and old[0] == old[-1] == "`"):
            raise MapError(f"{path}: {text.count(old)} times {old!r}; mend the edit in tools/moves/edits.toml")
        text = text.replace(old, new)
    return text


def by_hand(path: str, text: str) -> tuple[str, str, str]:
    """Of a page with a section that is written anew: what stands before it, its new text, and what stands after it.

    Raises MapError: the old section is another than the one that the new one was made from.
    """
    section, name = WRITTEN[path]
    new, found = (HERE / name).read_text(), section.search(text)
    made_from = re.match(r"(?:# |<!-- )made from (\w+)(?: -->)?\n", new)
    if made_from is None or found is None:
        raise MapError(f"{path} or tools/moves/{name}: no section, or no hash of what it was made from")
    digest = hashlib.sha256(found[0].encode()).hexdigest()[:16]
    if digest != made_from[1]:
        raise MapError(
            f"{path}: what tools/moves/{name} stands for was changed ({digest} in place of {made_from[1]}); bring that "
            "file up to date and write the new hash into its first line"
        )
    return text[: found.start()], new[made_from.end() :], text[found.end() :]


def page(text: str, path: str, rooms: Map) -> str:
    """A page as it is to be, section by section, each with the folders where its bare names are looked for.

    Raises MapError: a bare name that could be several files.
    """
    found = []
    for section in HEADING.split(text):
        heading = section.split("\n", 1)[0].removeprefix("## ")
        near = Near(where=f"{path}, {heading}")
        for told in tomllib.loads((HERE / "edits.toml").read_text())["near"]:
            if told["page"] == path and told.get("heading", heading) == heading:
                near = Near(tuple(told["folders"]), told.get("base"), near.where)
        found.append(rooms.text(section, near))
    return "".join(found)


def plan(rooms: Map, edits: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    """The new texts of all files that change or move, by new path. Reads only."""
    texts = {}
    unknown = set(edits)
    for path in git("ls-files").splitlines():
        if path.startswith(OWN):
            continue
        unknown.discard(path)
        if path.endswith(".py"):
            text = edited((ROOT / path).read_text(), path, edits)
            texts[rooms.files.get(path, path)] = Rewriter(text, path, rooms).rewritten()
        elif path.endswith(PAGES) and not path.startswith(DATA):
            text = edited((ROOT / path).read_text(), path, edits)
            before, new, after = by_hand(path, text) if path in WRITTEN else (text, "", "")
            texts[path] = page(before, path, rooms) + new + page(after, path, rooms)
    for path in sorted(unknown):
        raise MapError(f"{path}: an edit names it, but it is gone; leave it out of tools/moves/edits.toml")
    return texts


def packages(rooms: Map, texts: dict[str, str]) -> dict[str, str]:
    """The `__init__` files that are new, with their texts."""
    found = {f"{folder}/__init__.py": f'"""{about}"""\n' for folder, about in rooms.packages.items()}
    for path in texts:
        folder = posixpath.dirname(path)
        while path.startswith("tests/") and not path.startswith("tests/faults") and path.endswith(".py") and folder:
            found[f"{folder}/__init__.py"] = ""
            folder = posixpath.dirname(folder)
    return {path: text for path, text in found.items() if path not in texts}


def move(rooms: Map, texts: dict[str, str]) -> None:
    """Move and write. In two steps: a file may go where another still lies."""
    for old, new in rooms.files.items():
        if old != new and (ROOT / old).exists():
            (ROOT / f"{new}.moved").parent.mkdir(parents=True, exist_ok=True)
            (ROOT / old).rename(ROOT / f"{new}.moved")
    for old, new in rooms.files.items():
        if old != new and (ROOT / f"{new}.moved").exists():
            (ROOT / f"{new}.moved").rename(ROOT / new)
    for path, text in texts.items():
        target = ROOT / path
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    for folder in sorted({posixpath.dirname(old) for old in rooms.files}, reverse=True):
        _prune(ROOT / folder)


def _prune(folder: Path) -> None:
    if folder.is_dir() and not any(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def main() -> int:
    if changed := git("status", "--porcelain"):
        print(f"the tree has changes: commit them or put them away first\n{changed}", file=sys.stderr)
        return 1
    try:
        rooms, edits = read_map(), read_edits()
        found = check.complaints(rooms, tracked())
        if found:
            raise MapError("\n".join(found))
        texts = plan(rooms, edits)
    except MapError as error:
        print(error, file=sys.stderr)
        return 1
    texts |= packages(rooms, texts)
    move(rooms, texts)
    ruff = str(Path(sys.executable).with_name("ruff"))
    subprocess.run([ruff, "check", "--quiet", "--select", "I", "--fix", "."], cwd=ROOT, check=True)
    subprocess.run([ruff, "format", "--quiet", "."], cwd=ROOT, check=True)
    for path in texts:
        text = (ROOT / path).read_text()
        if path.endswith(".py") and (again := reflowed(text)) != text:
            (ROOT / path).write_text(again)
    git("add", "-A")
    print(json.dumps({"files": len(texts), "moved": sum(a != b for a, b in rooms.files.items())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
